"""Rows about the legacy dialect 0.1: tasks/send, task ids of the client, and named events."""

from __future__ import annotations

from fleetsim.check.evidence import fail_unless, fail_unless_error, not_tested_unless
from fleetsim.check.listener import tells_the_end
from fleetsim.check.raw_dialect import among, listed, mapping, message_text
from fleetsim.check.requirement import BUILD_GUIDE, SERVER_GUIDE, V01, must
from fleetsim.check.sections.push import fail_unless_guarded
from fleetsim.check.session import Session, register, webhook_on_running_task
from fleetsim.model.call import Operation
from fleetsim.model.task import TERMINAL

VALID = f"{SERVER_GUIDE}, 'Validation'"
STATES = frozenset({"submitted", "working", "input-required", "completed", "failed", "canceled"})


@must(
    "L-01: tasks/send makes a task under the client's id",
    V01,
    source=f"{SERVER_GUIDE}, step 3",
    remedy="Use params.id as the task's id and params.sessionId as its session.",
)
async def under_our_id(session: Session) -> None:
    """Send with id and sessionId: the task comes back with both, submitted, working or finished."""
    params = session.params()
    reply = await session.call(Operation.SEND, params)
    fail_unless(reply.error is None, f"tasks/send gave {reply}", reply)
    task = mapping(reply.result)
    fail_unless(task.get("id") == params["id"], f"the task has the id {task.get('id')!r}", reply)
    fail_unless(task.get("sessionId") == params["sessionId"], f"its session is {task.get('sessionId')!r}", reply)
    fail_unless(session.dialect.state(task) in STATES, f"its state is {session.dialect.state(task)!r}", reply)


@must(
    "L-02: Tasks go through the legacy states and messages",
    V01,
    source=VALID,
    remedy="Write the dialect's own shapes: status.state, sessionId, parts with type.",
)
async def legacy_shapes(session: Session) -> None:
    """Get until terminal: states of the legacy table, parts with type, no kind."""
    _, reply = await session.finished()
    task = session.dialect.task(reply.result)
    state = session.dialect.state(task)
    fail_unless(state in STATES and session.dialect.spelled(task), f"the state is {mapping(task['status'])}", reply)
    fail_unless("kind" not in task, "a legacy task has a kind", reply)
    fail_unless("sessionId" in task, "a legacy task has no sessionId", reply)
    parts = [part for a in listed(task.get("artifacts")) for part in listed(mapping(a).get("parts"))]
    for part in map(mapping, parts):
        fail_unless("type" in part and "kind" not in part, "a part has no type (or a kind)", reply)


@must(
    "L-03: tasks/sendSubscribe streams status and artifact events",
    V01,
    source=f"{SERVER_GUIDE}, step 4; {VALID}",
    remedy="Name the SSE events and set final on the last.",
    needs=("streaming",),
)
async def named_events(session: Session) -> None:
    """Stream: events named status and artifact, each with jsonrpc and the id, the last with final: true."""
    params = session.params(session.agent.hints.get("stream"))
    async with session.stream(Operation.STREAM, params, request_id=31) as stream:
        fail_unless(stream.is_stream, f"tasks/sendSubscribe gave {stream.exchange}", stream.exchange)
        reply = await stream.drain(30)
    not_tested_unless(reply.frames, "the stream had no events", reply)
    for frame in reply.frames:
        value = mapping(frame.value)
        fail_unless(value.get("id") == 31, f"the id in an event is {value.get('id')!r}", reply)
        kind = "artifact" if "artifact" in frame.result else "status"
        fail_unless(frame.name == kind, f"a {kind} event is named {frame.name!r}", reply)
        fail_unless(frame.result.get("id") == params["id"], "an event names another task", reply)
    last = reply.frames[-1].result
    fail_unless(last.get("final") is True, "the last event is not final", reply)
    fail_unless(session.dialect.state(last) in TERMINAL, "the last event is not terminal", reply)
    fail_unless(reply.ended, "the stream stays open after the final event", reply)


