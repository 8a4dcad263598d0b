"""The results that every lane must show, as data. Any other result fails, better ones too: then this file is wrong.

An operation that is not listed under ``absent`` works. Each absence says why and cites the line of the
notes on real peers (``reference/interop.md`` beside the project), or the package when it is the client
that has no such method.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from driver.envs import Env, Kind

PY03 = Env(name="py03", kind=Kind.VENV)
PY10 = Env(name="py10", kind=Kind.VENV)
SELECTOOLS = Env(name="selectools", kind=Kind.VENV)
JS03 = Env(name="js03", kind=Kind.NODE)
JS10 = Env(name="js10", kind=Kind.NODE)
JS02 = Env(name="js02", kind=Kind.NODE)
PY02 = Env(name="py02", kind=Kind.VENV, programs="py03")
FASTA2A = Env(name="fasta2a", kind=Kind.VENV)
FASTA2A06 = Env(name="fasta2a06", kind=Kind.VENV, programs="fasta2a")
STRANDS = Env(name="strands", kind=Kind.VENV)
ADK = Env(name="adk", kind=Kind.VENV)
AGENTFRAMEWORK = Env(name="agentframework", kind=Kind.VENV)
APP10 = Env(name="app10", kind=Kind.VENV, programs="py10")
A2AKIT = Env(name="a2akit", kind=Kind.VENV)
AG2 = Env(name="ag2", kind=Kind.VENV)
REST = "HTTP+JSON"
OURS = Env(name="fleetsim", kind=Kind.PROJECT)

OPERATIONS: Mapping[str, str] = {
    "discover": "read the card",
    "complete": "send, poll to the end, read the text",
    "cost": "cost arrives with the answer",
    "wait": "send and wait for the end in the reply",
    "stream": "send and stream: first the task, pieces, the end",
    "dropped-stream": "a stream dropped half way: the task goes on to its end",
    "fail": "a failed task tells its reason",
    "ask": "input-required, answered on the same task",
    "stream-ask": "a stream ends at the question",
    "cancel": "cancel a running task",
    "cancel-again": "a second cancel is refused",
    "finished-task": "a message to a finished task is refused",
    "get": "read a finished task again",
    "unknown-task": "an unknown id is -32001",
    "list": "list tasks",
    "resubscribe": "join a running task's stream, hear its end",
    "snapshot": "a rejoined stream begins with the whole task",
    "resubscribe-unknown": "joining an unknown task is -32001",
    "webhook": "register a webhook, receive the end with the token",
    "webhook-late": "a webhook registered after the end gets the end",
    "webhook-inline": "a webhook named in the send is called",
    "webhook-cancel": "a cancel is sent by webhook",
    "push-get": "read a webhook config",
    "push-list": "list webhook configs",
    "push-delete": "delete a webhook config",
    "extended-card": "read the extended card",
    "wrong-key": "a wrong bearer is refused with HTTP 401",
    "discover-sync": "discover, synchronous twin",
    "send-sync": "send, synchronous twin",
    "caller-complete": "an outcome with the text, success, nobody to blame",
    "caller-cost": "the outcome carries cost and tokens",
    "caller-by-stream": "the news comes by stream, each piece published",
    "caller-by-poll": "the news comes by polling alone",
    "caller-by-webhook": "the news comes by webhook, polls too far apart to help",
    "caller-fail": "a failure is an outcome, the agent to blame, with its reason",
    "caller-cancel": "a request canceled by a person ends canceled",
    "caller-ask": "a question opens and is answered on the same task, seen by polling",
    "caller-ask-by-stream": "a question seen in a stream",
    "caller-ask-by-webhook": "a question told by webhook",
    "caller-one-outcome": "exactly one outcome for each request of the lane",
    "hub-init": "`fleetsim init URL` writes the files the hub runs with",
    "hub-send": "`fleetsim send`, from a second process",
    "hub-stream": "`fleetsim send --stream`: shown as it comes, and once",
    "hub-fail": "a failure's reason and exit code",
    "hub-ask": "a question in `fleetsim inbox`, answered there",
    "hub-cancel": "`fleetsim task cancel`",
    "hub-chat": "a turn of `fleetsim chat`, through the hub",
    "hub-health": "`fleetsim health` counts what happened",
    "url-card": "`fleetsim card URL`, without the hub",
    "url-stream": "`fleetsim send URL --stream`, without the hub",
    "stream-fail": "a stream ends failed, with the reason",
    "long": "wait for work that takes long",
    "legacy": "all methods of the SDK's older client class",
}
"""Every operation of the table, in its order, and what it means."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the notes on real peers, ``reference/interop.md``, and words that stand in it."""

    number: int
    words: str


