"""The dashboard of a hub in another process: its events over restarts, its actions over the API, and its refusals."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from fleetsim import __version__
from fleetsim.agent import Agent, SkillContext
from fleetsim.cli.controls import AttachedControls, HubControls
from fleetsim.cli.dashboard import version_note
from fleetsim.client.hub_client import HubClient
from fleetsim.dashboard.feed import AttachedSource, HubFeed
from fleetsim.events.fleet import StateRead
from fleetsim.events.request import Event
from fleetsim.model.errors import AuthRefused, HttpRefused, UnknownTarget, Unreachable, WireError
from fleetsim.model.task import DataPart, FilePart
from fleetsim.model.work import OutcomeKind, SkillRequest
from fleetsim.runtime.workers import Workers
from fleetsim.testbed.faults import CutAfter, Match
from tests.cli.world import Shell
from tests.dashboard.driver import showing
from tests.hub.local_hub import LocalHub, local_hub, ready_hub, worker


async def next_events(feed: AsyncIterator[Sequence[Event]], count: int) -> list[Event]:
    """The first ``count`` events; fewer if no more arrive within a minute."""
    events: list[Event] = []
    try:
        async with asyncio.timeout(60):
            while len(events) < count:
                events += await anext(feed)
    except TimeoutError:
        pass
    return events


async def submit(t: LocalHub, skill: str) -> str:
    (cid,) = await t.hub.submit(SkillRequest(correlation_id=skill, text="x", skill=skill, targets=("quinn",)))
    return cid


async def ask(t: LocalHub) -> tuple[str, str]:
    """The ids of a request whose agent waits for an answer, and of its question."""
    cid = await submit(t, "ask")
    await asyncio.sleep(5)
    (question,) = t.hub.tracker.questions()
    return cid, question.question_id


async def test_the_state_comes_first_also_after_a_restart_and_then_each_event_once() -> None:
    async with local_hub(worker()) as t:
        feed = HubFeed(lambda: AttachedSource(t.remote))
        events = aiter(feed)
        seen = await next_events(events, 1)
        await submit(t, "echo")
        await asyncio.sleep(5)
        last = t.hub.events.last_seq
        seen += [event for event in await next_events(events, last - seen[0].seq) if not isinstance(event, StateRead)]
        assert [event.seq for event in seen] == list(range(seen[0].seq, last + 1))
        await t.restart(lambda: asyncio.sleep(5))
        while not (isinstance(seen[-1], StateRead) and seen[-1].whole):
            seen += await next_events(events, 1)
        assert last < seen[-1].seq <= t.hub.events.last_seq
        assert feed.lost == ""


async def test_a_hub_that_is_gone_shows_as_lost_until_one_runs_again() -> None:
    async with local_hub(worker()) as t:
        running = True
        feed = HubFeed(lambda: AttachedSource(t.remote) if running else None)
        events = aiter(feed)
        await next_events(events, 1)
        running = False
        await t.hub.__aexit__(None, None, None)
        await next_events(events, 10)
        assert feed.lost
        await t.hub.__aenter__()


async def test_a_wrong_key_ends_the_feed_with_the_refusal() -> None:
    async with local_hub(worker()) as t:
        feed = aiter(HubFeed(lambda: AttachedSource(t.agents_client("not the key"))))
        with pytest.raises((AuthRefused, HttpRefused)):
            await next_events(feed, 1)


async def test_an_agent_instead_of_a_hub_is_a_broken_reply_with_a_next_step() -> None:
    async with local_hub(worker()) as t:
        with pytest.raises(WireError) as refused:
            await HubClient("http://quinn.example:8000", api_key="k", runtime=t.runtime).get("/whoami")
        assert "fleetsim card http://quinn.example:8000" in str(refused.value.hint)


async def test_an_answer_typed_at_an_attached_screen_reaches_the_agent() -> None:
    async with local_hub(worker()) as t:
        cid, question_id = await ask(t)
        controls = AttachedControls(lambda: t.remote)
        assert (await controls.text(cid)).text == "which branch?"
        await controls.answer(question_id, "main")
        outcome = await t.hub.tracker.wait(cid)
        assert (outcome.kind, outcome.text) == (OutcomeKind.COMPLETED, "going with main")
        assert (await controls.text(cid)).text == "going with main"


async def test_rejecting_and_cancelling_at_an_attached_screen_end_the_requests() -> None:
    async with local_hub(worker()) as t:
        controls = AttachedControls(lambda: t.remote)
        rejected, question_id = await ask(t)
        await controls.reject(question_id)
        canceled = await submit(t, "ponder")
        await asyncio.sleep(5)
        await controls.cancel(canceled)
        await controls.refresh("quinn")
        for cid in (rejected, canceled):
            assert (await t.hub.tracker.wait(cid)).kind is OutcomeKind.CANCELED


def clerk() -> Agent:
    agent = Agent("quinn")

    @agent.skill("file")
    async def file(task: SkillContext) -> str:
        await task.attach(FilePart(raw="QUJD", filename="../../../evil/report.pdf"), name="report")
        await task.attach(DataPart(data={"a": 1}), name="figures")
        await task.attach(FilePart(uri="https://files.example/big.iso", filename="big.iso"), name="iso")
        return "done"

    return agent


async def test_both_screens_show_and_save_the_same_files_and_data(tmp_path: Path) -> None:
    async with local_hub(clerk()) as t:
        cid = await submit(t, "file")
        await t.hub.tracker.wait(cid)
        attached, live = AttachedControls(lambda: t.remote), HubControls(t.hub)
        seen = (await live.text(cid)).parts
        assert [str(part) for part in seen] == [str(part) for part in (await attached.text(cid)).parts]
        assert [part.data for part in seen] == [part.data for part in (await attached.text(cid)).parts]
        for controls in (attached, live):
            folder = tmp_path / type(controls).__name__
            saved = await controls.save(cid, [1, 2, 3], str(folder))
            assert saved == {1: str(folder / "report.pdf"), 2: str(folder / "data-2.json")}
            assert (folder / "report.pdf").read_bytes() == b"ABC"
        with pytest.raises(UnknownTarget) as error:
            await live.save(cid, [3], str(tmp_path))
        assert error.value.hint


async def test_an_action_without_a_hub_fails_with_a_sentence() -> None:
    def nowhere() -> HubClient | None:
        return None

    with pytest.raises(Unreachable) as error:
        await AttachedControls(nowhere).cancel("x")
    assert error.value.hint


@pytest.mark.slow
@pytest.mark.sockets
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["dashboard"], 2),
        (["dashboard", "http://127.0.0.1:1", "--key-env", "NO_SUCH_VARIABLE"], 2),
        (["dashboard", "http://127.0.0.1:1", "--replay", "run.jsonl"], 2),
    ],
)
async def test_what_cannot_be_attached_to_ends_with_its_exit_code(tmp_path: Path, words: list[str], code: int) -> None:
    done = await Shell(tmp_path).arun(*words)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.count("\n") <= 2


async def test_the_wire_log_is_the_same_in_this_process_and_over_the_api() -> None:
    async with ready_hub(worker()) as t:
        here, attached = HubControls(t.hub), AttachedControls(lambda: t.remote)
        await here.wire(agent="quinn")
        cid = await submit(t, "echo")
        await asyncio.sleep(5)
        rows = await here.wire(task=cid)
        assert "you said x" in str(rows)
        assert rows == await attached.wire(task=cid)
        assert await attached.wire(task=cid, after=rows[0]["number"]) == rows[1:]


@pytest.mark.slow
async def test_hundreds_of_broken_connections_leave_no_objects_and_no_workers() -> None:
    async with local_hub(worker()) as t:
        t.network.fault(CutAfter(bytes_passed=1), Match(path="/api/events"))
        connections = 0

        def connect() -> AttachedSource:
            nonlocal connections
            connections += 1
            return AttachedSource(t.remote)

        async def read() -> None:
            async for _ in HubFeed(connect):
                pass

        async def left_over() -> tuple[int, int, int]:
            await asyncio.sleep(9_000)
            t.network.seen.clear()
            gc.collect()
            return len(asyncio.all_tasks()), len(gc.get_objects()), connections

        async with Workers("screen") as workers:
            workers.start(read(), name="read")
            await left_over()
            tasks, objects, before = await left_over()
            tasks_later, objects_later, after = await left_over()
        assert after - before > 500
        assert tasks_later <= tasks
        assert objects_later - objects < after - before, "the hub itself had some events"


@pytest.mark.parametrize(
    ("theirs", "side"),
    [("99.0.0", "this program"), ("0.0.9", "the hub"), ("older than 0.1.0", "the hub"), ("\x1b[2J", "the hub")],
)
def test_a_hub_of_another_version_says_which_side_to_update(theirs: str, side: str) -> None:
    note = version_note(theirs)
    assert note.endswith(f"update {side}")
    assert "\x1b" not in note


def test_a_hub_of_this_version_has_no_note() -> None:
    assert version_note(__version__) == ""


@pytest.mark.sockets
async def test_another_hub_is_shown_without_dialogs_and_a_refusal_keeps_the_old_one() -> None:
    async with showing() as ui:
        await ui.press("2", "x")
        assert len(ui.app.screen_stack) == 2
        ui.desk.error = AuthRefused("the hub refuses the key", status=401)
        await ui.app.action_act("hub", "http://other.example")
        await ui.settle()
        assert "demo-fleet" in ui.text
        ui.desk.error = None
        await ui.app.action_act("hub", "http://other.example")
        await ui.settle()
        assert (len(ui.app.screen_stack), "other.example" in ui.text, ui.app.view.agents) == (1, True, ())


async def test_the_events_of_the_hub_before_are_dropped() -> None:
    async with local_hub(worker()) as t, local_hub(clerk()) as u:
        shown = t
        feed = HubFeed(lambda: AttachedSource(shown.remote))
        events = aiter(feed)
        await next_events(events, 1)
        await submit(t, "echo")
        await asyncio.sleep(5)
        shown = u
        feed.start_over()
        (first,) = await next_events(events, 1)
        assert (getattr(first, "state", t).agents[0].card.skills, feed.restarts) == (("file",), 1)
