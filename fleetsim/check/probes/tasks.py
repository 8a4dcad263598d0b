"""Probes of a task's life after the send: reading, cancelling, asking, listing, and the shapes seen on the way."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from fleetsim.check.exchange import Exchange
from fleetsim.check.fixtures import finished_task
from fleetsim.check.probe import Phase, probe
from fleetsim.check.probes.envelope import refused
from fleetsim.check.raw_dialect import (
    INTERRUPTED,
    STATES,
    TERMINAL,
    answer_text,
    listed,
    mapping,
    message_text,
    snake_keys,
)
from fleetsim.check.session import Session
from fleetsim.check.verdict import fail_unless, not_tested_unless
from fleetsim.model.call import Operation
from fleetsim.model.forms import in_form
from fleetsim.model.task import DataPart

_ZONED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)", re.ASCII)


@probe("T-06")
async def can_be_read(session: Session) -> None:
    """From send to answer."""
    task_id, made = await session.begin()
    first = session.dialect.task(made.result)
    last = await session.until(task_id)
    fail_unless(last.error is None and last.status == 200, f"reading the task gave {last.says()}", last)
    task = session.dialect.task(last.result)
    fail_unless(task.get("id") == task_id, f"get shows the id {task.get('id')!r}", last)
    same = session.dialect.context_id(task) == session.dialect.context_id(first)
    fail_unless(same, "get shows another context than the send", made, last)
    state = session.dialect.state(task)
    fail_unless(state in TERMINAL | INTERRUPTED, f"the task is still {state or '?'} after a while", last)
    if state == "completed":
        fail_unless(task.get("artifacts") or message_text(task), "the completed task holds no answer", last)


@probe("T-07", Phase.LAST)
async def states_are_final(session: Session) -> None:
    """Everything that was seen of every task, and once more what was seen canceled."""
    for task_id in {str(task.get("id")): 0 for task, _ in session.tasks if session.dialect.state(task) == "canceled"}:
        await session.get(task_id)
    ended: dict[str, tuple[str, float, Exchange]] = {}
    for task, made in session.tasks:
        state, task_id = session.dialect.state(task), str(task.get("id"))
        fail_unless(state in STATES, f"no state of the protocol: {mapping(task.get('status')).get('state')!r}", made)
        fail_unless(
            session.dialect.spelled(task), f"{mapping(task.get('status')).get('state')!r} is not spelled so", made
        )
        before = ended.get(task_id)
        if before is not None and made.began >= before[1]:
            fail_unless(before[0] == state, f"a task that was {before[0]} became {state}", before[2], made)
        if state in TERMINAL and (before is None or made.at < before[1]):
            ended[task_id] = (state, made.at, made)


async def canceled_task(session: Session) -> tuple[str, Exchange]:
    """A task of the slow skill, and the answer to its cancel."""
    task_id, _ = await session.begin(session.hint("slow"))
    await session.until(task_id, frozenset({"working"}) | TERMINAL, 2)
    return task_id, await session.cancel(task_id)


@probe("T-08")
async def running_task_is_cancelled(session: Session) -> None:
    """Cancel while it runs."""
    task_id, made = await session.fixture(canceled_task)
    if made.code == -32002:
        found = await session.get(task_id)
        over = session.state(found) in TERMINAL - {"canceled"}
        not_tested_unless(not over, "the slow skill was over at once: name a slower one with --skill-slow", made, found)
    fail_unless(made.error is None, f"cancelling a running task gave {made.says()}", made)
    read = await session.until(task_id, seconds=5)
    state = session.state(read)
    fail_unless(state == "canceled", f"after the cancel the task is {state or read.says()}", made, read)


@probe("T-09")
async def finished_task_stays(session: Session) -> None:
    """Cancel too late."""
    task_id, before = await session.finished()
    made = await session.cancel(task_id)
    after = await session.get(task_id)
    same = session.state(after) == session.state(before)
    fail_unless(same, f"a cancel turned {session.state(before)} into {session.state(after)}", made, after)
    refused(made, "cancelling a finished task", -32002)


@probe("T-10")
async def second_cancel(session: Session) -> None:
    """Cancel twice."""
    task_id, first = await session.fixture(canceled_task)
    not_tested_unless(first.error is None, f"the first cancel gave {first.says()}", first)
    await session.until(task_id, seconds=5)
    refused(await session.cancel(task_id), "a second cancel", -32002)


@probe("T-11")
async def finished_takes_no_message(session: Session) -> None:
    """Write to the dead."""
    task_id, _ = await session.fixture(finished_task)
    made = await session.send(taskId=task_id)
    if session.dialect.current:
        refused(made, "a message for a finished task", -32004)
        return
    fail_unless(made.error is not None, f"a message for a finished task gave {made.says()}", made)
    refused(made, "a message for a finished task", -32602, -32600, -32004, -32002)


# Questions.


async def waiting_task(session: Session) -> tuple[str, Exchange]:
    """A task that waits for an answer. Raises NotPassed (not tested) if it does not come to that."""
    task_id, made = await session.begin(session.hint("ask"))
    if session.state(made) not in INTERRUPTED:
        made = await session.until(task_id, TERMINAL | INTERRUPTED)
    state = session.state(made)
    not_tested_unless(
        state == "input-required", f"the asking skill is {state or made.says()}, not input-required", made
    )
    return task_id, made


def _place(session: Session, made: Exchange) -> str:
    return str(session.dialect.task(made.result).get("contextId"))


def _asked_parts(session: Session, made: Exchange) -> list[Mapping[str, Any]]:
    status = mapping(session.dialect.task(made.result).get("status"))
    return [mapping(part) for part in listed(mapping(status.get("message")).get("parts"))]


def _asks(parts: list[Mapping[str, Any]]) -> bool:
    """Words, data or files: a form asks too."""
    return any(part.get(member) for part in parts for member in ("text", "data", "file", "raw", "url"))


def _in_form(session: Session, made: Exchange) -> dict[str, Any]:
    """The parts of an answer where the question wants a form (``model.forms``), as the fleet would send it."""
    wanted = [
        DataPart(data=part["data"], metadata=mapping(part.get("metadata")))
        for part in _asked_parts(session, made)
        if "data" in part
    ]
    _, parts = in_form(wanted, session.quick().text, ())
    sent = [part for part in parts if isinstance(part, DataPart)]
    members = [{**session.dialect.data_part(p.data), **({"metadata": p.metadata} if p.metadata else {})} for p in sent]
    return {"parts": members} if members else {}


@probe("T-13")
async def other_context_is_refused(session: Session) -> None:
    """An answer from elsewhere."""
    task_id, _ = await waiting_task(session)
    made = await session.send(taskId=task_id, contextId=session.new())
    refused(made, "a message with another contextId than its task's", -32602)


@probe("T-14")
async def other_context_is_fine(session: Session) -> None:
    """The fleet's own way to answer."""
    task_id, made = await waiting_task(session)
    made = await session.send(taskId=task_id, contextId=session.new(), **_in_form(session, made))
    fail_unless(made.error is None, f"an answer with another contextId gave {made.says()}", made)
    last = await session.until(task_id)
    fail_unless(session.state(last) in TERMINAL, f"after the answer the task is {session.state(last)}", made, last)


