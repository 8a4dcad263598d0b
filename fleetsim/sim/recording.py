"""The lines of a recording, for who reads one that somebody else may have written, or that is being written.

Only what the checker, the figures, the charts and the screens read is asked for; a line may hold more.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import from_json

from fleetsim.caller.event_wire import from_wire
from fleetsim.caller.events import Event
from fleetsim.model.errors import ConfigError
from fleetsim.model.text import one_line
from fleetsim.sim.expectation import Expectation
from fleetsim.sim.scenario_events import (
    FailureLogged,
    HealthLooked,
    HubKilled,
    RecordingEnded,
    RunJudged,
    ScenarioStarted,
    TrafficEnded,
    TroubleBegan,
    TroubleEnded,
)

FORMAT = "fleetsim-recording/2"
RECORDED_S_MAX = 1e9
ROWS_MAX = 1_000
"""Agents, expectations, replicas and violations of one recording that are shown."""
SAID_CHARS_MAX = 300
CLOCK = r"^(virtual|real|x[1-9][0-9]{0,4}(\.[0-9]{1,6})?)$"
"""How fast the run was: on virtual time, as time passes, or so many times as fast."""
LINE_BYTES_MAX = 4 * 1024 * 1024
MADE_WITH = "one is made with `fleetsim sim SCENARIO --record FILE` or, of a hub, with `fleetsim record`"
_Second: TypeAlias = Annotated[float, Field(ge=0, le=RECORDED_S_MAX, allow_inf_nan=False)]
_Count: TypeAlias = Annotated[int, Field(ge=0, le=10**12)]
_Amount: TypeAlias = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]


def _moment(text: str) -> str:
    when = datetime.fromisoformat(text)
    if when.tzinfo is None or not 1970 <= when.year < 9_000:
        raise ValueError("must be a moment with its zone, from 1970 on")
    return text


def _expectation(text: str) -> str:
    return Expectation.read(text).text


_Moment: TypeAlias = Annotated[str, AfterValidator(_moment)]


class _Line(BaseModel):
    model_config = ConfigDict(strict=True)

    t: _Second


class _Agent(BaseModel):
    agent: str
    skills: list[str]


class _Start(_Line):
    format: Literal["fleetsim-recording/2"]
    of: Literal["scenario", "hub"] = "scenario"
    scenario: str
    seed: int
    start: _Moment
    duration_s: _Second
    agents: list[_Agent]
    replicas: dict[str, str]
    expect: list[Annotated[str, AfterValidator(_expectation)]]
    clock: Annotated[str, Field(pattern=CLOCK)] = "virtual"
    began: _Moment | None = None
    rules: dict[str, _Amount] = {}


class _Envelope(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel)

    seq: int
    topic: str
    correlation_id: str | None
    agent: str | None
    skill: str | None
    payload: dict[str, Any]


class _Event(_Line):
    type: str
    event: _Envelope


class _Trouble(_Line):
    fault: str
    agent: str | None
    phase: Literal["begins", "ends"]
    said: str = ""


class _Hits(_Line):
    fault: str
    hits: _Count


class _Task(_Line):
    agent: str
    task_id: str
    correlation_id: str
    begun_s: _Second
    ended: str
    text: str
    chars: _Count
    cost_usd: _Amount | None
    answers: list[str]


class _Outcome(_Line):
    correlation_id: str
    agent: str
    skill: str
    task_id: str | None
    outcome: str
    success: bool
    counts: bool
    cause: str | None
    duration_ms: _Amount
    agent_ms: _Amount | None
    cost_usd: _Amount | None
    text: str
    chars: _Count


class _Seen(BaseModel):
    health: str
    outcomes: _Count


class _Submitted(_Line):
    correlation_id: str


class _Call(_Line):
    source: str
    target: str
    method: str
    request: str
    door: str
    began_s: _Second
    status: int | None
    error: str
    task_id: str
    message_id: str
    state: str
    body: str


class _Forged(_Line):
    how: str
    status: int


class _Edited(_Line):
    file: str
    what: str
    zone: str = ""


class _Repeated(_Line):
    webhooks: _Count
    changed: list[str]


class _Ledger(_Line):
    damage: str


class _KeptTasks(BaseModel):
    tasks: _Count
    open: _Count
    oldest_s: _Amount


class _Kept(_Line):
    hub: dict[str, _Count]
    agents: dict[str, _KeptTasks]


class _Late(_Line):
    seconds: _Amount
    stalled: _Amount


class _Keys(_Line):
    carried: _Count
    strayed: list[str]


class _Killed(_Line):
    journalled: int


class _Health(_Line):
    now: _Moment
    seq: _Count = 0
    agents: dict[str, _Seen]


class _Due(_Line):
    slots: dict[str, _Count]
    schedules: dict[str, list[str]] = {}
    problems: list[str] = []


class _Asked(_Line):
    correlation_id: str
    due_s: _Second
    late_s: _Amount


class _Refused(_Line):
    skill: str
    why: str
    due_s: _Second = 0.0
    late_s: _Amount = 0.0


class _Unsettled(_Line):
    requests: _Count
    after_s: _Amount


class _Answer(_Line):
    correlation_id: str


class _Complaint(_Line):
    said: str


class _Reached(_Line):
    origins: list[str]


class _End(_Line):
    kept: dict[str, int]


class _Played(_Line):
    source: str
    command: str = ""
    digest: str
    wall_s: _Amount
    cpu_s: _Amount
    again: str = ""


class _Expected(BaseModel):
    expect: str
    figure: float | None
    holds: bool


class _Violation(BaseModel):
    at_s: _Second
    rule: str
    who: str
    said: str


class _Verdict(_Line):
    result: Literal["ok", "unexpected", "violated"]
    expectations: list[_Expected]
    rules: _Count
    cases: _Count
    violations: _Count
    first: list[_Violation]


_LINES: Mapping[str, type[BaseModel]] = {
    "start": _Start,
    "past": _Event,
    "event": _Event,
    "trouble": _Trouble,
    "hits": _Hits,
    "task": _Task,
    "outcome": _Outcome,
    "submitted": _Submitted,
    "call": _Call,
    "killed": _Killed,
    "forged": _Forged,
    "edited": _Edited,
    "repeated": _Repeated,
    "ledger": _Ledger,
    "kept": _Kept,
    "late": _Late,
    "keys": _Keys,
    "health": _Health,
    "due": _Due,
    "asked": _Asked,
    "refused": _Refused,
    "unsettled": _Unsettled,
    "answer": _Answer,
    "complaint": _Complaint,
    "reached": _Reached,
    "end": _End,
    "played": _Played,
    "verdict": _Verdict,
}


class _Payload(BaseModel):
    model_config = ConfigDict(strict=True, alias_generator=to_camel)


class _Counted(_Payload):
    count: _Count = 1


class _OutcomeDecided(_Payload):
    kind: str
    success: bool
    blame: str
    reason: str
    ended_at: _Moment
    duration_ms: _Amount
    cost_usd: _Amount | None
    agent_ms: _Amount | None


class _Question(_Payload):
    question_id: str


class _CeremonyFired(_Payload):
    run_id: str
    trigger: str
    scheduled_at: _Moment | None


class _CeremonyCompleted(_Payload):
    run_id: str
    status: str


_PAYLOADS: Mapping[str, type[BaseModel]] = {
    "OutcomeDecided": _OutcomeDecided,
    "QuestionAsked": _Question,
    "QuestionAnswered": _Question,
    "CeremonyFired": _CeremonyFired,
    "CeremonyCompleted": _CeremonyCompleted,
    "CeremonyMissed": _Counted,
    "CeremonySkipped": _Counted,
    "CeremonyLate": _Counted,
}


def problem_of(line: Any, *, first: bool) -> str:
    """Why it is no line of a recording; empty if it is one. Of kinds that nobody reads only the moment is asked for."""
    if first and (not isinstance(line, dict) or line.get("format") != FORMAT):
        return f"not a recording of this version of fleetsim ({FORMAT})"
    if not isinstance(line, dict) or not isinstance(line.get("kind"), str):
        return "not a line of a recording"
    if first is not (line["kind"] == "start"):
        return "a recording has one start, in its first line"
    try:
        _LINES.get(line["kind"], _Line).model_validate(line)
        if line["kind"] == "event" and (payload := _PAYLOADS.get(line["type"])) is not None:
            payload.model_validate(line["event"]["payload"])
    except ValidationError as error:
        wrong = error.errors()[0]
        return one_line(f"not a line of a recording: {'.'.join(map(str, wrong['loc']))}: {wrong['msg']}")
    return ""


def event_of(line: Mapping[str, Any], at: datetime) -> Event | None:
    """What a line tells, if somebody wants to see it; ``at`` is its moment on the hub's clock. Its text is harmless."""
    match line["kind"]:
        case "event" | "past":
            return from_wire(line["event"])
        case "start":
            return ScenarioStarted(
                at=at,
                of_hub=line.get("of") == "hub",
                scenario=_said(line["scenario"]),
                seed=line["seed"],
                start=datetime.fromisoformat(line["start"]).astimezone(UTC),
                duration_s=line["duration_s"],
                agents=tuple(_said(row["agent"]) for row in line["agents"][:ROWS_MAX]),
                replicas={_said(name): _said(of) for name, of in list(line["replicas"].items())[:ROWS_MAX]},
                expect=tuple(line["expect"][:ROWS_MAX]),
            )
        case "trouble" if line["phase"] == "begins":
            said = _said(line.get("said", ""))
            return TroubleBegan(at=at, agent=line["agent"], fault=_said(line["fault"]), said=said)
        case "trouble":
            return TroubleEnded(at=at, agent=line["agent"], fault=_said(line["fault"]))
        case "calm":
            return TrafficEnded(at=at)
        case "killed":
            return HubKilled(at=at)
        case "complaint":
            return FailureLogged(at=at, said=_said(line["said"]))
        case "health":
            seen = list(line["agents"].items())[:ROWS_MAX]
            return HealthLooked(at=at, agents={_said(name): _said(row["health"]) for name, row in seen})
        case "played":
            return RecordingEnded(at=at)
        case "verdict":
            return RunJudged(
                at=at,
                result=line["result"],
                figures=tuple((row["figure"], row["holds"]) for row in line["expectations"][:ROWS_MAX]),
                rules=line["rules"],
                cases=line["cases"],
                violations=line["violations"],
                first=tuple(
                    (row["at_s"], _said(row["rule"]), _said(row["who"]), _said(row["said"]))
                    for row in line["first"][:ROWS_MAX]
                ),
            )
    return None


