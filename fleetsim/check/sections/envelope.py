"""Rows about any call: its envelope, the error codes, the required methods, and the version header."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from fleetsim.check.evidence import (
    Exchange,
    fail_unless,
    fail_unless_error,
    not_applicable_unless,
    not_tested_unless,
    written,
)
from fleetsim.check.needs import METHOD_ROWS, NO_METHOD, NOWHERE, answer_of, knows
from fleetsim.check.raw_dialect import listed, mapping
from fleetsim.check.requirement import ALL, BUILD_GUIDE, ONCE, V03, V10, ProbeBatch, must, should
from fleetsim.check.session import Session, finished_task
from fleetsim.model.call import Operation

CODES = f"{BUILD_GUIDE}, 'Error code conventions'"
SURFACE = f"{BUILD_GUIDE}, 'The endpoint surface'"
JSONRPC = "JSON-RPC 2.0"
_PUSH = "tasks/pushNotificationConfig"
LEAKS = re.compile(r'Traceback \(most recent|File \\?"[^"]{1,200}\.py|\n\s+at \S+ \(|node_modules/|\.java:\d+\)')


@must(
    "E-01: A body that is no JSON is -32700",
    ALL,
    source=f"{JSONRPC} §5.1; seed: implement-a2a-server, step 1; A2A 0.3 §8.1",
    remedy="Parse inside the handler and answer -32700; do not leave it to the framework's 422 page.",
    needs=("json-rpc",),
)
async def no_json(session: Session) -> None:
    """POST half a JSON object."""
    fail_unless_error(await session.raw(b'{"jsonrpc": "2.0", "id": 1, "method": '), "a body that is no JSON", -32700)


def _invalid(heading: str, how: str, remedy: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """A row of a call whose envelope is wrong."""

    async def probe(session: Session) -> None:
        body = change(session.envelope(Operation.GET, session.dialect.by_id(NOWHERE)))
        what = heading.partition(": ")[2].removesuffix(" is -32600")
        fail_unless_error(await session.raw(written(body)), what[0].lower() + what[1:], -32600)

    probe.__doc__ = how
    must(heading, ALL, source=f"{JSONRPC} §4, §5.1", remedy=remedy, needs=("json-rpc",))(probe)


_invalid(
    "E-02: A request without jsonrpc is -32600",
    'POST a request without the "jsonrpc" member.',
    'Check that jsonrpc is "2.0" before anything else.',
    lambda body: {name: value for name, value in body.items() if name != "jsonrpc"},
)
_invalid(
    "E-03: A request of another JSON-RPC version is -32600",
    'POST a request with "jsonrpc": "1.0".',
    'Check that jsonrpc is exactly "2.0".',
    lambda body: {**body, "jsonrpc": "1.0"},
)
_invalid(
    "E-04: A request without a method is -32600",
    "POST a request without a method.",
    "Answer -32600 when method is missing or no string.",
    lambda body: {"jsonrpc": "2.0", "id": 1, "params": {}},
)


@should(
    "E-05: A body that is JSON but no object is -32600",
    ALL,
    source=f"{JSONRPC} §5.1",
    remedy="Answer -32600: A2A has no batches.",
    needs=("json-rpc",),
)
async def no_object(session: Session) -> None:
    """POST "[]" and a bare string."""
    for body in (b"[]", b'"hello"'):
        fail_unless_error(await session.raw(body), f"the body {body.decode()}", -32600)


@must(
    "E-06: An unknown method is -32601", ALL, source=CODES, remedy="Answer -32601 with HTTP 200.", needs=("json-rpc",)
)
async def unknown_method(session: Session) -> None:
    """Call a method that does not exist."""
    fail_unless_error(await session.rpc(NO_METHOD, {}), "an unknown method", -32601)


@must(
    "E-07: Params that are not an object are -32602",
    ALL,
    source=f"{CODES}; A2A 0.3 §8.1",
    remedy="Validate params before using them.",
    needs=("json-rpc",),
)
async def params_no_object(session: Session) -> None:
    """Call the get method with an array and with a string as params."""
    for params in ([1, 2], "task"):
        reply = await session.rpc(Operation.GET, params)
        fail_unless_error(reply, f"params {params!r}", -32602, *((-32600,) if isinstance(params, str) else ()))


@must(
    "E-08: A send without a message is -32602",
    ALL,
    source=f"{CODES}; seed: A2A Protocol (selectools), 'Error mapping'",
    remedy="Validate params.message and answer -32602.",
)
async def no_message(session: Session) -> None:
    """Send with empty params, and with a message that is not an object."""
    name = {"id": session.new()} if session.dialect.legacy else {}
    wrong = ((name, "a send without a message"), ({**name, "message": "hello"}, "a send whose message is a text"))
    for params, what in wrong:
        fail_unless_error(await session.rpc(Operation.SEND, params), what, -32602)


@should(
    "E-09: A message without parts is -32602",
    source=f"{CODES}; A2A 1.0 §4.1.4",
    remedy="Refuse it: there is nothing to work on.",
)
async def no_parts(session: Session) -> None:
    """Send a message with an empty list of parts."""
    params = session.params(parts=[])
    fail_unless_error(await session.call(Operation.SEND, params), "a message without parts", -32602)


async def _refuse(session: Session, what: str, **message: Any) -> None:
    params = session.params(**message)
    params["message"] = {name: value for name, value in params["message"].items() if value is not None}
    fail_unless_error(await session.call(Operation.SEND, params), what, -32602, -32600)


@must(
    "E-24: A message of an unknown role is refused",
    source=f"{CODES}; A2A 0.3 §6.4, 1.0 §4.1.4",
    remedy="Accept user and agent (ROLE_USER and ROLE_AGENT in 1.0) alone.",
)
async def unknown_role(session: Session) -> None:
    """Send a message whose role is "robot", and one without a role: -32602 (or -32600)."""
    await _refuse(session, 'a message of the role "robot"', role="robot")
    await _refuse(session, "a message without a role", role=None)


@must(
    "E-25: A message without a messageId is refused",
    V10,
    source="A2A 1.0 §4.1.4, §5.7",
    remedy="Demand the required members: callers and agents tell repeated messages by their id.",
)
async def no_message_id(session: Session) -> None:
    """Send a message without messageId: -32602 (or -32600)."""
    # Older 0.3 callers leave it out, and agents of that time took it: on 0.3 this is left open.
    await _refuse(session, "a message without a messageId", messageId=None)


@must(
    "E-10: The id comes back with the same value and type",
    ALL,
    source=f"{JSONRPC} §5; reference interop, 'Pitfalls'",
    remedy="Echo the id as it came; do not turn 7 into '7'.",
    needs=("json-rpc",),
)
async def id_comes_back(session: Session) -> None:
    """Call with a number, a string and an odd string as id, for a result and for an error."""
    task_id, _ = await session.fixture(finished_task)
    for request_id in (7, "seven", "7", 'ünïcode / " 7', 9_007_199_254_740_991):
        for target in (task_id, NOWHERE):
            reply = await session.call(Operation.GET, session.dialect.by_id(target), request_id=request_id)
            not_tested_unless(not reply.own_form, f"an error had no envelope: {reply} (E-17)", reply)
            back: Any = reply.answer.get("id")
            same = back == request_id and type(back) is type(request_id)
            fail_unless(same, f"the id {request_id!r} came back as {back!r}", reply)


@must(
    "E-11: An answer to what cannot be read has a null id",
    ALL,
    source=f"{JSONRPC} §5",
    remedy='Answer with "id": null.',
    needs=("json-rpc",),
)
async def null_id(session: Session) -> None:
    """POST half a JSON object and read the id of the error."""
    reply = await session.raw(b'{"jsonrpc": "2.0", "id": 1, ')
    not_tested_unless(reply.code is not None, f"a body that is no JSON gave {reply}", reply)
    fail_unless("id" in reply.answer and reply.answer["id"] is None, "the id of a parse error is not null", reply)


@must(
    'E-12: Every answer says "jsonrpc": "2.0"',
    ALL,
    source=f"{JSONRPC} §5; seed: implement-a2a-server, 'Validation'",
    remedy='Put "jsonrpc": "2.0" into the one place that builds answers.',
    needs=("json-rpc",),
)
async def says_jsonrpc(session: Session) -> None:
    """Read a result and an error."""
    task_id, _ = await session.fixture(finished_task)
    for target in (task_id, NOWHERE):
        reply = await session.get(target)
        fail_unless(reply.answer.get("jsonrpc") == "2.0", "an answer without jsonrpc 2.0", reply)


@must(
    "E-13: Reading an unknown task is -32001",
    ALL,
    source=CODES,
    remedy="Answer -32001 for unknown (and for evicted) ids.",
)
async def unknown_task(session: Session) -> None:
    """Get a task id nobody made."""
    fail_unless_error(await session.get(session.new()), "reading an unknown task", -32001)


@must("E-14: Cancelling an unknown task is -32001", ALL, source=CODES, remedy="Answer -32001.")
async def cancel_unknown(session: Session) -> None:
    """Cancel a task id nobody made."""
    fail_unless_error(await session.cancel(session.new()), "cancelling an unknown task", -32001)


@must(
    "E-15: A message for an unknown task is -32001 and makes none",
    source="Reference reliability T-27; A2A 1.0 §3.4.2",
    remedy="Make ids on the server; a taskId in a message only continues.",
)
async def never_create(session: Session) -> None:
    """Send with a taskId nobody made, then try to read it."""
    invented = session.new()
    reply = await session.send(taskId=invented)
    fail_unless_error(reply, "a message for an unknown task", -32001)
    after = await session.get(invented)
    fail_unless(after.error is not None, "the task id we invented exists now", reply, after)


@should(
    "E-16: Errors of JSON-RPC come with HTTP 200 and application/json",
    ALL,
    source="Reference interop, section 8; A2A 0.3 §3.2.1",
    remedy="Answer JSON-RPC errors with HTTP 200; several clients stop reading at any other status.",
    needs=("json-rpc",),
)
async def http_200(session: Session) -> None:
    """Read status and Content-Type of an error answer."""
    unreadable = await session.raw(b'{"jsonrpc": "2.0", "id": 1, ')
    for reply in (await session.get(NOWHERE), await session.rpc(NO_METHOD, {}), unreadable):
        fail_unless(reply.status == 200, f"a JSON-RPC error came with HTTP {reply.status}", reply)
        fail_unless(reply.media_type == "application/json", f"an error came as {reply.media_type or 'nothing'}", reply)


@must(
    "E-17: An answer has either a result or an error with an integer code and a message",
    ALL,
    source=f"{JSONRPC} §5",
    remedy="Write exactly one of the two; code is an integer, message a string.",
    needs=("json-rpc",),
)
async def result_or_error(session: Session) -> None:
    """Read a result and several errors, of wrong params too."""
    task_id, _ = await session.fixture(finished_task)
    good = await session.get(task_id)
    fail_unless("result" in good.answer and "error" not in good.answer, "a good answer is not exactly a result", good)
    for bad in (await session.get(NOWHERE), await session.rpc(NO_METHOD, {})):
        fail_unless("error" in bad.answer and "result" not in bad.answer, "a refusal is not exactly an error", bad)
        code, message = mapping(bad.error).get("code"), mapping(bad.error).get("message")
        whole = isinstance(code, int) and not isinstance(code, bool) and isinstance(message, str)
        fail_unless(whole, "an error without an integer code and a message", bad)
    if session.agent.push and not session.dialect.legacy:
        empty = await session.call(Operation.PUSH_DELETE, session.dialect.of_hook(task_id, NOWHERE))
        both = {"result", "error"} & empty.answer.keys()
        fail_unless(len(both) == 1, "an answer with nothing to say is not exactly a result or an error", empty)
    for bad in await session.fixture(answers_to_wrong_types):
        fail_unless(not bad.own_form, "a refusal of wrong params is not exactly an error", bad)


@should(
    "E-18: A 1.0 error says its reason as google.rpc.ErrorInfo",
    V10,
    source="A2A 1.0 §9.5",
    remedy="Add data: [{@type, reason, domain}].",
)
async def error_info(session: Session) -> None:
    """Read error.data of -32001: a list with an ErrorInfo of domain a2a-protocol.org."""
    reply = await session.get(session.new())
    not_tested_unless(reply.error is not None, f"reading an unknown task gave {reply}", reply)
    details = [mapping(entry) for entry in listed(mapping(reply.error).get("data"))]
    info = [entry for entry in details if str(entry.get("@type", "")).endswith("google.rpc.ErrorInfo")]
    fail_unless(info, "error.data holds no google.rpc.ErrorInfo", reply)
    fail_unless(isinstance(info[0].get("reason"), str), "the ErrorInfo has no reason", reply)
    fail_unless(info[0].get("domain") == "a2a-protocol.org", f"its domain is {info[0].get('domain')!r}", reply)


@should(
    "E-19: A body of many megabytes is refused before it is read",
    ONCE,
    source="Seed: A2A Protocol (selectools), 'Trust model'; reference reliability section 8",
    remedy="Cap the body (1 MiB is usual) while reading it.",
    needs=("json-rpc", "side-effects"),
)
async def huge_body(session: Session) -> None:
    """POST 9 MiB: HTTP 413 or -32600 is expected, or a closed connection."""
    params = session.params()
    params["message"]["parts"] = [session.dialect.part("x" * (9 * 1024 * 1024))]
    if "configuration" in params:
        params["configuration"]["historyLength"] = 0  # or the answer would be as large
    body = written(session.envelope(Operation.SEND, params))
    reply = await session.raw(body)
    reply.sent = body[:200]
    closed = reply.status is None and reply.problem
    fail_unless(closed or reply.status == 413 or reply.code in {-32600, -32602}, f"9 MiB gave {reply}", reply)


@should(
    "E-20: Deeply nested JSON does not break the agent",
    ONCE,
    source="Reference reliability section 8",
    remedy="Bound the depth before parsing, and answer -32700 or -32600.",
    needs=("json-rpc",),
)
async def deep_json(session: Session) -> None:
    """POST an array nested 5,000 deep; any clean error will do."""
    deep = b"[" * 5_000 + b"]" * 5_000
    reply = await session.raw(b'{"jsonrpc":"2.0","id":1,"method":"x","params":' + deep + b"}")
    reply.sent = reply.sent[:200]
    fail_unless(reply.status is not None and reply.status < 500, f"deep JSON gave {reply}", reply)
    fail_unless(reply.error is not None, f"deep JSON gave {reply}", reply)


async def answers_to_wrong_types(session: Session) -> list[Exchange]:
    """The replies to reads whose id is a number, an object or a list, and to a message whose parts are a text."""
    asked = [(Operation.GET, session.dialect.by_id(odd)) for odd in (17, {"a": 1}, ["x"])]
    asked.append((Operation.SEND, session.params(parts="hello")))
    return [await session.call(operation, params) for operation, params in asked]


@must(
    "E-21: Wrong types in params are an error, not a crash",
    ALL,
    source=f"{CODES}; reference interop, 'What real clients found'",
    remedy="Validate types; HTTP 500 is never the answer to bad params.",
)
async def wrong_types(session: Session) -> None:
    """Get a task whose id is a number, an object and a list; send a message whose parts are a string."""
    for reply in await session.fixture(answers_to_wrong_types):
        what = "send" if reply.operation is Operation.SEND else "get"
        clean = reply.own_form or (reply.status is not None and reply.status < 500)
        fail_unless(clean, f"{what} gave {reply}", reply)
        fail_unless(reply.error is not None, f"wrong types were taken: {reply}", reply)
        fail_unless(reply.code != -32603, "wrong types are an internal error (-32603)", reply)


@must(
    "E-22: Unknown fields are ignored",
    source="A2A 1.0 §3.2.5, §5.6; 0.3 §1.2",
    remedy="Read what you know and leave the rest.",
)
async def unknown_fields(session: Session) -> None:
    """Send with extra fields in params, message, part and configuration."""
    params = session.params()
    params["fleetsimExtra"] = {"a": [1]}
    params["message"]["fleetsimExtra"] = "x"
    params["message"]["parts"][0]["fleetsimExtra"] = 1
    params["configuration"]["fleetsimExtra"] = True
    reply = await session.call(Operation.SEND, params)
    fail_unless(reply.granted, f"a send with unknown fields gave {reply}", reply)


@should(
    "E-23: Errors tell nothing of the agent's inside",
    ALL,
    source="Seed: A2A Protocol (selectools), 'Sanitized errors'",
    remedy="Send the kind of error; keep the detail in your log.",
    batch=ProbeBatch.LAST,
)
async def no_leaks(session: Session) -> None:
    """Look for stack traces and file paths in every answer the check has seen."""
    await session.fixture(answers_to_wrong_types)
    if "fail" in session.agent.hints:
        await session.finished(session.hint("fail"))
    for reply in session.agent.exchanges:
        text = reply.body.decode("utf-8", "replace") + "".join(frame.text for frame in reply.frames)
        fail_unless(not LEAKS.search(text), "an answer shows a stack trace or a path of the agent's code", reply)


async def _call_method(session: Session, operation: Operation) -> None:
    method = session.dialect.standard_method(operation)
    reply = await session.fixture(answer_of(operation))
    fail_unless(await knows(session, operation), f"{method} does not exist: {reply}", reply)
    enveloped = reply.answer.get("jsonrpc") == "2.0" and reply.status not in {404, 405}
    told = reply.granted or reply.code is not None
    fail_unless(reply.own_form or (told if session.dialect.over_http else enveloped), f"{method} gave {reply}", reply)


def _method(operation: Operation, names: str, incident: str = "") -> None:
    @must(
        f"{METHOD_ROWS[operation]}: There is a method {names}",
        source=SURFACE,
        remedy="Route the method; what is not supported is -32003 or -32004, never -32601.",
        incident=incident,
    )
    async def exists(session: Session) -> None:
        """Call it (with a text, or for an unknown task): neither -32601 nor the answer to a method that does
        not exist may come.
        """
        await _call_method(session, operation)


_method(Operation.SEND, "message/send, SendMessage")
_method(Operation.STREAM, "message/stream, SendStreamingMessage")
_method(Operation.GET, "tasks/get, GetTask")
_method(Operation.CANCEL, "tasks/cancel, CancelTask")
_method(Operation.SUBSCRIBE, "tasks/resubscribe, SubscribeToTask", incident="selectools answers -32601 on resubscribe")
_method(Operation.PUSH_SET, f"{_PUSH}/set, CreateTaskPushNotificationConfig", "Quinn PR #25")
_method(Operation.PUSH_GET, f"{_PUSH}/get, GetTaskPushNotificationConfig", "Quinn PR #25")
_method(Operation.PUSH_LIST, f"{_PUSH}/list, ListTaskPushNotificationConfigs", "Quinn PR #25")
_method(Operation.PUSH_DELETE, f"{_PUSH}/delete, DeleteTaskPushNotificationConfig", "Quinn PR #25")


@should(
    "M-03: message/sendStream is taken for message/stream",
    V03,
    source=SURFACE,
    remedy="Accept the alias: protoPen-era clients still use it.",
    after="M-10",
    needs=("json-rpc",),
)
async def old_name_of_stream(session: Session) -> None:
    """Call the old name with the params of a stream."""
    not_applicable_unless(session.agent.streaming, "the card offers no streams")
    async with session.stream("message/sendStream", session.params(session.quick())) as stream:
        await stream.next(10)
    reply = stream.exchange
    fail_unless(reply.code != -32601, f"message/sendStream does not exist: {reply}", reply)
    fail_unless(reply.frames, f"message/sendStream gave {reply}, no stream", reply)


@must("M-11: There is a method ListTasks", V10, source="A2A 1.0 §3.1.4", remedy="Route ListTasks.")
async def list_tasks(session: Session) -> None:
    """Call it with empty params."""
    await _call_method(session, Operation.LIST)


@must(
    "V-01: A 1.0 method without A2A-Version is -32009",
    V10,
    source="A2A 1.0 §3.6.2 (a missing header means 0.3)",
    remedy="Take a missing version for 0.3, and refuse 1.0 method names under it with -32009.",
    needs=("json-rpc",),
)
async def no_version(session: Session) -> None:
    """Call GetTask without the header, and with an empty one."""
    for headers in ({"a2a-version": ""}, None):
        body = written(session.envelope("GetTask", {"id": NOWHERE}))
        reply = await session.agent.exchange("POST", session.endpoint, body=body, headers=headers)
        fail_unless_error(reply, f"a 1.0 method with {'an empty' if headers else 'no'} A2A-Version", -32009)


@must(
    "V-02: An unknown version is -32009",
    V10,
    source="A2A 1.0 §3.6.2",
    remedy="Check the header before the method and answer -32009.",
)
async def unknown_version(session: Session) -> None:
    """Call GetTask with A2A-Version: 99.0."""
    reply = await session.rpc(Operation.GET, {"id": NOWHERE}, headers={"a2a-version": "99.0"})
    fail_unless_error(reply, "A2A-Version: 99.0", -32009)


@should(
    "V-03: 0.3 methods do not mind a version header",
    V03,
    source="Reference interop, section 8",
    remedy="Check the version for 1.0 method names only.",
    needs=("json-rpc",),
)
async def old_methods_do_not_mind(session: Session) -> None:
    """Call tasks/get with A2A-Version: 0.3."""
    reply = await session.rpc("tasks/get", {"id": NOWHERE}, headers={"a2a-version": "0.3"})
    fail_unless_error(reply, "tasks/get of an unknown task with A2A-Version: 0.3", -32001)
