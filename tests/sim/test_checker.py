"""The checker of a run: it finds planted violations, and none in a sound run."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from functools import cache
from typing import Any

import pytest

from fleetsim.events.request import OutcomeDecided, PollingStopped, TaskMoved
from fleetsim.events.wire import from_wire
from fleetsim.health.fleet_health import FleetHealth
from fleetsim.sim.invariants import INVARIANTS, verdicts
from fleetsim.sim.run import Run
from fleetsim.sim.scenario import START
from fleetsim.sim.seeds import Coverage, run_seed
from fleetsim.sim.troubles import KINDS, OF_SEVERAL_HUBS, Trouble
from tests.scale import scaled
from tests.sim.planted import CANARIES, CEREMONIES, STORM, Planted, look_for
from tests.sim.scenes import recorded, run_of, scenario

DIGEST = """
from tests.sim.planted import CEREMONIES, STORM
from tests.sim.scenes import run_of, scenario
text = STORM.decode().replace("20m", "3m")
print(run_of(scenario(text, seed={seed}), CEREMONIES)[1])
"""
ROUNDS = {"digest.yaml": b"id: digest\nname: d\nschedule: '* * * * *'\nskill: sitrep\ntargets: [herald]\n"}


@cache
def calm() -> tuple[dict[str, Any], ...]:
    """A quarter of an hour in which people forge webhooks and edit files, and nothing fails."""
    faults = ("forged-webhooks", "ceremony-edits")
    weather = [Trouble.model_validate({"fault": fault, "at": "1m", "lasts": "10m"}) for fault in faults]
    return tuple(run_of(scenario(duration=900.0, weather=weather), ROUNDS)[0])


def broken(lines: list[dict[str, Any]]) -> set[str]:
    return {verdict.invariant.number for verdict in verdicts(Run.of(recorded(lines))) if verdict.violations}


def with_lines(*more: dict[str, Any]) -> list[dict[str, Any]]:
    """The calm run with further lines, each in its place by time."""
    return sorted([dict(line) for line in calm()] + list(more), key=lambda line: float(line["t"]))


def calls(method: str) -> list[dict[str, Any]]:
    return [dict(line) for line in calm() if line["kind"] == "call" and line["method"] == method]


@pytest.mark.parametrize("known", [True, False], ids=["known", "never learned of"])
def test_a_late_end_is_allowed_only_if_the_hub_never_learned_of_the_task(known: bool) -> None:
    lines = with_lines()
    correlation_id = next(line["correlation_id"] for line in lines if line["kind"] == "task")
    for line in lines:
        if line["kind"] == "event" and line["type"] == "OutcomeDecided":
            line["t"] += 4_000 * (line["event"]["correlationId"] == correlation_id)
        if line["kind"] == "outcome" and line["correlation_id"] == correlation_id and not known:
            line["task_id"] = None
    assert ("I-14" in broken(sorted(lines, key=lambda line: float(line["t"])))) is known


@pytest.mark.slow
def test_a_calm_run_breaks_no_rule_and_uses_every_kind_of_line() -> None:
    found = {verdict.invariant.number: verdict for verdict in verdicts(Run.of(recorded(calm())))}
    assert broken([dict(line) for line in calm()]) == set()
    # The missing kinds need trouble, or a run that is played twice.
    without = {number for number, verdict in found.items() if not verdict.cases}
    assert without <= {"I-13", "I-25", "I-30", "I-33", "I-35", "I-36"}
    assert found["I-08"].cases > 10
    assert found["I-07"].cases > 5


@pytest.mark.slow
def test_an_accepted_forged_webhook_is_found() -> None:
    assert broken(with_lines({"t": 400.0, "kind": "forged", "how": "no token", "status": 200})) == {"I-08"}


@pytest.mark.slow
def test_an_outcome_recorded_after_the_health_look_that_counts_it_is_no_violation() -> None:
    lines = [dict(line) for line in calm()]
    looked = next(n for n, line in enumerate(lines) if line["kind"] == "health" and line["agents"]["quinn"]["outcomes"])
    look = lines[looked]
    told = next(n for n in range(looked, 0, -1) if lines[n].get("type") == "OutcomeDecided")
    late = {**lines[told], "t": look["t"] + 0.001}
    lines[looked], lines[told] = look, late
    lines.insert(looked, lines.pop(told))
    lines.sort(key=lambda line: float(line["t"]))
    assert broken(lines) - {"I-22"} == set()
    lines[lines.index(look)] = {**look, "seq": 0}
    assert "I-05" in broken(lines)


@pytest.mark.slow
@pytest.mark.parametrize(("later", "counted"), [(timedelta(), 1), (timedelta(microseconds=1), 0)])
def test_an_outcome_of_exactly_a_day_counts_for_hub_and_checker_and_an_older_one_for_neither(
    later: timedelta, counted: int
) -> None:
    told = [from_wire(line["event"]) for line in calm() if line.get("type") == "OutcomeDecided"]
    last = [event.outcome for event in told if isinstance(event, OutcomeDecided) and event.outcome.agent == "quinn"][-1]
    health = FleetHealth()
    health.fold(last)
    now = last.ended_at + timedelta(days=1) + later
    assert health.snapshot(now).total_outcomes == counted
    look = {"kind": "health", "t": 99_999.0, "seq": 10**9, "now": now.isoformat()}
    agents = [{"quinn": {"health": "up", "outcomes": outcomes}} for outcomes in (counted, 1 - counted)]
    assert broken(with_lines({**look, "agents": agents[0]})) == set()
    assert broken(with_lines({**look, "agents": agents[1]})) == {"I-05"}


@pytest.mark.slow
def test_two_polls_of_one_task_at_once_are_found() -> None:
    look = calls("tasks/get")[0]
    assert broken(with_lines({**look, "t": look["t"] + 5.0}, {**look, "t": look["t"] + 6.0})) == {"I-10"}


@pytest.mark.slow
def test_a_known_task_without_polls_is_found_unless_the_hub_reported_that_it_stopped() -> None:
    task = next(dict(line) for line in calm() if line["kind"] == "task")
    task |= {
        "task_id": "forgotten",
        "correlation_id": "forgotten",
        "begun_s": 5_000.0,
        "ended_s": 9_000.0,
        "t": 9_000.0,
    }
    at = (START + timedelta(seconds=5_000)).isoformat()
    event = {"seq": 10**6, "at": at, "correlationId": "forgotten", "agent": task["agent"], "taskId": "forgotten"}
    moved = {"t": 5_000.0, "kind": "event", "type": "TaskMoved", "event": {**event, "topic": TaskMoved.TOPIC}}
    stopped = {**moved, "t": 5_001.0, "type": "PollingStopped", "event": {**event, "topic": PollingStopped.TOPIC}}
    assert "I-13" in broken(with_lines(task, moved))
    assert "I-13" not in broken(with_lines(task, moved, stopped))
    assert "I-13" not in broken(with_lines(task))  # the hub never learned of this task


@pytest.mark.slow
def test_notices_out_of_order_repeated_or_of_another_end_are_found() -> None:
    notice = next(call for call in calls("webhook") if call["state"] == "completed" and call["source"] == "quinn")
    later = {**notice, "t": notice["t"] + 1.0, "began_s": notice["began_s"] + 1.0}
    assert broken(with_lines(later)) == {"I-18"}
    assert broken(with_lines({**later, "state": "working", "body": "another"})) == {"I-18"}
    assert broken(with_lines({**later, "state": "failed", "body": "another"})) == {"I-18"}
    assert broken(with_lines({**later, "body": "another"})) == {"I-18"}


@pytest.mark.slow
def test_an_end_without_a_notice_is_found_unless_the_hub_accepted_none_lately() -> None:
    end = next(call for call in calls("webhook") if call["state"] == "completed" and call["source"] == "quinn")
    others = [dict(line) for line in calm() if line != end]
    assert broken(others) == {"I-18"}
    refused = {**end, "t": end["t"] - 60.0, "began_s": end["began_s"] - 60.0, "status": None, "error": "ConnectionLost"}
    lately = sorted([*others, {**refused, "task_id": "of another", "door": "another"}], key=lambda line: line["t"])
    assert "I-18" not in broken(lately)


@pytest.mark.slow
def test_a_refused_genuine_webhook_is_found_unless_its_keys_are_two_epochs_old() -> None:
    notice = next(call for call in calls("webhook") if call["state"] == "completed" and call["source"] == "quinn")
    lines = [{**line, "status": 401} if dict(line) == notice else dict(line) for line in calm()]
    changed = {"kind": "trouble", "fault": "new-webhook-keys", "agent": None, "said": "", "t": 1.0, "phase": "begins"}
    assert "I-32" in broken(lines)
    assert "I-32" in broken([lines[0], changed, *lines[1:]])
    assert "I-32" not in broken([lines[0], changed, changed, *lines[1:]])


@pytest.mark.slow
def test_a_ceremony_that_fires_off_its_schedule_is_found() -> None:
    fired = next(dict(line) for line in calm() if line.get("type") == "CeremonyFired")
    payload = {**fired["event"]["payload"]}
    payload["scheduledAt"] = payload["scheduledAt"].replace(":00.000Z", ":30.000Z")
    wrong = {**fired, "event": {**fired["event"], "payload": payload}}
    assert broken([wrong if dict(line) == fired else dict(line) for line in calm()]) == {"I-31"}


@pytest.mark.slow
def test_an_accepted_request_without_a_record_is_found() -> None:
    assert broken(with_lines({"t": 400.0, "kind": "submitted", "correlation_id": "nobody"})) == {"I-22"}


@pytest.mark.slow
def test_a_webhook_accepted_while_the_disk_was_full_is_found() -> None:
    notice = next(call for call in calls("webhook") if call["state"] == "working")
    full = {"kind": "trouble", "fault": "disk-full", "agent": None, "said": ""}
    before, after = {**full, "t": notice["t"], "phase": "begins"}, {**full, "t": notice["t"], "phase": "ends"}
    lines = [dict(line) for line in calm()]
    at = lines.index(notice)
    assert broken([*lines[:at], before, notice, after, *lines[at + 1 :]]) == {"I-22"}


@pytest.mark.slow
def test_a_response_with_500_is_found() -> None:
    look = calls("tasks/get")[0]
    lines = [{**line, "status": 500} if dict(line) == look else dict(line) for line in calm()]
    assert "I-23" in broken(lines)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ({"kind": "repeated", "webhooks": 3, "changed": ["x"]}, "I-09"),
        ({"kind": "kept", "hub": {"tracks": 400}, "agents": {}}, "I-15"),
        ({"kind": "kept", "hub": {}, "agents": {"quinn": {"tasks": 3, "open": 1, "oldest_s": 90_000.0}}}, "I-20"),
        ({"kind": "ledger", "damage": "row 1 is not what was written"}, "I-21"),
        ({"kind": "late", "seconds": 2.0, "stalled": 1.0}, "I-30"),
        ({"kind": "keys", "carried": 9, "strayed": ["the key of quinn was sent to herald"]}, "I-16"),
        ({"kind": "played", "source": "x", "digest": "a", "again": "b", "wall_s": 0.0, "cpu_s": 0.0}, "I-25"),
    ],
)
def test_a_line_that_shows_a_violation_is_found(line: dict[str, Any], rule: str) -> None:
    assert broken(with_lines({"t": 99_999.0, **line})) == {rule}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stalled_s", "cause", "found"),
    [
        (1.5, "task_deadline", True),
        (0.9, "task_deadline", False),
        (4.0, "cancel_unconfirmed", True),  # asked for 30 s before the stall's first second
        (4.5, "cancel_unconfirmed", False),  # and here before its last
    ],
)
def test_a_request_that_expired_because_of_a_stall_is_found_unless_the_stall_was_short(
    stalled_s: float, cause: str, found: bool
) -> None:
    decided = next(dict(line) for line in calm() if line.get("type") == "OutcomeDecided")
    expired = {**decided["event"]["payload"], "kind": "expired", "cause": cause}
    stall = {"kind": "trouble", "fault": "stall", "agent": None, "said": ""}
    asked_s = decided["t"] - 30.0 - (3.0 if found else 0.5)
    cancel = {**calls("tasks/get")[0], "method": "tasks/cancel", "task_id": decided["event"]["taskId"]}
    start, *rest = calm()
    lines: list[dict[str, Any]] = [start, {**cancel, "t": asked_s, "began_s": asked_s}]
    for line in rest:
        if dict(line) == decided:
            lines.append({**stall, "t": line["t"] - stalled_s, "phase": "begins"})
            lines.append({**stall, "t": line["t"], "phase": "ends"})
            line = {**line, "event": {**line["event"], "payload": expired}}
        lines.append(dict(line))
    assert ("I-30" in broken(lines)) is found


@pytest.mark.slow
def test_processes_with_other_hash_seeds_play_the_same_run_and_another_seed_another() -> None:
    def digest(hash_seed: int, seed: int) -> str:
        command = [sys.executable, "-c", DIGEST.format(seed=seed)]
        env = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
        return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout

    digests = {digest(hash_seed, 3) for hash_seed in range(scaled(5, share=2))}
    assert len(digests) == 1
    assert digests != {run_of(scenario(STORM.decode().replace("20m", "3m"), seed=4), CEREMONIES)[1] + "\n"}


@pytest.mark.slow
def test_the_two_runs_of_a_seed_are_compared() -> None:
    run = run_seed(STORM.replace(b"20m", b"2m"), "canary.yaml", CEREMONIES, 20)
    assert run.cases["I-25"] == 1
    assert run.violations == ()


@pytest.mark.slow
@pytest.mark.parametrize("canary", CANARIES, ids=lambda canary: canary.name)
def test_without_a_planted_defect_no_violation_is_found(canary: Planted) -> None:
    assert look_for(canary, first=1, seeds=scaled(3)) == ""


def test_an_invariant_that_no_seed_exercised_is_named() -> None:
    everything = {*KINDS, *(invariant.number for invariant in INVARIANTS)}
    assert set(Coverage(hubs=3).never_met()) == everything
    assert set(Coverage().never_met()) == everything - {*OF_SEVERAL_HUBS, "I-33"}, "one hub shares no ledger"


def test_each_of_the_26_invariants_has_its_rule_and_its_reason() -> None:
    numbers = [invariant.number for invariant in INVARIANTS]
    assert {f"I-{number:02}" for number in range(1, 27)} <= set(numbers)
    assert len(numbers) == len(set(numbers))
    assert all(len(invariant.rule) > 20 for invariant in INVARIANTS)