def _odd(text: bytes) -> Any:
    """What is no Unicode, or nested deeply; None if it is no JSON."""
    try:
        return json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def _said(text: str) -> str:
    return one_line(text, SAID_CHARS_MAX)


class RecordingReader:
    """Reads a recording line by line, also while it is written. Open it with ``with``.

    Every method raises ConfigError, with the line, where the file is no recording or was written anew meanwhile.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = 0
        """Of the line read last, from 1 on."""
        self._file: IO[bytes] | None = None
        self._part, self._at = b"", 0

    def __enter__(self) -> RecordingReader:
        try:
            self._file = self.path.open("rb")
        except OSError as error:
            raise ConfigError(f"{self.path}: {error.strerror}", hint=MADE_WITH) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    @property
    def partial(self) -> bool:
        """Whether the file ends, so far, in the middle of a line."""
        return bool(self._part)

    def read(self) -> dict[str, Any] | None:
        """The next line; None where there is no whole one yet."""
        assert self._file is not None
        try:
            more = self._file.readline(LINE_BYTES_MAX + 1 - len(self._part))
            if not more and os.fstat(self._file.fileno()).st_size < self._at:
                raise self._wrong("it was written anew while it was read", hint="open it again")
        except OSError as error:
            raise ConfigError(f"{self.path}: {error.strerror}") from None
        self._at += len(more)
        self._part += more
        if not self._part.endswith(b"\n"):
            if len(self._part) > LINE_BYTES_MAX:
                self.number += 1
                raise self._wrong(f"not a line of a recording: more than {LINE_BYTES_MAX:,} bytes")
            return None
        text, self._part = self._part, b""
        self.number += 1
        return self._line(text)

    def rewind(self) -> None:
        """To the first line again."""
        assert self._file is not None
        self._file.seek(0)
        self.number = self._at = 0
        self._part = b""

    def last(self) -> dict[str, Any] | None:
        """What stands after the last line feed; None if nothing does."""
        if not self._part:
            return None
        self.number += 1
        return self._line(self._part)

    def _line(self, text: bytes) -> dict[str, Any]:
        try:
            line = from_json(text)  # it knows short texts from the line before, of which most are made
        except ValueError:
            line = _odd(text)
        if problem := problem_of(line, first=self.number == 1):
            raise self._wrong(problem)
        found: dict[str, Any] = line
        return found

    def _wrong(self, problem: str, *, hint: str = MADE_WITH) -> ConfigError:
        return ConfigError(f"{self.path}:{self.number}: {problem}", hint=hint)


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a recording. Raises ConfigError, with the line, where it is none."""
    with RecordingReader(path) as reader:
        while (line := reader.read()) is not None:
            yield line
        if (line := reader.last()) is not None:
            yield line
        if reader.number == 0:
            raise ConfigError(f"{path}:1: not a recording: the file is empty", hint=MADE_WITH)
