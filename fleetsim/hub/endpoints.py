"""The table of the hub's endpoints and of the keys that may use them.

The application's routes, the guard in front of them, the page of permissions and the OpenAPI 3.1 document
(``GET /openapi.json``) are made from it. A path without a row does not exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial
from importlib.metadata import version
from itertools import chain
from typing import Any

from msgspec.json import schema_components
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.routing import compile_path

from fleetsim.agent.settings import CARD_PATHS
from fleetsim.api import answers
from fleetsim.api.bodies import (
    AnswerBody,
    ChatBody,
    CreateCeremonyBody,
    DecisionBody,
    DelegateBody,
    EmptyBody,
    PublishBody,
    RequestBody,
    RetryBody,
    RunCeremonyBody,
    UpdateCeremonyBody,
    VetoBody,
)
from fleetsim.api.health import HealthSnapshot
from fleetsim.caller.webhooks import CALLBACK_PATH
from fleetsim.hub.keys import Principal


class Who(StrEnum):
    """The credential that an endpoint requires. The hub's own key opens all of them except the webhooks."""

    ANYONE = "anyone"
    TOKEN = "the token of its task"
    AGENT = "agent"
    ADMIN = "admin"


class ResponseMode(StrEnum):
    """The form of a success: in the envelope of the API, bare, as server-sent events, as JSON-RPC, as A2A has it over
    HTTP+JSON, or as text for Prometheus.
    """

    ENVELOPE = "envelope"
    BARE = "bare"
    STREAM = "stream"
    JSON_RPC = "json-rpc"
    HTTP_JSON = "http+json"
    FIGURES = "figures"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One HTTP method of one path; ``name`` is the Python method that handles it.

    ``own`` describes what an agent's key reaches; everything else is "not found" for it. ``query`` has the parameters
    with their meanings, ``statuses`` the codes of success.
    """

    method: str
    path: str
    name: str
    who: Who
    does: str
    body: type[BaseModel] | None = None
    own: str = ""
    query: tuple[tuple[str, str], ...] = ()
    statuses: tuple[int, ...] = (200,)
    shape: ResponseMode = ResponseMode.ENVELOPE

    @property
    def result(self) -> tuple[Any, ...]:
        """The types of the answer, without its envelope."""
        found = RESULTS.get(self.name, dict[str, Any])
        return found if isinstance(found, tuple) else (found,)

    def allows(self, principal: Principal) -> bool:
        """Whether this key may use the endpoint."""
        return principal.is_admin or self.who in {Who.AGENT, Who.ANYONE}


_get, _post = partial(Endpoint, "GET"), partial(Endpoint, "POST")
_on_own = partial(Endpoint, "POST", who=Who.AGENT, own="its own requests", statuses=(202,))

A2A_PATH = "/a2a"
_LIMIT = ("limit", "the largest number of rows")
_WINDOW = ("window", "seconds, from 60 to 604800; a day without it")
_WAIT = ("wait", "seconds to wait for its outcome or question, at most 60")
_ENDED = (
    ("kind", "undeliverable (without it), unknown or failed; several with commas"),
    *((name, f"only of this {name}") for name in ("agent", "skill")),
    ("window", "those that ended in the last so many seconds; a day without it"),
)

ENDPOINTS: tuple[Endpoint, ...] = (
    _get(
        "/health",
        "alive",
        Who.ANYONE,
        "says that the process lives; with a challenge it proves that the hub is genuine",
        query=(("challenge", "16 to 128 of A-Za-z0-9_-"),),
        shape=ResponseMode.BARE,
    ),
    _get("/healthz", "liveness", Who.ANYONE, "says that the process lives", shape=ResponseMode.BARE),
    _get(
        "/readyz",
        "ready",
        Who.ANYONE,
        "says whether the hub takes work (else 503)",
        statuses=(200, 503),
        shape=ResponseMode.BARE,
    ),
    _get(
        "/openapi.json",
        "openapi",
        Who.AGENT,
        "this API as an OpenAPI document",
        own="all of it",
        shape=ResponseMode.BARE,
    ),
    _get("/api/whoami", "whoami", Who.AGENT, "returns the agent of the key (null: the hub's own key)", own="itself"),
    _get(
        "/api/state",
        "state",
        Who.AGENT,
        "everything that a screen shows, up to the event number `seq`",
        own="its own requests, questions, outcomes and ceremonies, and of each agent name, skills and health",
        query=(
            ("limit", "0: without requests and events"),
            ("after", "the id of a request: only the open requests after it, and their questions"),
        ),
    ),
    _get("/metrics", "metrics", Who.ADMIN, "figures for Prometheus", shape=ResponseMode.FIGURES),
    _get("/api/health", "health", Who.ADMIN, "fleet health", query=(_WINDOW,)),
    _get("/api/agent-fleet-health", "fleet_health", Who.ADMIN, "the same", query=(_WINDOW,)),
    _get(
        "/api/agents",
        "agents",
        Who.AGENT,
        "every configured agent: address, dialect, skills, health",
        own="name, description, tags, skills and health of each; no address and no credential",
    ),
    _get(
        "/api/skills",
        "skills",
        Who.AGENT,
        "finds skills by words and by declared effects, the most promising first",
        own="all of it",
        query=(
            ("text", "words in the skill's id, name, description, tags or examples, or in the agent's name"),
            ("domain", "of an effect that the skill declares"),
            ("path", "of that effect, or the beginning of its path"),
            ("direction", "increase or decrease: the sign of that effect's delta"),
            ("agent", "the name of one agent"),
            ("limit", "at most this number of skills (20); a larger number than 100 counts as 100"),
        ),
    ),
    _post("/api/agents/{name}/refresh", "refresh", Who.ADMIN, "reads the agent's card now", EmptyBody),
    _post(
        "/api/requests",
        "request",
        Who.AGENT,
        "asks for work",
        RequestBody,
        own="in its own name, and on tasks and contexts of its own requests",
        statuses=(202,),
    ),
    _get(
        "/api/tasks",
        "tasks",
        Who.ADMIN,
        "a page of the open requests, and the newest outcomes",
        query=(("limit", "at most so many that ended"), ("after", "the id of a request: open requests after it")),
    ),
    _get(
        "/api/tasks/{id}",
        "task",
        Who.AGENT,
        "one request",
        own="its own requests",
        query=(_WAIT,),
    ),
    _on_own("/api/tasks/{id}/cancel", "cancel", does="cancels a request", body=EmptyBody),
    _on_own("/api/tasks/{id}/retry", "retry", does="sends a request that ended again, as a new one", body=RetryBody),
    _get("/api/retries", "retries", Who.ADMIN, "the ended requests that may be sent again, in groups", query=_ENDED),
    _post(
        "/api/tasks/{id}/veto",
        "veto",
        Who.ADMIN,
        "stops a request whose veto window is open",
        VetoBody,
        statuses=(202,),
    ),
    _get("/api/ids", "ids", Who.ADMIN, "the objects whose ids begin with a prefix", query=(("prefix", "of the id"),)),
    _get("/api/inbox", "inbox", Who.ADMIN, "open questions, and requests that may be vetoed"),
    _get("/api/inbox/{id}", "question", Who.ADMIN, "one open question in full"),
    _post("/api/inbox/{id}/answer", "reply", Who.ADMIN, "answers or rejects a question", AnswerBody, statuses=(202,)),
    _get(
        "/api/ceremonies",
        "ceremonies",
        Who.AGENT,
        "every ceremony in force",
        own="its own; `?all=true` is refused (401)",
        query=(("all", "true: of all owners"),),
    ),
    _get("/api/ceremonies/errors", "ceremony_errors", Who.ADMIN, "the problems of ceremony files"),
    _post(
        "/api/ceremonies/create",
        "create_ceremony",
        Who.AGENT,
        "creates a ceremony, never over another",
        CreateCeremonyBody,
        own="in its own name",
    ),
    _post(
        "/api/ceremonies/{id}/update",
        "update_ceremony",
        Who.AGENT,
        "changes the given keys of a ceremony",
        UpdateCeremonyBody,
        own="its own",
    ),
    _post("/api/ceremonies/{id}/delete", "delete_ceremony", Who.AGENT, "removes a ceremony", EmptyBody, own="its own"),
    _post(
        "/api/ceremonies/{id}/run",
        "run_ceremony",
        Who.AGENT,
        "fires a ceremony now, or shows the requests that it would send",
        RunCeremonyBody,
        own="its own",
    ),
    _get(
        "/api/ceremonies/{id}/runs",
        "ceremony_runs",
        Who.AGENT,
        "a ceremony's runs, newest first",
        own="its own",
        query=(_LIMIT,),
    ),
    _get("/api/channels", "channels", Who.ADMIN, "the channels for notices, with the results of each sink"),
    _post("/api/channels/{id}/test", "test_channel", Who.ADMIN, "sends a test notice to a channel's sinks", EmptyBody),
    _get(
        "/api/journal",
        "journal",
        Who.ADMIN,
        "recorded events, oldest first",
        query=(("after", "the number of an event: events after it"), _LIMIT),
    ),
    _get(
        "/api/wire",
        "wire",
        Who.ADMIN,
        "the recent exchanges with an agent, secrets masked; the hub records them for 30 s after each call",
        query=(
            ("agent", "the name of an agent"),
            ("task", "the id of a request instead: its exchanges only"),
            ("after", "the number of an entry: entries after it"),
        ),
    ),
    _get(
        "/api/events",
        "events",
        Who.AGENT,
        "events as they happen, as server-sent events",
        own="events of its own requests and ceremonies",
        query=(("after", "the number of an event: events after it first"), ("topic", "a pattern of topics")),
        shape=ResponseMode.STREAM,
    ),
    _get(
        "/api/agent-health",
        "agent_health",
        Who.ADMIN,
        "each agent's reachability and card, in Workstacean's form",
        shape=ResponseMode.BARE,
    ),
    _get(
        "/api/outcomes",
        "outcomes",
        Who.ADMIN,
        "the outcomes of the last day, in Workstacean's form",
        query=(_LIMIT,),
        shape=ResponseMode.BARE,
    ),
    _post(
        "/api/a2a/chat",
        "chat",
        Who.AGENT,
        "sends a message to an agent, and waits for its answer or question",
        ChatBody,
        own="in its own name, and on tasks and contexts of its own requests",
    ),
    _post(
        "/api/a2a/delegate",
        "delegate",
        Who.AGENT,
        "gives an agent work without waiting for it",
        DelegateBody,
        own="in its own name",
    ),
    _get(
        "/api/a2a/task/{correlationId}",
        "chat_task",
        Who.AGENT,
        "an agent's answer, its question, or that it still works",
        own="its own requests",
        query=(_WAIT,),
    ),
    _get("/api/hitl/pending", "pending", Who.ADMIN, "open questions, in the form of Workstacean's hitl_request"),
    _post("/api/hitl/respond", "respond", Who.ADMIN, "answers or rejects a question", DecisionBody, statuses=(202,)),
    _get("/api/hitl-queue", "hitl_queue", Who.ADMIN, "the number of open questions", shape=ResponseMode.BARE),
    _post(
        "/publish",
        "publish",
        Who.ADMIN,
        "takes `message.inbound.*` as a request and `ceremony.{id}.execute` as a run; no other topic",
        PublishBody,
    ),
    _get(
        CARD_PATHS[0],
        "agent_card",
        Who.ANYONE,
        "the hub's own agent card: without a key no skills, with one every skill of the fleet",
        shape=ResponseMode.BARE,
    ),
    _get(
        CARD_PATHS[1],
        "agent_card_of_before",
        Who.ANYONE,
        "the same card, at its former path",
        shape=ResponseMode.BARE,
    ),
    _post(
        A2A_PATH,
        "a2a",
        Who.AGENT,
        "receives A2A calls in 1.0, 0.3 and 0.1: the hub as an agent",
        own="in its own name, and its own tasks",
        shape=ResponseMode.JSON_RPC,
    ),
    *(
        Endpoint(
            method,
            A2A_PATH + "/{path:path}",
            f"a2a_{method.lower()}",
            Who.AGENT,
            "the same over HTTP+JSON, in 1.0 and 0.3",
            own="in its own name, and its own tasks",
            shape=ResponseMode.HTTP_JSON,
        )
        for method in ("GET", "POST", "DELETE")
    ),
    _post(
        CALLBACK_PATH + "{taskId:path}",
        "callback",
        Who.TOKEN,
        "receives an agent's webhook about its task",
        shape=ResponseMode.BARE,
        statuses=(200, 202),
    ),
)

RESULTS: Mapping[str, Any] = {
    "alive": answers.LivenessReport,
    "liveness": answers.LivenessReport,
    "ready": answers.LivenessReport,
    "whoami": answers.KeyIdentity,
    "health": HealthSnapshot,
    "fleet_health": HealthSnapshot,
    "agents": (list[answers.AgentFacts], list[answers.SharedAgent]),
    "skills": list[answers.FoundSkill],
    "refresh": answers.AgentFacts,
    "request": answers.Accepted,
    "tasks": answers.TaskPage,
    "task": (answers.OpenRequest, answers.EndedRequest),
    "cancel": answers.NamedRequest,
    "retry": answers.NamedRequest,
    "retries": answers.RetryReport,
    "veto": answers.NamedRequest,
    "ids": list[answers.KnownId],
    "inbox": answers.InboxPage,
    "question": answers.QuestionFacts,
    "reply": answers.QuestionFacts,
    "ceremonies": list[answers.CeremonyFacts],
    "ceremony_errors": list[answers.FileProblem],
    "create_ceremony": answers.CeremonyFacts,
    "update_ceremony": answers.CeremonyFacts,
    "delete_ceremony": answers.DeletedCeremony,
    "run_ceremony": (answers.StartedRun, answers.DryRun),
    "ceremony_runs": list[answers.RunFacts],
    "channels": list[answers.ChannelRow],
    "test_channel": list[answers.SinkResult],
    "journal": list[answers.JournalEvent],
    "wire": list[answers.WireExchange],
    "agent_health": answers.AgentsReport,
    "outcomes": answers.Outcomes,
    "chat": answers.ChatAnswer,
    "delegate": answers.NamedRequest,
    "chat_task": answers.ChatAnswer,
    "pending": list[answers.HitlRequest],
    "respond": answers.NamedRequest,
    "hitl_queue": answers.QueueReport,
    "publish": (answers.Accepted, answers.StartedRun),
    "callback": dict[str, bool],
}
"""The type of each endpoint's answer without its envelope, or a tuple of types."""

