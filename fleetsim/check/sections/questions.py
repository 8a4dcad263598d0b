"""What is asked of a task that waits for an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleetsim.check.exchange import Exchange
from fleetsim.check.raw_dialect import INTERRUPTED, TERMINAL, listed, mapping
from fleetsim.check.requirement import BOTH, BUILD_GUIDE, MUST, SHOULD, V03, V10, requirement
from fleetsim.check.session import Session
from fleetsim.check.verdict import fail_unless, fail_unless_error, not_tested_unless
from fleetsim.model.forms import in_form
from fleetsim.model.task import DataPart


async def waiting_task(session: Session) -> tuple[str, Exchange]:
    """A task that waits for an answer. Raises NotPassed (not tested) if it does not come to that."""
    task_id, exchange = await session.begin(session.hint("ask"))
    if session.state(exchange) not in INTERRUPTED:
        exchange = await session.until(task_id, TERMINAL | INTERRUPTED)
    state = session.state(exchange)
    not_tested_unless(
        state == "input-required", f"the asking skill is {state or exchange.says()}, not input-required", exchange
    )
    return task_id, exchange


@requirement(
    "T-13",
    "A contextId that is not the task's is refused",
    MUST,
    dialects=V10,
    source="A2A 1.0 §3.4.3",
    remedy="Compare contextId with the task's.",
    needs=("ask",),
)
async def other_context_is_refused(session: Session) -> None:
    """Answer the asking skill's question with another contextId: -32602."""
    task_id, _ = await waiting_task(session)
    exchange = await session.send(taskId=task_id, contextId=session.new())
    fail_unless_error(exchange, "a message with another contextId than its task's", -32602)


def _asked_parts(session: Session, exchange: Exchange) -> list[Mapping[str, Any]]:
    status = mapping(session.dialect.task(exchange.result).get("status"))
    return [mapping(part) for part in listed(mapping(status.get("message")).get("parts"))]


def _in_form(session: Session, exchange: Exchange) -> dict[str, Any]:
    """The parts of an answer where the question wants a form (``model.forms``), as the fleet would send it."""
    wanted = [
        DataPart(data=part["data"], metadata=mapping(part.get("metadata")))
        for part in _asked_parts(session, exchange)
        if "data" in part
    ]
    _, parts = in_form(wanted, session.quick().text, ())
    sent = [part for part in parts if isinstance(part, DataPart)]
    members = [{**session.dialect.data_part(p.data), **({"metadata": p.metadata} if p.metadata else {})} for p in sent]
    return {"parts": members} if members else {}


@requirement(
    "T-14",
    "On 0.3 the taskId decides, whatever the contextId",
    SHOULD,
    dialects=V03,
    source="Reference interop, section 8; seed, 'Human-in-the-loop'",
    remedy="Look tasks up by taskId alone on 0.3: the fleet's caller sends a contextId of its own.",
    needs=("ask",),
)
async def other_context_is_fine(session: Session) -> None:
    """Answer the asking skill's question with another contextId; the task must go on."""
    task_id, exchange = await waiting_task(session)
    exchange = await session.send(taskId=task_id, contextId=session.new(), **_in_form(session, exchange))
    fail_unless(exchange.error is None, f"an answer with another contextId gave {exchange.says()}", exchange)
    last = await session.until(task_id)
    fail_unless(session.state(last) in TERMINAL, f"after the answer the task is {session.state(last)}", exchange, last)


@requirement(
    "T-15",
    "A question is asked as input-required and answered on the same task",
    MUST,
    dialects=BOTH,
    source=f"{BUILD_GUIDE}, 'What you get for free' (human-in-the-loop)",
    remedy="Move to input-required with the question as status.message, and resume on a message with that taskId.",
    needs=("ask",),
)
async def question_and_answer(session: Session) -> None:
    """Send to the asking skill, read the question in status.message, answer with its taskId, in the form that a
    question in data asks for; the task must end.
    """
    task_id, exchange = await session.begin(session.hint("ask"))
    if session.state(exchange) not in INTERRUPTED:
        exchange = await session.until(task_id, TERMINAL | INTERRUPTED)
    state = session.state(exchange)
    fail_unless(
        state == "input-required", f"the asking skill is {state or exchange.says()}, not input-required", exchange
    )
    asked = _asked_parts(session, exchange)
    # Data and files ask too: a question may be a form.
    asks = any(part.get(member) for part in asked for member in ("text", "data", "file", "raw", "url"))
    fail_unless(asks, "status.message holds no question", exchange)
    context = str(session.dialect.task(exchange.result).get("contextId"))
    answered = await session.send(taskId=task_id, contextId=context, **_in_form(session, exchange))
    fail_unless(answered.error is None, f"the answer to the question gave {answered.says()}", answered)
    back = session.dialect.task(answered.result).get("id")
    fail_unless(back == task_id, "the answer began another task", exchange, answered)
    last = await session.until(task_id)
    state = session.state(last)
    fail_unless(state in TERMINAL, f"after the answer the task is {state or last.says()}", answered, last)