@probe("T-15")
async def question_and_answer(session: Session) -> None:
    """Ask, answer, end."""
    task_id, made = await session.begin(session.hint("ask"))
    if session.state(made) not in INTERRUPTED:
        made = await session.until(task_id, TERMINAL | INTERRUPTED)
    state = session.state(made)
    fail_unless(state == "input-required", f"the asking skill is {state or made.says()}, not input-required", made)
    fail_unless(_asks(_asked_parts(session, made)), "status.message holds no question", made)
    answered = await session.send(taskId=task_id, contextId=_place(session, made), **_in_form(session, made))
    fail_unless(answered.error is None, f"the answer to the question gave {answered.says()}", answered)
    back = session.dialect.task(answered.result).get("id")
    fail_unless(back == task_id, "the answer began another task", made, answered)
    last = await session.until(task_id)
    state = session.state(last)
    fail_unless(state in TERMINAL, f"after the answer the task is {state or last.says()}", answered, last)


# Failures.


@probe("T-21")
async def failure_is_a_state(session: Session) -> None:
    """Run what fails."""
    task_id, made = await session.begin(session.hint("fail"))
    last = await session.until(task_id)
    task = session.dialect.task(last.result)
    state = session.dialect.state(task)
    fail_unless(
        state == "failed", f"the failing skill ended {state or last.says()}: {answer_text(task)[:80]!r}", made, last
    )
    fail_unless(message_text(task), "status.message does not say why", last)


# Listing.


async def three_tasks(session: Session) -> tuple[str, list[str]]:
    """Three tasks of one context that have ended: the context, and their ids."""
    context = session.new()
    return context, [(await session.finished(contextId=context))[0] for _ in range(3)]


async def _list(session: Session, **params: Any) -> Exchange:
    made = await session.rpc(session.dialect.method(Operation.LIST), params)
    fail_unless(made.error is None, f"ListTasks gave {made.says()}", made)
    fail_unless(isinstance(mapping(made.result).get("tasks"), list), "ListTasks returned no tasks array", made)
    return made


def _ids(made: Exchange) -> list[Any]:
    return [mapping(task).get("id") for task in listed(mapping(made.result).get("tasks"))]


@probe("T-22")
async def list_pages(session: Session) -> None:
    """One by one."""
    context, ids = await session.fixture(three_tasks)
    seen: list[Any] = []
    token = ""
    for _ in range(6):
        made = await _list(session, contextId=context, pageSize=1, **({"pageToken": token} if token else {}))
        page = mapping(made.result)
        fail_unless(len(_ids(made)) <= 1, f"a page of 1 holds {len(_ids(made))} tasks", made)
        seen += _ids(made)
        token = page.get("nextPageToken", "")
        if not token:
            break
    fail_unless(not token, "the pages do not end", made)
    fail_unless(sorted(map(str, seen)) == sorted(ids), f"{len(ids)} tasks were listed as {len(seen)}", made)
    total = page.get("totalSize")
    fail_unless(total is None or total == len(ids), f"totalSize is {total!r} of {len(ids)}", made)


