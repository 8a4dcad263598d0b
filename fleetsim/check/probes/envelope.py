"""Probes of the JSON-RPC envelope, the error codes and the version header."""

from __future__ import annotations

import re
from typing import Any

from fleetsim.check.exchange import Exchange, written
from fleetsim.check.fixtures import finished_task
from fleetsim.check.probe import Phase, probe
from fleetsim.check.raw_dialect import listed, mapping
from fleetsim.check.session import Session
from fleetsim.check.verdict import fail_unless, not_tested_unless
from fleetsim.model.call import Operation

NOWHERE = "fleetsim-no-such-task"
LEAKS = re.compile(r'Traceback \(most recent|File \\?"[^"]{1,200}\.py|\n\s+at \S+ \(|node_modules/|\.java:\d+\)')


def refused(made: Exchange, what: str, *codes: int) -> None:
    """Demand one of the codes."""
    wanted = " or ".join(map(str, codes))
    fail_unless(made.code in codes, f"{what} must be {wanted}, not {made.says()}", made)


@probe("E-01")
async def no_json(session: Session) -> None:
    """Half an object."""
    refused(await session.raw(b'{"jsonrpc": "2.0", "id": 1, "method": '), "a body that is no JSON", -32700)


@probe("E-02")
async def no_jsonrpc(session: Session) -> None:
    """Leave jsonrpc out."""
    body = session.envelope(session.dialect.method(Operation.GET), session.dialect.by_id(NOWHERE))
    del body["jsonrpc"]
    refused(await session.raw(written(body)), "a request without jsonrpc", -32600)


@probe("E-03")
async def other_jsonrpc(session: Session) -> None:
    """Another version."""
    body = session.envelope(session.dialect.method(Operation.GET), session.dialect.by_id(NOWHERE))
    refused(await session.raw(written({**body, "jsonrpc": "1.0"})), 'a request with jsonrpc "1.0"', -32600)


@probe("E-04")
async def no_method(session: Session) -> None:
    """Leave the method out."""
    body = {"jsonrpc": "2.0", "id": 1, "params": {}}
    refused(await session.raw(written(body)), "a request without a method", -32600)


@probe("E-05")
async def no_object(session: Session) -> None:
    """An array and a string."""
    for body in (b"[]", b'"hello"'):
        refused(await session.raw(body), f"the body {body.decode()}", -32600)


@probe("E-06")
async def unknown_method(session: Session) -> None:
    """A method nobody has."""
    refused(await session.rpc("fleetsim/noSuchMethod", {}), "an unknown method", -32601)


@probe("E-07")
async def params_no_object(session: Session) -> None:
    """Params of other types."""
    for params in ([1, 2], "task"):
        made = await session.rpc(session.dialect.method(Operation.GET), params)
        refused(made, f"params {params!r}", -32602, *((-32600,) if isinstance(params, str) else ()))


@probe("E-08")
async def no_message(session: Session) -> None:
    """A send with nothing in it."""
    name = {"id": session.new()} if session.dialect.legacy else {}
    wrong = ((name, "a send without a message"), ({**name, "message": "hello"}, "a send whose message is a text"))
    for params, said in wrong:
        refused(await session.rpc(session.dialect.method(Operation.SEND), params), said, -32602)


@probe("E-09")
async def no_parts(session: Session) -> None:
    """A message without content."""
    params = session.params(parts=[])
    refused(await session.call(Operation.SEND, params), "a message without parts", -32602)


@probe("E-10")
async def id_comes_back(session: Session) -> None:
    """Ids of several kinds, for results and errors."""
    task_id, _ = await session.fixture(finished_task)
    for asked in (7, "seven", "7", 'ünïcode / " 7', 9_007_199_254_740_991):
        for target in (task_id, NOWHERE):
            made = await session.call(Operation.GET, session.dialect.by_id(target), request_id=asked)
            back: Any = made.answer.get("id")
            same = back == asked and type(back) is type(asked)
            fail_unless(same, f"the id {asked!r} came back as {back!r}", made)


@probe("E-11")
async def null_id(session: Session) -> None:
    """The id of an answer to what has none."""
    made = await session.raw(b'{"jsonrpc": "2.0", "id": 1, ')
    not_tested_unless(made.error is not None, f"a body that is no JSON gave {made.says()}", made)
    fail_unless("id" in made.answer and made.answer["id"] is None, "the id of a parse error is not null", made)


@probe("E-12")
async def says_jsonrpc(session: Session) -> None:
    """The jsonrpc member of a result and an error."""
    task_id, _ = await session.fixture(finished_task)
    for target in (task_id, NOWHERE):
        made = await session.get(target)
        fail_unless(made.answer.get("jsonrpc") == "2.0", "an answer without jsonrpc 2.0", made)


@probe("E-13")
async def unknown_task(session: Session) -> None:
    """Read nothing."""
    refused(await session.get(session.new()), "reading an unknown task", -32001)


@probe("E-14")
async def cancel_unknown(session: Session) -> None:
    """Cancel nothing."""
    refused(await session.cancel(session.new()), "cancelling an unknown task", -32001)


@probe("E-15")
async def never_create(session: Session) -> None:
    """Continue nothing."""
    invented = session.new()
    made = await session.send(taskId=invented)
    refused(made, "a message for an unknown task", -32001)
    after = await session.get(invented)
    fail_unless(after.code == -32001, "the task id we invented exists now", made, after)


@probe("E-16")
async def http_200(session: Session) -> None:
    """Status and type of errors."""
    unreadable = await session.raw(b'{"jsonrpc": "2.0", "id": 1, ')
    for made in (await session.get(NOWHERE), await session.rpc("fleetsim/noSuchMethod", {}), unreadable):
        fail_unless(made.status == 200, f"a JSON-RPC error came with HTTP {made.status}", made)
        fail_unless(made.media_type == "application/json", f"an error came as {made.media_type or 'nothing'}", made)


