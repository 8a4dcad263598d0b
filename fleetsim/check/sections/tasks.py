"""Rows about a task after the send: reading, listing, cancelling, its questions, its end, and its shapes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from fleetsim.check.evidence import Exchange, NotPassed, fail_unless, fail_unless_error, not_tested_unless
from fleetsim.check.raw_dialect import STATES, answer_text, listed, mapping, message_text, snake_keys
from fleetsim.check.requirement import ALL, BUILD_GUIDE, V03, V10, ProbeBatch, must, should
from fleetsim.check.session import Session, finished_task
from fleetsim.model.asking import in_form
from fleetsim.model.call import Operation
from fleetsim.model.task import INTERRUPTED, TERMINAL, DataPart

LIFE = f"{BUILD_GUIDE}, checklist 'Transport & lifecycle'"
_ZONED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)", re.ASCII)


@must(
    "T-06: A task can be read until it ends, and then holds its answer",
    ALL,
    source=f"{LIFE} ('GET /tasks/{{id}} reflects current state + artifact')",
    remedy="Update the record on every transition and keep the artifact on it.",
)
async def can_be_read(session: Session) -> None:
    """Send, then get until terminal; the id and context stay, and a completed task has artifacts or a message."""
    task_id, reply = await session.begin()
    first = session.dialect.task(reply.result)
    last = await session.until(task_id)
    fail_unless(last.granted, f"reading the task gave {last}", last)
    task = session.dialect.task(last.result)
    fail_unless(task.get("id") == task_id, f"get shows the id {task.get('id')!r}", last)
    same = session.dialect.context_id(task) == session.dialect.context_id(first)
    fail_unless(same, "get shows another context than the send", reply, last)
    state = session.dialect.state(task)
    fail_unless(state in TERMINAL | INTERRUPTED, f"the task is still {state or '?'} after a while", last)
    if state == "completed":
        fail_unless(task.get("artifacts") or message_text(task), "the completed task holds no answer", last)


@must(
    "T-07: States are those of the protocol and never leave a terminal one",
    ALL,
    source=f"{BUILD_GUIDE}, 'Task lifecycle'; seed: A2A Runtime, 'Task lifecycle states'",
    remedy="Check each change of a state: a task that is completed, failed, canceled or rejected never changes.",
    batch=ProbeBatch.LAST,
)
async def states_are_final(session: Session) -> None:
    """Watch the states of every task the check made, by stream and by get."""
    if not session.tasks:  # no other row was probed
        with suppress(NotPassed):
            await _variety(session)
            await session.fixture(canceled_task)
            await asyncio.sleep(5)  # the slow skill takes four: one that goes on after its cancel ends by then
    not_tested_unless(session.tasks, "needs a task, and no answer showed one (T-01)")
    # Everything that was seen of every task, and once more what was seen canceled.
    for task_id in {str(task.get("id")): 0 for task, _ in session.tasks if session.dialect.state(task) == "canceled"}:
        await session.get(task_id)
    ended: dict[str, tuple[str, float, Exchange]] = {}
    for task, reply in session.tasks:
        state, task_id = session.dialect.state(task), str(task.get("id"))
        fail_unless(state in STATES, f"no state of the protocol: {mapping(task.get('status')).get('state')!r}", reply)
        fail_unless(
            session.dialect.spelled(task), f"{mapping(task.get('status')).get('state')!r} is not spelled so", reply
        )
        before = ended.get(task_id)
        if before is not None and reply.began >= before[1]:
            fail_unless(before[0] == state, f"a task that was {before[0]} became {state}", before[2], reply)
        if state in TERMINAL and (before is None or reply.at < before[1]):
            ended[task_id] = (state, reply.at, reply)


async def canceled_task(session: Session) -> tuple[str, Exchange]:
    """A task of the slow skill, and the answer to its cancel."""
    task_id, _ = await session.begin(session.hint("slow"))
    await session.until(task_id, frozenset({"working"}) | TERMINAL, 2)
    return task_id, await session.cancel(task_id)


@must(
    "T-08: A running task can be cancelled",
    ALL,
    source=f"{LIFE}; seed: implement-a2a-server, 'Validation'",
    remedy="Stop the worker and write canceled under the store's lock.",
    needs=("slow",),
)
async def running_task_is_cancelled(session: Session) -> None:
    """Cancel a task of the slow skill; the answer and a later get say canceled."""
    task_id, reply = await session.fixture(canceled_task)
    if reply.code == -32002:
        found = await session.get(task_id)
        over = session.state(found) in TERMINAL - {"canceled"}
        not_tested_unless(
            not over, "the slow skill was over at once: name a slower one with --skill-slow", reply, found
        )
    fail_unless(reply.error is None, f"cancelling a running task gave {reply}", reply)
    read = await session.until(task_id, seconds=5)
    state = session.state(read)
    fail_unless(state == "canceled", f"after the cancel the task is {state or read}", reply, read)


@must(
    "T-09: Cancelling a finished task is -32002 and changes nothing",
    ALL,
    source=f"{BUILD_GUIDE}, 'Error code conventions' and hardening 3 'Atomic cancel'",
    remedy="Read the state and write the new one under one lock; answer -32002 if the task has ended.",
    incident="Cancels that raced the worker overwrote completed tasks",
)
async def finished_task_stays(session: Session) -> None:
    """Cancel a completed task and read it again."""
    task_id, before = await session.finished()
    reply = await session.cancel(task_id)
    after = await session.get(task_id)
    same = session.state(after) == session.state(before)
    fail_unless(same, f"a cancel turned {session.state(before)} into {session.state(after)}", reply, after)
    fail_unless_error(reply, "cancelling a finished task", -32002)


@must(
    "T-10: A second cancel is -32002",
    ALL,
    source=f"{BUILD_GUIDE}, 'Error code conventions'; A2A 1.0 §3.1.5",
    remedy="canceled is terminal too: answer -32002.",
    incident="@a2a-js/sdk 1.3.0 accepts the second cancel",
    needs=("slow",),
)
async def second_cancel(session: Session) -> None:
    """Cancel a task twice."""
    task_id, first = await session.fixture(canceled_task)
    not_tested_unless(first.error is None, f"the first cancel gave {first}", first)
    await session.until(task_id, seconds=5)
    fail_unless_error(await session.cancel(task_id), "a second cancel", -32002)


@must(
    "T-11: A finished task takes no more messages",
    source="Seed: A2A Runtime; A2A 0.3 §7.1 (an error), 1.0 §3.1.1 (-32004)",
    remedy="Refuse with -32602 (0.3) or -32004 (1.0); a new task needs a message without taskId.",
)
async def finished_takes_no_message(session: Session) -> None:
    """Send a message with the taskId of a finished task."""
    task_id, _ = await session.fixture(finished_task)
    reply = await session.send(taskId=task_id)
    if session.dialect.current:
        fail_unless_error(reply, "a message for a finished task", -32004)
        return
    fail_unless(reply.error is not None, f"a message for a finished task gave {reply}", reply)
    fail_unless_error(reply, "a message for a finished task", -32602, -32600, -32004, -32002)


def _statuses(session: Session) -> Iterator[tuple[Mapping[str, Any], Exchange]]:
    for task, reply in session.tasks:
        yield mapping(task.get("status")), reply
    for reply in session.agent.exchanges:
        for frame in reply.frames:
            kind, content = session.dialect.event(frame.result)
            same_version = (reply.sent_headers.get("a2a-version") == "1.0") == session.dialect.current
            if kind == "status-update" and same_version and (reply.bare is not None) == session.dialect.over_http:
                yield mapping(content.get("status")), reply


@should(
    "T-17: Timestamps are ISO 8601 with a zone",
    source="A2A 0.3 §6.2, 1.0 §5.6.1; reference interop, 'Pitfalls'",
    remedy="Write UTC with Z; a timestamp without a zone makes some clients refuse the whole answer.",
    incident="fasta2a's timestamps have no zone",
    batch=ProbeBatch.LAST,
)
async def timestamps_have_zones(session: Session) -> None:
    """Read status.timestamp of the tasks seen."""
    if not session.tasks:
        await session.fixture(finished_task)
    seen = 0
    for status, reply in _statuses(session):
        if (stamp := status.get("timestamp")) is not None:
            seen += 1
            fail_unless(
                isinstance(stamp, str) and _ZONED.fullmatch(stamp), f"the timestamp {stamp!r} has no zone", reply
            )
    not_tested_unless(seen, "no timestamp was seen")


async def _variety(session: Session) -> None:
    """Make tasks of several kinds, so that their shapes can be checked."""
    await session.fixture(finished_task)
    for kind in ("fail", "slow"):
        if kind in session.agent.hints:
            task_id, _ = await session.begin(session.hint(kind))
            await session.until(task_id, frozenset({"working"}) | TERMINAL, 3)


@must(
    "T-18: status.message is a whole message with a messageId",
    source="Reference interop, 'What real clients found'; A2A 0.3 §6.4, 1.0 §4.1.4",
    remedy="Build whole Message objects: the SDKs refuse the event without messageId.",
    incident="Any failed task of the original agent was an exception in the SDK clients",
    batch=ProbeBatch.LAST,
)
async def messages_are_whole(session: Session) -> None:
    """Read every status.message seen: messageId, role, parts (and kind in 0.3)."""
    await _variety(session)
    seen = 0
    for status, reply in _statuses(session):
        if status.get("message") is None:
            continue
        seen += 1
        message = mapping(status["message"])
        fail_unless(isinstance(message.get("messageId"), str), "status.message has no messageId", reply)
        fail_unless(isinstance(message.get("parts"), list), "status.message has no parts", reply)
        role = "ROLE_AGENT" if session.dialect.proto else "agent"
        fail_unless(message.get("role") == role, f"the role of status.message is {message.get('role')!r}", reply)
        if not session.dialect.proto:
            fail_unless(message.get("kind") == "message", "status.message has no kind", reply)
    not_tested_unless(seen, "no task seen had a status.message: name a failing skill with --skill-fail")


def history_of(session: Session, reply: Exchange) -> list[object]:
    """The history of the task in an answer; empty if it has none."""
    return listed(session.dialect.task(reply.result).get("history"))


@should(
    "T-32: A task holds the messages that it was sent",
    source="A2A 0.3 §6.1 (Task.history), 1.0 §4.1.1",
    against="A2A 1.0 §3.7 lets an agent choose which messages it keeps",
    remedy="Keep the messages of both sides on the task: without them nobody can see what was asked.",
)
async def history_is_kept(session: Session) -> None:
    """Get a finished task with historyLength 10: its history holds a message."""
    task_id, _ = await session.fixture(finished_task)
    read = await session.get(task_id, historyLength=10)
    fail_unless(history_of(session, read), "the task has no history", read)


@must(
    "T-19: historyLength is honoured",
    V10,
    source="A2A 1.0 §3.2.4",
    remedy="Cut the history to the newest N messages; 0 means none.",
)
@should(
    "T-20: historyLength is honoured on 0.3",
    V03,
    source="A2A 0.3 §7.3.1",
    remedy="Cut the history to the newest N messages; 0 means none.",
)
async def history_length(session: Session) -> None:
    """Get a task with a history with historyLength 0 (none) and 1 (one)."""
    task_id, _ = await session.fixture(finished_task)
    none = await session.get(task_id, historyLength=0)
    fail_unless(none.error is None, f"historyLength 0 gave {none}", none)
    count = len(history_of(session, none))
    fail_unless(count == 0, f"historyLength 0 gave {count} messages", none)
    one = await session.get(task_id, historyLength=1)
    fail_unless(len(history_of(session, one)) <= 1, "historyLength 1 gave more than one message", one)
    not_tested_unless(history_of(session, one), "needs a task with a history (T-32)", one)


@must(
    "T-21: A failure is the state failed, with its reason",
    source=f"{BUILD_GUIDE}, checklist 'Extensions' (success contract) and 'Health = outcomes'",
    remedy="Propagate tool errors into the task's state; completed means the goal was met.",
    incident="Fleet health counted 'Error: ...' answers as successes",
    needs=("fail",),
)
async def failure_is_a_state(session: Session) -> None:
    """Run the failing skill; the state must be failed and status.message must say why."""
    task_id, reply = await session.begin(session.hint("fail"))
    last = await session.until(task_id)
    task = session.dialect.task(last.result)
    state = session.dialect.state(task)
    fail_unless(state == "failed", f"the failing skill ended {state or last}: {answer_text(task)[:80]!r}", reply, last)
    fail_unless(message_text(task), "status.message does not say why", last)


@must(
    "T-26: Artifacts have an artifactId and parts",
    source=f"{BUILD_GUIDE}, checklist 'SSE semantics'",
    remedy="Give each artifact an id that its events share.",
    batch=ProbeBatch.LAST,
)
async def artifacts_are_whole(session: Session) -> None:
    """Read the artifacts of every task seen."""
    await session.fixture(finished_task)
    seen = 0
    for task, reply in session.tasks:
        for artifact in map(mapping, listed(task.get("artifacts"))):
            seen += 1
            fail_unless(isinstance(artifact.get("artifactId"), str), "an artifact has no artifactId", reply)
            fail_unless(isinstance(artifact.get("parts"), list), "an artifact has no parts", reply)
    not_tested_unless(seen, "no task seen had artifacts")


@must(
    "T-30: Wire fields of tasks are camelCase",
    source=f"{BUILD_GUIDE}, checklist 'SSE semantics'",
    remedy="contextId, artifactId, messageId: only Python variables are snake case.",
    batch=ProbeBatch.LAST,
)
async def tasks_are_camel_case(session: Session) -> None:
    """Look for keys with underscores in the tasks seen, outside of data and metadata."""
    await _variety(session)
    for task, reply in session.tasks:
        fail_unless(not (bad := snake_keys(task)), f"written with an underscore: {', '.join(bad[:5])}", reply)


async def waiting_task(session: Session) -> tuple[str, Exchange]:
    """A task that waits for an answer. Raises NotPassed (not tested) if it does not come to that."""
    task_id, reply = await session.begin(session.hint("ask"))
    if session.state(reply) not in INTERRUPTED:
        reply = await session.until(task_id, TERMINAL | INTERRUPTED)
    state = session.state(reply)
    not_tested_unless(state == "input-required", f"the asking skill is {state or reply}, not input-required", reply)
    return task_id, reply


@must(
    "T-13: A contextId that is not the task's is refused",
    V10,
    source="A2A 1.0 §3.4.3",
    remedy="Compare contextId with the task's.",
    needs=("ask",),
)
async def other_context_is_refused(session: Session) -> None:
    """Answer the asking skill's question with another contextId: -32602."""
    task_id, _ = await waiting_task(session)
    reply = await session.send(taskId=task_id, contextId=session.new())
    fail_unless_error(reply, "a message with another contextId than its task's", -32602)


