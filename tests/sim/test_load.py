"""What a load test says: percentiles that are true, time that counts from when a request was due, and who was slow."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleetsim.sim.recording import RecordingLine
from fleetsim.sim.report import LoadMetrics, load_of
from fleetsim.sim.run import Run
from fleetsim.sim.scenario import START
from fleetsim.sim.scenario_events import OutcomeRecorded, RequestTimed, RunEvent, ScenarioStarted, SubmitRefused


def asked(
    at_s: float, *, late_s: float = 0.0, took_s: float = 0.1, agent_s: float = 0.0, outcome: str = "completed"
) -> list[RunEvent]:
    cid = f"{at_s}"
    return [
        RequestTimed(t=at_s + late_s, correlation_id=cid, due_s=at_s, late_s=late_s),
        OutcomeRecorded(
            t=at_s + late_s + took_s,
            correlation_id=cid,
            duration_ms=took_s * 1000,
            agent_ms=(agent_s or took_s) * 1000,
            outcome=outcome,
            success=outcome == "completed",
            counts=True,
            cause=None,
            cost_usd=None,
            text="",
            chars=0,
        ),
    ]


def load(rows: list[list[RunEvent]]) -> LoadMetrics:
    found = counted([row for pair in rows for row in pair], "real")
    assert found is not None
    return found


def counted(rows: list[RunEvent], clock: str) -> LoadMetrics | None:
    start = ScenarioStarted(
        scenario="x", seed=1, start=START, duration_s=10.0, agents=(), replicas={}, expect=(), clock=clock
    )
    return load_of(Run.of(RecordingLine(number, row.t, row) for number, row in enumerate([start, *rows], 1)))


def test_of_nothing_there_are_no_percentiles() -> None:
    assert counted([], "real") is None
    assert counted(asked(1.0), "virtual") is None


def test_a_sender_that_stood_still_hides_nothing() -> None:
    """One request a tenth of a second; the fleet, and the sender with it, stands still for the last second of ten."""

    def rows() -> Iterator[list[RunEvent]]:
        for number in range(90):
            yield asked(number / 10, took_s=0.01)
        for number in range(10):
            yield asked(9 + number / 10, late_s=1.0 - number / 10, took_s=0.01)

    found = load(list(rows()))
    assert found.response.at(0.9) == pytest.approx(0.01, rel=0.02)
    assert found.response.at(0.99) == pytest.approx(0.91, rel=0.02)
    assert found.agent.at(1.0) == pytest.approx(0.01, rel=0.02)
    assert "1 request in 100" in found.behind


def test_who_keeps_up_is_not_warned_of_and_errors_are_counted_by_kind() -> None:
    refused: list[RunEvent] = [SubmitRefused(t=3.0, skill="a", why="no agent", due_s=3.0, late_s=0.0)]
    found = load([*[asked(n / 10) for n in range(98)], asked(9.9, outcome="failed"), refused])
    assert found.behind == ""
    assert found.meant == found.sent == 10.0
    assert found.errors == {"failed": 1, "refused: no agent": 1}


def test_a_rate_that_was_not_reached_is_said() -> None:
    found = load([asked(n / 10, late_s=n / 50) for n in range(100)])
    assert found.meant == 10.0
    assert found.sent < 8.5
    assert "of 10 a second" in found.behind
    assert found.as_json()["senderBehind"] == found.behind


def test_fleetsim_is_blamed_by_its_share_of_the_delay_alone() -> None:
    def limited(agent_s: float) -> str:
        return load([asked(n / 10, late_s=0.6 if n % 50 == 0 else 0.016, took_s=agent_s) for n in range(100)]).behind

    assert limited(1.56) == "", "28 ms of ours beside 1.56 s of the agent's"
    assert limited(0.05) != ""


def test_time_that_passed_in_the_hub_is_not_taken_for_the_agents() -> None:
    assert "spent 3s or more outside of their agent" in load([asked(1.0, took_s=4.0, agent_s=1.0)]).elsewhere
    assert load([asked(1.0, took_s=4.0, agent_s=2.0)]).elsewhere == ""
    assert load([asked(1.0, took_s=0.9, agent_s=0.1)]).elsewhere == ""