@dataclass(frozen=True, slots=True)
class Absent:
    """An operation that is not there by design. ``line`` is None when the client's package says it all."""

    why: str
    line: Line | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One pair of programs. ``operations`` are exactly those the client's program reports. ``hub``: a hub of ours
    stands between them, which the client calls and asks for the skill of script.json."""

    name: str
    title: str
    server: Env
    client: Env
    server_words: tuple[str, ...] = ()
    client_words: tuple[str, ...] = ()
    program: str = "client"
    bearer: bool = False
    hub: bool = False
    operations: tuple[str, ...] = ()
    absent: Mapping[str, Absent] = field(default_factory=dict)


CALLER = tuple(op for op in OPERATIONS if op.startswith("caller-"))
HUB = tuple(op for op in OPERATIONS if op.startswith(("hub-", "url-")))
SPECIAL = {*CALLER, *HUB, "stream-fail", "long", "wrong-key", "webhook-late", "discover-sync", "send-sync", "legacy"}
COMMON = tuple(op for op in OPERATIONS if op not in SPECIAL)
OUR_CLIENT = (*COMMON, "discover-sync", "send-sync")

PEER_SELECTOOLS = Line(17, "selectools 1.3.0")
FASTA2A06_LINE = Line(18, "fasta2a 0.6.1")
MIXTURE = Line(19, "1.0 (and a mixture)")
LIST = Line(165, "(none over JSON-RPC)")
STILL_WAITS = Line(207, "blocking: false | still waits")
NEW_TASK = Line(208, "message to a finished task")
REJOIN = Line(210, "rejoin unknown task")
SNAPSHOT = Line(212, "rejoin starts with a task snapshot")
SECOND_CANCEL = Line(213, "second cancel")
PUSH_GET = Line(214, "push get without config id")
HOOK_ON_CANCEL = Line(215, "webhook on cancel")

NO_LIST_03 = Absent("0.3 lists no tasks over JSON-RPC", LIST)
NO_SNAPSHOT_PY03 = Absent("a2a-sdk 0.3 sends no snapshot to one who joins late", SNAPSHOT)
NO_CANCEL_HOOK_PY03 = Absent("a2a-sdk 0.3 calls no webhook on cancel", HOOK_ON_CANCEL)
CANCEL_TWICE_JS10 = Absent("@a2a-js/sdk 1.3.0 accepts a second cancel", SECOND_CANCEL)


def _lacks(package: str, *operations: str) -> dict[str, Absent]:
    return {op: Absent(f"the client of {package} has no such method") for op in operations}


def _all(absent: Absent, *operations: str) -> dict[str, Absent]:
    return dict.fromkeys(operations, absent)


STREAMS = ("stream", "dropped-stream", "stream-ask", "resubscribe", "snapshot", "resubscribe-unknown")
PUSH = ("webhook", "webhook-inline", "webhook-cancel", "push-get", "push-list", "push-delete")

SELECTOOLS_SERVER: Mapping[str, Absent] = {
    **_all(Absent("no streams: the card says streaming false", REJOIN), *STREAMS),
    **_all(Absent("no webhooks: the card says pushNotifications false", PUSH_GET), *PUSH),
    "cost": Absent("the server answers with text parts alone", PEER_SELECTOOLS),
    "ask": Absent("it never asks: every message is a new task", NEW_TASK),
    "cancel": Absent("tasks end within the request: -32002", SECOND_CANCEL),
    "finished-task": Absent("it never asks: every message is a new task", NEW_TASK),
    "list": NO_LIST_03,
    "extended-card": Absent("the card offers no extended card", PEER_SELECTOOLS),
}

AT_ONCE_ALWAYS = Line(206, "at once (always)")
AS_IT_IS = Line(213, "task as it is")
KEEPS_NO_ANSWER = Line(234, "keeps no answer to a question")
LATE_CANCEL = Line(235, "a cancel is carried out")

NEVER_ASKS_FASTA2A = Absent("it keeps no answer: every message is a new task", KEEPS_NO_ANSWER)
NO_STREAM_FASTA2A06 = Absent("the card of fasta2a 0.6.1 says streaming false", FASTA2A06_LINE)
FASTA2A06_STREAMS = _all(NO_STREAM_FASTA2A06, *STREAMS)

FASTA2A_BOTH: Mapping[str, Absent] = {
    **_all(Absent("no webhooks: the card says pushNotifications false", PUSH_GET), *PUSH),
    **_all(NEVER_ASKS_FASTA2A, "ask", "stream-ask", "finished-task"),
    "wait": Absent("it answers at once, whatever is asked", AT_ONCE_ALWAYS),
    "cancel": Absent("a cancel is carried out after the task's end", LATE_CANCEL),
    "cancel-again": Absent("a second cancel returns the task as it is", AS_IT_IS),
    "extended-card": Absent("the card offers no extended card", MIXTURE),
}

FASTA2A_OUTCOMES: Mapping[str, Absent] = {
    "caller-by-webhook": FASTA2A_BOTH["webhook"],
    "caller-cancel": FASTA2A_BOTH["cancel"],
    "caller-ask": NEVER_ASKS_FASTA2A,
    "caller-ask-by-stream": NEVER_ASKS_FASTA2A,
    "caller-ask-by-webhook": FASTA2A_BOTH["webhook"],
}


AGENT_CLIENT = (
    *("discover", "complete", "wait", "stream", "fail", "ask", "stream-ask"),
    *("get", "unknown-task", "resubscribe", "snapshot", "stream-fail", "long"),
)
"""The calls that suit a client which runs an agent to its end and knows little of tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """An agent framework, and the SDK it is made with: what its server and its client can do with that SDK's client and
    server, they must do with ours. The parts that they lack, for the reasons in ``server`` and ``client``, they are
    seen not to do with either. ``operations`` are those of its client; ``rest``: over HTTP+JSON alone."""

    env: Env
    title: str
    sdk: Env
    sdk_title: str
    server: Mapping[str, Absent]
    client: Mapping[str, Absent]
    words: tuple[str, ...] = ()
    operations: tuple[str, ...] = AGENT_CLIENT
    rest: bool = False


