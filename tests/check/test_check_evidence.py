"""Recorded exchanges with released servers, checked again offline: the same verdict for the same reason.

The files are written by ``tests/interop/check_peers.py PEER --record``, which compares the same table with the
servers themselves. A probe with changed requests finds no response here: then record again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from fleetsim.check.listener import Listener, Sink
from fleetsim.check.report import Finding
from fleetsim.testbed.loop import run
from fleetsim.testbed.runtime import virtual_runtime

INTEROP = Path(__file__).parents[1] / "interop"
PEERS = (
    *("py03", "py10", "py10-on-0.3", "selectools", "js03", "js10", "py02", "fasta2a", "fasta2a06"),
    *("strands", "adk", "agentframework", "py10-http", "py03-http", "ag2", "a2akit"),
)


@pytest.fixture(autouse=True)
def driver_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(INTEROP))


def room(name: str) -> Any:
    """A module of the folder beside, which is not a package of ours."""
    return import_module(name)


def kept(peer: str) -> Any:
    return json.loads((INTEROP / "evidence" / f"{peer}.json").read_text(encoding="utf-8"))


def judged(peer: str) -> Iterator[tuple[Any, Finding]]:
    """Every row of a peer with the check's verdict about the recorded exchanges."""
    judge, player_of = room("check_peers").judge, room("recording").Player
    checked, evidence = room("driver.verdicts").CHECKED[peer], kept(peer)
    for expected in (row for row in checked.rows if row.kept):
        of_row = evidence["rows"][expected.row]
        findings: list[Finding] = []

        async def story(expected: Any = expected, of_row: Any = of_row, findings: list[Finding] = findings) -> None:
            sink = Sink()
            player = player_of(of_row["calls"], sink)
            runtime = replace(virtual_runtime(), transport=player)
            listener = Listener(of_row["listener"], sink)
            findings.append(await judge(expected, evidence["url"], checked, runtime, listener))
            await player.aclose()

        run(story)
        yield expected, findings[0]


@pytest.mark.slow
@pytest.mark.parametrize("peer", PEERS)
def test_the_recorded_exchanges_get_the_verdicts_of_the_server(peer: str) -> None:
    for expected, finding in judged(peer):
        assert finding.verdict.value == expected.verdict, f"{expected.row}: {finding.reason}"
        assert expected.says in finding.reason, f"{expected.row}: {finding.reason}"
        assert not finding.lost, expected.row


def test_at_least_ten_rows_are_recorded_for_each_important_family() -> None:
    table = room("driver.verdicts").CHECKED
    assert set(table) == set(PEERS)
    for peer in ("py03", "py10", "selectools", "js03", "js10"):
        assert len(table[peer].rows) >= 10, peer
    for peer, checked in table.items():
        assert set(kept(peer)["rows"]) == {row.row for row in checked.rows if row.kept}, peer
        assert len({expected.row for expected in checked.rows}) == len(checked.rows), peer


@pytest.mark.slow
def test_another_response_gets_another_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def edited(peer: str) -> Any:
        text = (INTEROP / "evidence" / f"{peer}.json").read_text(encoding="utf-8")
        return json.loads(text.replace("-32002", "-32603"))

    monkeypatch.setitem(globals(), "kept", edited)
    verdicts = {expected.row: finding.verdict.value for expected, finding in judged("py03")}
    assert verdicts["T-10"] == "fail"


def test_no_credential_is_in_a_recording() -> None:
    bearer = json.loads((INTEROP / "peers" / "shared" / "script.json").read_text(encoding="utf-8"))["bearer"]
    for peer in PEERS:
        assert bearer not in json.dumps(kept(peer)), peer
