"""The view: a pure fold of events."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fleetsim.api.answers import ChannelRow, SinkRow
from fleetsim.api.health import HealthWord
from fleetsim.api.state import HubState
from fleetsim.dashboard.screens.fleet import needs
from fleetsim.dashboard.view import EVENTS_MAX, View, ViewBuilder
from fleetsim.dashboard.view_tasks import LIVE_CHARS_MAX, TASKS_MAX
from fleetsim.events.fleet import StateRead
from fleetsim.events.request import Event, Level, OutcomeDecided
from fleetsim.events.wire import event_classes
from fleetsim.health.webhooks import PushState
from fleetsim.hub.rows import outcome_row
from fleetsim.hub.schemas import payload_model
from fleetsim.model.extensions import Usage
from fleetsim.recording.events import AgentHealthSample, HealthLooked
from tests.dashboard.driver import detail, fold_view
from tests.dashboard.journal import NOW, Journal, an_hour, flood
from tests.recorded import recorded
from tests.scale import scaled


def journal() -> Journal:
    return Journal(start=NOW)


def view(j: Journal) -> View:
    return fold_view(j.events, j.at)


def runs(j: Journal, agent: str, good: int, bad: int) -> None:
    j.card(agent, "0.3", ("echo",))
    for n in range(good + bad):
        about = j.request(agent, "echo")
        j.bind(about)
        j.end(about, "completed" if n < good else "failed")


def test_agents_are_listed_worst_first_by_the_hubs_words() -> None:
    j = journal()
    words = {"healthy": "up", "odd": "no such word", "young": "too few", "broken": "down", "limping": "degraded"}
    j.say("config.loaded", agents=[*words, "new"], path="agents.yaml")
    for name, word in words.items():
        j.health(name, word, "because")
    rows = view(j).agents
    assert [(row.name, row.health) for row in rows] == [
        ("broken", HealthWord.DOWN),
        ("limping", HealthWord.DEGRADED),
        ("young", HealthWord.TOO_FEW),
        ("new", HealthWord.UNKNOWN),
        ("odd", HealthWord.UNKNOWN),
        ("healthy", HealthWord.UP),
    ]
    assert (rows[0].why, rows[0].since, rows[2].since) == ("because", j.at, None)


def test_a_second_outcome_of_one_request_changes_nothing() -> None:
    j = journal()
    about = j.request("quinn", "echo")
    j.end(about)
    j.end(about, "failed")
    seen = view(j)
    assert [task.state for task in seen.tasks] == ["completed"]
    assert seen.agents[0].figures.total_outcomes == 1
    assert len(seen.recent) == 1


def test_a_task_that_fell_back_belongs_to_the_agent_that_got_it() -> None:
    j = journal()
    about = j.request("quinn", "review")
    j.bind(about | {"agent": "ava"})
    assert [task.agent for task in view(j).tasks] == ["ava"]


def test_an_agent_that_left_the_file_leaves_the_screen() -> None:
    j = journal()
    j.say("config.loaded", agents=["a", "b"], path="agents.yaml")
    j.say("config.loaded", agents=["b"], path="agents.yaml")
    assert [row.name for row in view(j).agents] == ["b"]


def test_a_paused_agent_is_last() -> None:
    j = journal()
    j.say("config.loaded", agents=[{"name": "off", "enabled": False}, {"name": "on", "url": "http://h"}], path="x")
    j.health("off", "paused", "not enabled in agents.yaml")
    rows = view(j).agents
    assert [(row.name, row.health) for row in rows] == [("on", HealthWord.UNKNOWN), ("off", HealthWord.PAUSED)]


def test_a_reloaded_file_changes_the_agents_and_keeps_the_facts_of_the_others() -> None:
    j = journal()
    j.say("config.loaded", agents=[{"name": n, "url": f"http://{n}"} for n in ("a", "b", "c")], path="agents.yaml")
    for name in ("a", "b"):
        j.card(name, "0.3", ("echo",))
        j.health(name, "up")
    j.say("config.rejected", Level.WARN, path="agents.yaml", error="agents.yaml:7:9 unknown key")
    facts = [
        {"name": "a", "url": "http://a"},
        {"name": "b", "url": "http://moved"},
        {"name": "d", "enabled": False, "why": "its credential D_KEY is not set"},
    ]
    j.say(
        "config.reloaded",
        Level.WARN,
        path="agents.yaml",
        agents=facts,
        added=["d"],
        changed=["b"],
        removed=["c"],
        warnings=["D_KEY is not set; d is disabled"],
    )
    seen = view(j)
    rows = {row.name: row for row in seen.agents}
    assert sorted(rows) == ["a", "b", "d"]
    assert (rows["a"].health, rows["b"].health) == (HealthWord.UP, HealthWord.UP)
    assert rows["b"].card.url == "http://moved"
    assert seen.config_error == ""
    assert "D_KEY is not set; d is disabled" in [notice.text for notice in seen.notices]


def test_a_failed_refresh_keeps_the_row_and_marks_it_stale() -> None:
    j = journal()
    j.card("quinn", "0.3", ("echo",))
    j.later(240)
    j.say("agent.card.failed", agent="quinn", reason="connection refused", stale=True)
    (row,) = view(j).agents
    assert row.stale_since == NOW
    assert row.card.skills == ("echo",)
    j.card("quinn", "0.3", ("echo",))
    assert view(j).agents[0].stale_since is None


def test_an_open_breaker_names_the_next_attempt_until_it_closes() -> None:
    j = journal()
    j.card("quinn", "0.3", ("echo",))
    j.say("agent.breaker.opened", agent="quinn", failures=5, retryInSeconds=30, reason="connection refused")
    (row,) = view(j).agents
    assert row.breaker_until == NOW + timedelta(seconds=30)
    j.say("agent.breaker.closed", agent="quinn")
    assert view(j).agents[0].breaker_until is None


def test_a_restart_forgets_the_words_of_the_previous_run_and_keeps_the_figures() -> None:
    j = journal()
    runs(j, "quinn", 6, 0)
    j.health("quinn", "down", "connection refused")
    j.say("config.loaded", agents=["quinn"], path="agents.yaml")
    (row,) = view(j).agents
    assert (row.health, row.why, row.since) == (HealthWord.UNKNOWN, "", None)
    assert row.figures.success_count == 6


def test_push_states_follow_the_webhooks() -> None:
    j = journal()
    j.card("quinn", "0.3", ("echo",), pushNotifications=False)
    assert view(j).agents[0].push is PushState.POLLED
    j.card("quinn", "0.3", ("echo",))
    j.say("agent.push.registered", agent="quinn")
    assert view(j).agents[0].push is PushState.REGISTERED
    j.say("agent.push.accepted", agent="quinn", duplicate=False)
    j.say("agent.push.accepted", agent="quinn", duplicate=True)
    j.say("agent.push.rejected", why="token mismatch")
    seen = view(j)
    assert seen.agents[0].push is PushState.WORKING
    assert (seen.counters.push_ok, seen.counters.push_again, seen.counters.push_refused) == (1, 1, 1)
    j.say("agent.push.degraded", agent="quinn", why="silent")
    assert view(j).agents[0].push is PushState.SILENT
    j.say("agent.push.degraded", agent="quinn", why="no loopback addresses", refused=True)
    j.card("quinn", "0.3", ("echo",))
    row = view(j).agents[0]
    assert (row.push, row.health) == (PushState.POLLED, HealthWord.UNKNOWN), "the agent is well"


def test_outcomes_leave_the_figures_after_a_day() -> None:
    j = journal()
    runs(j, "quinn", 6, 0)
    builder = ViewBuilder()
    builder.fold_all(j.events)
    assert builder.snapshot(NOW + timedelta(hours=23)).agents[0].figures.total_outcomes == 6
    late = builder.snapshot(NOW + timedelta(hours=24, seconds=1))
    assert late.agents[0].figures.total_outcomes == 0
    assert late.counters.figures.total_outcomes == 0


def test_a_timeline_is_the_same_if_the_hubs_state_had_the_end_already() -> None:
    j = journal()
    about = j.request("quinn", "echo")
    j.bind(about, via="stream")
    for state in ("submitted", "working", "working"):
        j.update(about, state, via="stream")
    j.end(about, endedAt=j.at.isoformat())
    ended = next(event for event in j.events if isinstance(event, OutcomeDecided))
    row = replace(outcome_row(ended.outcome), ended_at=ended.at.isoformat())
    builder = ViewBuilder()
    builder.fold_all([StateRead.of(HubState(seq=0, at=NOW, recent=(row,))), *j.events])
    found = builder.detail(about["correlation_id"])
    assert found is not None
    told = [(step.arrow, step.state) for step in found.steps]
    assert told == [(step.arrow, step.state) for step in detail(j, about).steps]
    assert [state for _, state in told] == ["", "submitted", "working", "completed"]


def test_text_of_a_stream_grows_and_a_whole_artifact_replaces_it() -> None:
    j = journal()
    about = j.request("quinn", "echo", text="go")
    j.bind(about)
    j.chunk(about, "one ", append=False)
    j.chunk(about, "two")
    seen = detail(j, about)
    assert (seen.text, [turn.text for turn in seen.turns], seen.row.open) == ("one two", ["go"], True)
    j.chunk(about, "one two three", append=False)
    assert detail(j, about).text == "one two three"


def test_a_snapshot_in_a_stream_is_continued_by_the_chunks_after_it() -> None:
    j = journal()
    about = j.request("quinn", "echo")
    j.say("agent.chat.inbound", **about, type="task", text="so far", state="working")
    j.chunk(about, " and on")
    assert detail(j, about).text == "so far and on"


def test_text_of_a_polled_task_is_that_of_the_last_poll() -> None:
    j = journal()
    about = j.request("quinn", "echo")
    j.bind(about)
    j.update(about, "working", "half", via="poll")
    j.update(about, "working", "half and more", via="poll")
    assert detail(j, about).text == "half and more"


def test_the_final_text_replaces_the_live_text() -> None:
    j = journal()
    about = j.request("quinn", "echo")
    j.chunk(about, "draft")
    j.end(about, text="the answer", usage=Usage(input_tokens=3, output_tokens=4))
    seen = detail(j, about)
    assert (seen.text, seen.row.open, seen.row.tokens) == ("the answer", False, (3, 4))


def test_live_text_keeps_its_newest_part_only() -> None:
    j = journal()
    about = j.request("quinn", "echo")
    for n in range(400):
        j.chunk(about, f"{n:04d}" * 100)
    text = detail(j, about).text
    assert len(text) <= LIVE_CHARS_MAX
    assert text.endswith("0399")


def test_the_same_attempt_in_another_form_is_not_counted_as_one_more() -> None:
    j = journal()
    about = j.request("quinn", "echo")
    j.say("agent.skill.retry", **about, attempt=0, inSeconds=0, reason="refused with -32004: trying without a stream")
    assert view(j).tasks[0].attempt == 1
    j.say("agent.skill.retry", **about, attempt=2, inSeconds=3, reason="HTTP 503")
    assert view(j).tasks[0].attempt == 2


def test_a_task_that_is_no_longer_polled_gives_the_reason() -> None:
    j = journal()
    about = j.request("quinn", "echo")
    j.say("agent.poll.stopped", **about, why="the task cannot be read: too large", answers=3)
    (row,) = view(j).tasks
    assert row.last == "polling stopped: the task cannot be read: too large"


def test_an_unknown_state_is_kept_unchanged() -> None:
    j = journal()
    about = j.request("quinn", "echo")
    j.update(about, "pondering")
    assert view(j).tasks[0].state == "pondering"


def test_a_request_that_was_expanded_is_not_a_task() -> None:
    j = journal()
    parent = j.request("", "sitrep")
    for agent in ("a", "b"):
        child = j.request(agent, "sitrep")
        j.say(
            "agent.skill.dispatched",
            **child,
            parent_id=parent["correlation_id"],
            task_id="t-" + agent,
            state="submitted",
        )
    assert sorted(task.agent for task in view(j).tasks) == ["a", "b"]


def test_tasks_that_wait_for_a_person_come_first_and_the_longest_waiting_at_the_top() -> None:
    j = journal()
    done = j.request("a", "echo")
    j.end(done)
    queued = j.request("b", "echo")
    working = j.request("c", "echo")
    j.update(working, "working")
    first, second = j.request("d", "echo"), j.request("e", "echo")
    j.ask(first, "which?")
    j.later(5)
    j.ask(second, "what?")
    expected = [about["correlation_id"] for about in (first, second, working, queued, done)]
    assert [task.correlation_id for task in view(j).tasks] == expected


def test_a_question_opens_and_is_settled_by_its_answer() -> None:
    j = journal()
    about = j.request("quinn", "echo")
    key = j.ask(about, "which branch?")
    seen = view(j)
    assert [(q.question_id, q.text, q.decision) for q in seen.questions] == [(key, "which branch?", "")]
    assert seen.counters.waiting == 1
    assert (seen.agents[0].running, seen.agents[0].waiting) == (0, 1)
    j.answered(about, key, by="ava")
    seen = view(j)
    assert seen.questions == ()
    assert [(q.decision, q.by) for q in seen.settled] == [("answer", "ava")]


@pytest.mark.parametrize(
    ("topic", "decision"), [("hitl.expired.", "expired"), ("hitl.withdrawn.", "withdrawn"), ("autonomous", "withdrawn")]
)
def test_an_expired_question_does_not_stay_open(topic: str, decision: str) -> None:
    j = journal()
    about = j.request("quinn", "echo")
    key = j.ask(about, "which?")
    if topic == "autonomous":
        j.end(about, "canceled")
    else:
        j.say(topic + about["correlation_id"], correlation_id=about["correlation_id"], questionId=key)
    seen = view(j)
    assert seen.questions == ()
    assert [q.decision for q in seen.settled] == [decision]


def test_a_ceremony_tells_its_next_fire_its_last_run_and_its_history() -> None:
    j = journal()
    facts = {"id": "a.b", "name": "A", "schedule": "0 14 * * *", "skill": "echo", "targets": ["quinn"]}
    j.say("ceremony.loaded", ceremonies=[{**facts, "nextFireAt": "2026-11-21T14:00:00Z"}], errors=[])
    (row,) = view(j).ceremonies
    assert row.next_at is not None
    assert (row.next_at.hour, row.last, row.running) == (14, None, None)
    j.say("ceremony.a.b.execute", runId="r1", scheduledAt=j.at.isoformat(), trigger="cron", latenessMs=4)
    (row,) = view(j).ceremonies
    assert row.running is not None
    j.later(2)
    j.say("ceremony.a.b.completed", runId="r1", status="failure", durationMs=2000, error="no", correlationIds=["c"])
    j.say("ceremony.a.b.skipped", scheduledAt=j.at.isoformat(), why="overlap: the run before", count=1)
    j.say("ceremony.a.b.skipped", scheduledAt=j.at.isoformat(), why="missed: too late", count=3)
    seen = view(j)
    (row,) = seen.ceremonies
    assert [run.status for run in row.runs] == ["missed", "skipped", "failure"]
    assert (row.ok, row.failed, seen.counters.missed, seen.counters.skipped) == (0, 1, 3, 1)


def test_a_ceremony_that_left_the_folder_leaves_the_screen_and_a_broken_file_is_a_row() -> None:
    j = journal()
    j.say("ceremony.loaded", ceremonies=[{"id": "a"}, {"id": "b"}], errors=[])
    j.say("config.rejected", path="ceremonies/a.yaml", error="a.yaml:2:11 hour 25")
    assert view(j).config_error
    j.say("ceremony.loaded", ceremonies=[{"id": "b"}], errors=[{"path": "ceremonies/a.yaml", "error": "hour 25"}])
    seen = view(j)
    assert [(row.ceremony_id, row.error) for row in seen.ceremonies] == [("b", ""), ("error-0", "hour 25")]
    assert seen.config_error == ""


def test_a_target_without_an_able_agent_is_noticed_once() -> None:
    j = journal()
    doubted = {"id": "a", "targets": ["quin"], "warnings": ["unknown agent “quin”"]}
    j.say("ceremony.loaded", ceremonies=[doubted], errors=[])
    j.say("ceremony.loaded", ceremonies=[doubted, {"id": "b"}], errors=[])
    seen = view(j)
    assert [(notice.about, notice.text) for notice in seen.notices] == [("a", "unknown agent “quin”")]
    assert [row.warnings for row in seen.ceremonies] == [("unknown agent “quin”",), ()]
    j.say("ceremony.loaded", ceremonies=[{"id": "a", "warnings": []}], errors=[])
    assert [row.warnings for row in view(j).ceremonies] == [()]


def test_a_rejected_file_is_shown_until_it_loads() -> None:
    j = journal()
    j.say("config.rejected", Level.ERROR, path="agents.yaml", error="agents.yaml:7:9 unknown key")
    assert view(j).config_error == "agents.yaml:7:9 unknown key"
    j.say("config.loaded", agents=["quinn"], path="agents.yaml")
    assert view(j).config_error == ""


def test_a_trouble_of_the_hubs_state_needs_a_person_until_a_later_state_has_none() -> None:
    sink = SinkRow(sink="ops", kind="webhook", failing_since=NOW, last_error="HTTP 503")
    facts: dict[str, Any] = {
        "rejected": ("agent-keys.yaml:3: quinn has no key",),
        "limits": (("quinn", "requests_per_s"),),
        "channels": (ChannelRow(id="people", agents=(), sinks=(sink,)),),
    }
    builder = ViewBuilder()
    builder.fold(StateRead.of(HubState(seq=0, at=NOW, **facts)))
    shown = [row.plain for row in needs(builder.snapshot(NOW))]
    for word in ("agent-keys.yaml:3", "requests_per_s", "HTTP 503"):
        assert sum(word in row for row in shown) == 1
    builder.fold(StateRead.of(HubState(seq=0, at=NOW), whole=False))
    assert needs(builder.snapshot(NOW)) == []


def test_a_changed_card_and_a_warning_are_noticed_once() -> None:
    j = journal()
    j.card("quinn", "0.3", ("a",), warnings=["advertises another host"])
    j.card("quinn", "0.3", ("a", "b"), warnings=["advertises another host"], changed=["skills +1 (b)"])
    assert [notice.text for notice in view(j).notices] == ["card changed", "advertises another host"]


def test_a_reason_does_not_begin_with_the_address_of_its_agent() -> None:
    j = journal()
    j.card("quinn", "0.3", ("a",), url="https://quinn.example")
    j.say("agent.card.failed", agent="quinn", reason="quinn.example:443: TLS failed: certificate has expired")
    j.health("quinn", "down", why="quinn.example:443 through the proxy p:1: connection refused")
    (row,) = view(j).agents
    assert (row.card.error, row.why) == (
        "TLS failed: certificate has expired",
        "through the proxy p:1: connection refused",
    )
    j.health("quinn", "down", why="other.example:443: the name does not resolve")
    assert view(j).agents[0].why.startswith("other.example")


def test_errors_of_the_last_five_minutes_are_counted() -> None:
    j = journal()
    j.end(j.request("quinn", "echo"), "failed")
    j.say("hub.storage", Level.ERROR, reason="disk full")
    j.end(j.request("quinn", "echo"), "canceled")
    builder = ViewBuilder()
    builder.fold_all(j.events)
    assert builder.snapshot(NOW + timedelta(minutes=5)).counters.errors_5m == 3
    assert builder.snapshot(NOW + timedelta(minutes=5, seconds=1)).counters.errors_5m == 0


@pytest.mark.slow
def test_the_lists_are_bounded() -> None:
    builder = ViewBuilder()
    builder.fold_all(flood(EVENTS_MAX + 2_000))
    seen = builder.snapshot(NOW)
    assert len(seen.events) == EVENTS_MAX
    assert seen.events[-1].seq == EVENTS_MAX + 2_000
    assert seen.counters.events == EVENTS_MAX + 2_000
    many = ViewBuilder()
    for n in range(TASKS_MAX + 500):
        many.fold(recorded("agent.skill.request", seq=n, at=NOW, correlation_id=str(n)))
    assert len(many.snapshot(NOW).tasks) == TASKS_MAX


@pytest.mark.slow
def test_an_hour_replayed_in_any_batches_gives_the_same_view() -> None:
    events = an_hour()
    whole = fold_view(events, NOW)
    builder = ViewBuilder()
    for at in range(0, len(events), 37):
        builder.fold_all(events[at : at + 37])
        builder.snapshot(events[min(at + 36, len(events) - 1)].at)
    assert builder.snapshot(NOW) == whole


@pytest.mark.slow
def test_folding_ten_thousand_events_a_second_leaves_most_of_a_processor_free() -> None:
    events = list(flood(20_000))
    builder = ViewBuilder()
    began = time.process_time()
    for at in range(0, len(events), 1_250):
        builder.fold_all(events[at : at + 1_250])
        builder.snapshot(events[at].at)
    assert time.process_time() - began < 2.0  # two seconds of events, eight draws in each


PAYLOAD = st.dictionaries(
    st.sampled_from(sorted({key for kind in event_classes() for key in payload_model(kind).model_fields})),
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20) | st.just("2026-11-21T14:00:00"),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=8,
)
NAMES = st.none() | st.sampled_from(("a", "b", "\x1b[31m", ""))


@pytest.mark.slow
@given(
    st.lists(
        st.builds(
            recorded,
            st.sampled_from([re.sub(r"{\w+}", "a", kind.TOPIC) for kind in event_classes()]),
            PAYLOAD,
            seq=st.integers(0, 50),
            at=st.just(NOW),
            level=st.sampled_from(Level),
            correlation_id=NAMES,
            parent_id=NAMES,
            agent=NAMES,
            skill=NAMES,
            task_id=NAMES,
        ),
        max_size=12,
    )
)
@settings(max_examples=scaled(100), deadline=None)
def test_no_payload_breaks_the_fold(events: list[Event]) -> None:
    builder = ViewBuilder()
    builder.fold_all(events)
    builder.detail("a"), builder.detail("b")
    seen = builder.snapshot(NOW)
    assert seen.counters.events == len(events)
    assert len(seen.events) == len(events)


@pytest.mark.slow
def test_the_view_needs_no_textual_and_no_event_loop() -> None:
    pure = "view feed controls query text"
    code = (
        f"import sys, {', '.join('fleetsim.dashboard.' + name for name in pure.split())}\n"
        "assert not [m for m in sys.modules if m.split('.')[0] == 'textual'], 'textual was imported'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def six_rejections() -> Journal:
    j = journal()
    j.card("quinn", "0.3", ("echo",))
    for _ in range(6):
        j.end(j.request("quinn", "echo"))
    for _ in range(6):
        j.end(j.request("quinn", "echo"), "canceled", blame="human", cause="rejected_by_person", reason="rejected")
    return j


def test_rejections_by_people_are_not_runs_of_the_agent() -> None:
    (row,) = view(six_rejections()).agents
    assert (row.figures.success_rate, row.figures.beside_counts) == (1.0, {"human": 6})
    assert sum(runs for _, runs in row.trend) == 6


def test_words_that_a_recording_has_beside_its_events_are_shown() -> None:
    j = journal()
    j.card("quinn", "0.3", ("echo",))
    builder = ViewBuilder()
    agents = {
        "quinn": AgentHealthSample(health="degraded", outcomes=1),
        "gone": AgentHealthSample(health="up", outcomes=1),
    }
    builder.fold_all([*j.events, HealthLooked(at=NOW, now=NOW, agents=agents)])
    (row,) = builder.snapshot(NOW).agents
    assert (row.name, row.health) == ("quinn", HealthWord.DEGRADED)


def test_latencies_on_the_screen_are_of_the_agents_own_time() -> None:
    j = journal()
    j.end(j.request("quinn", "echo"), ms=3_600_000, agentMs=900)
    assert view(j).agents[0].figures.p95_latency_ms == 900