def _asked_parts(session: Session, reply: Exchange) -> list[Mapping[str, Any]]:
    status = mapping(session.dialect.task(reply.result).get("status"))
    return [mapping(part) for part in listed(mapping(status.get("message")).get("parts"))]


def _in_form(session: Session, reply: Exchange) -> dict[str, Any]:
    """The parts of an answer where the question wants a form (``model.asking``), as the fleet would send it."""
    wanted = [
        DataPart(data=part["data"], metadata=mapping(part.get("metadata")))
        for part in _asked_parts(session, reply)
        if "data" in part
    ]
    _, parts = in_form(wanted, session.quick().text, ())
    sent = [part for part in parts if isinstance(part, DataPart)]
    members = [{**session.dialect.data_part(p.data), **({"metadata": p.metadata} if p.metadata else {})} for p in sent]
    return {"parts": members} if members else {}


@should(
    "T-14: On 0.3 the taskId decides, whatever the contextId",
    V03,
    source="Reference interop, section 8; seed, 'Human-in-the-loop'",
    remedy="Look tasks up by taskId alone on 0.3: the fleet's caller sends a contextId of its own.",
    needs=("ask",),
)
async def other_context_is_fine(session: Session) -> None:
    """Answer the asking skill's question with another contextId; the task must go on."""
    task_id, reply = await waiting_task(session)
    reply = await session.send(taskId=task_id, contextId=session.new(), **_in_form(session, reply))
    fail_unless(reply.error is None, f"an answer with another contextId gave {reply}", reply)
    last = await session.until(task_id)
    fail_unless(session.state(last) in TERMINAL, f"after the answer the task is {session.state(last)}", reply, last)


