"""Open tracks: those that only wait are bytes, and nobody can tell but the collector."""

from __future__ import annotations

import gc
from datetime import UTC

from hypothesis import event, given
from hypothesis import strategies as st

from fleetsim.caller.ledger import RequestRecord
from fleetsim.caller.ledger.tables import decoder, encode
from fleetsim.caller.step import new_track
from fleetsim.caller.track import Asking, Ending, Now, Polling, Sending, Streaming, Timer, Track
from fleetsim.caller.track_store import PACKED_BYTES_MAX, PARK_S, TrackStore, packed, unpacked
from fleetsim.model.changing import replace
from fleetsim.model.task import DataPart, Message, Role, Task, TaskStatus, TextPart
from fleetsim.model.work import SkillRequest
from tests.caller import ledgers as make

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
OBJECTS = st.dictionaries(st.text(max_size=5), JSON, max_size=3)
MOMENTS = st.datetimes(timezones=st.just(UTC)).map(lambda at: at.replace(fold=0))
PARTS = st.builds(TextPart, metadata=OBJECTS) | st.builds(DataPart, data=JSON, metadata=OBJECTS)
STATUSES = st.builds(
    TaskStatus,
    message=st.none() | st.builds(Message, parts=st.tuples(PARTS), metadata=OBJECTS),
    timestamp=st.none() | MOMENTS,
)
TASKS = st.builds(Task, status=STATUSES, artifacts=st.just(()), history=st.just(()), metadata=OBJECTS)
RECORDS = st.builds(
    RequestRecord,
    request=st.builds(SkillRequest, parts=st.tuples(PARTS), metadata=OBJECTS, timeout_s=st.none() | st.floats()),
    accepted_at=MOMENTS,
    deadline_at=MOMENTS,
    bound_at=st.none() | MOMENTS,
    over_at=st.none() | MOMENTS,
    agent_since=st.none() | MOMENTS,
    task=st.none() | TASKS,
)
TRACKS = st.builds(
    Track,
    record=RECORDS,
    timers=st.dictionaries(st.sampled_from(Timer), st.floats()),
    sending=st.builds(Sending, early=st.just(())),
    asking=st.builds(Asking, question=st.none(), answer=st.none()),
    polling=...,
    streaming=...,
    pushing=...,
    ending=st.builds(Ending, whole=st.frozensets(st.text(), max_size=1)),
    outcome=st.none(),
)


def waiting(name: str = "c-1", *, text: str = "do it", wake: float = 30.0) -> Track:
    """A track whose task is looked at again at ``wake``; it is 0 now."""
    record = replace(make.record(name, text=text), task=replace(make.task(), artifacts=()), url="http://a.example/a2a")
    track = new_track(record, Now(0.0, make.START))
    track.timers[Timer.POLL] = wake
    return track


def ignored(_: str) -> None:
    """Falls due for nobody."""


def put(store: TrackStore, track: Track) -> None:
    store.add(track)
    store.put(track, track, at=0.0)


@given(TRACKS)
def test_a_track_is_what_it_was_once_it_is_unpacked(track: Track) -> None:
    written = packed(track)
    event("packed" if written else "not packed")
    if written is not None:
        found = unpacked(written)
        assert repr(found) == repr(track)  # it tells members of two enumerations apart, as == does not


def test_members_that_are_equal_keep_their_enumeration_and_texts_their_odd_characters() -> None:
    metadata = {"a": "user", "b": [1, None, {"c": 1.5}]}
    message = Message(message_id="m", role=Role.USER, parts=(TextPart(text="é \ud800"),), metadata=metadata)
    track = waiting()
    track.record = replace(track.record, task=replace(make.task(), history=(message,), artifacts=()))
    written = packed(track)
    assert written is not None
    found = unpacked(written)
    assert found == track
    assert found.record.task is not None
    assert found.record.task.history[0].role is Role.USER
    assert found.record.phase is track.record.phase


async def test_who_only_waits_is_bytes_that_the_collector_does_not_see() -> None:
    def seen() -> int:
        gc.collect()
        return sum(isinstance(one, Track) for one in gc.get_objects())

    store, before = TrackStore(ignored), seen()
    for n in range(100):
        put(store, waiting(f"c-{n}"))
    assert seen() == before
    assert list(store.awake()) == []
    assert list(store) == [waiting(f"c-{n}") for n in range(100)], "oldest first, and equal"
    assert store.get("c-7") == waiting("c-7")


def test_what_was_read_from_the_ledger_is_bytes_too() -> None:
    record = replace(waiting().record, bound_at=make.at(1), url="http://a.example/a2a")
    track = replace(waiting(), record=decoder(RequestRecord)(encode(record)))
    written = packed(track)
    assert written is not None
    assert unpacked(written) == track == replace(waiting(), record=record)


async def test_who_has_something_under_way_or_is_large_stays_as_it_is() -> None:
    busy = [waiting(f"c-{n}") for n in range(6)]
    busy[0].polling = Polling(began=0.0)
    busy[1].streaming = Streaming(open=True)
    busy[2].asking = replace(busy[2].asking, question=make.question("q-1", "c-2"))
    busy[3].timers[Timer.POLL] = PARK_S - 0.1
    busy[4].record = replace(busy[4].record, task=None)
    busy[5].record = replace(busy[5].record, request=replace(busy[5].record.request, text="x" * PACKED_BYTES_MAX))
    store = TrackStore(ignored)
    for track in busy:
        put(store, track)
    assert all(a is b for a, b in zip(store.awake(), busy, strict=True))


async def test_tracks_are_found_by_what_they_name_and_counted_by_where_they_are() -> None:
    store = TrackStore(ignored)
    for name in ("c-1", "c-2", "c-3"):
        put(store, waiting(name))
    assert [track.correlation_id for track in store.naming("c-2")] == ["c-2"]
    assert store.places() == {("a", "http://a.example/a2a"): 3}
    moved = waiting("c-3")
    moved.record = replace(moved.record, url="http://b.example/a2a")
    before = store.get("c-3")
    assert before is not None
    store.put(before, moved, at=0.0)
    store.pop("c-1")
    store.pop("c-1")
    assert store.places() == {("a", "http://a.example/a2a"): 1, ("a", "http://b.example/a2a"): 1}
    store.pop("c-2")
    store.pop("c-3")
    assert (len(store), store.places()) == (0, {})
