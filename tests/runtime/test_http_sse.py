"""Event streams: any slicing gives the same events, and nothing costs more than it may (T-05, F-11)."""

from __future__ import annotations

import asyncio
import re
import tracemalloc
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from itertools import pairwise

import httpx
import pytest
from httpx_sse import EventSource
from hypothesis import example, given
from hypothesis import strategies as st

from fleetsim.model.errors import ConnectionLost, FleetsimError, LimitReached, TimedOut, WireError
from fleetsim.runtime.ports import IncomingResponse, SseEvent
from fleetsim.runtime.sse import StreamLimits, read_events
from fleetsim.testbed.loop import run

SSE = {"content-type": "text/event-stream"}


def incoming(
    chunks: Iterable[bytes | float], *, status: int = 200, headers: dict[str, str] | None = None
) -> IncomingResponse:
    """A response of these chunks; a number is a pause of so many seconds."""

    async def arrive() -> AsyncIterator[bytes]:
        for chunk in chunks:
            if isinstance(chunk, bytes):
                yield chunk
            else:
                await asyncio.sleep(chunk)

    return IncomingResponse(status=status, headers=SSE if headers is None else headers, chunks=arrive())


async def collect(chunks: Iterable[bytes | float], limits: StreamLimits | None = None) -> list[SseEvent]:
    return [event async for event in read_events(incoming(chunks), limits=limits)]


async def collect_until_error(
    chunks: Iterable[bytes | float], limits: StreamLimits
) -> tuple[list[SseEvent], FleetsimError]:
    found: list[SseEvent] = []

    async def read() -> None:
        async for event in read_events(incoming(chunks), limits=limits):
            found.append(event)

    with pytest.raises(FleetsimError) as caught:
        await read()
    return found, caught.value


def reference(data: bytes) -> list[tuple[str, str, str]]:
    """The HTML standard's algorithm on the whole of the bytes and a blank line: (event, data, id)."""
    text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    lines = [*re.split("\r\n|\r|\n", text), ""]
    found, event, said, last_id = [], "", [], ""
    for line in lines:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            joined = "\n".join(said)
            if joined.strip() == "[DONE]":
                return found
            if joined:
                found.append((event or "message", joined, last_id))
            event, said = "", []
        elif field == "data":
            said.append(value)
        elif field == "event":
            event = value
        elif field == "id" and "\0" not in value:
            last_id = value
    return found


LINES = st.sampled_from(
    [
        *(
            b"data: a",
            b"data:b",
            b"data",
            b"data: \xc3\xa9\xe2\x80\xa8",
            b"data: \xff\xfe",
            b"event: x",
            b"id: 7",
            b"id",
        ),
        *(b": hm", b":", b"retry: 5", b"", b"", b"", b"nonsense", b"data: [DONE]", b" data: d", b"data:  two"),
        b"\xef\xbb\xbfdata: c",
    ]
)
STREAMS = st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"])), max_size=14).map(
    lambda lines: b"".join(line + end for line, end in lines)
)


PLAIN = st.sampled_from(
    ["data: a", "data:b", "data", "data: \u00e9 {}", "event: x", "id: 7", ": hm", "retry: 5", "", ""]
)


@pytest.mark.slow
@given(st.lists(PLAIN, max_size=14).map(lambda lines: "".join(f"{line}\n" for line in lines).encode()))
def test_events_are_read_as_httpx_sse_reads_them(stream: bytes) -> None:
    response = httpx.Response(200, headers=SSE, content=stream + b"\n")
    theirs = [(event.event, event.data, event.id) for event in EventSource(response).iter_sse() if event.data]
    assert [(event.event, event.data, event.id) for event in run(lambda: collect([stream]))] == theirs


@pytest.mark.slow
@given(st.one_of(STREAMS, STREAMS.map(lambda s: b"\xef\xbb\xbf" + s), st.binary(max_size=40)), st.data())
@example(b"data: x\r\r", None)
@example(b"\xef\xbb", None)
@example(b"\xef\xbb\xbf\xef\xbb\xbfdata: x\n\n", None)
def test_any_slicing_gives_the_events_of_the_standard(stream: bytes, data: st.DataObject | None) -> None:
    cuts = range(len(stream) + 1) if data is None else sorted(data.draw(st.sets(st.integers(0, len(stream)))))
    edges = [0, *cuts, len(stream)]
    slices = [stream[a:b] for a, b in pairwise(edges)]
    got = run(lambda: collect(slices))
    assert [(event.event, event.data, event.id) for event in got] == reference(stream)


