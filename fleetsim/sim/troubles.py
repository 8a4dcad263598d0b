"""The troubles of a simulated fleet: each kind by name, and its effect.

A trouble on messages is a fault of the testbed. ``simulation`` and ``live`` carry out a trouble on processes, clocks
and storage. The kinds are those of the fault tables of caller and agent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from fleetsim.caller.webhooks import CALLBACK_PATH
from fleetsim.fleet.settings import NAME
from fleetsim.model.spans import in_words
from fleetsim.runtime.explain import Pattern, Span
from fleetsim.runtime.ports import Request
from fleetsim.sim.quantities import Share, When
from fleetsim.testbed import faults
from fleetsim.testbed.faults import Fault, Match

SENDS = ("message/send", "message/stream", "SendMessage", "SendStreamingMessage", "tasks/send", "tasks/sendSubscribe")
POLLS = ("tasks/get", "GetTask")
STREAMS = ("message/stream", "tasks/resubscribe", "SendStreamingMessage", "SubscribeToTask", "tasks/sendSubscribe")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of trouble. ``on`` says what it meets: calls to an agent, webhooks to the hub, or a process.

    ``fault`` makes the testbed's fault of ``amount`` (seconds, or how many times); processes have none. ``methods`` are
    the JSON-RPC methods it meets, all if none are named. In a mix it meets a ``share`` of messages, or comes by
    ``hourly``: its times in an hour, and its shortest and longest seconds.
    """

    on: Literal["agent", "card", "webhook", "process"]
    about: str
    fault: Callable[[float], Fault] | None = None
    _: KW_ONLY
    methods: tuple[str, ...] = ()
    amount: float | None = None
    share: float = 0.0
    hourly: tuple[float, float, float] = (0.0, 0.0, 0.0)