FRAMEWORK_SERVER: Mapping[str, Absent] = {
    **_all(Absent("no webhooks: the card says pushNotifications false"), *PUSH),
    "cost": Absent("the server tells no cost"),
    "extended-card": Absent("the card offers no extended card"),
}
COMPLETES = Absent("its A2AExecutor completes whatever its agent ends with")

FRAMEWORKS: tuple[Framework, ...] = (
    Framework(
        env=STRANDS,
        title="strands-agents 1.62.0",
        sdk=PY03,
        sdk_title="a2a-sdk 0.3.26",
        server={**FRAMEWORK_SERVER, "list": NO_LIST_03, "snapshot": NO_SNAPSHOT_PY03},
        client=_lacks("strands-agents 1.62.0", "ask", "get", "unknown-task", "resubscribe", "snapshot"),
    ),
    Framework(
        env=ADK,
        title="google-adk 2.13.0",
        sdk=PY10,
        sdk_title="a2a-sdk 1.3.0",
        server=FRAMEWORK_SERVER,
        client=_lacks("google-adk 2.13.0", "get", "unknown-task", "resubscribe", "snapshot"),
    ),
    Framework(
        env=AGENTFRAMEWORK,
        title="agent-framework 1.23.0",
        sdk=PY10,
        sdk_title="a2a-sdk 1.3.0",
        words=("--versioned",),
        server={**FRAMEWORK_SERVER, **_all(COMPLETES, "ask", "stream-ask")},
        client={"fail": Absent("the client of agent-framework 1.23.0 leaves out a failure's reason when it polls")},
    ),
    Framework(
        env=AG2,
        title="ag2 1.2.1 over HTTP+JSON",
        sdk=PY10,
        sdk_title="a2a-sdk 1.3.0",
        rest=True,
        server={
            **{op: absent for op, absent in FRAMEWORK_SERVER.items() if op not in PUSH},
            "fail": Absent("its executor ends a failed task without a reason"),
        },
        operations=COMMON,
        client=_lacks("ag2 1.2.1", *STREAMS[3:], "finished-task", "webhook-inline", "extended-card"),
    ),
)