_PATHS = {endpoint.path: compile_path(endpoint.path)[0] for endpoint in ENDPOINTS}


def _search(path: str, rows: Iterable[Endpoint]) -> dict[str, Endpoint]:
    found: dict[str, Endpoint] = {}
    for endpoint in rows:
        if _PATHS[endpoint.path].match(path):
            found.setdefault(endpoint.method, endpoint)
    return found


_OPEN = tuple(endpoint for endpoint in ENDPOINTS if _PATHS[endpoint.path].groups)
_AT_PLAIN_PATHS = {path: _search(path, ENDPOINTS) for path, pattern in _PATHS.items() if not pattern.groups}


def endpoints_at(path: str) -> dict[str, Endpoint]:
    """The endpoints of a path by method; empty for an unknown path."""
    return _AT_PLAIN_PATHS.get(path) or _search(path, _OPEN)


def path_params(endpoint: Endpoint, path: str) -> dict[str, str]:
    """The parameters in a path of this endpoint."""
    match = _PATHS[endpoint.path].match(path)
    return match.groupdict() if match else {}


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
    """The whole document, cached: do not change it."""
    _, models = models_json_schema(
        [(body, "validation") for body in bodies()], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
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
            Who.AGENT: f"With the hub's own key; with an agent's key: {endpoint.own}.",
            Who.ADMIN: "Only with the hub's own key.",
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
