"""Readers of one task by themselves: how a feed joins what it tells, who may read, and when a reading ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fleetsim.agent.limits import AgentLimits, AtCapacity
from fleetsim.agent.store import Store
from fleetsim.agent.streams import EventFrames, StreamSlots, Watch, closing_pair
from fleetsim.agent.tasks import ANYONE, ClosingUpdate, TaskFeed, TaskKey
from fleetsim.model.changing import replace
from fleetsim.model.event import ArtifactUpdate, Snapshot, StatusUpdate
from fleetsim.model.task import Artifact, DataPart, Part, TaskState, TextPart
from fleetsim.runtime.ports import Runtime
from fleetsim.wire.dialect import dialect
from fleetsim.wire.json import dump
from fleetsim.wire.v0_3 import V03
from tests.agent.rigs import said

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
def test_pieces_of_text_that_adjoin_are_read_as_one(told: list[Any], read: list[Any]) -> None:
    feed = TaskFeed()
    feed.publish(told)
    assert feed.since(0) == (tuple(read), len(told))
    assert len(feed) == len(told)
    assert feed.since(len(told)) == ((), len(told))


async def test_a_reader_waits_at_the_end_and_nowhere_else() -> None:
    feed = TaskFeed()
    waiting = [asyncio.ensure_future(feed.beyond(cursor)) for cursor in (0, 1)]
    await asyncio.sleep(1)
    assert [reader.done() for reader in waiting] == [False, False]
    feed.publish([chunk("1")])
    await asyncio.sleep(1)
    assert [reader.done() for reader in waiting] == [True, False]
    assert not feed.closed
    feed.publish([], closes=True)
    await asyncio.sleep(1)
    assert waiting[1].done()
    feed.publish([])
    assert feed.closed, "what is closed stays so"
    assert len(feed) == 1


# -- seats ---------------------------------------------------------------------------------------------


def test_a_task_and_the_agent_have_so_many_seats() -> None:
    seats = StreamSlots(AgentLimits(streams_max=3, streams_per_task_max=2))
    one, other = (ANYONE, "1"), (ANYONE, "2")
    first, second = seats.take(one), seats.take(one)
    with pytest.raises(AtCapacity, match="a task may have at most 2"):
        seats.take(one)
    third = seats.take()
    third.assign(other)
    third.assign(one)
    with pytest.raises(AtCapacity, match="at most 3 streams"):
        seats.take()
    assert seats.total == 3
    for _ in range(2):
        third.leave()
    assert seats.total == 2
    third = seats.take(other)
    for seat in (first, second, third):
        seat.leave()
    assert seats.total == 0
    assert [seats.take(one) for _ in range(2)]
    with pytest.raises(AtCapacity):
        seats.take(one)


def test_a_seat_taken_before_its_task_is_known_is_counted_for_it_once() -> None:
    seats = StreamSlots(AgentLimits(streams_per_task_max=2))
    seat = seats.take()
    for _ in range(3):
        seat.assign((ANYONE, "1"))
    second = seats.take((ANYONE, "1"))
    with pytest.raises(AtCapacity):
        seats.take((ANYONE, "1"))
    seat.leave()
    second.leave()
    assert [seats.take((ANYONE, "1")) for _ in range(2)]


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


async def test_a_silent_task_is_kept_alive_until_it_says_something(runtime: Runtime) -> None:
    store, key = begun(runtime)
    reading = asyncio.ensure_future(read(watching(store, key)))
    await asyncio.sleep(31)
    store.move(key, TaskState.INPUT_REQUIRED, "well?")
    snapshot, *silence, question = await reading
    assert isinstance(snapshot, Snapshot)
    assert silence == [None, None]
    assert (question.status.state, question.final) == (TaskState.INPUT_REQUIRED, True)


@pytest.mark.parametrize(("joins", "events"), [(True, 3), (False, 2)])
async def test_a_watch_of_a_question_goes_on_or_ends_there(runtime: Runtime, joins: bool, events: int) -> None:
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
async def test_a_finished_task_is_told_whole_and_then_its_end(runtime: Runtime, repeats: bool) -> None:
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
async def test_the_end_of_an_artifact_is_what_was_not_told(
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


async def test_a_watch_of_a_feed_that_closes_without_a_word_ends(runtime: Runtime) -> None:
    store, key = begun(runtime)
    feed = TaskFeed()
    watch = watching(store, key)
    watch.feed = feed
    reading = asyncio.ensure_future(read(watch))
    await asyncio.sleep(1)
    feed.publish([chunk("1")], closes=True)
    assert [type(event) for event in await reading] == [Snapshot, ArtifactUpdate]


@pytest.mark.parametrize("readers", [1, 10])
async def test_what_many_readers_are_told_at_once_is_encoded_once(runtime: Runtime, readers: int) -> None:
    encoded: list[Any] = []

    class Counting(V03):
        def encode_event(self, event: Any) -> dict[str, Any]:
            encoded.append(event)
            return super().encode_event(event)

    store, key = begun(runtime)
    store.move(key, TaskState.WORKING)
    watches = [watching(store, key) for _ in range(readers)]
    frames = [EventFrames(Counting(), watch, b"<%d " % at, b">") for at, watch in enumerate(watches)]

    async def read_by(at: int) -> list[bytes]:
        return [b"".join(frames[at].write(event)) async for event in watches[at].events() if event is not None]

    reading = [asyncio.ensure_future(read_by(at)) for at in range(readers)]
    for letter in "abcd":
        await asyncio.sleep(1)
        store.put(key, Artifact(artifact_id=key[1], parts=(TextPart(text=letter),)), append=True, last_chunk=False)
    await asyncio.sleep(1)
    store.finish(key, TaskState.COMPLETED)
    everything = await asyncio.gather(*reading)
    plain = [
        [frame.replace(b"data: <%d " % at, b"data: <") for frame in frames] for at, frames in enumerate(everything)
    ]
    assert [len(frames) for frames in plain] == [1 + 4 + 2] * readers
    assert all(frames == plain[0] for frames in plain)
    own = [
        event
        for event in encoded
        if isinstance(event, Snapshot) or (event.__class__ is ArtifactUpdate and not event.append)
    ]
    assert len(own) == 2 * readers, "each reader's snapshot, and its first piece, which appends to nothing"
    # Whoever comes first to one of the three pieces that append encodes it, and its own later ones by their text alone.
    assert 1 + 2 <= len(encoded) - len(own) <= min(readers, 3) + 2


PLAIN = ArtifactUpdate(task_id="t", context_id="c", artifact=Artifact(artifact_id="a", parts=()), append=True)
UNLIKE: list[Callable[[ArtifactUpdate], ArtifactUpdate]] = [
    lambda event: event,
    lambda event: replace(event, append=False),
    lambda event: replace(event, last_chunk=True),
    lambda event: replace(event, metadata={"k": 1}),
    lambda event: replace(event, artifact=replace(event.artifact, artifact_id="b")),
    lambda event: replace(event, artifact=replace(event.artifact, name="answer")),
    lambda event: replace(event, artifact=replace(event.artifact, description="what it is")),
    lambda event: replace(event, artifact=replace(event.artifact, extensions=("urn:x",))),
    lambda event: replace(event, artifact=replace(event.artifact, metadata={"k": 1})),
    lambda event: replace(event, artifact=replace(event.artifact, parts=(TextPart(text="x", media_type="text/html"),))),
    lambda event: replace(event, artifact=replace(event.artifact, parts=(TextPart(text="x", metadata={"k": 1}),))),
    lambda event: replace(event, artifact=replace(event.artifact, parts=(DATA,))),
    lambda event: replace(event, artifact=replace(event.artifact, parts=(DATA, TextPart(text="two")))),
    lambda event: replace(event, artifact=replace(event.artifact, parts=(TextPart(text="one"), DATA))),
]
TEXTS = ("", "one", 'é"\\\n\u2028\ud800\x00', "\x00text\x00", "x" * 70_000)


@pytest.mark.parametrize("spoken", ["0.1", "0.3", "1.0"])
@pytest.mark.parametrize("unlike", UNLIKE)
@pytest.mark.parametrize("context_id", ["c", "\x00text\x00"])
def test_a_piece_is_written_as_it_would_be_alone_whatever_went_before(
    runtime: Runtime, spoken: str, context_id: str, unlike: Callable[[ArtifactUpdate], ArtifactUpdate]
) -> None:
    plain = replace(PLAIN, context_id=context_id)
    pieces = [replace(plain, artifact=replace(PLAIN.artifact, parts=(TextPart(text=text),))) for text in TEXTS]
    events = [event for piece in pieces for event in (piece, unlike(piece), unlike(piece), piece)]
    wire = dialect(spoken)
    frames = EventFrames(wire, watching(*begun(runtime)), b"<", b">")
    for event in events:
        name = wire.event_name(event)
        opening = b"" if name is None else f"event: {name}\n".encode()
        assert b"".join(frames.write(event)) == opening + b"data: <" + dump(wire.encode_event(event)) + b">\n\n"


async def test_what_was_encoded_is_kept_no_longer_than_it_is_told(runtime: Runtime) -> None:
    store, key = begun(runtime)
    watch = watching(store, key)
    frames, events = EventFrames(dialect("0.3"), watch, b"", b""), watch.events()
    frames.write(await anext(events))  # type: ignore[arg-type]
    for letter in "abcd":
        store.put(key, Artifact(artifact_id=key[1], parts=(TextPart(text=letter),)), append=True, last_chunk=False)
        frames.write(await anext(events))  # type: ignore[arg-type]
        assert len(watch.feed.shared) == 1


async def test_who_reads_a_finished_task_leaves_nothing_behind(runtime: Runtime) -> None:
    store, key = begun(runtime)
    store.put(key, Artifact(artifact_id=key[1], parts=(TextPart(text="a"),)), append=True, last_chunk=False)
    store.finish(key, TaskState.COMPLETED)
    assert (store.feed(key).closed, len(store.feed(key))) == (True, 0)
    for _ in range(3):
        watch = watching(store, key)
        frames = EventFrames(dialect("0.3"), watch, b"", b"")
        told = [b"".join(frames.write(event)) async for event in watch.events() if event is not None]
        assert len(told) == 3
        assert not store.feed(key).shared


def test_a_watch_gives_its_seat_back_once(runtime: Runtime) -> None:
    store, key = begun(runtime)
    seats = StreamSlots(AgentLimits())
    watch = watching(store, key)
    watch.slot = seats.take(key)
    seats.take(key)
    watch.close()
    watch.close()
    assert seats.total == 1
    assert watch.about == f"task {key[1]}"
