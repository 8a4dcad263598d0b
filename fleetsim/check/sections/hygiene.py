"""Rows about the task store: which tasks it removes, and that it stays consistent under load."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sized

from fleetsim.check.agent_under_test import Hint
from fleetsim.check.evidence import Exchange, fail_unless, not_tested_unless
from fleetsim.check.requirement import BUILD_GUIDE, ProbeBatch, must, should
from fleetsim.check.session import Session, delivered_webhook
from fleetsim.model.call import Operation
from fleetsim.model.task import TERMINAL

STORE = f"{BUILD_GUIDE}, checklist 'Task store hygiene'"
LONG_S = 12 * 3600.0
HOURS_S = 3 * 3600.0
LOOK_S = 60.0
WORKS_S_MIN = 600.0
RETRY_S = 10.0
LOGGED_S = 0.5
LOGGED_TRIES = 10
_IDLES = "works, or waits for an answer, for hours (--skill-ask, --skill-slow)"
MANY = 8


@must(
    "H-01: Terminal tasks are evicted in time",
    source=f"{STORE}; {BUILD_GUIDE}, hardening 1",
    remedy="Sweep terminal tasks older than an hour.",
    incident="Agents leaked memory in proportion to their lifetime traffic",
    needs=("time",),
    batch=ProbeBatch.LAST,
)
async def evicted(session: Session) -> None:
    """Finish a task, let the time to live and a sweep pass: it is -32001."""
    held = session.options.held
    task_id, ended = await session.finished()
    known = held is None or held(task_id)
    not_tested_unless(known, "the store that was named does not hold the tasks by their ids", ended)
    await asyncio.sleep(LONG_S)
    long_ago = f"a task that ended {LONG_S / 3600:g} hours ago"
    reply = await session.get(task_id)
    fail_unless(reply.code == -32001, f"{long_ago} gives {reply}", reply)
    kept = held is not None and held(task_id)
    fail_unless(not kept, f"{long_ago} is unknown to callers, but still in the store", reply)


async def _works_for(session: Session, hint: Hint) -> float:
    """For how many seconds such a task works or waits before it ends, if it does within ``HOURS_S``."""
    task_id, _ = await session.begin(hint)
    began = session.now()
    while session.now() < began + HOURS_S:
        await asyncio.sleep(LOOK_S)
        reply = await session.get(task_id)
        fail_unless(session.state(reply), f"a task that was at work {LOOK_S:g} s before gives {reply}", reply)
        if session.state(reply) in TERMINAL:
            return session.now() - began
    return HOURS_S


@must(
    "H-02: Tasks at work are never evicted",
    source=f"{BUILD_GUIDE}, hardening 1",
    remedy="Evict by terminal state, never by age alone.",
    needs=("time", "slow"),
    batch=ProbeBatch.LAST,
)
async def kept_at_work(session: Session) -> None:
    """Leave a task working (or waiting) as long as it took to evict a finished one: it is still there."""
    # A task that waits, or works, for hours and is left alone; whether it would end by itself is seen after that.
    asks = "ask" in session.agent.hints
    hint = session.hint("ask" if asks else "slow")
    if not asks and hint.text.isdigit():
        hint = Hint(hint.skill, str(3600 * 24))
    task_id, _ = await session.begin(hint)
    await asyncio.sleep(HOURS_S)
    reply = await session.get(task_id)
    # A skill may cap its time; what counts is that the record is there.
    if session.state(reply):
        return
    works_s = await _works_for(session, hint)
    if works_s < HOURS_S:
        not_tested_unless(
            works_s > WORKS_S_MIN, f"the task ends by itself after {works_s:.0f} s; one is needed that {_IDLES}", reply
        )
        task_id, _ = await session.begin(hint)
        await asyncio.sleep(works_s - 2 * LOOK_S)
        reply = await session.get(task_id)
    fail_unless(session.state(reply) not in {"", *TERMINAL}, f"a task left at work, or waiting, gives {reply}", reply)


@must(
    "H-03: Many sends at once are many tasks",
    source=f"{STORE}",
    remedy="Keep per-task state on the record, never in module variables.",
    needs=("side-effects",),
)
async def many_at_once(session: Session) -> None:
    """Send eight messages at once; each is a task of its own and each ends."""
    async with asyncio.TaskGroup() as group:
        sends = [group.create_task(session.begin()) for _ in range(MANY)]
    ids = [send.result()[0] for send in sends]
    fail_unless(len(set(ids)) == MANY, "two of eight tasks share an id", sends[0].result()[1])
    for task_id in ids:
        last = await session.until(task_id)
        fail_unless(session.state(last) in TERMINAL, f"one of eight tasks is {session.state(last) or '?'}", last)


@must(
    "H-04: A cancel is atomic",
    source=f"{STORE}; {BUILD_GUIDE}, hardening 3",
    remedy="Do the check and the write under the same lock.",
    needs=("side-effects",),
)
async def cancel_is_atomic(session: Session) -> None:
    """Cancel tasks just as they end: after the reply canceled a task is canceled, after -32002 it is not."""
    for delay in (0.0, 0.0, 0.001, 0.005, 0.02):
        task_id, _ = await session.begin()
        await asyncio.sleep(delay)
        reply = await session.cancel(task_id)
        read = await session.until(task_id, seconds=5)
        told, state = session.state(reply), session.state(read)
        kept = told not in TERMINAL or told == state
        fail_unless(kept, f"the cancel was answered with {told}, and then the task is {state}", reply, read)
        if reply.error is None:
            fail_unless(state == "canceled", f"the cancel was taken, and then the task is {state}", reply, read)
        else:
            fail_unless(state != "canceled", f"the cancel was refused, and then the task is {state}", reply, read)


@should(
    "H-05: Aborted streams leave the agent healthy",
    source=f"{STORE}; reference reliability T-26",
    remedy="Free a subscriber as soon as its connection is gone.",
    needs=("streaming", "side-effects"),
    batch=ProbeBatch.LAST,
)
async def aborted_streams(session: Session) -> None:
    """Open a dozen streams, drop them, and call again; the agent answers as quickly as before."""
    hint = session.agent.hints.get("slow", session.quick())
    for _ in range(12):
        async with session.stream(Operation.STREAM, session.params(hint)) as stream:
            await stream.next(5)
    async with session.stream(Operation.STREAM, session.params(session.quick())) as stream:
        first = await stream.next(5)
    fail_unless(first, f"after a dozen dropped streams a new one gave {stream.exchange}", stream.exchange)
    reply = await session.send()
    fail_unless(reply.error is None and reply.seconds < 5, f"after a dozen dropped streams a send gave {reply}", reply)


async def _all_logged(log: Sized) -> None:
    """Wait until no line has come for ``LOGGED_S``: a busy machine hands on late what the agent has logged."""
    seen = -1
    for _ in range(LOGGED_TRIES):
        if len(log) == seen:
            return
        seen = len(log)
        await asyncio.sleep(LOGGED_S)


async def delivery_log(session: Session) -> tuple[str, str, list[str], list[str], Exchange]:
    """A delivery: its task, its token, the lines logged meanwhile, those of a task without a webhook, and the send."""
    inside = session.options.inside
    assert inside is not None
    before = len(inside.log)
    await session.finished()
    await _all_logged(inside.log)
    usual, before = inside.log.since(before), len(inside.log)
    task_id, hook, reply = await delivered_webhook(session)
    await _all_logged(inside.log)
    token = hook.arrivals[-1].headers.get("x-a2a-notification-token", "")
    token = token or hook.arrivals[-1].headers.get("authorization", "").rpartition(" ")[2]
    return task_id, token, inside.log.since(before), usual, reply


_STATUS = re.compile(r"(?<![\w.:-])200(?![\w.:-]?\w)")


def tells_delivery(line: str, task_id: str) -> bool:
    """Whether a line names the task, and 200 as a number of its own: one UUID in a hundred has these digits too."""
    return task_id in line and _STATUS.search(line.replace(task_id, " ")) is not None


@must(
    "H-06: Deliveries are logged at INFO with task, state and status",
    source=f"{STORE}; {BUILD_GUIDE}, 'Push notifications', implementation checklist",
    remedy="Log each attempt at INFO and install a handler that shows INFO.",
    incident="Quinn #61: a day of polling fallback, because nothing showed that deliveries were refused",
    needs=("in-process", "push", "listener"),
    batch=ProbeBatch.LAST,
)
async def deliveries_are_logged(session: Session) -> None:
    """Deliver a webhook and read the agent's log."""
    task_id, _, lines, _, reply = await session.fixture(delivery_log)
    logged = [line for line in lines if line.startswith("INFO") and tells_delivery(line, task_id)]
    fail_unless(logged, "no INFO line names the task and the status of the delivery", reply)
    fail_unless(
        any("completed" in line.lower() for line in logged), "no line names the state that was delivered", reply
    )


