"""The table of the hub's endpoints and of the keys that may use them.

The application's routes, the guard in front of them, the page of permissions and the OpenAPI document are made from
it. A path without a row does not exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from pydantic import BaseModel
from starlette.routing import compile_path

from fleetsim.agent.settings import CARD_PATHS
from fleetsim.api import answers
from fleetsim.api.answers import AccessRole
from fleetsim.api.bodies import (
    AnswerBody,
    ChatBody,
    CreateCeremonyBody,
    DecisionBody,
    DelegateBody,
    EmptyBody,
    PublishBody,
    RaiseBody,
    RequestBody,
    RetryBody,
    RunCeremonyBody,
    UpdateCeremonyBody,
    VetoBody,
)
from fleetsim.api.health import HealthSnapshot, LimitFacts
from fleetsim.caller.webhooks import CALLBACK_PATH
from fleetsim.channels.links import ANSWER_PATH
from fleetsim.hub.keys import Principal


class Who(StrEnum):
    """The credential that an endpoint requires. The hub's own key opens all of them except webhooks and links."""

    ANYONE = "anyone"
    TOKEN = "the token of its task"
    LINK = "the link of its notice"
    AGENT = "agent"
    ADMIN = "admin"


class ResponseMode(StrEnum):
    """The form of a success: in the envelope of the API, bare, as server-sent events, as JSON-RPC, as A2A has it over
    HTTP+JSON, as text for Prometheus, or as a page for a person.
    """

    ENVELOPE = "envelope"
    BARE = "bare"
    STREAM = "stream"
    JSON_RPC = "json-rpc"
    HTTP_JSON = "http+json"
    FIGURES = "figures"
    PAGE = "page"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One HTTP method of one path; ``name`` is the Python method that handles it.

    ``own`` describes what an agent's key reaches; everything else is "not found" for it. ``role`` is the least role of
    a person. ``act`` names the action in the audit, for an endpoint that changes something. ``query`` has the
    parameters with their meanings, ``statuses`` the codes of success.
    """

    method: str
    path: str
    name: str
    does: str
    body: type[BaseModel] | None = None
    _: KW_ONLY
    who: Who
    own: str = ""
    role: AccessRole = AccessRole.VIEWER
    act: str = ""
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
        if (role := principal.role) is None:
            return self.who in {Who.AGENT, Who.ANYONE}
        return role is AccessRole.OWNER or role.includes(self.role)


_open = partial(Endpoint, "GET", who=Who.ANYONE, shape=ResponseMode.BARE)
_read = partial(Endpoint, "GET", who=Who.ADMIN)
_read_bare = partial(_read, shape=ResponseMode.BARE)
_read_own = partial(Endpoint, "GET", who=Who.AGENT, own="its own requests")
_change = partial(Endpoint, "POST", who=Who.ADMIN, role=AccessRole.OPERATOR)
_change_own = partial(_change, who=Who.AGENT, own="its own")
_end = partial(_change_own, own="its own requests", statuses=(202,))
_send = partial(_change_own, own="in its own name, and on tasks and contexts of its own requests", act="send")
_decide = partial(Endpoint, "POST", who=Who.ADMIN, role=AccessRole.ANSWERER, statuses=(202,))
_call = partial(
    Endpoint,
    who=Who.AGENT,
    own="in its own name, and its own tasks",
    role=AccessRole.OWNER,
    shape=ResponseMode.HTTP_JSON,
)
_page = partial(Endpoint, who=Who.LINK, shape=ResponseMode.PAGE)

A2A_PATH, _LINK = "/a2a", ANSWER_PATH + "{token:path}"
_OVER_HTTP = "the same over HTTP+JSON, in 1.0 and 0.3"
_CHALLENGE = (("challenge", "16 to 128 of A-Za-z0-9_-"),)
_LIMIT = ("limit", "the largest number of rows")
_WINDOW = ("window", "seconds, from 60 to 604800; a day without it")
_WAIT = ("wait", "seconds to wait for its outcome or question, at most 60")
_STATE = (
    ("limit", "0: without requests and events"),
    ("after", "the id of a request: only the open requests after it, and their questions"),
)
_PAGE = (("limit", "at most so many that ended"), ("after", "the id of a request: open requests after it"))
_SKILLS = (
    ("text", "words in the skill's id, name, description, tags or examples, or in the agent's name"),
    ("domain", "of an effect that the skill declares"),
    ("path", "of that effect, or the beginning of its path"),
    ("direction", "increase or decrease: the sign of that effect's delta"),
    ("agent", "the name of one agent"),
    ("limit", "at most this number of skills (20); a larger number than 100 counts as 100"),
)
_ENDED = (
    ("kind", "undeliverable (without it), unknown or failed; several with commas"),
    *((name, f"only of this {name}") for name in ("agent", "skill")),
    ("window", "those that ended in the last so many seconds; a day without it"),
)
_ACTIONS = (
    *((name, f"only of this {name}") for name in ("name", "action", "object")),
    ("window", "those of the last so many seconds; a day without it"),
    _LIMIT,
)
_WIRE = (
    ("agent", "the name of an agent"),
    ("task", "the id of a request instead: its exchanges only"),
    ("after", "the number of an entry: entries after it"),
)
_EVENTS = (("after", "the number of an event: events after it first"), ("topic", "a pattern of topics"))

ENDPOINTS: tuple[Endpoint, ...] = (
    _open(
        "/health",
        "alive",
        "says that the process lives; with a challenge it proves that the hub is genuine",
        query=_CHALLENGE,
    ),
    _open("/healthz", "liveness", "says that the process lives"),
    _open("/readyz", "ready", "says whether the hub takes work (else 503)", statuses=(200, 503)),
    _read_bare("/openapi.json", "openapi", "this API as an OpenAPI document", who=Who.AGENT, own="all of it"),
    _read_own("/api/whoami", "whoami", "returns the agent or the person of the key, and the role", own="itself"),
    _read_own(
        "/api/state",
        "state",
        "everything that a screen shows, up to the event number `seq`",
        own="its own requests, questions, outcomes and ceremonies, and of each agent name, skills and health",
        query=_STATE,
    ),
    _read("/metrics", "metrics", "figures for Prometheus", shape=ResponseMode.FIGURES),
    _read("/api/health", "health", "fleet health", query=(_WINDOW,)),
    _read("/api/agent-fleet-health", "fleet_health", "the same", query=(_WINDOW,)),
    _read_own(
        "/api/agents",
        "agents",
        "every configured agent: address, dialect, skills, health",
        own="name, description, tags, skills and health of each; no address and no credential",
    ),
    _read_own(
        "/api/skills",
        "skills",
        "finds skills by words and by declared effects, the most promising first",
        own="all of it",
        query=_SKILLS,
    ),
    _change("/api/agents/{name}/refresh", "refresh", "reads the agent's card now", EmptyBody, act="refresh-card"),
    _send("/api/requests", "request", "asks for work", RequestBody, statuses=(202,)),
    _read("/api/tasks", "tasks", "a page of the open requests, and the newest outcomes", query=_PAGE),
    _read_own("/api/tasks/{id}", "task", "one request", query=(_WAIT,)),
    _end("/api/tasks/{id}/cancel", "cancel", "cancels a request", EmptyBody, act="cancel"),
    _end("/api/tasks/{id}/retry", "retry", "sends a request that ended again, as a new one", RetryBody, act="retry"),
    _read("/api/retries", "retries", "the ended requests that may be sent again, in groups", query=_ENDED),
    _decide("/api/tasks/{id}/veto", "veto", "stops a request whose veto window is open", VetoBody, act="veto"),
    _read("/api/ids", "ids", "the objects whose ids begin with a prefix", query=(("prefix", "of the id"),)),
    _read("/api/inbox", "inbox", "open questions, and requests that may be vetoed"),
    _read("/api/inbox/{id}", "question", "one open question in full"),
    _decide("/api/inbox/{id}/answer", "reply", "answers or rejects a question", AnswerBody, act="answer"),
    _read_own(
        "/api/ceremonies",
        "ceremonies",
        "every ceremony in force",
        own="its own; `?all=true` is refused (401)",
        query=(("all", "true: of all owners"),),
    ),
    _read("/api/ceremonies/errors", "ceremony_errors", "the problems of ceremony files"),
    _change_own(
        "/api/ceremonies/create",
        "create_ceremony",
        "creates a ceremony, never over another",
        CreateCeremonyBody,
        own="in its own name",
        act="create-ceremony",
    ),
    _change_own(
        "/api/ceremonies/{id}/update",
        "update_ceremony",
        "changes the given keys of a ceremony",
        UpdateCeremonyBody,
        act="update-ceremony",
    ),
    _change_own(
        "/api/ceremonies/{id}/delete", "delete_ceremony", "removes a ceremony", EmptyBody, act="delete-ceremony"
    ),
    _change_own(
        "/api/ceremonies/{id}/run",
        "run_ceremony",
        "fires a ceremony now, or shows the requests that it would send",
        RunCeremonyBody,
        act="fire",
    ),
    _read_own(
        "/api/ceremonies/{id}/runs", "ceremony_runs", "a ceremony's runs, newest first", own="its own", query=(_LIMIT,)
    ),
    _read("/api/channels", "channels", "the channels for notices, with the results of each sink"),
    _change(
        "/api/channels/{id}/test",
        "test_channel",
        "sends a test notice to a channel's sinks",
        EmptyBody,
        act="test-channel",
    ),
    _read("/api/limits", "limits", "the limits of agents.yaml, with what is used of each at all hubs"),
    _change(
        "/api/limits/{name}/raise", "raise_limit", "raises a limit until its period ends", RaiseBody, act="raise-limit"
    ),
    _read(
        "/api/journal",
        "journal",
        "recorded events, oldest first",
        query=(("after", "the number of an event: events after it"), _LIMIT),
    ),
    _read("/api/audit", "audit", "who did what, the newest first", query=_ACTIONS),
    _read(
        "/api/wire",
        "wire",
        "the recent exchanges with an agent, secrets masked; the hub records them for 30 s after each call",
        query=_WIRE,
    ),
    _read_own(
        "/api/events",
        "events",
        "events as they happen, as server-sent events",
        own="events of its own requests and ceremonies",
        query=_EVENTS,
        shape=ResponseMode.STREAM,
    ),
    _read_bare("/api/agent-health", "agent_health", "each agent's reachability and card, in Workstacean's form"),
    _read_bare("/api/outcomes", "outcomes", "the outcomes of the last day, in Workstacean's form", query=(_LIMIT,)),
    _send("/api/a2a/chat", "chat", "sends a message to an agent, and waits for its answer or question", ChatBody),
    _send(
        "/api/a2a/delegate",
        "delegate",
        "gives an agent work without waiting for it",
        DelegateBody,
        own="in its own name",
    ),
    _read_own(
        "/api/a2a/task/{correlationId}",
        "chat_task",
        "an agent's answer, its question, or that it still works",
        query=(_WAIT,),
    ),
    _read("/api/hitl/pending", "pending", "open questions, in the form of Workstacean's hitl_request"),
    _decide("/api/hitl/respond", "respond", "answers or rejects a question", DecisionBody, act="answer"),
    _read_bare("/api/hitl-queue", "hitl_queue", "the number of open questions"),
    _change(
        "/publish",
        "publish",
        "takes `message.inbound.*` as a request and `ceremony.{id}.execute` as a run; no other topic",
        PublishBody,
        act="publish",
    ),
    _open(
        CARD_PATHS[0],
        "agent_card",
        "the hub's own agent card: without a key no skills, with one every skill of the fleet",
    ),
    _open(CARD_PATHS[1], "agent_card_of_before", "the same card, at its former path"),
    _call(
        "POST",
        A2A_PATH,
        "a2a",
        "receives A2A calls in 1.0, 0.3 and 0.1: the hub as an agent",
        shape=ResponseMode.JSON_RPC,
    ),
    *(_call(m, A2A_PATH + "/{path:path}", f"a2a_{m.lower()}", _OVER_HTTP) for m in ("GET", "POST", "DELETE")),
    _page("GET", _LINK, "answer_page", "shows a question to the holder of its link"),
    _page("POST", _LINK, "answer_form", "answers, rejects or vetoes, once", role=AccessRole.OPERATOR),
    Endpoint(
        "POST",
        CALLBACK_PATH + "{taskId:path}",
        "callback",
        "receives an agent's webhook about its task",
        who=Who.TOKEN,
        role=AccessRole.OPERATOR,
        statuses=(200, 202),
        shape=ResponseMode.BARE,
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
    "limits": list[LimitFacts],
    "raise_limit": LimitFacts,
    "journal": list[answers.JournalEvent],
    "audit": list[answers.ActionRow],
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