@must(
    "T-15: A question is asked as input-required and answered on the same task",
    source=f"{BUILD_GUIDE}, 'What you get for free' (human-in-the-loop)",
    remedy="Move to input-required with the question as status.message, and resume on a message with that taskId.",
    needs=("ask",),
)
async def question_and_answer(session: Session) -> None:
    """Send to the asking skill, read the question in status.message, answer with its taskId, in the form that a
    question in data asks for; the task must end.
    """
    task_id, reply = await session.begin(session.hint("ask"))
    if session.state(reply) not in INTERRUPTED:
        reply = await session.until(task_id, TERMINAL | INTERRUPTED)
    state = session.state(reply)
    fail_unless(state == "input-required", f"the asking skill is {state or reply}, not input-required", reply)
    asked = _asked_parts(session, reply)
    # Data and files ask too: a question may be a form.
    asks = any(part.get(member) for part in asked for member in ("text", "data", "file", "raw", "url"))
    fail_unless(asks, "status.message holds no question", reply)
    context = str(session.dialect.task(reply.result).get("contextId"))
    answered = await session.send(taskId=task_id, contextId=context, **_in_form(session, reply))
    fail_unless(answered.error is None, f"the answer to the question gave {answered}", answered)
    back = session.dialect.task(answered.result).get("id")
    fail_unless(back == task_id, "the answer began another task", reply, answered)
    last = await session.until(task_id)
    state = session.state(last)
    fail_unless(state in TERMINAL, f"after the answer the task is {state or last}", answered, last)


