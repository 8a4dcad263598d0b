"""Events round-trip over the wire; an unknown event is kept unchanged."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fleetsim.api.answer import camel
from fleetsim.events import fleet as f
from fleetsim.events import request as e
from fleetsim.events.request import ENVELOPE, Event, Excerpt, Level, OtherEvent, OutcomeDecided
from fleetsim.events.wire import PAYLOAD_MEMBERS, event_classes, from_wire, payload, to_wire
from fleetsim.model.errors import Blame
from fleetsim.model.extensions import Usage
from fleetsim.model.parts import ListedPart
from fleetsim.model.task import JsonObject
from fleetsim.model.work import Cause, Outcome, OutcomeKind, UpdateSource
from tests.event_schema import unfit
from tests.ledger import ledgers as make
from tests.outcomes import made

AT = datetime(2026, 3, 1, 12, 0, 0, 250_000, UTC)
TEXT = st.text(max_size=12).filter(lambda text: text.isprintable())
WORDS = st.text("abcdefgh-", min_size=1, max_size=8)
WHEN = st.integers(0, 10**6).map(lambda ms: AT + timedelta(milliseconds=ms))
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    str: WORDS,
    str | None: st.none() | WORDS,
    int: st.integers(0, 10**6),
    int | None: st.none() | st.integers(0, 10**6),
    int | float: st.integers(0, 100) | st.floats(0, 100),
    float | None: st.none() | st.floats(0, 1),
    bool: st.booleans(),
    bool | None: st.none() | st.booleans(),
    datetime: WHEN,
    datetime | None: st.none() | WHEN,
    tuple[str, ...]: st.lists(TEXT, max_size=3).map(tuple),
    tuple[JsonObject, ...]: st.lists(st.dictionaries(WORDS, st.integers() | TEXT, max_size=2), max_size=2).map(tuple),
    JsonObject: st.dictionaries(WORDS, st.integers(), max_size=2),
    tuple[ListedPart, ...]: st.lists(
        st.builds(
            ListedPart,
            index=st.integers(1, 9),
            kind=st.sampled_from(("file", "data")),
            name=st.none() | WORDS,
            size_bytes=st.none() | st.integers(0, 10**9),
        ),
        max_size=2,
    ).map(tuple),
    Excerpt: st.builds(Excerpt.of, TEXT, st.integers(0, 99)),
    Excerpt | None: st.none() | st.builds(Excerpt.of, TEXT, st.integers(0, 99)),
    OutcomeKind: st.sampled_from(OutcomeKind),
    Cause | None: st.none() | st.sampled_from(Cause),
    Blame: st.sampled_from(Blame),
    UpdateSource: st.sampled_from(UpdateSource),
    Usage | None: st.none() | st.builds(Usage, input_tokens=st.integers(0, 99)),
}
ENVELOPES = st.fixed_dictionaries(
    {
        "seq": st.integers(1, 10**6),
        "at": WHEN,
        "level": st.sampled_from(Level),
        "correlation_id": WORDS,
        "parent_id": st.none() | WORDS,
        "agent": st.none() | WORDS,
        "skill": WORDS,
        "task_id": st.none() | WORDS,
    }
)


OUTCOMES = st.builds(
    Outcome,
    **{name: VALUES[hint] for name, hint in get_type_hints(Outcome).items() if name not in {"effects", "agent"}},
    agent=WORDS,
)


def made_of(kind: type[Event]) -> st.SearchStrategy[Event]:
    if kind is OutcomeDecided:
        return st.tuples(ENVELOPES, OUTCOMES).map(
            lambda both: replace(OutcomeDecided.of(both[1]), **{name: both[0][name] for name in ("seq", "at", "level")})
        )
    own = {member.name: VALUES[member.kind] for member in PAYLOAD_MEMBERS[kind]}
    return st.tuples(ENVELOPES, st.fixed_dictionaries(own)).map(lambda both: kind(**both[0], **both[1]))


@pytest.mark.slow
@given(st.sampled_from(event_classes()).flatmap(made_of))
def test_every_event_matches_its_published_schema(event: Event) -> None:
    assert unfit([event]) == []


@pytest.mark.slow
@given(st.sampled_from(event_classes()).flatmap(made_of))
def test_every_event_round_trips(event: Event) -> None:
    assert from_wire(json.loads(json.dumps(to_wire(event)))) == event


@given(st.sampled_from(event_classes()).flatmap(made_of))
def test_a_topic_names_one_class_and_has_all_its_fields(event: Event) -> None:
    assert "{" not in event.topic
    assert type(from_wire({"at": AT, "topic": event.topic, "payload": payload(event)})) is type(event)


def test_an_outcome_is_written_with_an_excerpt_of_its_text_and_without_content() -> None:
    parts = (ListedPart(index=1, kind="file", name="a.txt", raw="QQ==", artifact_id="r"),)
    outcome = made("c", AT, agent="a", skill="s", duration_ms=5, text="x" * 9_000, parts=parts, parts_total=1)
    told = OutcomeDecided.of(outcome)
    assert told.topic == "autonomous.outcome.user.s"
    assert (len(told.outcome.text), told.outcome.text_chars, told.outcome.truncated) == (4_000, 9_000, True)
    assert told.outcome.parts == (ListedPart(index=1, kind="file", name="a.txt"),)
    assert (told.outcome.started_at, told.outcome.duration_ms, told.outcome.agent) == (AT, 5, "a")
    said = payload(told)
    assert (said["durationMs"], said["textChars"], said["truncated"]) == (5, 9_000, True)
    assert said["parts"] == [{"index": 1, "kind": "file", "name": "a.txt"}]


@pytest.mark.parametrize("at", [None, "yesterday", 5, "9999-12-31T23:59:59-14:00"])
def test_an_object_without_a_date_is_not_an_event(at: object) -> None:
    assert from_wire({"at": at, "topic": "hub.stopping"}) is None


def test_an_unknown_topic_is_kept_unchanged() -> None:
    event = from_wire({"at": "2026-03-01T12:00:00", "topic": "weather.changed", "payload": {"to": "rain"}}, seq=7)
    assert isinstance(event, OtherEvent)
    assert (event.seq, event.name, payload(event)) == (7, "weather.changed", {"to": "rain"})
    assert event.at == datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(("number", "read"), [(1, 1), (10**15 - 1, 10**15 - 1), (0, 7), (-1, 7), (10**15, 7), ("1", 7)])
def test_an_event_without_a_number_takes_that_of_its_place(number: object, read: int) -> None:
    event = from_wire({"at": AT, "topic": "hub.stopping", "seq": number}, seq=7)
    assert event is not None
    assert event.seq == read


@pytest.mark.parametrize(
    ("level", "read"), [("error", Level.ERROR), ("loud", Level.INFO), (5, Level.INFO), ([], Level.INFO)]
)
def test_an_unknown_level_is_read_as_info(level: object, read: Level) -> None:
    event = from_wire({"at": AT, "topic": "hub.stopping", "level": level})
    assert event is not None
    assert event.level is read


@pytest.mark.parametrize("nothing", ["", 5, None, ["a"]])
def test_a_name_that_is_not_a_text_is_read_as_empty(nothing: object) -> None:
    event = from_wire({"at": AT, "topic": "weather.changed", "task_id": nothing, "taskId": "t", "agent": nothing})
    assert event is not None
    assert (event.task_id, event.agent) == ("t", None)


@pytest.mark.parametrize(
    ("chars", "whole"), [(5, 5), (4, 4), (3, 4), (10**15 - 1, 10**15 - 1), (10**15, 4), ("5", 4), (None, 4)]
)
def test_a_plausible_length_of_a_text_is_kept(chars: object, whole: int) -> None:
    said = {"text": "four", "textChars": chars}
    event = from_wire({"at": AT, "topic": "agent.skill.request", "payload": said})
    assert isinstance(event, e.RequestAccepted)
    assert (event.text.text, event.text.chars) == ("four", whole)


def test_a_list_of_names_from_an_earlier_version_is_read_as_rows() -> None:
    event = from_wire({"at": AT, "topic": f.CeremoniesLoaded.TOPIC, "payload": {"ceremonies": ["a", {"id": "b"}, 5]}})
    assert isinstance(event, f.CeremoniesLoaded)
    assert event.ceremonies == ({"name": "a"}, {"id": "b"})


@pytest.mark.parametrize("said", ["2026-03-01T12:00:00", "2026-03-01T13:00:00+01:00"])
def test_every_date_in_a_recording_is_read_in_utc(said: str) -> None:
    event = from_wire({"at": AT, "topic": "ceremony.a.missed", "payload": {"scheduledAt": said}})
    assert isinstance(event, f.CeremonyMissed)
    assert event.scheduled_at is not None
    assert event.scheduled_at.isoformat() == "2026-03-01T12:00:00+00:00"


def test_every_field_of_a_file_is_read() -> None:
    noted = {"name": "a.txt", "mimeType": "text/plain", "sizeBytes": 4, "uri": "http://a.example/a", "truncated": True}
    said = {"parts": [{"index": 3, "kind": "file", **noted}]}
    event = from_wire({"at": AT, "topic": "agent.skill.request", "payload": said})
    assert isinstance(event, e.RequestAccepted)
    (part,) = event.parts
    assert (part.index, part.kind, part.name, part.media_type) == (3, "file", "a.txt", "text/plain")
    assert (part.size_bytes, part.uri, part.truncated) == (4, "http://a.example/a", True)


@pytest.mark.parametrize(("number", "read"), [(10**15 - 1, 10**15 - 1), (10**15, 0), (-(10**15), 0)])
def test_a_number_out_of_range_is_left_out(number: int, read: int) -> None:
    event = from_wire({"at": AT, "topic": "agent.breaker.opened", "payload": {"failures": number, "reason": "down"}})
    assert isinstance(event, f.BreakerOpened)
    assert event.failures == read


def test_members_of_a_wrong_type_are_left_out_one_by_one() -> None:
    said = {"failures": "many", "retryInSeconds": float("inf"), "reason": "it is down"}
    event = from_wire({"at": AT, "topic": "agent.breaker.opened", "payload": said})
    assert isinstance(event, f.BreakerOpened)
    assert (event.failures, event.retry_in_seconds, event.reason) == (0, 0, "it is down")


def test_a_journal_of_an_earlier_version_is_read() -> None:
    event = from_wire(
        {
            "seq": 3,
            "at": "2026-03-01T12:00:00.123456Z",
            "topic": "autonomous.outcome.ceremony.daily.summary",
            "level": "error",
            "correlation_id": "c",
            "parent_id": None,
            "agent": "a",
            "skill": "summary",
            "task_id": "t",
            "payload": {"kind": "failed", "success": False, "blame": "agent", "durationMs": 12, "systemActor": "c.d"},
        }
    )
    assert isinstance(event, OutcomeDecided)
    assert (event.correlation_id, event.task_id, event.level, event.at.microsecond) == ("c", "t", Level.ERROR, 123_456)
    assert (event.outcome.kind, event.system_actor, event.outcome.cause) == (OutcomeKind.FAILED, "c.d", None)


def test_a_ceremony_with_dots_in_its_id_is_written_under_its_whole_id() -> None:
    event = from_wire({"at": AT, "topic": "ceremony.a.b.execute", "payload": {"runId": "r"}})
    assert isinstance(event, f.CeremonyFired)
    assert event.ceremony_id == payload(event)["ceremonyId"] == "a.b", "journals of before have it in the topic alone"


@pytest.mark.parametrize(("said", "read"), [("a.b", "a.b"), (5, "b"), (None, "b")])
def test_the_id_of_a_ceremony_is_a_member_of_its_events(said: object, read: str) -> None:
    event = from_wire({"at": AT, "topic": "ceremony.b.execute", "payload": {"runId": "r", "ceremonyId": said}})
    assert isinstance(event, f.CeremonyFired)
    assert (event.ceremony_id, event.run_id) == (read, "r")


def test_a_retry_without_details_is_immediate_and_uncounted() -> None:
    assert payload(e.CallRetried(reason="x")) == {"attempt": 0, "inSeconds": 0, "reason": "x"}


@pytest.mark.parametrize(("size", "read"), [(10**9, 10**9), (10**15, None), ("9", None), (None, None)])
def test_the_size_of_a_file_in_a_recording_is_a_plausible_number(size: object, read: int | None) -> None:
    said = {"parts": [{"index": 2, "kind": "data", "sizeBytes": size}, "x", {"name": 5}]}
    event = from_wire({"at": AT, "topic": "agent.skill.request", "payload": said})
    assert isinstance(event, e.RequestAccepted)
    assert event.parts == (
        ListedPart(index=2, kind="data", size_bytes=read),
        ListedPart(index=2, kind="file"),
    )


def test_a_missing_member_of_a_recording_is_read_as_its_default() -> None:
    said: dict[str, object] = {}
    for kind in event_classes():
        event = from_wire({"at": AT, "topic": re.sub(r"{\w+}", "x", kind.TOPIC), "payload": {}})
        assert type(event) is kind
        assert (event.seq, event.level) == (0, Level.INFO)
        members = {f"{kind.__name__}.{key}": value for key, value in payload(event).items() if value}
        assert {name for name, value in members.items() if value == "x"} == {
            f"{kind.__name__}.{camel(name)}" for name in re.findall(r"{(\w+)}", kind.TOPIC) if name not in ENVELOPE
        }, "what stands in the topic"
        said |= {name: value for name, value in members.items() if value != "x"}
    assert said == {
        "OutcomeDecided.kind": "unknown",
        "OutcomeDecided.taskState": "unknown",
        "OutcomeDecided.startedAt": AT.isoformat(),
        "OutcomeDecided.endedAt": AT.isoformat(),
        "OutcomeDecided.blame": "nobody",
        "OutcomeDecided.via": "local",
        "QuestionAsked.checkpoint": 1,
        "CeremonySkipped.count": 1,
        "CeremonyMissed.count": 1,
        **{f"Ceremony{what}.catchUpWindow": 600 for what in ("Completed", "Late", "Missed", "Skipped")},
        "AlertCleared.delivered": True,
    }


def test_an_empty_value_is_left_out_or_null_as_its_member_requires() -> None:
    assert payload(e.StreamReceived(type="status", text=Excerpt())) == {"type": "status", "text": ""}
    assert payload(e.RequestAnswered(task_state="failed", context_id=None)) == {
        "taskState": "failed",
        "contextId": None,
    }
    outcome = payload(OutcomeDecided.of(make.outcome("c", text="")))
    assert {key for key, value in outcome.items() if value is None} >= {"cause", "agentMs", "usage", "model"}
    assert (outcome["text"], outcome["truncated"], outcome["textChars"]) == ("", False, 0), "its length always stands"
    told = payload(e.TaskMoved(state="working", previous=None, via="poll", text=Excerpt("whole", 5)))
    assert told == {"state": "working", "previous": None, "via": "poll", "text": "whole"}


def test_a_date_has_the_form_of_the_api_in_its_fields_and_microseconds_elsewhere() -> None:
    fired = f.CeremonyFired(
        ceremony_id="a", run_id="r", scheduled_at=AT, trigger="cron", targets=(), lateness_ms=0, next_fire_at=AT
    )
    assert (payload(fired)["scheduledAt"], payload(fired)["nextFireAt"]) == ("2026-03-01T12:00:00.250Z",) * 2
    asked = e.QuestionOverdue(question_id="q", question=Excerpt(), expires_at=AT)
    assert payload(asked)["expiresAt"] == "2026-03-01T12:00:00.250000+00:00"
    assert to_wire(asked) | {"payload": {}} == {
        "seq": 0,
        "at": "1970-01-01T00:00:00.000Z",
        "topic": "hitl.reminder.",
        "level": "warn",
        "correlationId": None,
        "parentId": None,
        "agent": None,
        "skill": None,
        "taskId": None,
        "payload": {},
    }


def test_an_outcome_read_back_has_a_name_and_a_time_that_the_recording_lacks() -> None:
    said = {"kind": "completed", "success": True, "durationMs": -5}
    event = from_wire({"seq": 9, "at": AT, "topic": "autonomous.outcome.user.echo", "payload": said})
    assert isinstance(event, OutcomeDecided)
    outcome = event.outcome
    assert (outcome.correlation_id, outcome.agent, outcome.duration_ms) == ("seq-9", "", 0)
    assert (outcome.started_at, outcome.ended_at) == (AT, AT)
    named = from_wire({"at": AT, "topic": "autonomous.outcome.user.echo", "agent": "a", "skill": "s", "payload": said})
    assert isinstance(named, OutcomeDecided)
    assert (named.outcome.agent, named.outcome.skill) == ("a", "s")


def test_lists_and_topics_of_a_recording_are_read_up_to_a_limit() -> None:
    said = {"ceremonies": [{"id": n} for n in range(10_001)]}
    event = from_wire({"at": AT, "topic": "ceremony.loaded", "payload": said})
    assert isinstance(event, f.CeremoniesLoaded)
    assert (len(event.ceremonies), event.ceremonies[-1]) == (10_000, {"id": 9_999})
    other = from_wire({"at": AT, "topic": "x" * 301})
    assert isinstance(other, OtherEvent)
    assert other.name == "x" * 300