@must(
    "H-07: Neither body nor token of a webhook is logged",
    source=f"{BUILD_GUIDE}, 'Push notifications', implementation checklist",
    remedy="Log ids, state and status alone.",
    needs=("in-process", "push", "listener"),
    batch=ProbeBatch.LAST,
)
async def nothing_private_is_logged(session: Session) -> None:
    """Deliver a webhook and look for its token and text in the agent's log."""
    # The same lines. An agent may log what it is asked; what is logged more often for a webhook is its body.
    _, token, lines, usual, reply = await session.fixture(delivery_log)
    not_tested_unless(token, "the delivery carried no token", reply)
    fail_unless(not any(token in line for line in lines), "the token of a webhook is in the log", reply)
    text = session.quick().text
    often = sum(text in line for line in lines) if text else 0
    fail_unless(often <= sum(text in line for line in usual), "the text of a webhook is in the log", reply)


async def _tried_again(session: Session, between: Callable[[], Awaitable[None]] | None = None) -> tuple[bool, Exchange]:
    """Whether a refused delivery is tried again, and the send it belongs to."""
    hook, retry_s = session.hook(answers=(500,)), min(RETRY_S, session.options.patience_s)
    _, reply = await session.begin(push=session.dialect.hook(hook.url))
    first = not_tested_unless(await hook.anything(10), "no webhook came", reply)
    for _ in range(3):
        if between is not None:
            await between()
        await asyncio.sleep(0.1)
    again = await hook.until(lambda _arrival: sum(a.body == first.body for a in hook.arrivals) > 1, retry_s)
    return again is not None, reply


@must(
    "H-08: A delivery that waits to be retried is not collected",
    source=f"{STORE} (strong references); {BUILD_GUIDE}, hardening 2",
    remedy="Keep the delivery's task in a set until it is done.",
    incident="Python keeps only weak references to tasks; retries vanished in their back-off",
    needs=("in-process", "push", "listener"),
)
async def retries_are_held(session: Session) -> None:
    """Refuse the first delivery with 500, run the garbage collector, and wait for the retry."""
    # Collect garbage between two tries; whether there is a second try at all is seen without.
    inside = session.options.inside
    assert inside is not None
    again, reply = await _tried_again(session, inside.collect)
    if not again:
        retries, _ = await _tried_again(session)
        not_tested_unless(retries, "a delivery that was answered with 500 is not tried again in any case (P-27)", reply)
    fail_unless(again, "after a garbage collection the retry never came", reply)
