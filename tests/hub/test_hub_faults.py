"""Faults of docs/reference/faults.md that only a whole hub can show."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

import pytest

from fleetsim.client.hub_client import HubClient
from fleetsim.events.request import Level
from fleetsim.events.wire import payload
from fleetsim.hub.state import StateDir
from fleetsim.ledger import LedgerBroken
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.model.errors import NotAccepting
from fleetsim.model.work import Answer, Outcome, OutcomeKind, SkillRequest
from fleetsim.request.limits import Booking
from fleetsim.request.records import Phase
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.real import running_runtime
from fleetsim.testbed.faults import EditChunk, EditRequest, LoseRequest, Match, SlowStart
from tests.hub.local_hub import HUB, LocalHub, ready_hub, worker

QUINN = "http://quinn.example:8000"


async def pages(t: LocalHub, more: int) -> None:
    """Leave room for this many more pages on the ledger's disk."""

    def limit(connection: object) -> None:
        now = connection.execute("PRAGMA page_count").fetchone()[0]  # type: ignore[attr-defined]
        connection.execute(f"PRAGMA max_page_count = {now + more}")  # type: ignore[attr-defined]

    await t.storage.write(limit)


async def fill(t: LocalHub) -> None:
    for _ in range(50):
        await t.remote.submit({"text": "x" * 30_000, "skill": "echo"})


async def test_a_full_disk_stops_acceptance_with_its_reason_and_recovers_without_a_restart() -> None:
    async with ready_hub(worker(), entries={"quinn": {"push": "off"}}) as t:
        (open_cid,) = await t.remote.submit({"text": "x", "skill": "ponder"})
        await asyncio.sleep(5)
        await pages(t, 0)
        with pytest.raises(NotAccepting):
            await fill(t)
        reply = await t.http("POST", "/api/requests", json.dumps({"text": "x" * 30_000, "skill": "echo"}).encode())
        assert (reply.status, reply.headers["retry-after"]) == (503, "5")
        assert (await t.remote.get("/health"))["agents"], "reads go on"
        assert (await t.remote.task(open_cid))["open"]
        await asyncio.sleep(700)
        assert t.hub.tracker.track(open_cid) is None or t.events("hub.storage")
        await pages(t, 100_000)
        async with asyncio.timeout(30):
            outcome = await t.hub.tracker.wait(open_cid)
        assert (outcome.kind, outcome.text) == (OutcomeKind.COMPLETED, "at last")
        (again,) = await t.remote.submit({"text": "x" * 30_000, "skill": "echo"})
        assert (await t.hub.tracker.wait(again)).success
        assert len([e for e in t.events("autonomous.outcome.") if e.correlation_id == open_cid]) == 1


async def test_a_webhook_that_cannot_be_recorded_gets_503_with_retry_after_and_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ready_hub(worker(), poll_interval_s=3_000.0, task_limit_s=36_000.0) as t:
        (cid,) = await t.hub.submit(SkillRequest(correlation_id="c-1", text="x", skill="ponder", targets=("quinn",)))
        await asyncio.sleep(5)
        update, close = t.ledger.update, t.ledger.close

        async def refuse(*_: object) -> bool:
            raise NotAccepting("the disk is full")

        monkeypatch.setattr(t.ledger, "update", refuse)
        monkeypatch.setattr(t.ledger, "close", refuse)
        await asyncio.sleep(598)
        answers = [seen.status for seen in t.network.seen if "/callback/" in seen.url]
        assert 503 in answers
        assert await t.ledger.outcome(cid) is None
        monkeypatch.setattr(t.ledger, "update", update)
        monkeypatch.setattr(t.ledger, "close", close)
        async with asyncio.timeout(20):
            assert (await t.hub.tracker.wait(cid)).text == "at last"


async def break_table(t: LocalHub, action: int, table: str) -> None:
    """From now on SQLite refuses this action on this table, which no retry can repair."""

    def refuse(done: int, where: str | None, *_: str | None) -> int:
        return sqlite3.SQLITE_DENY if (done, where) == (action, table) else sqlite3.SQLITE_OK

    await t.storage.read(lambda connection: connection.set_authorizer(refuse))


