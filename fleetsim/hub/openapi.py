"""The hub's API as an OpenAPI 3.1 document (``GET /openapi.json``), made from the table of endpoints."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import version
from itertools import chain
from typing import Any

from msgspec.json import schema_components
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from fleetsim.api.answers import AccessRole
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
"""Where an endpoint's reply holds the id that other endpoints need in their path."""


def bodies() -> tuple[type[BaseModel], ...]:
    """The bodies of all requests."""
    return tuple(dict.fromkeys(endpoint.body for endpoint in ENDPOINTS if endpoint.body is not None))


@cache
def _results() -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of each endpoint's answer by its name, and the schemas of the structs in them."""
    kinds = chain(*(endpoint.result for endpoint in ENDPOINTS))
    schemas, structs = schema_components(kinds, ref_template="#/components/schemas/{name}")
    left = iter(schemas)
    found = {e.name: [next(left) for _ in e.result] for e in ENDPOINTS}
    results = {name: some[0] if len(some) == 1 else {"anyOf": some} for name, some in found.items()}
    for struct in structs.values():
        members = struct.get("properties", {})
        struct["required"] = [name for name, one in members.items() if name in struct["required"] or "default" in one]
        for member in members.values():  # a member with a default is always written
            member.pop("default", None)
            if len(member.get("enum", ())) == 1:  # generators of clients know const better
                member["const"] = member.pop("enum")[0]
    return results, structs


@cache
def document() -> dict[str, Any]:
    """The whole document, cached: do not change it. Pages for people are no part of the API."""
    _, models = models_json_schema(
        [(body, "validation") for body in bodies()], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in (row for row in ENDPOINTS if row.shape is not ResponseMode.PAGE):
        paths.setdefault(endpoint.path.replace(":path}", "}"), {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "The hub of fleetsim",
            "version": version("fleetsim"),
            "description": "See docs/reference/api.md, and docs/reference/permissions.md for keys.",
        },
        "paths": paths,
        "security": [{"apiKey": []}, {"bearer": []}],
        "components": {
            "securitySchemes": {
                "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
            "schemas": {**models["$defs"], **_results()[1], "Refusal": _REFUSAL},
        },
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
"""A JSON-RPC response; a stream of them is text/event-stream."""


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    told: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.does,
        "description": {
            Who.ANYONE: "Without a key.",
            Who.TOKEN: "With the token of the task.",
            Who.AGENT: f"With {_keys_of(endpoint)}; with an agent's key: {endpoint.own}.",
            Who.ADMIN: f"Only with {_keys_of(endpoint)}.",
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


def _keys_of(endpoint: Endpoint) -> str:
    """The keys of people and of the owner that open the endpoint."""
    if endpoint.role is AccessRole.OWNER:
        return "the hub's own key"
    return f"the hub's own key or the key of {endpoint.role.or_above}"


def _responses(endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.shape is ResponseMode.HTTP_JSON:
        content: dict[str, Any] = {
            kind: {"schema": {}} for kind in ("application/a2a+json", "application/json", "text/event-stream")
        }
        return {
            "200": {"description": "A2A's reply, as its version writes it.", "content": content},
            "default": {"description": "A2A's error, or the hub's refusal.", "content": content},
        }
    result = _results()[0][endpoint.name]
    members = {"success": {"const": True}, "data": result, "message": {"type": "string"}}
    envelope = {"type": "object", "required": ["success", "data"], "properties": members}
    media, schema = {
        ResponseMode.ENVELOPE: ("application/json", envelope),
        ResponseMode.BARE: ("application/json", result),
        ResponseMode.JSON_RPC: ("application/json", _RPC),
        ResponseMode.STREAM: ("text/event-stream", {"type": "string"}),
        ResponseMode.FIGURES: ("text/plain", {"type": "string"}),
    }[endpoint.shape]
    success: dict[str, Any] = {"description": "It was done.", "content": {media: {"schema": schema}}}
    if endpoint.name in _ID_OF:
        where, others = _ID_OF[endpoint.name]
        path_of = {e.name: re.findall(r"{(\w+)", e.path)[0] for e in ENDPOINTS if e.name in others}
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
