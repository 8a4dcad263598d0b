"""The report of a load test: exact percentiles, times from the moment a request was due, and the limiting side."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleetsim.health.figures import ERROR
from fleetsim.recording.events import (
    AgentTaskEnded,
    OutcomeRecorded,
    RequestTimed,
    RunEvent,
    ScenarioStarted,
    SubmitRefused,
)
from fleetsim.recording.reader import RecordingLine
from fleetsim.sim.clocks import ClockRate
from fleetsim.sim.load import LiveLoadMetrics, LoadMetrics, load_of
from fleetsim.sim.run import Run
from fleetsim.sim.scenario import START
from tests.sim.outcomes import outcome


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


def test_without_requests_there_are_no_percentiles() -> None:
    assert counted([], "real") is None
    assert counted(asked(1.0), "virtual") is None


def test_a_sender_that_stood_still_hides_no_delay() -> None:
    """A request each tenth of a second; the fleet, and the sender with it, stands still for the last second of ten."""

    def rows() -> Iterator[list[RunEvent]]:
        for number in range(90):
            yield asked(number / 10, took_s=0.01)
        for number in range(10):
            yield asked(9 + number / 10, late_s=1.0 - number / 10, took_s=0.01)

    found = load(list(rows()))
    assert found.response.at(0.9) == pytest.approx(0.01, rel=0.02)
    assert found.response.at(0.99) == pytest.approx(0.91, rel=0.02)
    assert found.agent.at(1.0) == pytest.approx(0.01, rel=0.02)
    assert found.service.at(1.0) == pytest.approx(0.01, rel=0.02), "service time alone hides the standstill"
    assert found.limit.side == "caller"


def test_a_sender_that_keeps_up_causes_no_warning_and_errors_are_counted_by_kind() -> None:
    refused: list[RunEvent] = [SubmitRefused(t=3.0, skill="a", why="no agent", due_s=3.0, late_s=0.0)]
    found = load([*[asked(n / 10) for n in range(98)], asked(9.9, outcome="failed"), refused])
    assert found.limit.side == "agent"
    assert found.meant == found.sent == 10.0
    assert found.errors == {"failed": 1, "refused: no agent": 1}


def test_a_rate_that_was_not_reached_is_reported() -> None:
    found = load([asked(n / 10, late_s=n / 50) for n in range(100)])
    assert found.meant == 10.0
    assert found.sent < 8.5
    assert "of 10 a second" in found.limit.seen
    assert found.as_json()["senderBehind"] == found.limit.seen


def test_fleetsim_is_named_as_the_limit_by_its_share_of_the_delay_only() -> None:
    def limited(agent_s: float) -> str:
        rows = [asked(n / 10, late_s=0.6 if n % 50 == 0 else 0.016, took_s=agent_s) for n in range(100)]
        return load(rows).limit.side

    assert limited(1.56) == "agent", "28 ms of ours beside 1.56 s of the agent's"
    assert limited(0.05) == "caller"


def test_time_spent_in_the_hub_is_not_counted_as_the_agents() -> None:
    assert load([asked(1.0, took_s=4.0, agent_s=1.0)]).limit.side == "hub"
    assert load([asked(1.0, took_s=4.0, agent_s=3.0)]).limit.side == "agent"


def test_time_on_the_network_is_known_if_the_agent_reports_when_it_worked() -> None:
    worked = AgentTaskEnded(
        t=2.0, agent="a", task_id="t", correlation_id="1.0", begun_s=1.5, ended_s=1.75, ended="completed",
        text="", chars=0, cost_usd=None, answers=(),
    )  # fmt: skip
    found = load([asked(1.0, took_s=1.0), [worked]])
    assert found.limit.side == "network"
    assert found.network.at(0.5) == pytest.approx(0.75)
    assert load([asked(1.0, took_s=1.0)]).as_json()["networkSeconds"] is None


@pytest.mark.parametrize(("slower", "word"), [(3.0, "cannot keep up"), (1.0, "keeps up")])
def test_an_agent_that_slows_down_at_an_even_rate_cannot_keep_up(slower: float, word: str) -> None:
    found = load([asked(n / 10, took_s=0.1 if n < 50 else 0.1 * slower) for n in range(100)])
    assert word in found.limit.seen


def test_the_shares_of_all_sides_are_the_whole_response_time() -> None:
    found = load([asked(n / 10, late_s=0.2, took_s=1.0, agent_s=0.7) for n in range(20)])
    assert sum(side.share for side in found.sides) == pytest.approx(1.0)


def test_the_load_of_parts_is_that_of_the_whole() -> None:
    """Two processes send every other request; the agent slows down, and the second process is late."""
    rows = [asked(n / 10, late_s=0.3 * (n % 2), took_s=0.2 + n / 200, agent_s=0.1 + n / 200) for n in range(100)]
    whole, parts = load(rows), [load(rows[0::2]), load(rows[1::2])]
    found = LoadMetrics.merged([LoadMetrics.merged([part]) for part in parts])
    assert (found.meant, found.sent, found.ended) == pytest.approx((whole.meant, whole.sent, whole.ended), rel=0.03)
    assert found.response.as_json() == pytest.approx(whole.response.as_json(), rel=ERROR)
    assert found.lateness.as_json() == pytest.approx(whole.lateness.as_json(), rel=ERROR)
    assert {side.side: side.share for side in found.sides} == pytest.approx(
        {side.side: side.share for side in whole.sides}
    )
    assert found.limit.side == whole.limit.side == "caller"
    assert "cannot keep up" in next(side.seen for side in found.sides if side.side == "agent")


def test_live_figures_are_those_of_the_last_seconds() -> None:
    live, rate = LiveLoadMetrics(), ClockRate.read("real")
    for number in range(100):
        live.request(float(number), str(number), late_s=0.0)
        live.outcome(number + 0.5, outcome(str(number), took_s=number / 100))
    live.request(100.0, "open", late_s=0.0)
    told = live.line(100.0, rate)
    assert "1.0/s ended, p50 940ms" in told
    assert told.endswith("1 open, 0 failed")
