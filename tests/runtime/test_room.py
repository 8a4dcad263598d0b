"""Large documents share a bound of memory, and slow ones of one owner do not delay another's."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest

from fleetsim.model.errors import TimedOut
from fleetsim.model.limits import LARGE_JSON_BYTES
from fleetsim.runtime.body import PLACES, PLACES_PER_OWNER, SMALL_BYTES, Room
from fleetsim.runtime.exchange import BoundedChunks, deadline_of, read_whole
from fleetsim.runtime.ports import IncomingResponse, Limits
from fleetsim.runtime.sse import StreamLimits, read_events
from tests.runtime.test_http_sse import Counted

PIECE = 64 * 1024
LARGE = 4 * SMALL_BYTES


class Sender:
    """Sends ``size`` bytes with pauses; ``sent`` counts the bytes that the reader holds, ``most`` the most of all."""

    most = in_hand = 0

    def __init__(self, size: int = LARGE, pause_s: float = 0.1) -> None:
        self.size, self.pause_s = size, pause_s

    async def chunks(self) -> AsyncIterator[bytes]:
        for _ in range(0, self.size, PIECE):
            await asyncio.sleep(self.pause_s)
            Sender.in_hand += PIECE
            Sender.most = max(Sender.most, Sender.in_hand)
            yield b"x" * PIECE


@pytest.fixture(autouse=True)
def _none_in_hand() -> None:
    Sender.most = Sender.in_hand = 0


async def read(room: Room, owner: str, sender: Sender, limits: Limits | None = None) -> int:
    allowed = limits or Limits(total_s=None)
    chunks = BoundedChunks(sender.chunks(), limits=allowed, deadline=deadline_of(allowed), where=owner)
    body = await read_whole(chunks, room, owner=owner)
    Sender.in_hand -= len(body)
    return len(body)


async def test_a_hundred_large_responses_at_once_are_all_read_within_the_bound() -> None:
    room = Room()
    assert await asyncio.gather(*(read(room, f"agent-{n % 50}", Sender()) for n in range(100))) == [LARGE] * 100
    assert Sender.most <= PLACES * LARGE + 100 * (SMALL_BYTES + PIECE)
    assert room.take("anybody"), "the places are free again"


async def test_a_large_body_waits_until_the_work_before_it_is_paid() -> None:
    room, counted = Room(places=1), Counted(takes_s=5.0)
    for size, paid in ((LARGE_JSON_BYTES, 0), (LARGE, 1)):
        assert len(await read_whole(Sender(size).chunks(), room, owner="a", turns=counted)) == size
        assert counted.paid_for == paid
    reading = asyncio.ensure_future(read_whole(Sender().chunks(), room, owner="a", turns=Counted(takes_s=50.0)))
    await asyncio.sleep(0.1 * LARGE / PIECE + 50.0 * (LARGE / PIECE - 1) + 49)
    assert not room.take("another")
    await reading
    assert room.take("another")


async def test_slow_large_responses_of_one_owner_delay_no_other_owner() -> None:
    room = Room()
    slow = [asyncio.ensure_future(read(room, "slow", Sender(pause_s=60))) for _ in range(20)]
    await asyncio.sleep(1_000)
    began = asyncio.get_running_loop().time()
    assert await read(room, "quick", Sender()) == LARGE
    assert asyncio.get_running_loop().time() - began == pytest.approx(0.1 * LARGE / PIECE)
    for body in slow:
        body.cancel()
    await asyncio.wait(slow)
    assert [room.take("slow") for _ in range(PLACES_PER_OWNER + 1)] == [True] * PLACES_PER_OWNER + [False]


async def test_waiting_for_room_does_not_count_against_the_sender() -> None:
    room = Room(places=1)
    holding = asyncio.ensure_future(read(room, "first", Sender(pause_s=10)))
    await asyncio.sleep(60)
    assert await read(room, "second", Sender(), Limits(total_s=3)) == LARGE
    assert holding.done()
    with pytest.raises(TimedOut):
        await read(room, "third", Sender(pause_s=1), Limits(total_s=3))
    assert room.take("fourth"), "an error gives the place back"


async def test_small_responses_need_no_room() -> None:
    room = Room(places=0)
    assert await read(room, "small", Sender(SMALL_BYTES)) == SMALL_BYTES


async def test_an_endless_large_event_releases_its_place_in_time() -> None:
    room = Room(places=1)

    async def dribble() -> AsyncIterator[bytes]:
        yield b"data: " + b"x" * LARGE
        while True:
            await asyncio.sleep(5)
            yield b"x"

    incoming = IncomingResponse(status=200, headers={"content-type": "text/event-stream"}, chunks=dribble())
    limits = StreamLimits(large_event_s=30)
    with pytest.raises(TimedOut):
        [event async for event in read_events(incoming, limits=limits, document=room.document("slow"))]
    assert asyncio.get_running_loop().time() == pytest.approx(30, abs=0.1)
    assert room.take("other")


async def test_a_stream_holds_no_place_between_its_large_events() -> None:
    room = Room(places=1)
    free = []

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"data: " + b"x" * LARGE + b"\n\n"
            yield b": still here\n"

    incoming = IncomingResponse(status=200, headers={"content-type": "text/event-stream"}, chunks=chunks())
    async for event in read_events(incoming, document=room.document("large")):
        assert len(event.data) == LARGE
        free.append(room.take("other"))
        room.leave("other")
    assert free == [True] * 3


@pytest.mark.parametrize(("places", "per_owner", "taken"), [(6, 2, 2), (1, 2, 1), (2, 3, 2), (0, 2, 0), (3, 0, 0)])
def test_a_place_is_given_while_one_is_free_and_the_owner_is_below_its_limit(
    places: int, per_owner: int, taken: int
) -> None:
    room = Room(places=places, per_owner=per_owner)
    assert [room.take("a") for _ in range(4)] == [True] * taken + [False] * (4 - taken)
    assert room.take("b") is (places > taken and per_owner > 0)
    for _ in range(taken):
        room.leave("a")
    assert [room.take("a") for _ in range(4)].count(True) == min(taken, places)


def test_at_most_six_large_documents_are_read_at_once_and_two_of_one_owner() -> None:
    room = Room()
    assert [room.take("a") for _ in range(3)] == [True, True, False]
    assert [room.take(f"b{n}") for n in range(5)] == [True] * 4 + [False]


async def waiting(room: Room, owner: str, order: list[str]) -> None:
    await room.wait(owner)
    order.append(owner)


async def test_a_free_place_goes_to_the_longest_waiter_that_may_have_one() -> None:
    room, order = Room(places=2, per_owner=1), list[str]()
    await room.wait("a")
    await room.wait("b")
    queue = [asyncio.ensure_future(waiting(room, owner, order)) for owner in ("a", "c", "d", "b")]
    await asyncio.sleep(1)
    assert order == []
    room.leave("b")
    await asyncio.sleep(1)
    assert order == ["c"], "a has as many as it may, though it came first"
    room.leave("a")
    await asyncio.sleep(1)
    assert order == ["c", "a"]
    room.leave("a")
    room.leave("c")
    await asyncio.sleep(1)
    assert order == ["c", "a", "d", "b"]
    assert all(place.done() for place in queue)


async def test_a_waiter_that_gives_up_leaves_its_place_to_the_next() -> None:
    room, order = Room(places=1), list[str]()
    await room.wait("a")
    first, second, third = (asyncio.ensure_future(waiting(room, owner, order)) for owner in ("b", "c", "d"))
    await asyncio.sleep(1)
    first.cancel()
    await asyncio.sleep(1)
    room.leave("a")
    second.cancel()  # in the moment in which the place becomes free
    await asyncio.sleep(1)
    assert (first.cancelled(), second.cancelled(), order) == (True, True, ["d"])
    assert third.done()
    room.leave("d")
    assert room.take("e"), "nothing was lost"


async def test_a_document_takes_one_place_and_releases_it_when_it_is_small_again() -> None:
    room = Room(places=1)
    with room.document("a") as document:
        assert document.try_reserve(SMALL_BYTES)
        assert document.since is None
        await asyncio.sleep(7)
        assert document.try_reserve(SMALL_BYTES + 1)
        assert document.since == 7
        assert document.try_reserve(SMALL_BYTES + 2)
        assert not room.document("b").try_reserve(SMALL_BYTES + 1)
        assert await document.reserve(SMALL_BYTES + 3) == 0
        assert document.since == 7
        assert await document.reserve(SMALL_BYTES) == 0
        assert document.since is None
        assert room.take("b")
        asyncio.get_running_loop().call_later(5, room.leave, "b")
        assert await document.reserve(SMALL_BYTES + 1) == 5
        assert document.since == 12
    assert room.take("c")


@pytest.mark.slow
async def test_a_finished_waiter_is_not_kept_in_memory() -> None:
    room = Room()

    async def read() -> None:
        await room.wait("one owner")
        await asyncio.sleep(0.1)
        room.leave("one owner")

    def futures() -> int:
        gc.collect()
        return sum(type(thing) is asyncio.Future for thing in gc.get_objects())

    before = futures()
    await asyncio.gather(*(read() for _ in range(100)))
    assert futures() - before < 10