async def three_tasks(session: Session) -> tuple[str, list[str]]:
    """Three tasks of one context that have ended: the context, and their ids."""
    context = session.new()
    return context, [(await session.finished(contextId=context))[0] for _ in range(3)]


async def _list(session: Session, **params: Any) -> Exchange:
    reply = await session.rpc(Operation.LIST, params)
    fail_unless(reply.error is None, f"ListTasks gave {reply}", reply)
    fail_unless(isinstance(mapping(reply.result).get("tasks"), list), "ListTasks returned no tasks array", reply)
    return reply


async def listable(session: Session) -> None:
    """A fixture without a value: raises NotPassed (not tested) if tasks cannot be listed, which T-22 reports."""
    reply = await session.rpc(Operation.LIST, {"contextId": (await session.fixture(three_tasks))[0]})
    told = reply.error is None or reply.code == -32601  # M-11 reports a missing method
    not_tested_unless(told, f"needs a list of tasks: that gave {reply} (T-22)", reply)


def _ids(reply: Exchange) -> list[Any]:
    return [mapping(task).get("id") for task in listed(mapping(reply.result).get("tasks"))]


@must(
    "T-22: ListTasks pages through all tasks once",
    V10,
    source="A2A 1.0 §3.1.4",
    remedy="Return nextPageToken ('' at the end), pageSize and totalSize; use stable cursors.",
)
async def list_pages(session: Session) -> None:
    """Make three tasks in one context and list them with pageSize 1 to the end."""
    context, ids = await session.fixture(three_tasks)
    seen: list[Any] = []
    token = ""
    for _ in range(6):
        reply = await _list(session, contextId=context, pageSize=1, **({"pageToken": token} if token else {}))
        page = mapping(reply.result)
        fail_unless(len(_ids(reply)) <= 1, f"a page of 1 holds {len(_ids(reply))} tasks", reply)
        seen += _ids(reply)
        token = page.get("nextPageToken", "")
        if not token:
            break
    fail_unless(not token, "the pages do not end", reply)
    fail_unless(sorted(map(str, seen)) == sorted(ids), f"{len(ids)} tasks were listed as {len(seen)}", reply)
    total = page.get("totalSize")
    fail_unless(total is None or total == len(ids), f"totalSize is {total!r} of {len(ids)}", reply)


