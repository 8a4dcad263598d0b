"""``fleetsim``, and ``python -m fleetsim``.

``--version`` alone is answered here, without loading the command line, which would take three quarters of the time.
"""

from __future__ import annotations

import sys
from contextlib import suppress

from fleetsim import __version__


def main() -> None:
    """Run the command line on this process's arguments, and exit as it says."""
    if sys.argv[1:] == ["--version"]:
        with suppress(OSError):  # a command line can say what is wrong with its output
            sys.stdout.write(f"fleetsim {__version__}\n")
            sys.stdout.flush()
            return
    from fleetsim.cli.main import main as command_line

    command_line()


if __name__ == "__main__":
    main()
