"""``fleetsim check`` against released servers: the verdicts of ``driver/verdicts.py``, row by row.

``python tests/interop/check_peers.py PEER [--record]``. All rows at once, each as a check of its own with its own
listener. Prints a line per row and exits 1 if any is not as the table says; ``--record`` writes the exchanges to
``evidence/PEER.json``, which ``tests/check/test_check_evidence.py`` judges again without the peer.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

from driver.envs import command, ready
from driver.places import INTEROP, LOGS, SHARED
from driver.processes import server
from driver.verdicts import CHECKED, Checked, Expected
from recording import Recorder, arrivals_of

from fleetsim.check.agent_under_test import Hint, Options, Target
from fleetsim.check.listener import Listener, socket_listener
from fleetsim.check.report import Finding
from fleetsim.check.runner import run_check
from fleetsim.check.sections import REQUIREMENTS
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.real import running_runtime
from fleetsim.testbed.runtime import CountedIds

EVIDENCE = INTEROP / "evidence"
BEARER = json.loads((SHARED / "script.json").read_text(encoding="utf-8"))["bearer"]
SLOW_S = "4"
HINTS = {
    "quick": Hint(None, "complete the check"),
    "slow": Hint(None, "slow"),
    "ask": Hint(None, "ask"),
    "fail": Hint(None, "fail"),
    "stream": Hint(None, "stream"),
}


@dataclass(frozen=True, slots=True)
class Found:
    """A row's finding and the exchanges of its probe."""

    expected: Expected
    finding: Finding
    listener: str
    calls: list[dict[str, Any]]

    @property
    def wrong(self) -> str:
        """The differences from the expected verdicts; empty without any."""
        want = self.expected
        if self.finding.verdict.value != want.verdict:
            return f"expected {want.verdict}"
        return "" if want.says in self.finding.reason else f"expected the reason to say {want.says!r}"


def main(peer: str, *options: str) -> int:
    """Check one peer; 0 if every row is as expected."""
    checked = CHECKED[peer]
    started = time.monotonic()
    extra = {"INTEROP_SLOW_S": SLOW_S, **({"INTEROP_BEARER": BEARER} if checked.bearer else {})}
    words = [*command(checked.env, ready(checked.env), "server"), *checked.words]
    with server(words, extra, LOGS / f"check-{peer}-server.log") as url:
        found = asyncio.run(all_rows(url, checked))
    for finding in found:
        tell(finding)
    wrong = sum(bool(finding.wrong) for finding in found)
    took_s = time.monotonic() - started
    print(f"{checked.title}: {len(found) - wrong} of {len(found)} verdicts as expected, {took_s:.0f} s")
    if "--record" in options and not wrong:
        write(peer, url, found)
    return 1 if wrong else 0


async def all_rows(url: str, checked: Checked) -> list[Found]:
    """Every row of the table, some at once."""
    gate = asyncio.Semaphore(checked.at_once)
    async with running_runtime() as runtime:

        async def one(expected: Expected) -> Found:
            async with gate, socket_listener() as listener:
                transport = Recorder(runtime.transport)
                finding = await judge(expected, url, checked, replace(runtime, transport=transport), listener)
                transport.hear(arrivals_of(listener))
                return Found(expected, finding, listener.origin, transport.calls)

        return await asyncio.gather(*(one(expected) for expected in checked.rows))


async def judge(expected: Expected, url: str, checked: Checked, runtime: Runtime, listener: Listener) -> Finding:
    """The finding of one row, with ids that only its name decides."""
    report = await run_check(
        Target(
            url=url,
            headers={"authorization": f"Bearer {BEARER}"} if checked.bearer else {},
            dialects=(checked.dialect,),
        ),
        replace(runtime, ids=CountedIds(0, f"{checked.title}/{expected.row}")),
        listener=listener,
        options=Options(hints=HINTS, side_effects=True),
        requirements=[REQUIREMENTS[name] for name in (expected.row, expected.after) if name],
    )
    return report.finding(expected.row)


def tell(found: Found) -> None:
    """Print one row."""
    said = f"{found.expected.row}: {found.finding.verdict.value} ({found.expected.seen})"
    reason = f": {found.finding.reason}" if found.finding.reason else ""
    print(f"FAILED {said}{reason}: {found.wrong}" if found.wrong else f"ok {said}{reason}")


def write(peer: str, url: str, found: list[Found]) -> None:
    """Keep the exchanges."""
    EVIDENCE.mkdir(exist_ok=True)
    rows = {
        finding.expected.row: {"listener": finding.listener, "calls": finding.calls}
        for finding in found
        if finding.expected.kept
    }
    lines = [f" {json.dumps(row)}: {json.dumps(kept, sort_keys=True)}" for row, kept in rows.items()]
    text = f'{{"url": {json.dumps(url)}, "rows": {{\n' + ",\n".join(lines) + "\n}}\n"
    (EVIDENCE / f"{peer}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
