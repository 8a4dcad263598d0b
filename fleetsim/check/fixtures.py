"""Fixtures that several probes look at, made once a dialect: a finished task, a whole stream, a delivered webhook.

Ask for one by ``await session.fixture(finished_task)``.
"""

from __future__ import annotations

from typing import Any

from fleetsim.check.exchange import Exchange
from fleetsim.check.listener import WebhookAddress, tells_the_end
from fleetsim.check.options import Hint
from fleetsim.check.session import Session
from fleetsim.check.verdict import not_tested_unless
from fleetsim.model.call import Operation

STREAM_S = 30.0


async def finished_task(session: Session) -> tuple[str, Exchange]:
    """A quick task that has ended: its id and last reading."""
    return await session.finished()


async def quick_stream(session: Session) -> Exchange:
    """A whole stream of a quick task."""
    return await _whole_stream(session, session.quick())


async def stream_in_pieces(session: Session) -> Exchange:
    """A whole stream of the skill that answers in pieces."""
    return await _whole_stream(session, session.hint("stream"))


async def _whole_stream(session: Session, hint: Hint) -> Exchange:
    async with session.stream(Operation.STREAM, session.params(hint)) as stream:
        not_tested_unless(
            stream.is_stream, f"the stream this leans on was answered with {stream.exchange}", stream.exchange
        )
        return await stream.drain(STREAM_S)


async def longest_stream(session: Session) -> Exchange:
    """A whole stream with as many events as are to be had."""
    return await session.fixture(stream_in_pieces if "stream" in session.agent.hints else quick_stream)


async def all_streams(session: Session) -> list[Exchange]:
    """Every whole stream a probe of shapes should look at."""
    streams = [await session.fixture(quick_stream)]
    if "stream" in session.agent.hints:
        streams.append(await session.fixture(stream_in_pieces))
    return streams


async def register(session: Session, task_id: str, hook: WebhookAddress, **config: Any) -> Exchange:
    """Register a webhook by the dialect's own method; ``config`` are members such as ``id`` and ``token``."""
    params = session.dialect.set_hook(task_id, session.dialect.hook(hook.url, **config))
    return await session.rpc(Operation.PUSH_SET, params)


async def registered(session: Session, task_id: str, hook: WebhookAddress, **config: Any) -> Exchange:
    """``register``, and the answer. Raises NotPassed (not tested) if it is refused."""
    exchange = await register(session, task_id, hook, **config)
    not_tested_unless(exchange.error is None, f"registering a webhook gave {exchange}", exchange)
    return exchange


async def reachable_listener(session: Session) -> None:
    """Whether the agent lets webhooks go to the listener. Raises NotPassed (not tested) if not."""
    hook = session.hook()
    if session.dialect.legacy:
        task_id, _ = await session.begin()
    else:
        task_id, _ = await session.fixture(finished_task)
    exchange = await register(session, task_id, hook, token=session.new())
    place = session.listener.place
    not_tested_unless(
        exchange.error is None or exchange.code != -32602,
        f"the agent refuses webhooks to the listener ({place}); add it to the agent's allow-list "
        f"(for fleetsim's: --allow-webhook {place})",
        exchange,
    )
    not_tested_unless(exchange.granted, f"registering a webhook gave {exchange}", exchange)


async def delivered_webhook(session: Session) -> tuple[str, WebhookAddress, Exchange]:
    """A quick task with an inline webhook and a token, until its end was delivered."""
    token, hook = "fleetsim-" + session.new(), session.hook()
    task_id, exchange = await session.begin(push=session.dialect.hook(hook.url, token=token))
    arrival = await hook.until(tells_the_end, session.options.patience_s)
    not_tested_unless(arrival is not None, "no terminal webhook of a task sent with a webhook came", exchange)
    return task_id, hook, exchange
