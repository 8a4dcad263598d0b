"""``fleetsim check --app``, as an author has it: an a2a-sdk application and fleetsim in one environment.

``python tests/interop/check_app.py``, in an environment with both of them. The application is the server of
``peers/py10`` at a fixed address; the command line runs it in a process of its own, with its log read and hours on
virtual time. Prints a line per row and exits 1 if a verdict is not as ``driver/verdicts.py`` says.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from driver.places import PEERS, ROOT, SHARED
from driver.verdicts import APP_ROWS, APP_TITLE

FLEETSIM = (sys.executable, "-c", "from fleetsim.cli.main import main; main()")
CHECK_S = 200.0
APP = """
import sys
sys.path[:0] = [{shared!r}, {peer!r}]
from server import build
app = build("http://127.0.0.1:8000", both=True)
"""


def main() -> int:
    """0 if every verdict is as expected."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "author.py").write_text(
            APP.format(shared=str(SHARED), peer=str(PEERS / "py10")), encoding="utf-8"
        )
        only = [word for expected in APP_ROWS for word in ("--only", expected.row)]
        words = ["check", "--app", "author:app", *only, "--skill-slow", "=slow", "-o", "json", "-q"]
        done = subprocess.run(
            [*FLEETSIM, *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "INTEROP_SLOW_S": "4"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CHECK_S,
            check=False,
        )
    if not done.stdout.strip():
        print(f"FAILED the check said nothing: {done.stderr.strip()}")
        return 1
    report = json.loads(done.stdout)
    wrong = 0
    for expected in APP_ROWS:
        found = [finding for finding in report["findings"] if finding["id"] == expected.row]
        right = [
            finding["verdict"] == expected.verdict and expected.says in (finding["reason"] or "") for finding in found
        ]
        wrong += not (right and all(right))
        said = "; ".join(f"{finding['verdict']} {finding['reason'] or ''}".strip() for finding in found)
        print(f"{'ok' if right and all(right) else 'FAILED'} {expected.row}: {said}")
    print(f"{APP_TITLE}: {len(APP_ROWS) - wrong} of {len(APP_ROWS)} verdicts as expected")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
