"""Scenes that several probes look at: a finished task, a whole stream, a listener the agent may reach."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleetsim.check.exchange import Exchange
from fleetsim.check.found import need
from fleetsim.check.listener import Hook, state_of
from fleetsim.check.session import Session
from fleetsim.check.tongue import TERMINAL, mapping
from fleetsim.model.call import Operation

STREAM_S = 30.0


async def done(session: Session) -> tuple[str, Exchange]:
    """A quick task that has ended: its id and last reading."""
    return await session.finished()


async def quick_stream(session: Session) -> Exchange:
    """A whole stream of a quick task."""
    async with session.stream(Operation.STREAM, session.params(session.quick())) as stream:
        need(stream.is_stream, f"the stream this leans on was answered with {stream.exchange.says()}", stream.exchange)
        return await stream.drain(STREAM_S)


async def word_stream(session: Session) -> Exchange:
    """A whole stream of the skill that answers in pieces."""
    async with session.stream(Operation.STREAM, session.params(session.hint("stream"))) as stream:
        need(stream.is_stream, f"the stream this leans on was answered with {stream.exchange.says()}", stream.exchange)
        return await stream.drain(STREAM_S)


async def best_stream(session: Session) -> Exchange:
    """A whole stream with as many events as are to be had."""
    return await session.scene(word_stream if "stream" in session.subject.hints else quick_stream)


async def all_streams(session: Session) -> list[Exchange]:
    """Every whole stream a probe of shapes should look at."""
    found = [await session.scene(quick_stream)]
    if "stream" in session.subject.hints:
        found.append(await session.scene(word_stream))
    return found


async def register(session: Session, task_id: str, hook: Hook, **config: Any) -> Exchange:
    """Register a webhook by the method."""
    params = session.tongue.set_hook(task_id, session.tongue.hook(hook.url, **config))
    return await session.rpc(session.tongue.method(Operation.PUSH_SET), params)


async def reachable(session: Session) -> None:
    """Whether the agent lets webhooks go to the listener. Raises Stop (not tested) if not."""
    hook = session.hook()
    if session.tongue.legacy:
        task_id, _ = await session.begin()
    else:
        task_id, _ = await session.scene(done)
    made = await register(session, task_id, hook, token=session.new())
    place = session.listener.place
    need(
        made.error is None or made.code != -32602,
        f"the agent refuses webhooks to the listener ({place}); add it to the agent's allow-list "
        f"(for fleetsim's: --allow-webhook {place})",
        made,
    )
    need(made.error is None and made.status == 200, f"registering a webhook gave {made.says()}", made)


async def delivered(session: Session) -> tuple[str, Hook, Exchange]:
    """A quick task with an inline webhook and a token, until its end was delivered."""
    return await _delivered(session, token="fleetsim-" + session.new())


async def _delivered(session: Session, **config: Any) -> tuple[str, Hook, Exchange]:
    hook = session.hook()
    task_id, made = await session.begin(push=session.tongue.hook(hook.url, **config))
    arrival = await hook.until(lambda a: state_of(a) in TERMINAL, session.knobs.patience_s)
    need(arrival is not None, "no terminal webhook of a task sent with a webhook came", made)
    return task_id, hook, made


def last_status(exchange: Exchange, session: Session) -> Mapping[str, Any]:
    """The last status update of a stream; empty if it has none."""
    events = [session.tongue.event(frame.result) for frame in exchange.frames]
    return next((mapping(content) for kind, content in reversed(events) if kind == "status-update"), {})
