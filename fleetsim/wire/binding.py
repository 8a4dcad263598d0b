"""A call as an HTTP request and the meaning of its answer, in the binding of its dialect."""

from __future__ import annotations

from typing import Any

from fleetsim.model.call import Call, Operation
from fleetsim.model.errors import WireError
from fleetsim.wire import jsonrpc, rest
from fleetsim.wire.base import Dialect
from fleetsim.wire.rest import HttpCall


def write_call(
    spoken: Dialect, call: Call, url: str, *, request_id: str, tenant: str | None, alias: str = ""
) -> HttpCall:
    """A call to the agent at ``url``; over JSON-RPC by ``alias`` if there is one. Raises UnsupportedOperation."""
    if spoken.paths:
        return rest.write_call(spoken, call, url, tenant)
    method, params = spoken.encode_call(call)
    body = jsonrpc.request(request_id, alias or method, params if tenant is None else {**params, "tenant": tenant})
    return HttpCall(method="POST", url=url, body=body, media_type=spoken.media_type)


def read_result(value: Any, spoken: Dialect, operation: Operation, *, request_id: str, status: int) -> Any:
    """The result in the JSON of a response. Raises WireError for the answer to another request, and the agent's error
    as the RpcError of its code."""
    if not spoken.paths:
        return jsonrpc.read_response(value, expect_id=request_id, dialect_name=spoken.name)
    if 200 <= status < 300:
        return value
    if (problem := rest.read_error(value, operation, status)) is not None:
        raise problem
    raise WireError("the body tells no A2A error")


def read_frame(value: Any, spoken: Dialect, operation: Operation, *, request_id: str) -> Any:
    """The event in the JSON of one event of a stream: bare over HTTP+JSON and, from some agents of 0.1, over JSON-RPC.

    Raises as ``read_result``.
    """
    if spoken.paths:
        if (problem := rest.read_error(value, operation)) is not None:
            raise problem
        return value
    enveloped = not isinstance(value, dict) or "jsonrpc" in value or {"result", "error"} & value.keys()
    if enveloped:
        return jsonrpc.read_response(value, expect_id=request_id, dialect_name=spoken.name)
    return value