@pytest.mark.parametrize(
    ("action", "table"),
    [
        pytest.param(sqlite3.SQLITE_UPDATE, "requests", id="update"),
        pytest.param(sqlite3.SQLITE_INSERT, "outcomes", id="close"),
        pytest.param(sqlite3.SQLITE_INSERT, "questions", id="ask"),
        pytest.param(sqlite3.SQLITE_UPDATE, "questions", id="settle"),
        pytest.param(sqlite3.SQLITE_INSERT, "events", id="append"),
    ],
)
async def test_a_ledger_that_fails_for_good_is_logged_as_critical_and_no_caller_waits_forever(
    action: int, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with ready_hub(worker(), entries={"quinn": {"push": "off"}}, poll_interval_s=5.0) as t:
        waiting = []
        for cid, skill in (("c-1", "ponder"), ("c-2", "ask"), ("c-3", "echo")):
            await t.hub.submit(SkillRequest(correlation_id=cid, text="x", skill=skill, targets=("quinn",)))
            waiting.append(asyncio.get_running_loop().create_task(t.hub.tracker.wait(cid)))
        await break_table(t, action, table)
        await asyncio.sleep(10)
        for question in t.hub.tracker.questions():
            with suppress(NotAccepting):
                await t.hub.tracker.answer(Answer(question_id=question.question_id, text="main"))
        async with asyncio.timeout(30):
            ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert any(isinstance(end, LedgerBroken) for end in ends)
        assert isinstance(ends[0], LedgerBroken), "it was open"
        assert t.hub.failed.is_set()
        (told,) = t.events("hub.storage")
        assert (told.level, "not authorized" in payload(told)["reason"]) == (Level.ERROR, True)
        assert [r.levelname for r in caplog.records if r.levelname == "CRITICAL"] == ["CRITICAL"]
        reply = await t.http("POST", "/api/requests", json.dumps({"text": "x", "skill": "echo"}).encode())
        assert (reply.status, b"not authorized" in reply.body) == (503, True)
        with pytest.raises(LedgerBroken):
            await t.hub.tracker.wait("c-1")


async def test_an_outcome_that_cannot_be_recorded_affects_no_other_and_is_left_to_the_next_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with ready_hub(worker(), entries={"quinn": {"push": "off"}}) as t:
        close = t.ledger.close

        async def picky(outcome: Outcome, bookings: Sequence[Booking]) -> bool:
            if outcome.correlation_id == "c-1":
                raise ValueError("an Outcome cannot be recorded")
            return await close(outcome, bookings)

        monkeypatch.setattr(t.ledger, "close", picky)
        for cid in ("c-1", "c-2"):
            await t.hub.submit(SkillRequest(correlation_id=cid, text="x", skill="echo", targets=("quinn",)))
        async with asyncio.timeout(60):
            with pytest.raises(NotAccepting):
                await t.hub.tracker.wait("c-1")
            assert (await t.hub.tracker.wait("c-2")).success
        assert not t.hub.failed.is_set()
        assert [e.correlation_id for e in t.events("hub.storage")] == ["c-1"]
        assert "CRITICAL" in [r.levelname for r in caplog.records]
        assert t.hub.tracker.tracks() == ()
        monkeypatch.undo()
        await t.restart()
        async with asyncio.timeout(60):
            assert (await t.hub.tracker.wait("c-1")).text == "you said x"


async def test_work_in_flight_keeps_the_card_it_was_sent_with_and_new_work_the_new_one() -> None:
    async with ready_hub(worker(), entries={"quinn": {"push": "off", "streaming": False}}) as t:
        await t.hub.submit(SkillRequest(correlation_id="c-1", text="x", skill="ponder", targets=("quinn",)))
        await asyncio.sleep(5)

        def without_ponder(chunk: bytes) -> bytes:
            card = json.loads(chunk)
            card["skills"] = [skill for skill in card["skills"] if skill["id"] != "ponder"]
            return json.dumps(card).encode()

        t.network.fault(EditChunk(edit=without_ponder), Match(origin=QUINN, path="*/.well-known/*"))
        await t.hub.broker.refresh("quinn")
        reply = await t.http("POST", "/api/requests", b'{"text": "x", "skill": "ponder"}')
        assert reply.status == 404
        assert (await t.hub.tracker.wait("c-1")).text == "at last"


async def test_a_late_webhook_that_contradicts_the_outcome_is_reported_and_changes_nothing() -> None:
    async with ready_hub(worker(), entries={"quinn": {"push": "inline", "wire": "0.3", "streaming": False}}) as t:

        def turned(body: bytes) -> bytes:
            return body.replace(b'"completed"', b'"failed"')

        t.network.fault(LoseRequest(), Match(origin=HUB), times=2)
        t.network.fault(EditRequest(edit=turned), Match(origin=HUB))
        (cid,) = await t.hub.submit(SkillRequest(correlation_id="c-1", text="x", skill="echo", targets=("quinn",)))
        await t.hub.tracker.wait(cid)
        await asyncio.sleep(60)
        outcome = await t.ledger.outcome(cid)
        assert outcome is not None
        late = [e for e in t.events("agent.push.accepted") if payload(e)["duplicate"]]
        told = [e for e in t.events("agent.skill.stale") if "contradicts" in str(payload(e)["why"])]
        assert outcome.kind is OutcomeKind.COMPLETED
        assert late
        assert told


# ------------------------------------------------------------------ a process of its own


async def hub_process(folder: Path, url: str) -> asyncio.subprocess.Process:
    (folder / "agents.yaml").write_text(f"agents:\n  - name: quinn\n    url: {url}/a2a\n")
    command = ("-m", "fleetsim", "--state", str(folder / "state"), "up", "--headless", "--port", "0")
    return await asyncio.create_subprocess_exec(
        sys.executable, *command, cwd=folder, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )


async def until_announced(process: asyncio.subprocess.Process) -> None:
    assert process.stderr is not None
    async with asyncio.timeout(300):  # for one that hangs
        while b"hub at" not in (line := await process.stderr.readline()):
            assert line, "it ended before it was up"


async def remote_of(process: asyncio.subprocess.Process, folder: Path, runtime: Runtime) -> HubClient:
    """The hub's API, once it is up and has seen its agent."""
    await until_announced(process)
    address = StateDir(folder / "state").find()
    assert address is not None
    remote = address.client(runtime)
    async with asyncio.timeout(20):
        while not (await remote.get("/agents"))[0]["reachable"]:  # noqa: ASYNC110 - in another process
            await asyncio.sleep(0.1)
    return remote


@pytest.mark.sockets
async def test_sigterm_ends_a_busy_hub_within_ten_seconds_and_marks_nothing_failed(tmp_path: Path) -> None:
    async with running_runtime(seed=1) as runtime, worker().serving() as url:
        process = await hub_process(tmp_path, url)
        remote = await remote_of(process, tmp_path, runtime)
        cids = [(await remote.submit({"text": "x", "skill": "ponder"}))[0] for _ in range(5)]
        began = asyncio.get_running_loop().time()
        os.kill(process.pid, signal.SIGTERM)
        async with asyncio.timeout(10):
            assert await process.wait() == 0
        assert asyncio.get_running_loop().time() - began <= 10
        async with open_ledger(tmp_path / "state" / "ledger.db", clock=runtime.clock) as ledger:
            open_now = {r.request.correlation_id: r.phase.value for r in await ledger.open_requests()}
        assert open_now == dict.fromkeys(cids, "accepted")


@pytest.mark.sockets
async def test_a_second_hub_on_the_same_state_is_refused_with_the_first_ones_pid(
    tmp_path: Path, free_port: int
) -> None:
    url = f"http://127.0.0.1:{free_port}"
    first = await hub_process(tmp_path, url)
    try:
        await until_announced(first)
        second = await hub_process(tmp_path, url)
        async with asyncio.timeout(300):  # for one that does not end; importing every module takes a while
            _, said = await second.communicate()
        assert second.returncode == 2
        assert str(first.pid) in said.decode()
    finally:
        first.terminate()
        async with asyncio.timeout(15):
            await first.communicate()


@pytest.mark.slow
async def test_queued_sends_at_a_restart_are_sent_after_it() -> None:
    """The queue of a hung agent never left: none of it ran, and all of it is sent once."""
    async with ready_hub(worker(), entries={"quinn": {"push": "off"}}) as t:
        t.network.fault(SlowStart(seconds=10_000), Match(origin=QUINN, rpc_method="SendStreamingMessage"))
        asked = [SkillRequest(correlation_id=f"c-{n}", text="go", skill="echo", targets=("quinn",)) for n in range(20)]
        for request in asked:
            await t.hub.submit(request)
        await asyncio.sleep(1)
        left = [s for s in t.network.seen if s.rpc_method == "SendStreamingMessage"]
        waiting = [r.request.correlation_id for r in await t.ledger.open_requests() if r.phase is Phase.INTENT]
        assert (len(left), len(waiting)) == (8, 12)
        t.network.heal()
        await t.restart()
        async with asyncio.timeout(600):
            ended = {cid: await t.hub.tracker.wait(cid) for cid in waiting}
        assert {outcome.kind for outcome in ended.values()} == {OutcomeKind.COMPLETED}


@pytest.mark.sockets
async def test_a_ledger_damaged_under_a_running_hub_ends_it_with_one_line_and_the_next_step(tmp_path: Path) -> None:
    async with running_runtime(seed=1) as runtime, worker().serving() as url:
        process = await hub_process(tmp_path, url)
        remote = await remote_of(process, tmp_path, runtime)
        (cid,) = await remote.submit({"text": "do it", "skill": "echo"})
        async with asyncio.timeout(20):
            while (await remote.task(cid))["open"]:  # noqa: ASYNC110 - in another process
                await asyncio.sleep(0.1)
        with closing(sqlite3.connect(tmp_path / "state" / "ledger.db", isolation_level=None)) as other:
            other.execute("UPDATE outcomes SET body = replace(body, 'do it', 'do IT')")
        with pytest.raises(NotAccepting):
            await remote.task(cid)
        async with asyncio.timeout(20):
            _, said = await process.communicate()
        assert process.returncode == 1
        lines = said.decode().splitlines()
        assert [line for line in lines if line.startswith("error: ")] == [lines[-2]]
        assert "--salvage" in lines[-1]
        assert "Traceback" not in said.decode()