@probe("T-23")
async def list_filters(session: Session) -> None:
    """By context and state."""
    context, ids = await session.fixture(three_tasks)
    made = await _list(session, contextId=context)
    fail_unless(sorted(map(str, _ids(made))) == sorted(ids), "a list by contextId holds other tasks", made)
    none = await _list(session, contextId=context, status="TASK_STATE_WORKING")
    fail_unless(not _ids(none), "a list of working tasks holds finished ones", none)


@probe("T-24")
async def list_bounds(session: Session) -> None:
    """Pages of 0 and 101."""
    for size in (0, 101):
        made = await session.rpc(session.dialect.method(Operation.LIST), {"pageSize": size})
        refused(made, f"pageSize {size}", -32602)


@probe("T-25")
async def list_artifacts(session: Session) -> None:
    """With and without."""
    context, _ = await session.fixture(three_tasks)
    bare = await _list(session, contextId=context)
    fail_unless(not any(mapping(t).get("artifacts") for t in mapping(bare.result)["tasks"]), "artifacts unasked", bare)
    whole = await _list(session, contextId=context, includeArtifacts=True)
    completed = [t for t in mapping(whole.result)["tasks"] if session.dialect.state(t) == "completed"]
    not_tested_unless(completed, "no task completed", whole)
    read = await session.get(mapping(completed[0]).get("id"))
    if session.dialect.task(read.result).get("artifacts"):
        fail_unless(
            any(mapping(t).get("artifacts") for t in completed), "includeArtifacts: true shows none", whole, read
        )


# Shapes of everything seen.


async def _variety(session: Session) -> None:
    """Make the kinds of tasks whose shapes are worth a look."""
    await session.fixture(finished_task)
    for kind in ("fail", "slow"):
        if kind in session.agent.hints:
            task_id, _ = await session.begin(session.hint(kind))
            await session.until(task_id, frozenset({"working"}) | TERMINAL, 3)


def _statuses(session: Session) -> Iterator[tuple[Mapping[str, Any], Exchange]]:
    for task, made in session.tasks:
        yield mapping(task.get("status")), made
    for made in session.agent.exchanges:
        for frame in made.frames:
            kind, content = session.dialect.event(frame.result)
            if kind == "status-update" and _ours(session, made):
                yield mapping(content.get("status")), made


def _ours(session: Session, made: Exchange) -> bool:
    """Whether an exchange was in this session's dialect."""
    return (made.sent_headers.get("a2a-version") == "1.0") == session.dialect.current


@probe("T-17", Phase.LAST)
async def timestamps_have_zones(session: Session) -> None:
    """Every timestamp seen."""
    seen = 0
    for status, made in _statuses(session):
        if (stamp := status.get("timestamp")) is not None:
            seen += 1
            fail_unless(
                isinstance(stamp, str) and _ZONED.fullmatch(stamp), f"the timestamp {stamp!r} has no zone", made
            )
    not_tested_unless(seen, "no timestamp was seen")


@probe("T-18", Phase.LAST)
async def messages_are_whole(session: Session) -> None:
    """Every status message seen."""
    await _variety(session)
    seen = 0
    for status, made in _statuses(session):
        if status.get("message") is None:
            continue
        seen += 1
        message = mapping(status["message"])
        fail_unless(isinstance(message.get("messageId"), str), "status.message has no messageId", made)
        fail_unless(isinstance(message.get("parts"), list), "status.message has no parts", made)
        role = "ROLE_AGENT" if session.dialect.current else "agent"
        fail_unless(message.get("role") == role, f"the role of status.message is {message.get('role')!r}", made)
        if not session.dialect.current:
            fail_unless(message.get("kind") == "message", "status.message has no kind", made)
    not_tested_unless(seen, "no task seen had a status.message: name a failing skill with --skill-fail")


@probe("T-26", Phase.LAST)
async def artifacts_are_whole(session: Session) -> None:
    """Every artifact seen."""
    await session.fixture(finished_task)
    seen = 0
    for task, made in session.tasks:
        for artifact in map(mapping, listed(task.get("artifacts"))):
            seen += 1
            fail_unless(isinstance(artifact.get("artifactId"), str), "an artifact has no artifactId", made)
            fail_unless(isinstance(artifact.get("parts"), list), "an artifact has no parts", made)
    not_tested_unless(seen, "no task seen had artifacts")


@probe("T-30", Phase.LAST)
async def tasks_are_camel_case(session: Session) -> None:
    """Every task seen."""
    await _variety(session)
    for task, made in session.tasks:
        fail_unless(not (bad := snake_keys(task)), f"written with an underscore: {', '.join(bad[:5])}", made)