@probe("E-17")
async def result_or_error(session: Session) -> None:
    """The shape of answers."""
    task_id, _ = await session.fixture(finished_task)
    good = await session.get(task_id)
    fail_unless("result" in good.answer and "error" not in good.answer, "a good answer is not exactly a result", good)
    for bad in (await session.get(NOWHERE), await session.rpc("fleetsim/noSuchMethod", {})):
        fail_unless("error" in bad.answer and "result" not in bad.answer, "a refusal is not exactly an error", bad)
        code, message = mapping(bad.error).get("code"), mapping(bad.error).get("message")
        whole = isinstance(code, int) and not isinstance(code, bool) and isinstance(message, str)
        fail_unless(whole, "an error without an integer code and a message", bad)
    if session.agent.push and not session.dialect.legacy:
        empty = await session.call(Operation.PUSH_DELETE, session.dialect.of_hook(task_id, NOWHERE))
        both = {"result", "error"} & empty.answer.keys()
        fail_unless(len(both) == 1, "an answer with nothing to say is not exactly a result or an error", empty)


@probe("E-18")
async def error_info(session: Session) -> None:
    """The details of a 1.0 error."""
    made = await session.get(session.new())
    not_tested_unless(made.error is not None, f"reading an unknown task gave {made.says()}", made)
    details = [mapping(entry) for entry in listed(mapping(made.error).get("data"))]
    info = [entry for entry in details if str(entry.get("@type", "")).endswith("google.rpc.ErrorInfo")]
    fail_unless(info, "error.data holds no google.rpc.ErrorInfo", made)
    fail_unless(isinstance(info[0].get("reason"), str), "the ErrorInfo has no reason", made)
    fail_unless(info[0].get("domain") == "a2a-protocol.org", f"its domain is {info[0].get('domain')!r}", made)


@probe("E-19")
async def huge_body(session: Session) -> None:
    """Nine megabytes."""
    params = session.params()
    params["message"]["parts"] = [session.dialect.part("x" * (9 * 1024 * 1024))]
    if "configuration" in params:
        params["configuration"]["historyLength"] = 0  # or the answer would be as large
    body = written(session.envelope(session.dialect.method(Operation.SEND), params))
    made = await session.raw(body)
    made.sent = body[:200]
    closed = made.status is None and made.problem
    fail_unless(closed or made.status == 413 or made.code in {-32600, -32602}, f"9 MiB gave {made.says()}", made)


@probe("E-20")
async def deep_json(session: Session) -> None:
    """Five thousand brackets."""
    deep = b"[" * 5_000 + b"]" * 5_000
    made = await session.raw(b'{"jsonrpc":"2.0","id":1,"method":"x","params":' + deep + b"}")
    made.sent = made.sent[:200]
    fail_unless(made.status is not None and made.status < 500, f"deep JSON gave {made.says()}", made)
    fail_unless(made.error is not None, f"deep JSON gave {made.says()}", made)


@probe("E-21")
async def wrong_types(session: Session) -> None:
    """Odd values where texts belong."""
    asked = [(Operation.GET, session.dialect.by_id(odd)) for odd in (17, {"a": 1}, ["x"])]
    asked.append((Operation.SEND, {**session.params(parts="hello")}))
    for operation, params in asked:
        made = await session.call(operation, params)
        fail_unless(made.status is not None and made.status < 500, f"{operation.value} gave {made.says()}", made)
        fail_unless(made.error is not None, f"wrong types were taken: {made.says()}", made)
        fail_unless(made.code != -32603, "wrong types are an internal error (-32603)", made)


@probe("E-22")
async def unknown_fields(session: Session) -> None:
    """Fields from the future."""
    params = session.params()
    params["fleetsimExtra"] = {"a": [1]}
    params["message"]["fleetsimExtra"] = "x"
    params["message"]["parts"][0]["fleetsimExtra"] = 1
    params["configuration"]["fleetsimExtra"] = True
    made = await session.call(Operation.SEND, params)
    fail_unless(made.error is None and made.status == 200, f"a send with unknown fields gave {made.says()}", made)


@probe("E-23", Phase.LAST)
async def no_leaks(session: Session) -> None:
    """Look through everything that was answered."""
    if "fail" in session.agent.hints:
        await session.finished(session.hint("fail"))
    for made in session.agent.exchanges:
        text = made.body.decode("utf-8", "replace") + "".join(frame.text for frame in made.frames)
        fail_unless(not LEAKS.search(text), "an answer shows a stack trace or a path of the agent's code", made)


# Versions.


@probe("V-01")
async def no_version(session: Session) -> None:
    """A 1.0 method without the header."""
    for headers in ({"a2a-version": ""}, None):
        body = written(session.envelope("GetTask", {"id": NOWHERE}))
        made = await session.agent.exchange("POST", session.endpoint, body=body, headers=headers)
        refused(made, f"a 1.0 method with {'an empty' if headers else 'no'} A2A-Version", -32009)


@probe("V-02")
async def unknown_version(session: Session) -> None:
    """A version that does not exist."""
    made = await session.rpc("GetTask", {"id": NOWHERE}, headers={"a2a-version": "99.0"})
    refused(made, "A2A-Version: 99.0", -32009)


@probe("V-03")
async def old_methods_do_not_mind(session: Session) -> None:
    """A 0.3 method with its own version."""
    made = await session.rpc("tasks/get", {"id": NOWHERE}, headers={"a2a-version": "0.3"})
    refused(made, "tasks/get of an unknown task with A2A-Version: 0.3", -32001)