KINDS: Mapping[str, Kind] = {
    "agent-down": Kind(
        "process", "connections to the agent are refused; it keeps its tasks", hourly=(1 / 8, 60.0, 1_200.0)
    ),
    "agent-restart": Kind("process", "the agent is killed and comes back without its tasks", hourly=(1 / 6, 1.0, 60.0)),
    "hub-restart": Kind(
        "process", "the hub is killed where it stands and comes back on its ledger", hourly=(1 / 3, 1.0, 120.0)
    ),
    "hub-dies-writing": Kind(
        "process",
        "the hub is killed right after it next wrote to its ledger, before it acts on it, and comes back",
        hourly=(1 / 3, 1.0, 120.0),
    ),
    "hub-pause": Kind("process", "the hub's process stands still, and then goes on", hourly=(1 / 3, 1.0, 90.0)),
    "hub-cut": Kind("process", "the hub cannot reach the ledger that it shares with others", hourly=(1 / 3, 1.0, 90.0)),
    "hub-unreachable": Kind(
        "webhook",
        "webhooks find no hub; the hub itself goes on",
        lambda _: faults.Refuse(),
        hourly=(1 / 12, 30.0, 600.0),
    ),
    "slower": Kind(
        "process", "the agent works as many times slower as amount says", amount=2.0, hourly=(1 / 4, 30.0, 600.0)
    ),
    "clock-jump": Kind(
        "process",
        "the hub's wall clock is set forward by amount seconds, or back if that is negative",
        amount=3_600.0,
        hourly=(1 / 24, 0.0, 0.0),
    ),
    "disk-full": Kind("process", "the hub's ledger cannot be written", hourly=(1 / 6, 1.0, 60.0)),
    "disk-error": Kind(
        "process",
        "as many of the hub's next writes to its ledger fail as amount says, with nothing written",
        amount=1.0,
        hourly=(1.0, 0.0, 0.0),
    ),
    "slow-disk": Kind(
        "process", "every write to the hub's ledger takes amount seconds", amount=0.5, hourly=(1 / 6, 10.0, 120.0)
    ),
    "stall": Kind(
        "process", "the process stops for amount seconds, as on a host that sleeps", amount=5.0, hourly=(4.0, 0.0, 0.0)
    ),
    "ceremony-edits": Kind(
        "process",
        "every half minute somebody disables, deletes, half writes or puts back a ceremony's file",
        hourly=(1 / 3, 600.0, 3_600.0),
    ),
    "forged-webhooks": Kind(
        "process",
        "every half minute webhooks come that no agent sent: without a token, with one changed, or another's",
        hourly=(1.0, 30.0, 300.0),
    ),
    "new-api-keys": Kind(
        "process",
        "the agent asks for a new API key, which the hub has amount seconds later",
        amount=4.0,
        hourly=(1 / 24, 0.0, 0.0),
    ),
    "new-webhook-keys": Kind(
        "process",
        "the hub is restarted with a new epoch of webhook keys; those of the one before are still good",
        hourly=(1 / 12, 1.0, 60.0),
    ),
    "new-zone": Kind(
        "process",
        "the hub's host moves to another time zone, and so does a ceremony's file",
        hourly=(1 / 6, 600.0, 3_600.0),
    ),
    "hang": Kind(
        "agent",
        "the agent takes calls and answers none",
        lambda _: faults.Stall(at="response"),
        hourly=(1 / 4, 30.0, 120.0),
    ),
    "slow-answers": Kind(
        "agent",
        "every answer of the agent comes amount seconds late",
        lambda seconds: faults.SlowStart(seconds=seconds),
        amount=5.0,
        share=0.05,
    ),
    "lost-request": Kind(
        "agent", "a call is lost before it reaches the agent", lambda _: faults.LoseRequest(), share=0.02
    ),
    "lost-reply": Kind(
        "agent", "the agent does what it was asked, and its answer is lost", lambda _: faults.LoseReply(), share=0.02
    ),
    "lost-sends": Kind(
        "agent",
        "as lost-reply, for the call that begins a task alone",
        lambda _: faults.LoseReply(),
        methods=SENDS,
        share=0.02,
    ),
    "bad-gateway": Kind("agent", "something in between answers 502", lambda _: faults.html_error(502), share=0.01),
    "busy": Kind(
        "agent",
        "something in between answers 503, and asks for amount seconds of patience",
        lambda seconds: faults.Status(status=503, headers={"retry-after": str(round(seconds))}),
        amount=10.0,
        share=0.01,
    ),
    "redirects": Kind(
        "agent",
        "something in between sends callers elsewhere",
        lambda _: faults.Status(status=307, headers={"location": "http://elsewhere.sim:8000/a2a"}),
        share=0.005,
    ),
    "stalled-bodies": Kind(
        "agent",
        "answers stop amount bytes after their beginning, and the connection stays",
        lambda count: faults.Stall(at="body", after_bytes=int(count)),
        amount=100.0,
        share=0.01,
    ),
    "doubled-events": Kind(
        "agent",
        "each piece of a stream arrives twice",
        lambda _: faults.EditChunk(edit=lambda chunk: chunk + chunk if chunk.startswith(b"data:") else chunk),
        methods=STREAMS,
        share=0.1,
    ),
    "junk": Kind(
        "agent",
        "what the agent answers arrives broken",
        lambda _: faults.EditChunk(edit=lambda body: b"\x00\xff{]" + body[: len(body) // 2]),
        share=0.01,
    ),
    "cut-streams": Kind(
        "agent",
        "streams break after amount bytes",
        lambda count: faults.DropAfter(bytes_passed=int(count)),
        methods=STREAMS,
        amount=1_500.0,
        share=0.15,
    ),
    "failing-polls": Kind("agent", "looks at a task are refused", lambda _: faults.Refuse(), methods=POLLS, share=0.02),
    "card-gone": Kind(
        "card", "the agent's card is not there", lambda _: faults.Status(status=404), hourly=(1 / 4, 60.0, 900.0)
    ),
    "card-junk": Kind(
        "card",
        "the agent's card cannot be read",
        lambda _: faults.Status(status=200, body=b'{"name": 7', headers={"content-type": "application/json"}),
        hourly=(1 / 4, 60.0, 900.0),
    ),
    "lost-webhooks": Kind("webhook", "webhooks are lost on their way", lambda _: faults.LoseRequest(), share=0.1),
    "doubled-webhooks": Kind(
        "webhook",
        "webhooks arrive twice, the second time amount seconds later",
        lambda seconds: faults.Duplicate(copies=1, after_s=seconds),
        amount=3.0,
        share=0.1,
    ),
    "late-webhooks": Kind(
        "webhook",
        "webhooks arrive up to amount seconds late, and so out of order",
        lambda seconds: faults.Late(low_s=0.0, high_s=seconds),
        amount=600.0,
        share=0.1,
    ),
    "unacknowledged-webhooks": Kind(
        "webhook",
        "the hub takes webhooks, and its answer to the agent is lost",
        lambda _: faults.LoseReply(),
        share=0.05,
    ),
}
"""Every kind, by the name a scenario has for it."""

OF_AGENTS = {"agent-down", "agent-restart", "slower", "new-api-keys"}
"""The kinds about an agent's process; other kinds of processes are about the hub."""

OF_SEVERAL_HUBS = {"hub-pause", "hub-cut"}
"""The kinds for hubs that share a ledger."""

OF_ONE_HUB = {"hub-restart", "hub-dies-writing", "clock-jump", *OF_SEVERAL_HUBS}
"""The kinds that can meet one of several hubs."""

FaultName: TypeAlias = Literal[tuple(KINDS)]  # type: ignore[valid-type]


class Trouble(BaseModel):
    """One trouble, and when, where and for how long."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, use_attribute_docstrings=True)

    fault: FaultName
    """What happens."""
    at: When | None = None
    """When it begins: a time of day, or a span after the start; at the start unless given."""
    lasts: Span | None = None
    """For how long; to the end of the traffic unless given."""
    agent: Annotated[str, Pattern(NAME, "an agent's name")] | None = None
    """The agent; every agent unless given."""
    hub: Annotated[int, Field(ge=1)] | None = None
    """The number of the hub, from 1 on; every hub unless given. `hub-dies-writing` meets the first that writes."""
    skill: str | None = None
    """Only calls that ask for this skill; of calls to agents alone."""
    share: Share = 1.0
    """The share of messages that it meets."""
    amount: float | None = None
    """How much: seconds, bytes or times, as the fault says."""

    @property
    def kind(self) -> Kind:
        return KINDS[self.fault]

    def begins_s(self, start: datetime) -> float:
        """When it begins, in seconds after the start of the run."""
        return self.at.after(start) if self.at is not None else 0.0

    @property
    def how_much(self) -> float:
        """Its amount: as given, else as its kind has it."""
        return self.amount if self.amount is not None else self.kind.amount or 0.0

    def problems(self) -> Iterator[str]:
        """Keys that contradict each other."""
        kind = self.kind
        if kind.on == "process" and self.share < 1:
            yield f"'{self.fault}' meets all or nothing: it has no share"
        if self.skill is not None and kind.on != "agent":
            yield f"'{self.fault}' is not about calls of one skill"
        if self.amount is not None and kind.amount is None:
            yield f"'{self.fault}' has no amount"
        if self.agent is not None and kind.on == "process" and self.fault not in OF_AGENTS:
            yield f"'{self.fault}' is the hub's: it has no agent"
        if self.hub is not None and self.fault not in OF_ONE_HUB:
            yield f"'{self.fault}' is not about one hub"

    @property
    def in_words(self) -> str:
        """One line for a person."""
        whom = f" of {self.agent}" if self.agent else f" of hub {self.hub}" if self.hub else ""
        return (
            f"{self.fault}{whom}"
            + (f", {self.skill}" if self.skill else "")
            + (f", {self.share:.0%} of messages" if self.share < 1 else "")
            + (f" at {self.at}" if self.at else "")
            + (f" for {in_words(self.lasts)}" if self.lasts is not None else "")
        )


def match_of(trouble: Trouble, origin: str, hub: str) -> Iterator[Match]:
    """Which requests a trouble on messages meets at one agent's ``origin``, or on the way to the ``hub``."""
    kind = trouble.kind
    if kind.on == "webhook":
        source = None if trouble.agent is None else origin.removeprefix("http://").partition(".")[0]
        yield Match(origin=hub, path=f"{CALLBACK_PATH}*", source=source)
    elif kind.on == "card":
        yield Match(origin=origin, method="GET", path="*/.well-known/*")
    elif kind.methods:
        for method in kind.methods:
            yield Match(origin=origin, rpc_method=method, where=_asks_for(trouble.skill))
    else:
        yield Match(origin=origin, rpc_method="?*", where=_asks_for(trouble.skill))


def _asks_for(skill: str | None) -> Callable[[Request], bool] | None:
    if skill is None:
        return None
    quoted = f'"{skill}"'.encode()
    return lambda request: quoted in request.body


SKEW_S = 5.0
"""How far the standard mix moves the clock of one of several hubs: their operators keep them in step."""