BY_OTHER_MEANS: Mapping[str, str] = {
    "caller-cost": "cost",
    "caller-by-webhook": "webhook",
    "caller-ask": "ask",
    "caller-ask-by-stream": "stream-ask",
    "caller-ask-by-webhook": "webhook",
    "hub-ask": "ask",
}
"""The results that the whole caller and the hub lack if the client lacks an operation."""


def _absent_too(lacks: Mapping[str, Absent], operations: tuple[str, ...]) -> Mapping[str, Absent]:
    return {op: lacks[of] for op, of in BY_OTHER_MEANS.items() if of in lacks and op in operations}


def _served(
    server: Env,
    title: str,
    absent: Mapping[str, Absent] | None = None,
    *,
    name: str = "",
    words: tuple[str, ...] = (),
    client_words: tuple[str, ...] = (),
) -> Lane:
    """A lane of our client; ``name`` tells apart the lanes of one server."""
    return Lane(
        name=f"fleetsim-{name or server.name}",
        title=title,
        server=server,
        client=OURS,
        server_words=words,
        client_words=client_words,
        bearer=server is SELECTOOLS,
        operations=(*OUR_CLIENT, "wrong-key") if server is SELECTOOLS else OUR_CLIENT,
        absent=absent or {},
    )


LANES_A: tuple[Lane, ...] = (
    _served(
        PY03,
        "a2a-sdk 0.3.26",
        {"list": NO_LIST_03, "snapshot": NO_SNAPSHOT_PY03, "webhook-cancel": NO_CANCEL_HOOK_PY03},
    ),
    _served(PY10, "a2a-sdk 1.3.0"),
    _served(
        PY10,
        "a2a-sdk 1.3.0 on 0.3",
        {"list": NO_LIST_03},
        name="py10-on-0.3",
        words=("--both",),
        client_words=("0.3",),
    ),
    _served(
        PY03,
        "a2a-sdk 0.3.26 over HTTP+JSON",
        {
            **_all(Absent("over HTTP+JSON the server of a2a-sdk 0.3.26 lacks it"), "list", "push-list", "push-delete"),
            "resubscribe-unknown": Absent("over HTTP+JSON the server of a2a-sdk 0.3.26 breaks the connection"),
            "snapshot": NO_SNAPSHOT_PY03,
            "webhook-cancel": NO_CANCEL_HOOK_PY03,
        },
        name="py03-http",
        words=("--http",),
    ),
    _served(PY10, "a2a-sdk 1.3.0 over HTTP+JSON", name="py10-http", words=("--http",)),
    _served(
        PY10,
        "a2a-sdk 1.3.0 over HTTP+JSON on 0.3",
        {
            **_all(Absent("over HTTP+JSON the server of a2a-sdk 1.3.0 has no such path of 0.3"), "list", "push-delete"),
            "resubscribe-unknown": Absent("over HTTP+JSON the server of a2a-sdk 1.3.0 breaks the connection"),
        },
        name="py10-http-on-0.3",
        words=("--both", "--http"),
        client_words=("0.3+http",),
    ),
    _served(
        A2AKIT,
        "a2akit 0.0.32",
        {
            "cost": Absent("over HTTP+JSON the server of a2akit 0.0.32 tells no cost"),
            "extended-card": Absent("over HTTP+JSON the server of a2akit 0.0.32 has no extended card"),
        },
    ),
    _served(JS03, "@a2a-js/sdk 0.3.14", {"list": NO_LIST_03}),
    _served(JS10, "@a2a-js/sdk 1.3.0", {"cancel-again": CANCEL_TWICE_JS10}),
    _served(SELECTOOLS, "selectools 1.3.0", SELECTOOLS_SERVER),
    _served(FASTA2A, "fasta2a 2.1.1", {**FASTA2A_BOTH, "list": Absent("ListTasks is answered -32004", MIXTURE)}),
    _served(FASTA2A06, "fasta2a 0.6.1", {**FASTA2A_BOTH, **FASTA2A06_STREAMS, "list": NO_LIST_03}),
    *(_served(framework.env, framework.title, framework.server, words=framework.words) for framework in FRAMEWORKS),
    _served(
        AGENTFRAMEWORK,
        "agent-framework 1.23.0, a card without version",
        FRAMEWORKS[2].server,
        name="agentframework-as-shown",
    ),
)
"""Released servers, driven by our client."""

