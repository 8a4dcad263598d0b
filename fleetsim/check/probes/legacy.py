"""Probes of the legacy dialect, 0.1: tasks/send, the client's own task ids, and events with names."""

from __future__ import annotations

from fleetsim.check.exchange import Exchange
from fleetsim.check.listener import state_of
from fleetsim.check.probe import probe
from fleetsim.check.probes.envelope import refused
from fleetsim.check.raw_dialect import TERMINAL, among, listed, mapping, message_text
from fleetsim.check.session import Session
from fleetsim.check.verdict import fail_unless, not_tested_unless
from fleetsim.model.call import Operation

STATES = frozenset({"submitted", "working", "input-required", "completed", "failed", "canceled"})


@probe("L-01")
async def under_our_id(session: Session) -> None:
    """A task named by us."""
    params = session.params()
    made = await session.call(Operation.SEND, params)
    fail_unless(made.error is None, f"tasks/send gave {made.says()}", made)
    task = mapping(made.result)
    fail_unless(task.get("id") == params["id"], f"the task has the id {task.get('id')!r}", made)
    fail_unless(task.get("sessionId") == params["sessionId"], f"its session is {task.get('sessionId')!r}", made)
    fail_unless(session.dialect.state(task) in STATES, f"its state is {session.dialect.state(task)!r}", made)


@probe("L-02")
async def legacy_shapes(session: Session) -> None:
    """A whole life."""
    _, made = await session.finished()
    task = session.dialect.task(made.result)
    state = session.dialect.state(task)
    fail_unless(state in STATES and session.dialect.spelled(task), f"the state is {mapping(task['status'])}", made)
    fail_unless("kind" not in task, "a legacy task has a kind", made)
    fail_unless("sessionId" in task, "a legacy task has no sessionId", made)
    parts = [part for a in listed(task.get("artifacts")) for part in listed(mapping(a).get("parts"))]
    for part in map(mapping, parts):
        fail_unless("type" in part and "kind" not in part, "a part has no type (or a kind)", made)


@probe("L-03")
async def named_events(session: Session) -> None:
    """A legacy stream."""
    params = session.params(session.agent.hints.get("stream"))
    async with session.stream(Operation.STREAM, params, request_id=31) as stream:
        fail_unless(stream.is_stream, f"tasks/sendSubscribe gave {stream.exchange.says()}", stream.exchange)
        made = await stream.drain(30)
    not_tested_unless(made.frames, "the stream had no events", made)
    for frame in made.frames:
        value = mapping(frame.value)
        fail_unless(value.get("id") == 31, f"the id in an event is {value.get('id')!r}", made)
        kind = "artifact" if "artifact" in frame.result else "status"
        fail_unless(frame.name == kind, f"a {kind} event is named {frame.name!r}", made)
        fail_unless(frame.result.get("id") == params["id"], "an event names another task", made)
    last = made.frames[-1].result
    fail_unless(last.get("final") is True, "the last event is not final", made)
    fail_unless(session.dialect.state(last) in TERMINAL, "the last event is not terminal", made)
    fail_unless(made.ended, "the stream stays open after the final event", made)


@probe("L-04")
async def no_more_moves(session: Session) -> None:
    """Send to what is over."""
    task_id, _ = await session.finished()
    made = await session.call(Operation.SEND, {**session.params(), "id": task_id})
    refused(made, "a message for a finished task", -32002)


@probe("L-05")
async def set_and_get(session: Session) -> None:
    """Register and read."""
    hook = session.hook()
    task_id, _ = await session.finished()
    made = await _set(session, task_id, hook.url)
    fail_unless(made.error is None, f"tasks/pushNotification/set gave {made.says()}", made)
    read = await session.rpc(session.dialect.method(Operation.PUSH_GET), {"id": task_id})
    fail_unless(read.error is None, f"tasks/pushNotification/get gave {read.says()}", read)
    found = mapping(mapping(read.result).get("pushNotificationConfig")) or mapping(read.result)
    fail_unless(found.get("url") == hook.url, f"get shows the url {found.get('url')!r}", made, read)


async def _set(session: Session, task_id: str, url: str) -> Exchange:
    params = session.dialect.set_hook(task_id, session.dialect.hook(url))
    return await session.rpc(session.dialect.method(Operation.PUSH_SET), params)


@probe("L-06")
async def private_is_refused(session: Session) -> None:
    """The cloud's metadata."""
    task_id, _ = await session.finished()
    made = await _set(session, task_id, "http://169.254.169.254:8080/x")
    refused(made, "a webhook to a link-local address", -32602, -32004)


@probe("L-07")
async def legacy_webhook(session: Session) -> None:
    """The bodies."""
    hook = session.hook()
    task_id, _ = await session.begin(session.hint("slow"))
    made = await _set(session, task_id, hook.url)
    not_tested_unless(made.error is None, f"tasks/pushNotification/set gave {made.says()}", made)
    arrival = await hook.until(lambda a: state_of(a) in TERMINAL, session.options.patience_s)
    fail_unless(arrival, "no terminal webhook came", made)
    for found in hook.arrivals:
        body = mapping(found.value)
        missing = {"taskId", "eventType", "status", "timestamp"} - body.keys()
        fail_unless(not missing, f"a webhook lacks {', '.join(sorted(missing))}", found)
        fail_unless(body["taskId"] == task_id, f"a webhook names the task {body['taskId']!r}", found)
        fail_unless(among(body["eventType"], ("status", "artifact")), f"its eventType is {body['eventType']!r}", found)


@probe("L-08")
async def answered_under_its_id(session: Session) -> None:
    """A question in the old way."""
    task_id, made = await session.begin(session.hint("ask"))
    made = await session.until(task_id, frozenset({"input-required"}) | TERMINAL)
    state = session.state(made)
    fail_unless(state == "input-required", f"the asking skill is {state or made.says()}", made)
    fail_unless(message_text(session.dialect.task(made.result)), "status.message holds no question", made)
    place = session.dialect.task(made.result).get("sessionId")
    answer = {**session.params(session.hint("ask")), "id": task_id, "sessionId": place}
    answered = await session.call(Operation.SEND, answer)
    fail_unless(answered.error is None, f"the answer gave {answered.says()}", answered)
    last = await session.until(task_id)
    fail_unless(session.state(last) in TERMINAL, f"after the answer the task is {session.state(last)}", answered, last)
