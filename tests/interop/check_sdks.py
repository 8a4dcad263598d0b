"""The baselines of SDKs: ``make sdks`` (or ``python tests/interop/check_sdks.py [SDK ...]``).

Checks the agents on each SDK in full and writes ``fleetsim/check/sdks.json``: the rows that an agent on it failed and
no other passed. Rows about what an agent's own code writes are left out. The reports stay in ``.interop/logs``.
"""

from __future__ import annotations

import asyncio
import json
import sys

from check_peers import HINTS, SLOW_S
from driver.envs import command, ready
from driver.places import LOGS, ROOT
from driver.processes import server
from driver.verdicts import CHECKED

from fleetsim.check.agent_under_test import Options, Target
from fleetsim.check.evidence import Verdict
from fleetsim.check.formats import as_json
from fleetsim.check.listener import socket_listener
from fleetsim.check.report import Report
from fleetsim.check.runner import run_check
from fleetsim.runtime.real import running_runtime

SDKS = {
    "a2a-sdk 0.3.26": ("py03", "py03-http", "strands"),
    "a2a-sdk 1.3.0": ("py10", "py10-on-0.3", "py10-http", "adk", "agentframework", "ag2"),
    "@a2a-js/sdk 0.3.14": ("js03",),
    "@a2a-js/sdk 1.3.0": ("js10",),
}
"""The agents on each SDK, by the names of ``driver/verdicts.py``."""

OWN_ROWS = frozenset(
    {"C-05", "S-09", "S-10", "S-11", "S-17", "S-24", "S-29", "T-15", "T-18", "T-21", "T-31", "S-26", "H-04", "T-07"}
)
"""Rows about an agent's own code (its card's skills, its texts, questions and cancels), and two that a race decides."""

BASELINES = ROOT / "fleetsim" / "check" / "sdks.json"


def main(*wanted: str) -> int:
    """Check the agents and write the file."""
    known = json.loads(BASELINES.read_text(encoding="utf-8"))
    for sdk in wanted or SDKS:
        reports = [report_of(peer) for peer in SDKS[sdk]]
        passed, failed = (
            {one.key for report in reports for one in report.of(verdict)} for verdict in (Verdict.PASS, Verdict.FAIL)
        )
        known[sdk] = sorted(key for key in failed - passed if key.partition("@")[0] not in OWN_ROWS)
        print(f"{sdk}: {len(known[sdk])} rows of {len(failed)} that failed")
    BASELINES.write_text(
        json.dumps({sdk: known[sdk] for sdk in SDKS if sdk in known}, indent=1) + "\n", encoding="utf-8"
    )
    return 0


def report_of(peer: str) -> Report:
    """A whole check of one agent."""
    checked = CHECKED[peer]
    words = [*command(checked.env, ready(checked.env), "server"), *checked.words]
    with server(words, {"INTEROP_SLOW_S": SLOW_S}, LOGS / f"sdk-{peer}-server.log") as url:
        report = asyncio.run(check(url, checked.dialect))
    (LOGS / f"sdk-{peer}.json").write_text(as_json(report), encoding="utf-8")
    print(f"{checked.title}: {report.verdict_line()}", flush=True)
    return report


async def check(url: str, dialect: str) -> Report:
    """A check of all rows, with a listener."""
    async with running_runtime() as runtime, socket_listener() as listener:
        options = Options(hints=HINTS, side_effects=True)
        return await run_check(Target(url=url, dialects=(dialect,)), runtime, listener=listener, options=options)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
