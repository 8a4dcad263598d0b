"""Released servers under the whole checklist: ``make sdks`` (or ``python tests/interop/check_sdks.py [PEER ...]``).

Writes ``frameworks.json`` and the page made of it, and ``fleetsim/check/sdks.json`` for each SDK all of whose agents
were checked: the rows that one of them failed and no other passed. Rows about what an agent's own code writes are left
out. The reports stay in ``.interop/logs``.
"""

from __future__ import annotations

import asyncio
import json
import sys

from check_peers import BEARER, HINTS, SLOW_S
from driver.envs import command, ready
from driver.frameworks import OWN_ROWS, RESULTS, page, result_of
from driver.places import FRAMEWORKS_PAGE, LOGS, ROOT
from driver.processes import server
from driver.verdicts import CHECKED, Checked

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

BASELINES = ROOT / "fleetsim" / "check" / "sdks.json"


def main(*wanted: str) -> int:
    """Check the agents and write the files."""
    reports = {peer: report_of(peer) for peer in wanted or CHECKED}
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    results |= {peer: result_of(report, report.began[:10]) for peer, report in reports.items()}
    lines = [
        f" {json.dumps(peer)}: {json.dumps(results[peer], ensure_ascii=False)}" for peer in CHECKED if peer in results
    ]
    RESULTS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    FRAMEWORKS_PAGE.write_text(page(), encoding="utf-8")
    known = json.loads(BASELINES.read_text(encoding="utf-8"))
    for sdk, peers in SDKS.items():
        if set(peers) <= reports.keys():
            passed, failed = (
                {finding.key for peer in peers for finding in reports[peer].of(verdict)}
                for verdict in (Verdict.PASS, Verdict.FAIL)
            )
            known[sdk] = sorted(key for key in failed - passed if key.partition("@")[0] not in OWN_ROWS)
            print(f"{sdk}: {len(known[sdk])} rows of {len(failed)} that failed")
    BASELINES.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    return 0


def report_of(peer: str) -> Report:
    """A whole check of one agent."""
    checked = CHECKED[peer]
    words = [*command(checked.env, ready(checked.env), "server"), *checked.words]
    extra = {"INTEROP_SLOW_S": SLOW_S, **({"INTEROP_BEARER": BEARER} if checked.bearer else {})}
    with server(words, extra, LOGS / f"sdk-{peer}-server.log") as url:
        report = asyncio.run(check(url, checked))
    (LOGS / f"sdk-{peer}.json").write_text(as_json(report), encoding="utf-8")
    print(f"{checked.title}: {report.verdict_line()}", flush=True)
    return report


async def check(url: str, checked: Checked) -> Report:
    """A check of all rows, with a listener."""
    headers = {"authorization": f"Bearer {BEARER}"} if checked.bearer else {}
    async with running_runtime() as runtime, socket_listener() as listener:
        options = Options(hints=HINTS, side_effects=True, jobs=checked.at_once)
        target = Target(url=url, headers=headers, dialects=(checked.dialect,))
        return await run_check(target, runtime, listener=listener, options=options)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
