"""Run a broken agent from a checkout: ``python -m tests.broken ID``; ``list`` names them all."""

from __future__ import annotations

import argparse

from fleetsim.agent.builtin import reference_agent
from tests.broken.build import signed
from tests.broken.catalogue import MUTANTS, mutant


def main() -> None:
    """Print the list, or serve one agent until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m tests.broken", description=__doc__)
    parser.add_argument("mutant_id", metavar="ID", help="a broken agent, or list")
    parser.add_argument("--port", type=int, default=9000, help="0 picks a free one")
    parser.add_argument("--allow-webhook", action="append", default=[], metavar="HOST:PORT")
    options = parser.parse_args()
    if options.mutant_id == "list":
        for bad in MUTANTS:
            print(f"{bad.mutant_id:26} {bad.row}  {bad.title}{f' ({bad.incident})' if bad.incident else ''}")
        return
    healthy = signed(reference_agent(allow_webhook=tuple(options.allow_webhook)))
    mutant(options.mutant_id).make(healthy).serve(port=options.port)


if __name__ == "__main__":
    main()
