"""Rows about streams that are dropped and rejoined: the work goes on, and a late reader gets the state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleetsim.check.evidence import Exchange, fail_unless, fail_unless_error, not_tested_unless
from fleetsim.check.raw_dialect import mapping, message_text
from fleetsim.check.requirement import BUILD_GUIDE, V03, V10, must, should
from fleetsim.check.sections.streams import fold
from fleetsim.check.session import Session, finished_task, slow_stream
from fleetsim.model.call import Operation
from fleetsim.model.task import TERMINAL

SSE = f"{BUILD_GUIDE}, checklist 'SSE semantics'"
REJOIN_S = 30.0
AT_ONCE_S = 1.0
"""An event within this time of the snapshot may belong to the rejoin, and is not counted as progress."""


async def dropped_stream(session: Session) -> tuple[str, Exchange]:
    """A slow task whose stream was dropped after the first sign of progress (or a second)."""
    async with session.streaming(session.hint("slow")) as stream:
        not_tested_unless(await stream.next(5), "no event came", stream.exchange)
        await stream.until(lambda kind, content: kind == "status-update" and bool(message_text(content)), 1)
        state = session.dialect.state(mapping(session.dialect.event(stream.exchange.frames[-1].result)[1]))
        over = "needs a stream that begins before its task ends: its first events said"
        not_tested_unless(
            state not in TERMINAL, f"{over} {state} (S-25); name a slower skill with --skill-slow", stream.exchange
        )
        return stream.task_id(), stream.exchange


@must(
    "S-14: A reader that leaves does not stop the work",
    source=f"{SSE}; {BUILD_GUIDE}, hardening 6",
    remedy="Run the work in a background task that no response owns; the stream only reads its events.",
    incident="a2a-sdk 0.2.16 dies with its client",
    needs=("streaming", "slow", "end"),
)
async def work_goes_on(session: Session) -> None:
    """Stream from the slow skill, drop the connection after the first event, and get the task: it must complete."""
    task_id, before = await dropped_stream(session)
    read = await session.until(task_id)
    state = session.state(read)
    fail_unless(state == "completed", f"after its reader left the task is {state or read}", before, read)


async def rejoined_stream(session: Session) -> tuple[Exchange, Exchange]:
    """A dropped stream and the whole stream that rejoined it."""
    task_id, before = await dropped_stream(session)
    async with session.stream(Operation.SUBSCRIBE, session.dialect.by_id(task_id)) as stream:
        await stream.drain(REJOIN_S)
    return before, stream.exchange


@must(
    "S-15: A dropped stream can be rejoined while the task runs",
    source=f"{BUILD_GUIDE}, checklist 'Transport & lifecycle'",
    remedy="Serve resubscribe from the same store as the stream.",
    needs=("streaming", "slow", "end"),
)
async def can_be_rejoined(session: Session) -> None:
    """Drop a stream of the slow skill, resubscribe, and read to the end."""
    before, reply = await session.fixture(rejoined_stream)
    fail_unless(reply.frames and reply.error is None, f"rejoining a running task gave {reply}", before, reply)
    last = session.dialect.event(reply.frames[-1].result)[1]
    fail_unless(
        reply.ended and session.dialect.state(last) in TERMINAL, "the rejoined stream did not reach the end", reply
    )


def _first(session: Session, reply: Exchange) -> tuple[str, Mapping[str, Any]]:
    not_tested_unless(reply.frames and reply.error is None, f"rejoining a running task gave {reply}", reply)
    return session.dialect.event(reply.frames[0].result)


def _text_of(session: Session, reply: Exchange) -> str:
    return "".join(fold(session, reply)[0].values())


@must(
    "S-16: A rejoined stream begins with the state of the task",
    source=f"{SSE}; {BUILD_GUIDE}, hardening 7; A2A 1.0 §3.1.6",
    remedy="Send a snapshot with the accumulated artifact before any delta.",
    incident="a2a-sdk 0.2 and 0.3 send no snapshot: a late joiner misses text",
    needs=("streaming", "slow"),
)
async def snapshot_first(session: Session) -> None:
    """The first event after a rejoin is the task (0.3: or a status), with the text so far."""
    before, reply = await session.fixture(rejoined_stream)
    kind, content = _first(session, reply)
    fail_unless(kind == "task", f"the first event after a rejoin is a {kind or 'riddle'}, no snapshot", before, reply)
    fail_unless(session.dialect.state(content), "the snapshot shows no state", reply)
    if "stream" not in session.agent.hints:
        return
    hint = session.hint("stream")
    long = type(hint)(hint.skill, " ".join(["word"] * 40) if hint.text == "one two three four" else hint.text)
    pieces = 0

    def third(kind: str, _content: Mapping[str, Any]) -> bool:
        nonlocal pieces
        pieces += kind == "artifact-update"
        return pieces >= 3

    async with session.streaming(long) as stream:
        await stream.until(third, 5)
        task_id, sent, so_far = stream.task_id(), stream.exchange, _text_of(session, stream.exchange)
    async with session.stream(Operation.SUBSCRIBE, session.dialect.by_id(task_id)) as stream:
        await stream.next(5)
    held = _text_of(session, stream.exchange)
    if not stream.exchange.error:
        fail_unless(
            held.startswith(so_far), f"{so_far!r} was sent before the rejoin and is missing", sent, stream.exchange
        )


@should(
    "S-17: A rejoined stream shows the current progress message",
    source=f"{SSE}; {BUILD_GUIDE}, hardening 8",
    remedy="Keep the last progress message on the record.",
    needs=("streaming", "slow"),
)
async def progress_is_kept(session: Session) -> None:
    """Stream from the slow skill until it says what it is doing, rejoin, and look for that in the snapshot."""
    before, reply = await session.fixture(rejoined_stream)
    progress = {text for frame in before.frames if (text := message_text(session.dialect.event(frame.result)[1]))}
    not_tested_unless(progress, "the slow skill says nothing of its progress", before)
    _first(session, reply)
    # In the snapshot, or told again as the next event: either way whoever comes back knows at once.
    at_once = [frame for frame in reply.frames[:3] if frame.at - reply.frames[0].at < AT_ONCE_S]
    shown = [message_text(session.dialect.event(frame.result)[1]) for frame in at_once]
    known = bool(shown[0]) or not progress.isdisjoint(shown)
    fail_unless(known, "neither the snapshot nor what follows it at once says what the agent is doing", before, reply)


async def _rejoin(session: Session, task_id: str) -> Exchange:
    async with session.stream(Operation.SUBSCRIBE, session.dialect.by_id(task_id)) as stream:
        if stream.is_stream:
            await stream.drain(5)
        return stream.exchange


@must(
    "S-18: Rejoining an unknown task is -32001",
    source=f"{BUILD_GUIDE}, 'Error code conventions'",
    remedy="Look the task up before opening the stream.",
    needs=("streaming",),
)
async def unknown_task(session: Session) -> None:
    """Resubscribe to an id nobody made."""
    fail_unless_error(await _rejoin(session, session.new()), "rejoining an unknown task", -32001)


@should(
    "S-19: A refused stream is one SSE event on 0.3",
    V03,
    source="Reference interop, 'What real clients found'",
    remedy="Send the error as the one event of a stream: JavaScript clients report plain JSON as a wrong content type.",
    incident="Real errors were shown as 'Invalid response Content-Type'",
    needs=("json-rpc", "streaming"),
)
async def refusal_is_an_event(session: Session) -> None:
    """Read the Content-Type of the refusal of a resubscribe."""
    reply = await _rejoin(session, session.new())
    not_tested_unless(reply.error is not None, f"rejoining an unknown task gave {reply}", reply)
    fail_unless(reply.frames, f"the refusal came as {reply.media_type}, not as an event", reply)


@must(
    "S-20: Subscribing to a finished task is -32004",
    V10,
    source="A2A 1.0 §3.1.6",
    remedy="Refuse with -32004.",
    needs=("streaming",),
)
async def finished_is_refused(session: Session) -> None:
    """Subscribe to a completed task."""
    task_id, _ = await session.fixture(finished_task)
    fail_unless_error(await _rejoin(session, task_id), "subscribing to a finished task", -32004)


@must(
    "S-21: Rejoining a finished task ends at once",
    V03,
    source=f"{BUILD_GUIDE}, hardening 6 and 8",
    remedy="Send the snapshot and the closing pair, or an error; never hang.",
    needs=("streaming",),
)
async def finished_ends(session: Session) -> None:
    """Resubscribe to a completed task: its state (or an error) must come and the stream must end within 5 s."""
    task_id, _ = await session.fixture(finished_task)
    reply = await _rejoin(session, task_id)
    fail_unless(reply.ended, "the stream of a finished task does not end", reply)
    answered = reply.error is not None or any(
        session.dialect.state(session.dialect.event(frame.result)[1]) in TERMINAL for frame in reply.frames
    )
    fail_unless(answered, f"rejoining a finished task gave {reply}", reply)


@should(
    "S-22: All readers of a task see it end",
    source="A2A 1.0 §3.5.2; seed: implement-a2a-server, step 4.2",
    remedy="Send each event to every reader; readers must not share one queue.",
    needs=("streaming", "slow", "end"),
)
async def all_readers_see_the_end(session: Session) -> None:
    """Rejoin twice while the task runs; both must see the terminal event."""
    own, others = await session.fixture(slow_stream)
    not_tested_unless(others, f"the stream this leans on gave {own}", own)
    for reply in (own, *others):
        not_tested_unless(reply.error is None, f"rejoining a running task gave {reply}", reply)
        last = session.dialect.event(reply.frames[-1].result)[1] if reply.frames else {}
        fail_unless(session.dialect.state(last) in TERMINAL, "one of three readers did not see the end", reply)


@must(
    "S-26: A cancel ends open streams with canceled",
    source=f"{SSE}; {BUILD_GUIDE}, hardening 3",
    remedy="Publish the end to open streams from the cancel path as well.",
    needs=("streaming", "slow"),
)
async def cancel_ends_streams(session: Session) -> None:
    """Cancel a task while a stream of it is open."""
    async with session.stream(Operation.STREAM, session.params(session.hint("slow"))) as stream:
        not_tested_unless(
            stream.is_stream and await stream.next(5), f"a stream gave {stream.exchange}", stream.exchange
        )
        reply = await session.cancel(stream.task_id())
        not_tested_unless(reply.error is None, f"the cancel gave {reply}", reply)
        await stream.drain(5)
    seen = stream.exchange
    last = session.dialect.event(seen.frames[-1].result)[1]
    fail_unless(seen.ended, "the stream of a cancelled task stays open", reply, seen)
    fail_unless(session.dialect.state(last) == "canceled", "the stream did not say canceled", reply, seen)
