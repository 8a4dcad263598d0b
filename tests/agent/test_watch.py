"""Readers of one task: how a feed joins the pieces, which callers may read, and when a reader ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fleetsim.agent.limits import AgentLimits
from fleetsim.agent.store import Store
from fleetsim.agent.streams import StreamSlots, Watch, closing_pair
from fleetsim.agent.tasks import ANYONE, ClosingUpdate, TaskFeed, TaskKey
from fleetsim.model.event import ArtifactUpdate, Snapshot, StatusUpdate
from fleetsim.model.task import Artifact, DataPart, Part, TaskState, TextPart
from fleetsim.runtime.ports import Runtime
from tests.agent.environment import said

# -- a feed --------------------------------------------------------------------------------------------


def chunk(*parts: str | Part, to: str = "a", append: bool = True, last: bool = False) -> ArtifactUpdate:
    made = tuple(TextPart(text=part) if isinstance(part, str) else part for part in parts)
    artifact = Artifact(artifact_id=to, parts=made)
    return ArtifactUpdate(task_id="t", context_id="c", artifact=artifact, append=append, last_chunk=last)


DATA = DataPart(data=1)


@pytest.mark.parametrize(
    ("told", "read"),
    [
        ([], []),
        ([chunk("1")], [chunk("1")]),
        ([chunk("1"), chunk("2"), chunk("3")], [chunk("123")]),
        ([chunk("1"), chunk("2", to="b"), chunk("3")], [chunk("1"), chunk("2", to="b"), chunk("3")]),
        ([chunk("1"), chunk("2"), chunk("3", to="b"), chunk("4", to="b")], [chunk("12"), chunk("34", to="b")]),
        ([chunk("1", append=False), chunk("2"), chunk("3")], [chunk("1", append=False), chunk("23")]),
        ([chunk("1"), chunk("2"), chunk("3", last=True)], [chunk("12"), chunk("3", last=True)]),
        ([chunk("1", last=True), chunk("2")], [chunk("1", last=True), chunk("2")]),
        ([chunk("1"), chunk(DATA), chunk("2"), chunk("3")], [chunk("1"), chunk(DATA), chunk("23")]),
        ([chunk("1"), chunk("2", "3"), chunk("4")], [chunk("1"), chunk("2", "3"), chunk("4")]),
    ],
)
def test_adjoining_pieces_of_text_are_read_as_one(told: list[Any], read: list[Any]) -> None:
    feed = TaskFeed()
    feed.publish(told)
    assert feed.since(0) == (tuple(read), len(told))
    assert len(feed) == len(told)
    assert feed.since(len(told)) == ((), len(told))


# -- a watch -------------------------------------------------------------------------------------------


def begun(runtime: Runtime) -> tuple[Store, TaskKey]:
    store = Store(clock=runtime.clock, ids=runtime.ids, limits=AgentLimits())
    return store, store.create(ANYONE, said("x"), skill="s", dialect="0.3").key


def watching(store: Store, key: TaskKey, **options: Any) -> Watch:
    record = store.read(key)
    seat = StreamSlots(AgentLimits()).take(key)
    said_of = {"joins_question": True, "repeats_artifact": True, **options}
    return Watch(record=record, task=record.task, feed=store.feed(key), slot=seat, keepalive_s=15, **said_of)


async def read(watch: Watch) -> list[Any]:
    return [event async for event in watch.events()]


async def test_a_silent_task_is_kept_alive_until_its_next_event(runtime: Runtime) -> None:
    store, key = begun(runtime)
    reading = asyncio.ensure_future(read(watching(store, key)))
    await asyncio.sleep(31)
    store.move(key, TaskState.INPUT_REQUIRED, "well?")
    snapshot, *silence, question = await reading
    assert isinstance(snapshot, Snapshot)
    assert silence == [None, None]
    assert (question.status.state, question.final) == (TaskState.INPUT_REQUIRED, True)


@pytest.mark.parametrize(("joins", "events"), [(True, 3), (False, 2)])
async def test_a_watch_continues_or_ends_at_a_question(runtime: Runtime, joins: bool, events: int) -> None:
    store, key = begun(runtime)
    store.move(key, TaskState.INPUT_REQUIRED, "well?")
    reading = asyncio.ensure_future(read(watching(store, key, joins_question=joins)))
    await asyncio.sleep(1)
    store.add_message(key, said("this", message_id="2"))
    store.finish(key, TaskState.FAILED, reason="no")
    seen = await reading
    assert len(seen) == events
    assert (seen[-1].status.state, seen[-1].final) == (TaskState.FAILED if joins else TaskState.INPUT_REQUIRED, True)


@pytest.mark.parametrize("repeats", [True, False])
async def test_a_finished_task_is_sent_whole_and_then_its_end(runtime: Runtime, repeats: bool) -> None:
    store, key = begun(runtime)
    store.finish(key, TaskState.COMPLETED, "done")
    task = store.read(key).task
    snapshot, *pair = await read(watching(store, key, repeats_artifact=repeats))
    assert snapshot == Snapshot(task=task)
    update = StatusUpdate(task_id=key[1], context_id=task.context_id, status=task.status, final=True)
    whole = ArtifactUpdate(
        task_id=key[1], context_id=task.context_id, artifact=task.artifacts[0], append=False, last_chunk=True
    )
    assert pair == ([whole, update] if repeats else [update])
    assert closing_pair(task) == (whole, update)


@pytest.mark.parametrize(
    ("said_before", "text", "repeats", "ends"),
    [
        ("ab", None, True, ("ab", False)),
        ("ab", None, False, ("", True)),
        ("ab", "other", False, ("other", False)),
        ("", "whole", False, ("whole", False)),
    ],
)
async def test_the_end_of_an_artifact_contains_the_unsent_rest(
    runtime: Runtime, said_before: str, text: str | None, repeats: bool, ends: tuple[str, bool]
) -> None:
    store, key = begun(runtime)
    reading = asyncio.ensure_future(read(watching(store, key, repeats_artifact=repeats)))
    await asyncio.sleep(1)
    for letter in said_before:
        piece = Artifact(artifact_id=key[1], parts=(TextPart(text=letter),))
        store.put(key, piece, append=True, last_chunk=False)
        await asyncio.sleep(1)
    store.finish(key, TaskState.COMPLETED, text)
    _, *pieces, last, status = await reading
    assert [piece.append for piece in pieces] == [False, True][: len(said_before)]
    assert isinstance(last, ClosingUpdate)
    assert ((last.artifact.text, last.append), last.last_chunk) == (ends, True)
    assert status.status.state is TaskState.COMPLETED


async def test_a_watch_of_a_feed_that_closes_silently_ends(runtime: Runtime) -> None:
    store, key = begun(runtime)
    feed = TaskFeed()
    watch = watching(store, key)
    watch.feed = feed
    reading = asyncio.ensure_future(read(watch))
    await asyncio.sleep(1)
    feed.publish([chunk("1")], closes=True)
    assert [type(event) for event in await reading] == [Snapshot, ArtifactUpdate]
