"""Rows about the REST aliases; they do not apply to an agent without them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleetsim.check.evidence import Exchange, fail_unless, not_applicable_unless, not_tested_unless, written
from fleetsim.check.raw_dialect import RawDialect, mapping
from fleetsim.check.requirement import BUILD_GUIDE, ONCE, may
from fleetsim.check.session import STREAM_S, Session
from fleetsim.model.call import Operation
from fleetsim.model.task import INTERRUPTED, TERMINAL
from fleetsim.wire.rest import read_error

ALIASES = f"{BUILD_GUIDE}, 'REST aliases'"
OLD = RawDialect("0.3")


def _url(session: Session, path: str) -> str:
    return f"{session.agent.origin}{path}"


async def _ask(session: Session, method: str, path: str, body: Any = None) -> Exchange:
    sent = b"" if body is None else written(body)
    return await session.agent.exchange(method, _url(session, path), body=sent)


def _message(session: Session, kind: str | None = None) -> dict[str, Any]:
    hint = session.quick() if kind is None else session.hint(kind)
    metadata = {"skillHint": hint.skill} if hint.skill else None
    return OLD.send(OLD.message(hint.text, session.new()), metadata=metadata)


def _exists(reply: Exchange, named: str = "") -> None:
    """``named``: what a route that shadows this one would take for the task's id."""
    shadowed = bool(named) and reply.status == 404 and named in reply.body.decode("utf-8", "replace")
    fail_unless(not shadowed, f"another route takes this path: it looked for the task {named!r}", reply)
    gone = reply.status in {404, 405, 501} or 300 <= (reply.status or 0) < 400
    not_applicable_unless(not gone, "the agent has no such alias")
    refusal = read_error(reply.value, Operation.SEND, reply.status) if (reply.status or 0) >= 400 else None
    other = refusal is not None and refusal.wire_code == -32009
    not_applicable_unless(not other, "the path is that of another version's HTTP+JSON")


def _task(reply: Exchange) -> Mapping[str, Any]:
    """The task of a REST answer, bare or in a JSON-RPC result."""
    return OLD.task(reply.value) or OLD.task(reply.result)


@may("R-01: POST /message:send sends", ONCE, source=ALIASES, remedy="Answer with the task at once.", needs=("aliases",))
async def send(session: Session) -> None:
    """POST a message: 202 (or 200) with the task. Optional: not applicable where the path is 404."""
    reply = await _ask(session, "POST", "/message:send", _message(session))
    _exists(reply)
    fail_unless(reply.status in {200, 202}, f"POST /message:send gave {reply}", reply)
    task = _task(reply)
    fail_unless(task.get("id") and OLD.spelled(task), "the answer is not a task", reply)


@may(
    "R-02: POST /message:stream streams",
    ONCE,
    source=ALIASES,
    remedy="Serve the same events as JSON-RPC, without the envelope.",
    needs=("aliases", "streaming"),
)
async def stream(session: Session) -> None:
    """POST a message: SSE that starts with the task. Optional: not applicable where the path is 404."""
    body = written(_message(session))
    async with session.reading("POST", _url(session, "/message:stream"), body) as stream:
        _exists(stream.exchange)
        fail_unless(stream.is_stream, f"POST /message:stream gave {stream.exchange}", stream.exchange)
        reply = await stream.drain(20)
    not_tested_unless(reply.frames, "the stream had no events", reply)
    results = [mapping(frame.value).get("result", frame.value) for frame in reply.frames]
    fail_unless(OLD.event(results[0])[0] == "task", "the first event is not the task", reply)
    fail_unless(OLD.state(OLD.event(results[-1])[1]) in TERMINAL, "the stream did not reach the end", reply)


async def _begun(session: Session, kind: str | None = None) -> tuple[str, Exchange]:
    reply = await _ask(session, "POST", "/message:send", _message(session, kind))
    _exists(reply)
    task = _task(reply)
    not_tested_unless(isinstance(task.get("id"), str), f"POST /message:send gave {reply}", reply)
    return str(task["id"]), reply


@may("R-03: GET /tasks/{id} reads", ONCE, source=ALIASES, remedy="Return the task; 404 if unknown.", needs=("aliases",))
async def get(session: Session) -> None:
    """GET a task and an unknown one (404). Optional: not applicable where the path is 404."""
    task_id, _ = await _begun(session)
    reply = await _ask(session, "GET", f"/tasks/{task_id}")
    fail_unless(reply.status == 200 and _task(reply).get("id") == task_id, f"GET /tasks/ID gave {reply}", reply)
    unknown = await _ask(session, "GET", f"/tasks/{session.new()}")
    fail_unless(unknown.status == 404, f"GET of an unknown task gave {unknown}", unknown)


@may(
    "R-04: GET /tasks/{id}:subscribe rejoins",
    ONCE,
    source=ALIASES,
    remedy="Serve the same events as resubscribe, without the envelope.",
    needs=("aliases", "streaming", "slow", "end"),
)
async def subscribe(session: Session) -> None:
    """GET while the task runs: plain SSE events. Optional: not applicable where the path is 404."""
    task_id, _ = await _begun(session, "slow")
    async with session.reading("GET", _url(session, f"/tasks/{task_id}:subscribe")) as stream:
        _exists(stream.exchange, f"{task_id}:subscribe")
        fail_unless(stream.is_stream, f"GET /tasks/ID:subscribe gave {stream.exchange}", stream.exchange)
        reply = await stream.drain(STREAM_S)
    not_tested_unless(reply.frames, "the stream had no events", reply)
    for frame in reply.frames:
        fail_unless("jsonrpc" not in mapping(frame.value), "an event has a JSON-RPC envelope", reply)
    last = OLD.event(reply.frames[-1].value)[1]
    fail_unless(OLD.state(last) in TERMINAL | INTERRUPTED, "the stream did not reach the end", reply)


@may(
    "R-05: POST /tasks/{id}:cancel cancels",
    ONCE,
    source=ALIASES,
    remedy="Use the same write path as tasks/cancel.",
    needs=("aliases", "slow"),
)
async def cancel(session: Session) -> None:
    """POST for a running task: canceled. Optional: not applicable where the path is 404."""
    task_id, _ = await _begun(session, "slow")
    reply = await _ask(session, "POST", f"/tasks/{task_id}:cancel", {})
    _exists(reply, f"{task_id}:cancel")
    fail_unless(reply.status in {200, 202}, f"POST /tasks/ID:cancel gave {reply}", reply)
    read = await _ask(session, "GET", f"/tasks/{task_id}")
    if read.status in {404, 405, 501}:
        read = await session.call(Operation.GET, session.dialect.by_id(task_id))
    state = session.state(read) or OLD.state(_task(read))
    fail_unless(state == "canceled", f"after the cancel the task is {state or read}", reply, read)


@may(
    "R-06: POST /tasks/{id}/pushNotificationConfigs registers, and refuses private addresses",
    ONCE,
    source=f"{ALIASES}; hardening 4",
    remedy="Vet the address as the JSON-RPC method does.",
    needs=("aliases", "push"),
)
async def webhook(session: Session) -> None:
    """POST a private address: 4xx. Optional: not applicable where the path is 404."""
    task_id, _ = await _begun(session)
    reply = await _ask(
        session, "POST", f"/tasks/{task_id}/pushNotificationConfigs", {"url": "http://169.254.169.254:8080/x"}
    )
    _exists(reply)
    refused = reply.status is not None and (400 <= reply.status < 500 or reply.error is not None)
    fail_unless(refused, f"a private webhook gave {reply}", reply)