LANES_S: tuple[Lane, ...] = tuple(
    Lane(
        name=f"{framework.sdk.name}-{framework.env.name}",
        title=f"{framework.title} by {framework.sdk_title}",
        server=framework.env,
        client=framework.sdk,
        server_words=framework.words,
        client_words=("any", REST) if framework.rest else (),
        operations=(*COMMON, "legacy") if framework.sdk is PY03 else COMMON,
        absent={**framework.server, **({"legacy": framework.server["webhook"]} if framework.sdk is PY03 else {})},
    )
    for framework in FRAMEWORKS
)
"""Servers of frameworks, driven by an SDK's client."""

SELECTOOLS_OUTCOMES: Mapping[str, Absent] = {
    "caller-cost": SELECTOOLS_SERVER["cost"],
    "caller-by-stream": SELECTOOLS_SERVER["stream"],
    "caller-by-poll": Absent("it answers in the reply, whatever blocking says", STILL_WAITS),
    "caller-by-webhook": SELECTOOLS_SERVER["webhook"],
    "caller-cancel": SELECTOOLS_SERVER["cancel"],
    "caller-ask": SELECTOOLS_SERVER["ask"],
    "caller-ask-by-stream": SELECTOOLS_SERVER["stream"],
    "caller-ask-by-webhook": SELECTOOLS_SERVER["webhook"],
}


def _whole(
    program: str,
    server: Env,
    title: str,
    absent: Mapping[str, Absent] | None = None,
    words: tuple[str, ...] = (),
    name: str = "",
) -> Lane:
    """A lane of the whole caller, or of a hub and the command line; ``name`` tells apart the lanes of one server."""
    return Lane(
        name=f"{program}-{name or server.name}",
        title=title,
        server=server,
        client=OURS,
        server_words=words,
        program=program,
        bearer=server is SELECTOOLS,
        operations=CALLER if program == "caller" else HUB,
        absent=absent or {},
    )


_caller, _hub = partial(_whole, "caller"), partial(_whole, "hub")

LANES_C: tuple[Lane, ...] = (
    _caller(PY03, "a2a-sdk 0.3.26"),
    _caller(PY10, "a2a-sdk 1.3.0"),
    _caller(PY03, "a2a-sdk 0.3.26 over HTTP+JSON", words=("--http",), name="py03-http"),
    _caller(PY10, "a2a-sdk 1.3.0 over HTTP+JSON", words=("--http",), name="py10-http"),
    _caller(JS03, "@a2a-js/sdk 0.3.14"),
    _caller(JS10, "@a2a-js/sdk 1.3.0"),
    _caller(PY02, "a2a-sdk 0.2.16"),
    _caller(FASTA2A, "fasta2a 2.1.1", FASTA2A_OUTCOMES),
    _caller(
        FASTA2A06,
        "fasta2a 0.6.1",
        {**FASTA2A_OUTCOMES, "caller-by-stream": NO_STREAM_FASTA2A06, "caller-ask-by-stream": NO_STREAM_FASTA2A06},
    ),
    _caller(SELECTOOLS, "selectools 1.3.0", SELECTOOLS_OUTCOMES),
    *(
        _caller(framework.env, framework.title, _absent_too(framework.server, CALLER), framework.words)
        for framework in FRAMEWORKS
    ),
)
"""Released servers, driven by the whole caller."""


LANES_D: tuple[Lane, ...] = (
    _hub(PY03, "a2a-sdk 0.3.26"),
    _hub(PY10, "a2a-sdk 1.3.0"),
    _hub(PY03, "a2a-sdk 0.3.26 over HTTP+JSON", words=("--http",), name="py03-http"),
    _hub(PY10, "a2a-sdk 1.3.0 over HTTP+JSON", words=("--http",), name="py10-http"),
    _hub(JS03, "@a2a-js/sdk 0.3.14"),
    _hub(
        SELECTOOLS,
        "selectools 1.3.0",
        {
            "hub-stream": SELECTOOLS_SERVER["stream"],
            "hub-ask": SELECTOOLS_SERVER["ask"],
            "hub-cancel": SELECTOOLS_SERVER["cancel"],
            "url-stream": SELECTOOLS_SERVER["stream"],
        },
    ),
    *(
        _hub(framework.env, framework.title, _absent_too(framework.server, HUB), framework.words)
        for framework in FRAMEWORKS
    ),
)
"""Released servers, behind a running hub and the command line."""


