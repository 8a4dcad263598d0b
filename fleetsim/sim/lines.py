"""What the lines of a recording hold, for who reads one that somebody else may have written.

Only what the checker, the figures and the charts read is asked for; a line may hold more.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from fleetsim.caller.expectation import Expectation
from fleetsim.model.text import one_line

FORMAT = "fleetsim-recording/2"
RECORDED_S_MAX = 1e9
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
    scenario: str
    seed: int
    start: _Moment
    duration_s: _Second
    agents: list[_Agent]
    replicas: dict[str, str]
    expect: list[Annotated[str, AfterValidator(_expectation)]]


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


class _Health(_Line):
    now: _Moment
    agents: dict[str, _Seen]


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
    digest: str
    wall_s: _Amount
    cpu_s: _Amount


_LINES: Mapping[str, type[BaseModel]] = {
    "start": _Start,
    "event": _Event,
    "trouble": _Trouble,
    "hits": _Hits,
    "task": _Task,
    "outcome": _Outcome,
    "health": _Health,
    "answer": _Answer,
    "complaint": _Complaint,
    "reached": _Reached,
    "end": _End,
    "played": _Played,
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
    scheduled_at: str | None


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
