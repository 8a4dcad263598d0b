"""Probes of the task store: what it lets go of, and what it keeps whole when much happens at once."""

from __future__ import annotations

import asyncio
import gc

from fleetsim.check.exchange import Exchange
from fleetsim.check.found import demand, need
from fleetsim.check.probe import Phase, probe
from fleetsim.check.scenes import delivered
from fleetsim.check.session import Session
from fleetsim.check.subject import Hint
from fleetsim.check.tongue import TERMINAL
from fleetsim.model.call import Operation

LONG_S = 12 * 3600.0
MANY = 8


@probe("H-01", Phase.LAST)
async def evicted(session: Session) -> None:
    """Half a day later."""
    task_id, _ = await session.finished()
    await asyncio.sleep(LONG_S)
    made = await session.get(task_id)
    demand(made.code == -32001, f"a task that ended {LONG_S / 3600:g} hours ago gives {made.says()}", made)


@probe("H-02", Phase.LAST)
async def kept_at_work(session: Session) -> None:
    """A task that waits, or works, for hours."""
    hours = 3.0
    if "ask" in session.subject.hints:
        waiting, _ = await session.begin(session.hint("ask"))
        await asyncio.sleep(hours * 3600)
        made = await session.get(waiting)
        demand(session.state(made) == "input-required", f"a question of {hours:g} hours ago gives {made.says()}", made)
        return
    task_id, _ = await session.begin(Hint(session.hint("slow").skill, str(3600 * 24)))
    await asyncio.sleep(hours * 3600)
    made = await session.get(task_id)
    state = session.state(made)
    # A skill may cap its time; what counts is that the record is there.
    if made.code == -32001 and "slow" in session.subject.hints:
        fresh, _ = await session.begin(Hint(session.hint("slow").skill, "3600"))
        await asyncio.sleep(3500)
        again = await session.get(fresh)
        demand(session.state(again) not in {"", *TERMINAL}, "a task at work was evicted", again)
        return
    demand(state, f"a task at work for {hours:g} hours gives {made.says()}", made)


@probe("H-03")
async def many_at_once(session: Session) -> None:
    """Eight sends at once."""
    async with asyncio.TaskGroup() as group:
        sends = [group.create_task(session.begin()) for _ in range(MANY)]
    ids = [send.result()[0] for send in sends]
    demand(len(set(ids)) == MANY, "two of eight tasks share an id", sends[0].result()[1])
    for task_id in ids:
        last = await session.until(task_id)
        demand(session.state(last) in TERMINAL, f"one of eight tasks is {session.state(last) or '?'}", last)


@probe("H-04")
async def cancel_is_atomic(session: Session) -> None:
    """Cancel at the moment of the end."""
    for delay in (0.0, 0.0, 0.001, 0.005, 0.02):
        task_id, _ = await session.begin()
        await asyncio.sleep(delay)
        made = await session.cancel(task_id)
        read = await session.until(task_id, seconds=5)
        state = session.state(read)
        if made.error is None:
            demand(state == "canceled", f"the cancel was taken, and then the task is {state}", made, read)
        else:
            demand(state != "canceled", f"the cancel was refused, and then the task is {state}", made, read)


@probe("H-05", Phase.LAST)
async def aborted_streams(session: Session) -> None:
    """A dozen readers that leave."""
    hint = session.subject.hints.get("slow", session.quick())
    for _ in range(12):
        async with session.stream(Operation.STREAM, session.params(hint)) as stream:
            await stream.next(5)
    async with session.stream(Operation.STREAM, session.params(session.quick())) as stream:
        first = await stream.next(5)
    demand(first, f"after a dozen dropped streams a new one gave {stream.exchange.says()}", stream.exchange)
    made = await session.send()
    demand(made.error is None and made.seconds < 5, f"after a dozen dropped streams a send gave {made.says()}", made)


async def logged(session: Session) -> tuple[str, str, list[str], Exchange]:
    """A scene: a delivery, its task, its token and the lines logged meanwhile."""
    log = session.knobs.log
    assert log is not None
    before = len(log)
    task_id, hook, made = await delivered(session)
    await asyncio.sleep(0.5)
    token = hook.arrivals[-1].headers.get("x-a2a-notification-token", "")
    token = token or hook.arrivals[-1].headers.get("authorization", "").rpartition(" ")[2]
    return task_id, token, log[before:], made


@probe("H-06", Phase.LAST)
async def deliveries_are_logged(session: Session) -> None:
    """The lines of a delivery."""
    task_id, _, lines, made = await session.scene(logged)
    told = [line for line in lines if task_id in line and "200" in line and line.startswith("INFO")]
    demand(told, "no INFO line names the task and the status of the delivery", made)
    demand(any("completed" in line for line in told), "no line names the state that was delivered", made)


@probe("H-07", Phase.LAST)
async def nothing_private_is_logged(session: Session) -> None:
    """The same lines."""
    _, token, lines, made = await session.scene(logged)
    need(token, "the delivery carried no token", made)
    demand(not any(token in line for line in lines), "the token of a webhook is in the log", made)
    text = session.quick().text
    demand(not any(text and text in line for line in lines), "the text of a task is in the log", made)


@probe("H-08")
async def retries_are_held(session: Session) -> None:
    """Collect garbage between two tries."""
    hook = session.hook(answers=(500,))
    _, made = await session.begin(push=session.tongue.hook(hook.url))
    first = await hook.until(lambda _arrival: True, 10)
    need(first, "no webhook came", made)
    assert first is not None
    for _ in range(3):
        gc.collect()
        await asyncio.sleep(0.1)
    again = await hook.until(lambda _arrival: sum(a.body == first.body for a in hook.arrivals) > 1, 20)
    demand(again, "after a garbage collection the retry never came", made)