@must(
    "T-23: ListTasks filters by context and state",
    V10,
    source="A2A 1.0 §3.1.4",
    remedy="Apply every filter of the request.",
)
async def list_filters(session: Session) -> None:
    """List with contextId, and with a state the tasks are not in."""
    await session.fixture(listable)
    context, ids = await session.fixture(three_tasks)
    reply = await _list(session, contextId=context)
    fail_unless(sorted(map(str, _ids(reply))) == sorted(ids), "a list by contextId holds other tasks", reply)
    none = await _list(session, contextId=context, status="TASK_STATE_WORKING")
    fail_unless(not _ids(none), "a list of working tasks holds finished ones", none)


@must("T-24: ListTasks refuses a pageSize out of 1 to 100", V10, source="A2A 1.0 §3.1.4", remedy="Answer -32602.")
async def list_bounds(session: Session) -> None:
    """List with pageSize 0 and 101."""
    await session.fixture(listable)
    for size in (0, 101):
        reply = await session.rpc(Operation.LIST, {"pageSize": size})
        fail_unless_error(reply, f"pageSize {size}", -32602)


@must(
    "T-25: ListTasks leaves artifacts out unless asked",
    V10,
    source="A2A 1.0 §3.1.4",
    remedy="Omit artifacts unless includeArtifacts is true.",
)
async def list_artifacts(session: Session) -> None:
    """List with and without includeArtifacts."""
    await session.fixture(listable)
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