LARGE_LINES = st.lists(
    st.sampled_from(
        [
            *(b"data: " + b"x" * 50_000, b"data:" + b"y" * 50_000, b"data:  " + b"z" * 90_000, b"data: b", b"data"),
            *(b": " + b"c" * 70_000, b"event: e", b"event: " + b"e" * 70_000, b"id: 7", b"", b"dat: " + b"d" * 70_000),
        ]
    ),
    max_size=8,
).map(lambda lines: b"".join(line + b"\n" for line in lines) + b"data: 1\n\n")


@given(LARGE_LINES, st.sets(st.floats(0, 1), max_size=20))
def test_a_large_event_is_read_as_a_small_one_wherever_it_is_cut(stream: bytes, places: set[float]) -> None:
    size = len(stream)
    edges = [0, *sorted({round(place * size) for place in places}), size]
    got = run(lambda: collect([stream[a:b] for a, b in pairwise(edges)]))
    assert [(event.event, event.data, event.id) for event in got] == reference(stream)


async def test_a_large_event_in_single_bytes_takes_little_more_memory_than_its_size() -> None:
    size = 400_000
    stream = [b"data: ", *(bytes([97 + at % 26, 98]) for at in range(size // 2)), b"\n\n"]
    tracemalloc.start()
    try:
        assert len((await collect(stream))[0].data) == size
        assert tracemalloc.get_traced_memory()[1] < 6 * size
    finally:
        tracemalloc.stop()


async def test_a_large_event_waits_until_the_work_before_it_is_paid_for_and_that_is_not_the_senders_silence() -> None:
    counted = Counted(5.0)
    chunks: list[bytes | float] = [b"data: " + b"x" * 200_000 + b"\n\n", 1.0, b"data: 2\n\n"]
    limits = StreamLimits(idle_event_s=5, total_s=5)
    events = [len(event.data) async for event in read_events(incoming(chunks), limits=limits, turns=counted)]
    assert (events, counted.paid_for) == ([200_000, 1], 1)


async def test_an_event_that_takes_us_long_to_read_is_no_slow_one_and_one_that_comes_slowly_is() -> None:
    large, limits = b"data: " + b"x" * 400_000, StreamLimits(idle_s=100, large_event_s=10)
    chunks: list[bytes | float] = [large, 4.0, b"x", 4.0, b"\n\n"]
    assert len([event async for event in read_events(incoming(chunks), limits=limits, turns=Counted(5.0))]) == 1
    with pytest.raises(TimedOut):
        async for _ in read_events(incoming([*chunks[:-1], 4.0]), limits=limits, turns=Counted(5.0)):
            pass


async def test_a_byte_order_mark_does_not_cost_the_first_event() -> None:
    assert [event.data for event in await collect([b"\xef", b"\xbb", b"\xbfdata: 1\n\ndata: 2\n\n"])] == ["1", "2"]


async def test_done_ends_the_stream_though_more_follows() -> None:
    assert [event.data for event in await collect([b"data: 1\n\ndata: [DONE]\n\ndata: 2\n\n"])] == ["1"]


@pytest.mark.parametrize("last", [b"data: 2", b"data: 2\n", b"data: 2\r", b"data: 2\r\n", b"event: x\ndata: 2"])
async def test_the_last_event_counts_without_a_blank_line_after_it(last: bytes) -> None:
    assert [event.data for event in await collect([b"data: 1\n\n" + last])] == ["1", "2"]


@pytest.mark.parametrize("last", [b": comment", b"event: ping", b"data:"])
async def test_a_last_event_without_data_is_no_event(last: bytes) -> None:
    assert [event.data for event in await collect([b"data: 1\n\n" + last])] == ["1"]


async def test_a_line_separator_inside_json_does_not_split_it() -> None:
    text = '{"a":"\u2028\u2029\u0085\x0b\x0c"}'
    assert [event.data for event in await collect([f"data: {text}\n\n".encode()])] == [text]


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (500, SSE),
        (204, SSE),
        (200, {}),
        (200, {"content-type": "application/json"}),
        (200, {"content-type": "text/plain; x=text/event-stream"}),
    ],
)
async def test_another_content_type_is_a_wire_error(status: int, headers: dict[str, str]) -> None:
    with pytest.raises(WireError):
        await anext(read_events(incoming([b"data: 1\n\n"], status=status, headers=headers)))


async def test_the_content_type_is_read_as_media_types_are() -> None:
    stream = incoming([b"data: 1\n\n"], headers={"content-type": "Text/Event-Stream ; charset=latin-1"})
    assert [event.data async for event in read_events(stream)] == ["1"]


SMALL = StreamLimits(line_bytes_max=100, event_bytes_max=300, stream_bytes_max=2_000, events_max=5, lines_max=50)


@pytest.mark.parametrize(("size", "passes"), [(99, True), (100, True), (101, False)])
@pytest.mark.parametrize("piece", [1, 7, 1000])
async def test_a_line_may_be_as_long_as_its_limit(size: int, passes: bool, piece: int) -> None:
    stream = b"data: 0\n\n" + b"data:" + b"x" * (size - 5) + b"\n\n"
    chunks = [stream[at : at + piece] for at in range(0, len(stream), piece)]
    if passes:
        assert len(await collect(chunks, SMALL)) == 2
    else:
        found, error = await collect_until_error(chunks, SMALL)
        assert isinstance(error, LimitReached)
        assert "line" in str(error)
        assert len(found) <= 1


@pytest.mark.parametrize(("extra", "passes"), [(-1, True), (0, True), (1, False)])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("piece", [1, 1000])
async def test_an_event_may_be_as_large_as_its_limit(extra: int, passes: bool, end: bytes, piece: int) -> None:
    stream = (b"data:" + b"x" * 70 + end) * 4 + end  # 75 bytes a line, 300 in all
    limits = replace(SMALL, event_bytes_max=300 - extra)
    chunks = [stream[at : at + piece] for at in range(0, len(stream), piece)]
    if passes:
        assert len(await collect(chunks, limits)) == 1
    else:
        _, error = await collect_until_error(chunks, limits)
        assert "event" in str(error)


@pytest.mark.parametrize("piece", [1, 1000])
async def test_line_ends_cut_in_two_do_not_reset_the_event_count(piece: int) -> None:
    stream = b"data: xxxxxxxxx\r\n" * 40
    chunks = [stream[at : at + piece] for at in range(0, len(stream), piece)]
    _, error = await collect_until_error(chunks, SMALL)
    assert isinstance(error, LimitReached)
    assert "event" in str(error)


async def test_a_stream_may_be_as_large_as_its_limit() -> None:
    fits = (b": " + b"x" * 77 + b"\n") * 25
    assert len(fits) == 2_000
    assert await collect([fits], SMALL) == []
    _, error = await collect_until_error([fits, b":"], SMALL)
    assert "stream" in str(error)


async def test_events_and_lines_are_counted() -> None:
    assert len(await collect([b"data: 1\n\n" * 5], SMALL)) == 5
    found, error = await collect_until_error([b"data: 1\n\n" * 6], SMALL)
    assert (len(found), isinstance(error, LimitReached)) == (5, True)
    assert await collect([b"\n" * 50], SMALL) == []
    _, error = await collect_until_error([b"\n" * 51], SMALL)
    assert "lines" in str(error)


async def test_comments_do_not_count_towards_an_event() -> None:
    stream = b"data: 1\n" + b": keep-alive xxxxxxxxxxxxxx\n" * 30 + b"\n"
    assert [event.data for event in await collect([stream], SMALL)] == ["1"]


async def test_silence_ends_the_stream_after_the_idle_limit_and_not_before() -> None:
    limits = StreamLimits(idle_s=60)
    assert len(await collect([b"data: 1\n\n", 59.0, b"data: 2\n\n"], limits)) == 2
    found, error = await collect_until_error([b"data: 1\n\n", 61.0, b"data: 2\n\n"], limits)
    assert (len(found), isinstance(error, TimedOut)) == (1, True)
    assert "60 s" in str(error)


async def test_keep_alive_comments_hold_a_quiet_stream_open_for_hours() -> None:
    chunks: list[bytes | float] = [b": keep-alive\n\n", 25.0] * 400
    assert len(await collect([*chunks, b"data: 1\n\n"], StreamLimits(idle_s=60))) == 1


async def test_comments_do_not_count_as_events_where_events_are_waited_for() -> None:
    chunks: list[bytes | float] = [b"data: 1\n\n", *([b": hm\n\n", 10.0] * 10)]
    found, error = await collect_until_error(chunks, StreamLimits(idle_event_s=60))
    assert (len(found), isinstance(error, TimedOut)) == (1, True)
    _, error = await collect_until_error(chunks[1:], StreamLimits(first_event_s=10))
    assert "10 s" in str(error)


async def test_a_stream_ends_at_its_total_limit_however_lively() -> None:
    chunks: list[bytes | float] = [b"data: 1\n\n", 1.0] * 100
    found, error = await collect_until_error(chunks, StreamLimits(total_s=30))
    assert isinstance(error, TimedOut)
    assert 29 <= len(found) <= 31


async def test_time_the_reader_takes_is_not_counted_as_idle() -> None:
    found = []
    async for event in read_events(incoming([b"data: 1\n\n", b"data: 2\n\n"]), limits=StreamLimits(idle_s=5)):
        found.append(event)
        await asyncio.sleep(100)
    assert len(found) == 2


async def test_an_error_of_the_connection_reaches_the_reader() -> None:
    async def arrive() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"
        raise ConnectionLost("gone")

    events = read_events(IncomingResponse(status=200, headers=SSE, chunks=arrive()))
    assert (await anext(events)).data == "1"
    with pytest.raises(ConnectionLost):
        await anext(events)


async def test_leaving_early_closes_the_source_of_the_stream() -> None:
    closed = []

    async def arrive() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"data: 1\n\n"
        finally:
            closed.append(True)

    chunks = arrive()
    events = read_events(IncomingResponse(status=200, headers=SSE, chunks=chunks))
    await anext(events)
    await events.aclose()
    await chunks.aclose()  # type: ignore[attr-defined]
    assert closed == [True]


async def test_every_event_gives_the_next_one_its_whole_time() -> None:
    chunks: list[bytes | float] = []
    for n in range(6):
        chunks += [30.0, b": still here\n", 25.0, b"data: %d\n\n" % n]
    assert len(await collect(chunks, StreamLimits(idle_event_s=60, idle_s=40))) == 6
    late: list[bytes | float] = [55.0, b"data: 0\n\n", 30.0, b": still here\n", 31.0, b"data: 1\n\n"]
    found, error = await collect_until_error(late, StreamLimits(idle_event_s=60))
    assert len(found) == 1
    assert "no event for 60 s" in str(error)


@pytest.mark.parametrize("status", [199, 201, 204, 400])
async def test_only_a_200_is_a_stream_of_events(status: int) -> None:
    with pytest.raises(WireError, match=str(status)):
        _ = [event async for event in read_events(incoming([b"data: x\n\n"], status=status))]


class Counted:
    """Turns that take ``takes_s`` each, counted."""

    owner = "scout"

    def __init__(self, takes_s: float = 0.0) -> None:
        self.turns = self.events = self.paid_for = 0
        self.takes_s = takes_s

    async def turn(self, events: int = 0) -> float:
        self.turns += not events
        self.events += events
        await asyncio.sleep(self.takes_s)
        return self.takes_s

    async def paid(self) -> float:
        self.paid_for += 1
        await asyncio.sleep(self.takes_s)
        return self.takes_s


async def test_turns_that_take_long_are_not_the_senders_silence() -> None:
    counted = Counted(takes_s=50)
    limits = StreamLimits(idle_event_s=10, first_event_s=10, total_s=10, idle_s=10)
    chunks: list[bytes | float] = [b"data: 1\n\n", 4.0, b"data: 2\n\n", 4.0, b": hm\n", b"data: 3\n\n"]
    found = [event.data async for event in read_events(incoming(chunks), limits=limits, turns=counted)]
    assert (found, counted.events) == (["1", "2", "3"], 3)
    assert counted.turns == 1, "a piece of which events came had theirs"
    with pytest.raises(TimedOut):
        async for _ in read_events(incoming([*chunks, 3.0, b"data: 4\n\n"]), limits=limits, turns=Counted(50)):
            pass


@pytest.mark.parametrize(
    ("limits", "chunks", "at_s"),
    [
        (StreamLimits(idle_s=None, first_event_s=100, idle_event_s=10), [1.0, b"data: 1\n\n", 500.0], 11.0),
        (StreamLimits(idle_s=100, large_event_s=7), [3.0, b"data: " + b"x" * 300_000, 500.0], 10.0),
        (StreamLimits(idle_s=20, total_s=50), [b":\n", 15.0, b":\n", 19.0, b":\n", 500.0], 50.0),
        (StreamLimits(idle_s=20, total_s=90), [b":\n", 15.0, b":\n", 19.0, b":\n", 500.0], 54.0),
    ],
)
async def test_a_deadline_that_begins_under_way_passes_to_the_moment(
    limits: StreamLimits, chunks: list[bytes | float], at_s: float
) -> None:
    _, error = await collect_until_error(chunks, limits)
    assert isinstance(error, TimedOut)
    assert asyncio.get_running_loop().time() == pytest.approx(at_s)
