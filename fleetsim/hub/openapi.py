"""The API as an OpenAPI 3.1 document, made of the table of endpoints and the models of their bodies.

Served at ``GET /openapi.json``, and kept in docs/reference/schemas.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import version
from typing import Any

from pydantic.json_schema import models_json_schema

from fleetsim.hub.endpoints import ENDPOINTS, Endpoint, ResponseMode, Who

_NUMBERS = {"after", "limit", "wait"}
_LISTS = {"topic"}

_ID_OF: dict[str, tuple[str, tuple[str, ...]]] = {
    "request": ("$response.body#/data/correlationIds/0", ("task", "cancel", "chat_task")),
    "chat": ("$response.body#/data/correlationId", ("task", "cancel", "chat_task")),
    "delegate": ("$response.body#/data/correlationId", ("task", "cancel", "chat_task")),
    "create_ceremony": (
        "$response.body#/data/id",
        ("update_ceremony", "run_ceremony", "ceremony_runs", "delete_ceremony"),
    ),
}
"""Where the answer of an endpoint has the id that others take in their path."""


@cache
def document() -> dict[str, Any]:
    """The whole document. It is shared: nobody may change it."""
    bodies = list(dict.fromkeys(one.body for one in ENDPOINTS if one.body is not None))
    _, models = models_json_schema(
        [(body, "validation") for body in bodies], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path.replace(":path}", "}"), {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "The hub of fleetsim",
            "version": version("fleetsim"),
            "description": "docs/reference/api.md says more, docs/reference/permissions.md who may do what.",
        },
        "paths": paths,
        "security": [{"apiKey": []}, {"bearer": []}],
        "components": {
            "securitySchemes": {
                "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
            "schemas": {**models["$defs"], "Success": _SUCCESS, "Refusal": _REFUSAL},
        },
    }


_SUCCESS = {
    "type": "object",
    "required": ["success", "data"],
    "properties": {"success": {"const": True}, "data": {}, "message": {"type": "string"}},
}
_REFUSAL = {
    "type": "object",
    "required": ["success", "error"],
    "properties": {
        "success": {"const": False},
        "error": {"type": "string"},
        "code": {"type": "string"},
        "hint": {"type": "string"},
    },
}

_RPC = {
    "type": "object",
    "required": ["jsonrpc"],
    "properties": {"jsonrpc": {"const": "2.0"}, "id": {}, "result": {}, "error": {"type": "object"}},
}
"""An answer by JSON-RPC; a stream of them is text/event-stream."""


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    told: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.does,
        "description": {
            Who.ANYONE: "For anybody, without a key.",
            Who.TOKEN: "For who has the token of the task.",
            Who.AGENT: f"For the hub's own key; an agent's key: {endpoint.own}.",
            Who.ADMIN: "For the hub's own key alone.",
        }[endpoint.who],
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in re.findall(r"{(\w+)", endpoint.path)
            ),
            *map(_query, endpoint.query),
        ],
        "responses": _responses(endpoint),
    }
    if endpoint.body is not None:
        schema = {"$ref": f"#/components/schemas/{endpoint.body.__name__}"}
        told["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if endpoint.who in {Who.ANYONE, Who.TOKEN}:
        told["security"] = []
    return told


def _responses(endpoint: Endpoint) -> dict[str, Any]:
    media, schema = {
        ResponseMode.ENVELOPE: ("application/json", {"$ref": "#/components/schemas/Success"}),
        ResponseMode.BARE: ("application/json", {"type": "object"}),
        ResponseMode.JSON_RPC: ("application/json", _RPC),
        ResponseMode.STREAM: ("text/event-stream", {"type": "string"}),
        ResponseMode.FIGURES: ("text/plain", {"type": "string"}),
    }[endpoint.shape]
    success: dict[str, Any] = {"description": "It was done.", "content": {media: {"schema": schema}}}
    if endpoint.name in _ID_OF:
        where, others = _ID_OF[endpoint.name]
        path_of = {one.name: re.findall(r"{(\w+)", one.path)[0] for one in ENDPOINTS if one.name in others}
        success["links"] = {name: {"operationId": name, "parameters": {path_of[name]: where}} for name in others}
    no: dict[str, Any] = {"$ref": "#/components/schemas/Refusal"}
    if endpoint.shape is ResponseMode.JSON_RPC:
        no = {"anyOf": [no, _RPC]}
    refusal = {"application/json": {"schema": no}}
    return {
        **{str(status): success for status in endpoint.statuses},
        "default": {"description": "It was refused.", "content": refusal},
    }


def _query(parameter: tuple[str, str]) -> dict[str, Any]:
    name, meaning = parameter
    schema: dict[str, Any] = {"type": "integer", "minimum": 0} if name in _NUMBERS else {"type": "string"}
    if name in _LISTS:
        schema = {"type": "array", "items": schema}
    return {"name": name, "in": "query", "description": meaning, "schema": schema}
