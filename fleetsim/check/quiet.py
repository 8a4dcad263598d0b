"""Whether the agent does one task at a time, and waiting until it has nothing of ours left to do.

Probes that run side by side would keep such an agent's queue full, and one would fail for what another asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from fleetsim.check.exchange import Exchange
from fleetsim.check.raw_dialect import mapping
from fleetsim.check.session import Session
from fleetsim.check.verdict import NotPassed
from fleetsim.model.task import INTERRUPTED, TERMINAL

QUIET_S = 60.0
"""How long the tasks that a probe has left are waited for."""

DIFFERS_S = 0.5
"""What is done quicker holds nobody up, in whatever order."""

SOON_S = 0.2


async def one_at_a_time(session: Session) -> bool:
    """Whether a task waits until the one before it is done.

    A quick task is sent behind a slow one, if it is known how to get one; else three quick ones at once, which then
    end like the steps of a staircase. A first task goes ahead, since first tasks are slow everywhere.
    """
    try:
        await session.finished()
        alone_s = await _takes_s(session)
    except NotPassed:
        return False
    if "slow" in session.agent.hints:
        return await _waits_behind_the_slow(session, alone_s)
    if alone_s < DIFFERS_S / 2:
        return False
    try:
        async with asyncio.TaskGroup() as group:
            sent = [group.create_task(_takes_s(session)) for _ in range(3)]
    except ExceptionGroup:
        return True  # what ends by itself does not end beside two others
    first, second, last = sorted(task.result() for task in sent)
    return last - first > DIFFERS_S and second > 1.6 * first and last > 2.4 * first


async def _takes_s(session: Session) -> float:
    began = session.now()
    await session.finished()
    return session.now() - began


async def _waits_behind_the_slow(session: Session, alone_s: float) -> bool:
    async with asyncio.TaskGroup() as group:
        slow = group.create_task(session.send(session.hint("slow")), name="slow")
        await asyncio.sleep(SOON_S)
        try:
            return await _takes_s(session) > 2 * alone_s + 2 * DIFFERS_S
        except NotPassed:
            return True
        finally:
            slow.cancel()  # it goes on at the agent, and is no matter if it holds nobody up


async def settle(session: Session, asked: Iterable[Exchange]) -> None:
    """Wait until the tasks that these requests show are over, or wait for somebody."""
    end = session.now() + QUIET_S
    for task_id, state in _tasks(session, asked).items():
        if state in TERMINAL or state in INTERRUPTED:
            continue
        await session.cancel(task_id)
        exchange = await session.until(task_id, TERMINAL | INTERRUPTED, max(end - session.now(), 0.0))
        if exchange.unreached:
            return


def _tasks(session: Session, asked: Iterable[Exchange]) -> dict[str, str]:
    """The last state seen of each task."""
    states: dict[str, str] = {}
    for exchange in asked:
        seen = [mapping(session.dialect.task(exchange.result))]
        for frame in exchange.frames:
            kind, content = session.dialect.event(frame.result)
            told = mapping(content)
            seen.append({**told, "id": session.dialect.task_id(kind, told)})
        for task in seen:
            if isinstance(task_id := task.get("id"), str):
                states[task_id] = session.dialect.state(task) or states.get(task_id, "")
    return states