@must(
    "L-04: A message for a finished task is -32002",
    V01,
    source=f"{SERVER_GUIDE}, step 2; {VALID}",
    remedy="Never ignore an invalid move silently: answer -32002.",
)
async def no_more_moves(session: Session) -> None:
    """Send again under the id of a finished task."""
    task_id, _ = await session.finished()
    reply = await session.call(Operation.SEND, {**session.params(), "id": task_id})
    fail_unless_error(reply, "a message for a finished task", -32002)


@must(
    "L-05: tasks/pushNotification/set registers, get reads it back",
    V01,
    source=f"{SERVER_GUIDE}, step 5",
    remedy="Store the config by task id.",
    needs=("push", "listener"),
)
async def set_and_get(session: Session) -> None:
    """Register the listener and read it back."""
    hook = session.hook()
    task_id, _ = await session.finished()
    reply = await register(session, task_id, hook)
    fail_unless(reply.error is None, f"tasks/pushNotification/set gave {reply}", reply)
    read = await session.rpc(Operation.PUSH_GET, {"id": task_id})
    fail_unless(read.error is None, f"tasks/pushNotification/get gave {read}", read)
    found = mapping(mapping(read.result).get("pushNotificationConfig")) or mapping(read.result)
    fail_unless(found.get("url") == hook.url, f"get shows the url {found.get('url')!r}", reply, read)


@must(
    "L-06: Legacy webhooks to private addresses are refused",
    V01,
    source=f"{SERVER_GUIDE}, step 5; {BUILD_GUIDE}, hardening 4",
    remedy="Vet the address in every dialect.",
    needs=("push",),
)
async def private_is_refused(session: Session) -> None:
    """Register http://169.254.169.254: -32602 (or -32004 where HTTPS is demanded)."""
    task_id, _ = await session.finished()
    url = "http://169.254.169.254:8080/x"
    reply = await session.rpc(Operation.PUSH_SET, session.dialect.set_hook(task_id, session.dialect.hook(url)))
    await fail_unless_guarded(session, reply, url, "a webhook to a link-local address")
    fail_unless_error(reply, "a webhook to a link-local address", -32602, -32004)


@must(
    "L-07: Legacy webhooks say taskId, eventType, status and timestamp",
    V01,
    source=f"{SERVER_GUIDE}, step 5.2",
    remedy="POST {taskId, eventType, status, timestamp}.",
    needs=("push", "listener", "slow", "end"),
)
async def legacy_webhook(session: Session) -> None:
    """Run a task with a registered webhook and read the bodies."""
    task_id, hook, reply = await webhook_on_running_task(session)
    arrival = await hook.until(tells_the_end, session.options.patience_s)
    fail_unless(arrival, "no terminal webhook came", reply)
    for found in hook.arrivals:
        body = mapping(found.value)
        missing = {"taskId", "eventType", "status", "timestamp"} - body.keys()
        fail_unless(not missing, f"a webhook lacks {', '.join(sorted(missing))}", found)
        fail_unless(body["taskId"] == task_id, f"a webhook names the task {body['taskId']!r}", found)
        fail_unless(among(body["eventType"], ("status", "artifact")), f"its eventType is {body['eventType']!r}", found)


@must(
    "L-08: A question is answered under the same id",
    V01,
    source=f"{SERVER_GUIDE}, step 3",
    remedy="Resume a task that waits for input on a send with its id.",
    needs=("ask",),
)
async def answered_under_its_id(session: Session) -> None:
    """Send to the asking skill until input-required, send again under the id: the task goes on."""
    task_id, reply = await session.begin(session.hint("ask"))
    reply = await session.until(task_id, frozenset({"input-required"}) | TERMINAL)
    state = session.state(reply)
    fail_unless(state == "input-required", f"the asking skill is {state or reply}", reply)
    fail_unless(message_text(session.dialect.task(reply.result)), "status.message holds no question", reply)
    place = session.dialect.task(reply.result).get("sessionId")
    answer = {**session.params(session.hint("ask")), "id": task_id, "sessionId": place}
    answered = await session.call(Operation.SEND, answer)
    fail_unless(answered.error is None, f"the answer gave {answered}", answered)
    last = await session.until(task_id)
    fail_unless(session.state(last) in TERMINAL, f"after the answer the task is {session.state(last)}", answered, last)
