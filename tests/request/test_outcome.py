"""The outcome of a track that ended, and its events."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from fleetsim.events.log import EventLog, publish_outcome
from fleetsim.events.request import Event, Level, OutcomeDecided
from fleetsim.events.wire import payload
from fleetsim.model.errors import (
    Blame,
)
from fleetsim.model.event import Snapshot
from fleetsim.model.extensions import (
    COST_TYPE,
    DELTAS_MAX,
    WORLDSTATE_DELTA_TYPE,
    EffectDelta,
    PromisedEffect,
    SkillPolicy,
)
from fleetsim.model.task import Artifact, DataPart, Task
from fleetsim.model.work import Cause, Outcome, OutcomeKind, UpdateSource
from fleetsim.request.ending import outcome_of
from fleetsim.request.machine import new_track
from fleetsim.request.records import Phase, RequestRecord
from fleetsim.request.track import Now, Track, follow_up, how_it_stands, shows_the_message, shows_the_past
from fleetsim.testbed.runtime import VirtualClock
from tests.request.steps import START, C, F, I, W, X, message, record, status, task


def track_of(seen: Task | None, **changes: Any) -> Track:
    """A track that began at 50 s, with the agent since 60 s."""
    kept = structs.replace(record(), phase=Phase.ACCEPTED, task=seen, **changes)
    return structs.replace(new_track(kept, Now(50.0, START)), turn_from=60.0, via=UpdateSource.POLL)


def ended(seen: Task | None, *, kind: OutcomeKind | None = None, reason: str = "", **changes: Any) -> Outcome:
    cause = None if kind is None else Cause.TASK_GONE
    return outcome_of(track_of(seen, **changes), Now(80.0, START), kind=kind, cause=cause, reason=reason)


# ------------------------------------------------------------------ the outcome


def test_an_outcome_has_its_duration_and_the_agents_share() -> None:
    outcome = ended(task(C, "done", cost=True))
    assert (outcome.duration_ms, outcome.agent_ms, outcome.via) == (30_000, 20_000, UpdateSource.POLL)
    assert (outcome.task_id, outcome.context_id, outcome.text, outcome.text_chars) == ("t-1", "ctx", "done", 4)
    assert (outcome.cost_usd, outcome.cost_estimated, outcome.truncated) == (0.5, False, False)
    assert outcome.usage is not None
    assert (outcome.usage.input_tokens, outcome.usage.output_tokens) == (10, 5)
    assert (outcome.success, outcome.cause, outcome.reason) == (True, Cause.AGENT_SAID, "")

    waiting = structs.replace(track_of(task(C, "done")), turn_from=None)
    assert outcome_of(waiting, Now(80.0, START)).agent_ms == 0, "none of it while the request waits"


def test_an_outcome_without_a_task_has_the_context_of_its_request() -> None:
    asked = structs.replace(record().request, context_id="ours")
    outcome = ended(None, kind=OutcomeKind.LOST, reason="gone", request=asked)
    assert (outcome.task_id, outcome.context_id, outcome.text, outcome.parts_total) == (None, "ours", "", 0)
    assert (outcome.text_chars, outcome.truncated, outcome.parts) == (0, False, ())
    assert (outcome.usage, outcome.cost_usd, outcome.model, outcome.confidence) == (None, None, None, None)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.LOST, "gone")


@pytest.mark.parametrize(
    ("seen", "cancel", "rejected", "cause", "reason"),
    [
        (task(F), False, False, Cause.AGENT_SAID, "the agent said failed without a reason"),
        (task(F, "partial", said="disk full"), False, False, Cause.AGENT_SAID, "disk full"),
        (task(X), False, False, Cause.CANCELED_UNASKED, "the agent said canceled without a reason"),
        (task(X), True, False, Cause.CANCELED_BY_PERSON, "canceled as asked"),
        (task(F), True, False, Cause.CANCELED_BY_PERSON, "the agent said failed without a reason"),
        (task(X), True, True, Cause.REJECTED_BY_PERSON, "canceled as asked"),
        (task(C), True, False, Cause.AGENT_SAID, ""),
    ],
)
def test_an_end_without_words_gets_a_reason(
    seen: Task, cancel: bool, rejected: bool, cause: Cause, reason: str
) -> None:
    outcome = ended(seen, cancel_wanted=cancel, rejected=rejected)
    assert (outcome.cause, outcome.reason) == (cause, reason)


@pytest.mark.parametrize(
    ("given", "reason"), [("", "the agent reported completed, but its payload has success: false"), ("told", "told")]
)
def test_a_completed_task_that_denies_its_success_has_that_reason_unless_there_is_a_better_one(
    given: str, reason: str
) -> None:
    denying = Artifact(artifact_id="d", parts=(DataPart(data={"success": False}, media_type=COST_TYPE),))
    seen = task(C, "done")
    outcome = ended(structs.replace(seen, artifacts=(*seen.artifacts, denying)), reason=given)
    assert (outcome.kind, outcome.success, outcome.cause) == (OutcomeKind.COMPLETED, False, Cause.SUCCESS_DENIED)
    assert outcome.reason == reason


def test_effects_that_were_not_kept_are_a_warning() -> None:
    deltas = [{"domain": "d", "path": f"p{n}", "op": "set", "value": n} for n in range(DELTAS_MAX + 2)]
    part = DataPart(data={"deltas": deltas}, metadata={"mimeType": WORLDSTATE_DELTA_TYPE})
    seen = structs.replace(task(C), artifacts=(Artifact(artifact_id="a", parts=(part,)),))
    outcome = ended(seen, warnings=("odd",))
    assert len(outcome.effects) == DELTAS_MAX
    assert outcome.warnings[0] == "odd"
    assert f"2 of {DELTAS_MAX + 2}" in outcome.warnings[1]
    assert ended(task(C), warnings=("odd",)).warnings == ("odd",)


# ------------------------------------------------------------------ told


def told(outcome: Outcome, *promised: PromisedEffect) -> list[Event]:
    events = EventLog(VirtualClock(START))
    publish_outcome(events, outcome, SkillPolicy(effects=promised or None))
    return sorted(events.recent(limit=10), key=lambda event: event.seq)


def test_an_outcome_is_published_and_returned_to_its_requester() -> None:
    outcome = ended(task(C, "done"))
    fleet, answer = told(outcome)
    assert fleet.topic.startswith("autonomous.outcome.")
    assert (fleet.level, payload(fleet)) == (Level.INFO, payload(OutcomeDecided.of(outcome)))
    assert (answer.topic, answer.level) == ("agent.skill.response.c-1", Level.DEBUG)
    assert payload(answer) == {"content": "done", "taskState": "completed", "contextId": "ctx"}
    for event in (fleet, answer):
        assert (event.correlation_id, event.agent, event.skill, event.task_id) == ("c-1", "a", "echo", "t-1")


def test_an_end_without_success_is_returned_with_its_reason() -> None:
    _, answer = told(ended(task(F, said="disk full")))
    assert payload(answer) == {"error": "disk full", "taskState": "failed", "contextId": "ctx"}


@pytest.mark.parametrize(
    ("blame", "level"),
    [
        (Blame.AGENT, Level.ERROR),
        (Blame.NETWORK, Level.WARN),
        (Blame.CALLER, Level.WARN),
        (Blame.HUMAN, Level.INFO),
        (Blame.NOBODY, Level.WARN),
    ],
)
def test_the_level_of_an_end_depends_on_its_blame(blame: Blame, level: Level) -> None:
    assert told(structs.replace(ended(task(F)), blame=blame))[0].level is level


@pytest.mark.parametrize(("promised", "level", "drifts"), [("p", Level.INFO, 0), ("q", Level.WARN, 2)])
def test_effects_are_published_with_a_warning_if_they_were_not_declared(
    promised: str, level: Level, drifts: int
) -> None:
    delta = EffectDelta(domain="d", path="p", op="set", value=1)
    (*_, effects) = told(structs.replace(ended(task(C)), effects=(delta,)), PromisedEffect("d", promised))
    assert (effects.topic, effects.level) == ("world.state.delta", level)
    assert payload(effects)["deltas"] == [{"domain": "d", "path": "p", "op": "set", "value": 1}]
    assert (payload(effects)["source"], len(payload(effects)["drift"]), effects.agent) == ("a", drifts, "a")


def test_drift_alone_is_published_too() -> None:
    assert [event.topic for event in told(ended(task(C)), PromisedEffect("d", "p"))][2:] == ["world.state.delta"]


def test_an_outcome_has_these_keys() -> None:
    said = payload(OutcomeDecided.of(ended(task(C, "done", cost=True))))
    assert said == {
        "kind": "completed",
        "success": True,
        "cause": "agent_said",
        "blame": "nobody",
        "reason": "",
        "text": "done",
        "truncated": False,
        "textChars": 4,
        "taskState": "completed",
        "durationMs": 30_000,
        "agentMs": 20_000,
        "startedAt": "2026-01-01T00:00:00+00:00",
        "endedAt": "2026-01-01T00:00:00+00:00",
        "usage": said["usage"],
        "costUsd": 0.5,
        "costEstimated": False,
        "model": None,
        "confidence": None,
        "confidenceExplanation": None,
        "systemActor": "user",
        "contextId": "ctx",
        "via": "poll",
        "warnings": [],
        "parts": said["parts"],
        "partsTotal": said["partsTotal"],
        "chunks": None,
        "retryOf": None,
    }
    assert said["usage"]["input_tokens"] == 10
    bare = payload(OutcomeDecided.of(structs.replace(ended(task(C, "done")), cause=None)))
    assert (bare["usage"], bare["cause"]) == (None, None)
    assert payload(OutcomeDecided.of(ended(task(C, "done")), chars_max=2))["text"] == "do"


# ------------------------------------------------------------------ follow-ups


def more(**changes: Any) -> RequestRecord:
    kept = record()
    return structs.replace(kept, request=structs.replace(kept.request, task_id="t-1"), **changes)


def test_a_follow_up_has_the_context_and_the_earlier_state_of_its_task() -> None:
    assert follow_up(more(), None, None) == more()
    known = follow_up(more(), ended(task(C, "done")), None)
    assert (known.request.context_id, known.earlier) == ("ctx", how_it_stands(task(C, "done")))
    own = structs.replace(more(), request=structs.replace(more().request, context_id="own"))
    assert follow_up(own, ended(task(C, "done")), None).request.context_id == "own"
    nowhere = structs.replace(ended(task(C, "done")), context_id="")
    assert follow_up(more(), nowhere, None).request.context_id is None


@pytest.mark.parametrize(("seen", "stands"), [(task(I, said="which?"), True), (task(W), False), (None, False)])
def test_the_earlier_state_of_a_task_that_we_ended_is_the_last_one_seen(seen: Task | None, stands: bool) -> None:
    lost = ended(seen, kind=OutcomeKind.LOST, reason="gone")
    known = follow_up(more(), lost, structs.replace(record(), task=seen))
    assert known.earlier == (how_it_stands(seen) if stands and seen is not None else "")
    assert follow_up(more(), lost, None).earlier == ""


def test_only_a_task_that_does_not_move_by_itself_has_a_comparable_state() -> None:
    stands = {how_it_stands(seen) for seen in (task(C, "a"), task(C, "b"), task(F, "a"), task(I, said="a"))}
    assert (len(stands), {len(stand) for stand in stands}) == (4, {24})
    assert how_it_stands(task(W, "a")) == ""


def test_an_unchanged_whole_task_shows_the_past() -> None:
    kept = more(earlier=how_it_stands(task(C, "a")))
    assert shows_the_past(kept, Snapshot(task=task(C, "a")))
    assert not shows_the_past(kept, Snapshot(task=task(C, "b")))
    assert not shows_the_past(kept, status(C))
    assert not shows_the_past(more(), Snapshot(task=task(W)))


def test_a_task_proves_the_message_by_its_id_by_working_or_by_another_state() -> None:
    kept = more(earlier=how_it_stands(task(C, "a")))
    took = structs.replace(task(C, "a"), history=(message("hi", "m-0"), message("more", "m-1")))
    assert shows_the_message(kept, took)
    assert shows_the_message(kept, task(W))
    assert shows_the_message(kept, task(C, "b"))
    assert not shows_the_message(kept, task(C, "a"))
    assert not shows_the_message(more(), task(C, "b")), "how it stood is not known"