def _driving(
    client: Env,
    title: str,
    absent: Mapping[str, Absent] | None = None,
    *more: str,
    name: str = "",
    words: tuple[str, ...] = (),
    operations: tuple[str, ...] = COMMON,
) -> Lane:
    """A lane of our agent; ``name`` tells apart the lanes of one client, and ``more`` are further operations."""
    late = ("webhook-late",) if "webhook" in operations else ()
    return Lane(
        name=f"{name or client.name}-fleetsim",
        title=title,
        server=OURS,
        client=client,
        client_words=words,
        bearer=True,
        operations=(*operations, "wrong-key", *late, *more),
        absent=absent or {},
    )


LANES_B: tuple[Lane, ...] = (
    _driving(
        PY03, "a2a-sdk 0.3.26", {"list": NO_LIST_03, **_lacks("a2a-sdk 0.3.26", "push-list", "push-delete")}, "legacy"
    ),
    _driving(PY10, "a2a-sdk 1.3.0"),
    _driving(PY10, "a2a-sdk 1.3.0 on 0.3", {"list": NO_LIST_03}, name="py10-on-0.3", words=("0.3",)),
    _driving(
        PY03,
        "a2a-sdk 0.3.26 over HTTP+JSON",
        _lacks("a2a-sdk 0.3.26", "list", "push-list", "push-delete"),
        name="py03-http",
        words=(REST,),
    ),
    _driving(PY10, "a2a-sdk 1.3.0 over HTTP+JSON", name="py10-http", words=("any", REST)),
    _driving(
        PY10,
        "a2a-sdk 1.3.0 over HTTP+JSON on 0.3",
        _lacks("a2a-sdk 1.3.0 on 0.3", "list", "push-list", "push-delete"),
        name="py10-http-on-0.3",
        words=("0.3", REST),
    ),
    _driving(A2AKIT, "a2akit 0.0.32"),
    _driving(
        JS02,
        "@a2a-js/sdk 0.2.5",
        {"list": NO_LIST_03, **_lacks("@a2a-js/sdk 0.2.5", "push-list", "push-delete", "extended-card")},
    ),
    _driving(JS03, "@a2a-js/sdk 0.3.14", {"list": NO_LIST_03}, "legacy"),
    _driving(JS10, "@a2a-js/sdk 1.3.0"),
    _driving(JS10, "@a2a-js/sdk 1.3.0 on 0.3", {"list": NO_LIST_03}, name="js10-on-0.3", words=("0.3",)),
    _driving(
        SELECTOOLS,
        "selectools 1.3.0",
        {
            **_lacks("selectools 1.3.0", *STREAMS, *PUSH, "webhook-late", "ask", "cancel", "cancel-again"),
            **_lacks("selectools 1.3.0", "finished-task", "list", "extended-card"),
        },
        "discover-sync",
        "send-sync",
    ),
)
"""Released clients, driving our agent."""

LANES_F: tuple[Lane, ...] = tuple(
    _driving(framework.env, framework.title, framework.client, operations=framework.operations)
    for framework in FRAMEWORKS
)
"""Clients of frameworks, driving our agent."""

LANES_G: tuple[Lane, ...] = tuple(
    Lane(
        name=f"{framework.env.name}-{framework.sdk.name}",
        title=f"{framework.title} on {framework.sdk_title}",
        server=framework.sdk,
        client=framework.env,
        server_words=("--http",) if framework.rest else (),
        operations=framework.operations,
        absent=framework.client,
    )
    for framework in FRAMEWORKS
)
"""Clients of frameworks, driving an SDK's agent."""


@dataclass(frozen=True, slots=True)
class Program:
    """A script of this folder that must end with 0 in an environment. ``needs`` are those of the servers it starts."""

    name: str
    script: str
    env: Env
    words: tuple[str, ...] = ()
    needs: tuple[Env, ...] = ()


WEATHER_PEERS: Mapping[str, tuple[Env, str]] = {
    "py03": (PY03, "a2a-sdk 0.3.26"),
    "py10": (PY10, "a2a-sdk 1.3.0"),
    "selectools": (SELECTOOLS, "selectools 1.3.0"),
    "js03": (JS03, "@a2a-js/sdk 0.3.14"),
}
"""Whose servers are put into the weather of ``driver/weather.py``."""

