"""Probes of streams that are dropped and rejoined: who owns the work, and what a late reader is told."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from fleetsim.check.exchange import Exchange
from fleetsim.check.fixtures import finished_task
from fleetsim.check.probe import probe
from fleetsim.check.probes.envelope import refused
from fleetsim.check.raw_dialect import TERMINAL, mapping, message_text
from fleetsim.check.session import Session
from fleetsim.check.verdict import fail_unless, not_tested_unless
from fleetsim.model.call import Operation

REJOIN_S = 30.0
AT_ONCE_S = 1.0
"""What comes within so long of the snapshot is told to whoever rejoins, and not news of the work."""


async def dropped_stream(session: Session) -> tuple[str, Exchange]:
    """A slow task whose stream was dropped after the first sign of progress (or a second)."""
    async with session.stream(Operation.STREAM, session.params(session.hint("slow"))) as stream:
        not_tested_unless(stream.is_stream, f"a stream gave {stream.exchange.says()}", stream.exchange)
        not_tested_unless(await stream.next(5), "no event came", stream.exchange)
        await stream.until(lambda kind, content: kind == "status-update" and bool(message_text(content)), 1)
        state = session.dialect.state(mapping(session.dialect.event(stream.exchange.frames[-1].result)[1]))
        not_tested_unless(state not in TERMINAL, "the slow skill was over at once: name a slower one", stream.exchange)
        return stream.task_id(), stream.exchange


async def rejoined_stream(session: Session) -> tuple[Exchange, Exchange]:
    """A dropped stream and the whole stream that rejoined it."""
    task_id, before = await dropped_stream(session)
    async with session.stream(Operation.SUBSCRIBE, session.dialect.by_id(task_id)) as stream:
        await stream.drain(REJOIN_S)
    return before, stream.exchange


@probe("S-14")
async def work_goes_on(session: Session) -> None:
    """Leave, and look."""
    task_id, before = await dropped_stream(session)
    read = await session.until(task_id)
    state = session.state(read)
    fail_unless(state == "completed", f"after its reader left the task is {state or read.says()}", before, read)


@probe("S-15")
async def can_be_rejoined(session: Session) -> None:
    """Leave, and come back."""
    before, made = await session.fixture(rejoined_stream)
    fail_unless(made.frames and made.error is None, f"rejoining a running task gave {made.says()}", before, made)
    last = session.dialect.event(made.frames[-1].result)[1]
    fail_unless(
        made.ended and session.dialect.state(last) in TERMINAL, "the rejoined stream did not reach the end", made
    )


def _first(session: Session, made: Exchange) -> tuple[str, Mapping[str, Any]]:
    not_tested_unless(made.frames and made.error is None, f"rejoining a running task gave {made.says()}", made)
    return session.dialect.event(made.frames[0].result)


@probe("S-16")
async def snapshot_first(session: Session) -> None:
    """The first event after a rejoin, and whether text is lost."""
    before, made = await session.fixture(rejoined_stream)
    kind, content = _first(session, made)
    fail_unless(kind == "task", f"the first event after a rejoin is a {kind or 'riddle'}, no snapshot", before, made)
    fail_unless(session.dialect.state(content), "the snapshot shows no state", made)
    if "stream" not in session.agent.hints:
        return
    task_id, sent, so_far = await _half_a_stream(session)
    async with session.stream(Operation.SUBSCRIBE, session.dialect.by_id(task_id)) as stream:
        await stream.next(5)
    held = _text_of(session, stream.exchange)
    if not stream.exchange.error:
        fail_unless(
            held.startswith(so_far), f"{so_far!r} was sent before the rejoin and is missing", sent, stream.exchange
        )


async def _half_a_stream(session: Session) -> tuple[str, Exchange, str]:
    hint = session.hint("stream")
    long = type(hint)(hint.skill, " ".join(["word"] * 40) if hint.text == "one two three four" else hint.text)
    async with session.stream(Operation.STREAM, session.params(long)) as stream:
        not_tested_unless(stream.is_stream, f"a stream gave {stream.exchange.says()}", stream.exchange)
        count = 0

        def third(kind: str, _content: Mapping[str, Any]) -> bool:
            nonlocal count
            count += kind == "artifact-update"
            return count >= 3

        await stream.until(third, 5)
        return stream.task_id(), stream.exchange, _text_of(session, stream.exchange)


def _text_of(session: Session, made: Exchange) -> str:
    from fleetsim.check.probes.streams import fold

    return "".join(fold(session, made)[0].values())


@probe("S-17")
async def progress_is_kept(session: Session) -> None:
    """The progress message in the snapshot."""
    before, made = await session.fixture(rejoined_stream)
    told = {text for frame in before.frames if (text := message_text(session.dialect.event(frame.result)[1]))}
    not_tested_unless(told, "the slow skill says nothing of its progress", before)
    _first(session, made)
    # In the snapshot, or told again as the next event: either way whoever comes back knows at once.
    at_once = [frame for frame in made.frames[:3] if frame.at - made.frames[0].at < AT_ONCE_S]
    shown = [message_text(session.dialect.event(frame.result)[1]) for frame in at_once]
    known = bool(shown[0]) or not told.isdisjoint(shown)
    fail_unless(known, "neither the snapshot nor what follows it at once says what the agent is doing", before, made)


async def _rejoin(session: Session, task_id: str) -> Exchange:
    async with session.stream(Operation.SUBSCRIBE, session.dialect.by_id(task_id)) as stream:
        if stream.is_stream:
            await stream.drain(5)
        return stream.exchange


@probe("S-18")
async def unknown_task(session: Session) -> None:
    """Rejoin nothing."""
    refused(await _rejoin(session, session.new()), "rejoining an unknown task", -32001)


@probe("S-19")
async def refusal_is_an_event(session: Session) -> None:
    """How a refusal comes."""
    made = await _rejoin(session, session.new())
    not_tested_unless(made.error is not None, f"rejoining an unknown task gave {made.says()}", made)
    fail_unless(made.frames, f"the refusal came as {made.media_type}, not as an event", made)


@probe("S-20")
async def finished_is_refused(session: Session) -> None:
    """Subscribe to what is over."""
    task_id, _ = await session.fixture(finished_task)
    refused(await _rejoin(session, task_id), "subscribing to a finished task", -32004)


@probe("S-21")
async def finished_ends(session: Session) -> None:
    """Rejoin what is over."""
    task_id, _ = await session.fixture(finished_task)
    made = await _rejoin(session, task_id)
    fail_unless(made.ended, "the stream of a finished task does not end", made)
    told = made.error is not None or any(
        session.dialect.state(session.dialect.event(frame.result)[1]) in TERMINAL for frame in made.frames
    )
    fail_unless(told, f"rejoining a finished task gave {made.says()}", made)


@probe("S-22")
async def all_readers_see_the_end(session: Session) -> None:
    """Three readers."""
    async with session.stream(Operation.STREAM, session.params(session.hint("slow"))) as first:
        not_tested_unless(
            first.is_stream and await first.next(5), f"a stream gave {first.exchange.says()}", first.exchange
        )
        task_id = first.task_id()

        async def follow() -> Exchange:
            async with session.stream(Operation.SUBSCRIBE, session.dialect.by_id(task_id)) as stream:
                return await stream.drain(REJOIN_S)

        async with asyncio.TaskGroup() as group:
            others = [group.create_task(follow()) for _ in range(2)]
            own = await first.drain(REJOIN_S)
    for made in (own, *(other.result() for other in others)):
        not_tested_unless(made.error is None, f"rejoining a running task gave {made.says()}", made)
        last = session.dialect.event(made.frames[-1].result)[1] if made.frames else {}
        fail_unless(session.dialect.state(last) in TERMINAL, "one of three readers did not see the end", made)


@probe("S-26")
async def cancel_ends_streams(session: Session) -> None:
    """Cancel under a reader."""
    async with session.stream(Operation.STREAM, session.params(session.hint("slow"))) as stream:
        not_tested_unless(
            stream.is_stream and await stream.next(5), f"a stream gave {stream.exchange.says()}", stream.exchange
        )
        made = await session.cancel(stream.task_id())
        not_tested_unless(made.error is None, f"the cancel gave {made.says()}", made)
        await stream.drain(5)
    seen = stream.exchange
    last = session.dialect.event(seen.frames[-1].result)[1]
    fail_unless(seen.ended, "the stream of a cancelled task stays open", made, seen)
    fail_unless(session.dialect.state(last) == "canceled", "the stream did not say canceled", made, seen)