CHECK_PEERS: Mapping[str, Env] = {
    "py03": PY03,
    "py10": PY10,
    "py10-on-0.3": PY10,
    "py10-http": PY10,
    "py03-http": PY03,
    "selectools": SELECTOOLS,
    "js03": JS03,
    "js10": JS10,
    "py02": PY02,
    "fasta2a": FASTA2A,
    "fasta2a06": FASTA2A06,
    "strands": STRANDS,
    "adk": ADK,
    "agentframework": AGENTFRAMEWORK,
    "ag2": AG2,
    "a2akit": A2AKIT,
}
"""Whose servers `fleetsim check` is held against, by the names of ``driver/verdicts.py``."""

TAPE_PAIRS: Mapping[str, tuple[Env, Env, tuple[str, ...], tuple[str, ...]]] = {
    "py10": (PY10, PY10, (), ()),
    "py10-http": (PY10, PY10, ("--http",), ("any", REST)),
    "py03": (PY03, PY03, (), ()),
    "py03-http": (PY03, PY03, ("--http",), (REST,)),
    "js10": (JS10, JS10, (), ()),
    "js03": (JS03, JS03, (), ()),
    "ag2": (AG2, PY10, (), ("any", REST)),
    "fleetsim": (OURS, PY10, (), ()),
}
"""Servers on tape, and the clients that must not notice it: server, client, and words for both."""

PROGRAMS: tuple[Program, ...] = (
    Program("goldens-in-py10", "check_goldens_10.py", PY10),
    Program("broken-agents", "mutants.py", OURS),
    Program("check-app10", "check_app.py", APP10),
    *(Program(f"tape-{name}", "tapes.py", OURS, (name,), pair[:2]) for name, pair in TAPE_PAIRS.items()),
    *(Program(f"weather-{name}", "weather.py", OURS, (name,), (env,)) for name, (env, _) in WEATHER_PEERS.items()),
    *(Program(f"check-{name}", "check_peers.py", OURS, (name,), (env,)) for name, env in CHECK_PEERS.items()),
)
"""The programs that run beside the lanes."""

THROUGH_HUB = (
    *("discover", "complete", "cost", "stream", "fail", "ask", "stream-ask", "cancel", "cancel-again"),
    *("finished-task", "get", "unknown-task", "resubscribe", "snapshot", "resubscribe-unknown"),
)
"""Without webhooks, which the hub accepts for public addresses only, and without a wrong key, which gets no card."""

LANES_H: tuple[Lane, ...] = tuple(
    Lane(
        name=f"{name}-hub-{behind}",
        title=title,
        server=server,
        client=client,
        client_words=words,
        server_words=("--http",) if behind.endswith("-http") else (),
        bearer=True,
        hub=True,
        operations=THROUGH_HUB,
    )
    for name, client, words, behind, server, title in (
        ("py10", PY10, (), "js10", JS10, "a2a-sdk 1.3.0, to @a2a-js/sdk 1.3.0"),
        ("py10-on-0.3", PY10, ("0.3",), "js10", JS10, "a2a-sdk 1.3.0 on 0.3, to @a2a-js/sdk 1.3.0"),
        ("js10", JS10, (), "py10", PY10, "@a2a-js/sdk 1.3.0, to a2a-sdk 1.3.0"),
        ("js10-on-0.3", JS10, ("0.3",), "py10", PY10, "@a2a-js/sdk 1.3.0 on 0.3, to a2a-sdk 1.3.0"),
        ("py03", PY03, (), "js03", JS03, "a2a-sdk 0.3.26, to @a2a-js/sdk 0.3.14"),
        ("js03", JS03, (), "py03", PY03, "@a2a-js/sdk 0.3.14, to a2a-sdk 0.3.26"),
        ("py10-http", PY10, ("any", REST), "py03-http", PY03, "a2a-sdk 1.3.0, to a2a-sdk 0.3.26, over HTTP+JSON"),
        ("py03-http", PY03, (REST,), "py10-http", PY10, "a2a-sdk 0.3.26, to a2a-sdk 1.3.0, over HTTP+JSON"),
    )
)

LANES = (*LANES_A, *LANES_S, *LANES_C, *LANES_D, *LANES_B, *LANES_F, *LANES_G, *LANES_H)
