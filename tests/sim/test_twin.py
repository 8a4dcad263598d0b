"""The parts of a twin: the rule for each number fitted to the observations, and its file."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetsim.ceremony.file import parse_ceremony
from fleetsim.model.errors import Blame, ConfigError
from fleetsim.model.spans import seconds_of
from fleetsim.model.work import Cause, OutcomeKind, UpdateSource
from fleetsim.runtime.yaml import load
from fleetsim.sim.comparison import compare, verdict_of
from fleetsim.sim.observed import Observed, ObservedQuestion, of_run
from fleetsim.sim.quantities import SpanSpread
from fleetsim.sim.run import ObservedAgent, Run
from fleetsim.sim.scenario import Scenario, parse_scenario
from fleetsim.sim.twin import (
    LogNormal,
    SkillTwin,
    TrafficTwin,
    Twin,
    distribution,
    number,
    rate,
    span,
    twin_of,
    twin_text,
)
from tests.sim.outcomes import failed, outcome, seen
from tests.sim.scenes import recorded, run_of, scenario

DAY_S = 86_400.0
REVIEW = "id: daily\nname: Daily\nschedule: '@daily'\nskill: review\ntargets: {}\n"


def twin(found: Observed, *ceremonies: str) -> Twin:
    read = [parse_ceremony(load(text, "daily.yaml")) for text in ceremonies]
    return twin_of(found, ceremonies=read, poll_interval_s=30.0)


def skill(found: Observed) -> SkillTwin:
    return twin(found).agents["quinn"].skills["review"]


def traffic(moments: Sequence[float], *, until_s: float) -> TrafficTwin:
    outcomes = [outcome(f"c{at}", moment) for at, moment in enumerate(moments)]
    (one,) = twin(seen(outcomes, until_s=until_s)).traffic
    return one


def written(found: Observed, *, name: str = "twin", ceremonies: str | None = None) -> tuple[str, Scenario]:
    text = twin_text(twin(found), found, name=name, ceremonies=ceremonies, settings={})
    return text, parse_scenario(text, "twin.yaml")[0]


# ------------------------------------------------------------------ amounts


def test_amounts_that_hardly_differ_are_one_amount() -> None:
    assert distribution([3.0, 3.001, 3.002]) == 3.001
    assert distribution([0.0, 0.0]) == 0.0


def test_log_normal_amounts_are_written_by_p50_and_p95() -> None:
    rng = Random(1)
    law = distribution([rng.lognormvariate(1.0, 0.5) for _ in range(500)])
    assert isinstance(law, LogNormal)
    assert law.p50 == pytest.approx(2.718, rel=0.1)
    assert law.p95 == pytest.approx(6.19, rel=0.1)


def test_other_amounts_are_written_by_their_quantiles_and_mean() -> None:
    rng = Random(1)
    amounts = [rng.choice((1.0, 9.0)) + rng.random() for _ in range(1_000)]
    found = distribution(amounts)
    assert isinstance(found, tuple)
    assert not isinstance(found, LogNormal)
    assert len(found) == 41
    assert (found[0], found[-1]) == (min(amounts), max(amounts))
    spread = SpanSpread.model_validate({"quantiles": [span(seconds) for seconds in found]})
    drawn = [spread.draw(rng) for _ in range(20_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(sum(amounts) / len(amounts), rel=0.05)


def test_a_long_tail_gets_as_many_quantiles_as_its_mean_needs() -> None:
    amounts = [0.01] * 985 + [float(dear) for dear in range(1, 16)]
    found = distribution(amounts)
    assert isinstance(found, tuple)
    assert len(found) == 201


def test_a_few_amounts_are_kept_as_they_are() -> None:
    assert distribution([5.0, 1.0, 9.0]) == (1.0, 5.0, 9.0)


@given(st.lists(st.floats(0.0001, 30 * DAY_S), min_size=2, max_size=50))
def test_spans_in_words_keep_their_order_and_are_near_the_originals(amounts: list[float]) -> None:
    read = [seconds_of(span(amount)) for amount in sorted(amounts)]
    assert read == sorted(read)
    assert read == pytest.approx(sorted(amounts), rel=0.006, abs=0.0001)


@pytest.mark.parametrize(
    ("per_s", "text"), [(20.0, "20/s"), (0.5, "30/m"), (1 / 600, "6/h"), (1 / 864_000, "0.1/d"), (12_345.0, "12340/s")]
)
def test_a_rate_is_written_as_a_number_of_at_least_one_if_possible(per_s: float, text: str) -> None:
    assert rate(per_s) == text


@pytest.mark.parametrize(("amount", "text"), [(1e-7, "0.0000001"), (1234567.0, "1235000"), (0.1 + 0.2, "0.3")])
def test_a_number_is_never_written_as_a_power_of_ten(amount: float, text: str) -> None:
    assert number(amount) == text


# ------------------------------------------------------------------ a skill


def test_success_rejections_and_the_commonest_reason_come_from_outcomes_of_the_agent() -> None:
    ends = [outcome(f"ok{n}", n) for n in range(6)]
    ends += [failed("f1"), failed("f2", reason="no token"), failed("f3", reason="no token")]
    ends += [failed("r1", kind=OutcomeKind.REJECTED)]
    ends += [failed("u1", kind=OutcomeKind.UNDELIVERABLE, blame=Blame.NETWORK)]
    found = skill(seen(ends))
    assert (found.tasks, found.few) == (10, True)
    assert found.succeeds == pytest.approx(6 / 9)
    assert found.rejects == pytest.approx(0.1)
    assert found.fails_with == "no token"
    assert twin(seen(ends)).others == {"undeliverable (network)": 1}


def test_pieces_are_counted_in_answers_without_a_failure_or_question() -> None:
    ends = [outcome("a", chunks=8), outcome("b", chunks=8), failed("c", chunks=2), outcome("q", chunks=3)]
    asked = [ObservedQuestion(correlation_id="q", answered_s=5.0)]
    assert skill(seen(ends, questions=asked)).chunks == 8.0


def test_a_task_without_a_cost_counts_as_free_if_others_report_theirs() -> None:
    ends = [outcome("a", cost_usd=0.4), outcome("b"), failed("c"), failed("r", kind=OutcomeKind.REJECTED)]
    assert skill(seen(ends)).cost == (0.0, 0.0, 0.4)
    assert skill(seen([outcome("a")])).cost is None


def test_a_task_that_ended_by_a_poll_ended_in_the_pause_before_it() -> None:
    ends = [outcome(f"c{n}", n, took_s=60.0, via=UpdateSource.POLL) for n in range(200)]
    called = ObservedAgent(dialect="0.3", streaming=False, push=False)
    takes = skill(seen(ends, called=called)).takes
    assert isinstance(takes, tuple)
    assert takes[0] == pytest.approx(37.5, abs=0.5)
    assert takes[len(takes) // 2] == pytest.approx(45.0, abs=0.5)
    assert takes[-1] == pytest.approx(52.5, abs=0.5)
    assert skill(seen(ends, called=ObservedAgent(streaming=True))).takes == 60.0, "such a poll follows the end at once"


@pytest.mark.slow
@pytest.mark.parametrize("takes", ["0s", "2s", "20s"])
def test_the_polls_of_a_task_with_a_question_are_not_counted_again_in_the_twin(takes: str) -> None:
    text = f"""
name: polled
duration: 2h
fleet: {{quinn: {{streaming: false, push: false, skills: {{review: {{takes: {takes}, asks: 1}}}}}}}}
traffic: [{{skill: review, rate: 60/h}}]
people: {{answerAfter: {{low: 2s, high: 90s}}}}
"""
    recorded_run = of_run(Run.of(recorded(run_of(scenario(text))[0])), "recorded")
    _, fitted = written(recorded_run)
    played = of_run(Run.of(recorded(run_of(fitted)[0])), "played")
    found = {d.measure.name: d for d in compare(recorded_run, played).differences}
    assert {verdict_of(found[name]) for name in ("p50", "p95")} <= {"within", "near"}


def test_enough_tasks_without_a_question_give_the_duration() -> None:
    ends = [outcome(f"c{n}", n, took_s=2.0) for n in range(30)] + [outcome(f"q{n}", n, took_s=8.0) for n in range(9)]
    asked = [ObservedQuestion(correlation_id=f"q{n}", answered_s=5.0) for n in range(9)]
    assert skill(seen(ends, questions=asked)).takes == 2.0
    assert skill(seen(ends[25:], questions=asked)).takes == tuple([2.0] * 5 + [8.0] * 9)


def test_questions_give_the_share_of_tasks_and_the_times_of_people() -> None:
    ends = [outcome(f"c{n}", n) for n in range(10)]
    asked = [ObservedQuestion(correlation_id=f"c{n}", answered_s=60.0) for n in (0, 0, 1)]
    asked += [ObservedQuestion(correlation_id="c2", answered_s=None)]
    asked += [ObservedQuestion(correlation_id="c3", answered_s=60.0, rejected=True)]
    ends += [
        failed("x", kind=OutcomeKind.CANCELED, blame=Blame.HUMAN, cause=Cause.CANCELED_BY_PERSON, duration_ms=7_000)
    ]
    found = twin(seen(ends, questions=asked))
    fit, people = found.agents["quinn"].skills["review"], found.people
    assert (fit.asks, fit.asks_again) == (pytest.approx(4 / 11), pytest.approx(1 / 4))
    assert (people.answer_after, people.never, people.reject) == (60.0, pytest.approx(1 / 5), pytest.approx(1 / 4))
    assert (people.cancel, people.cancel_after) == (pytest.approx(1 / 11), 7.0)


def test_an_agent_with_results_in_its_replies_replies_late_in_the_twin_too() -> None:
    called = ObservedAgent(dialect="0.3", streaming=False, push=False)
    replied = [outcome(f"c{n}", n, took_s=0.009, via=UpdateSource.REPLY) for n in range(30)]
    assert written(seen(replied, called=called))[1].fleet["quinn"].waits == 3_600.0
    polled = outcome("p", 31, took_s=2.0, via=UpdateSource.POLL)
    assert written(seen([*replied, polled], called=called))[1].fleet["quinn"].waits == pytest.approx(0.009)
    assert written(seen([polled], called=called))[1].fleet["quinn"].waits == 0.0


# ------------------------------------------------------------------ traffic


def test_random_arrivals_have_only_a_rate() -> None:
    rng = Random(3)
    found = traffic(sorted(rng.uniform(0, 3_600) for _ in range(360)), until_s=3_600)
    assert (found.per_s, found.steady, found.burst, found.curve) == (pytest.approx(0.1), False, 1, None)


def test_even_arrivals_are_steady() -> None:
    assert traffic([10.0 * n for n in range(100)], until_s=990).steady


def test_bursts_are_found_with_their_size_and_span() -> None:
    rng = Random(3)
    begins = [rng.uniform(0, 36_000) for _ in range(150)]
    found = traffic(sorted(begin + rng.uniform(0, 10) for begin in begins for _ in range(6)), until_s=36_010)
    assert found.burst == pytest.approx(6, abs=1.5)
    assert found.within_s == pytest.approx(10, rel=0.5)
    assert found.per_s * found.burst == pytest.approx(900 / 36_010, rel=0.01)


def test_random_arrivals_with_a_long_pause_between_them_are_no_bursts() -> None:
    bursts = set()
    for seed in range(20):
        rng = Random(seed)
        moments = [rng.uniform(*when) for when in ((0, 600), (2_400, 3_600)) for _ in range(50)]
        bursts.add(traffic(sorted(moments), until_s=3_600).burst)
    assert bursts == {1}


def test_a_day_or_more_gets_a_curve_if_its_hours_differ() -> None:
    rng = Random(3)
    by_day = [
        day * DAY_S + hour * 3_600 + rng.uniform(0, 3_600)
        for day in range(3)
        for hour in range(8, 16)
        for _ in range(20)
    ]
    found = traffic(sorted(by_day), until_s=3 * DAY_S)
    assert found.curve is not None
    assert (found.curve[3], found.curve[10]) == (0.0, pytest.approx(3.0, rel=0.01))
    assert found.per_s == pytest.approx(480 / (3 * DAY_S), rel=0.01)
    all_day = sorted(rng.uniform(0, 3 * DAY_S) for _ in range(480))
    assert traffic(all_day, until_s=3 * DAY_S).curve is None


def test_turns_that_wait_for_each_other_are_a_conversation() -> None:
    talks = [
        outcome(f"t{n}-{turn}", n * 100 + turn * 20, took_s=5.0, context_id=f"x{n}")
        for n in range(5)
        for turn in range(3)
    ]
    singles = [outcome(f"s{n}", n * 100) for n in range(5)]
    one, talk = twin(seen([*talks, *singles], until_s=500)).traffic
    assert (one.requests, one.turns, one.per_s) == (5, 1, pytest.approx(0.01))
    assert (talk.requests, talk.turns, talk.per_s, talk.pause) == (15, 3, pytest.approx(0.01), 15.0)


def test_requests_of_ceremonies_are_not_traffic_if_the_ceremonies_fire_too() -> None:
    found = seen([outcome(f"c{n}", n) for n in range(10)], scheduled=[f"c{n}" for n in range(4)])
    assert [source.requests for source in twin(found).traffic] == [10]
    assert [source.requests for source in twin(found, REVIEW.format("[all]")).traffic] == [6]
    assert [source.requests for source in twin(found, REVIEW.format("[quinn]")).traffic] == [6]


def test_requests_of_a_ceremony_that_fires_no_more_are_traffic() -> None:
    found = seen([outcome(f"c{n}", n) for n in range(10)], scheduled=[f"c{n}" for n in range(4)])
    for gone in (REVIEW.format("[ava]"), REVIEW.format("[quinn]") + "enabled: false\n"):
        assert [source.requests for source in twin(found, gone).traffic] == [10]


def test_empty_observations_are_refused_with_the_next_step() -> None:
    with pytest.raises(ConfigError, match="seen") as refused:
        twin(seen([]))
    assert "--since" in (refused.value.hint or "")
    with pytest.raises(ConfigError, match="1 request"):
        twin(seen([failed("u", kind=OutcomeKind.UNDELIVERABLE, blame=Blame.NETWORK)]))


# ------------------------------------------------------------------ the file


def test_the_file_is_a_scenario_with_comments_about_the_fit() -> None:
    ends = [outcome(f"c{n}", n * 10, took_s=1 + n / 10, cost_usd=0.01 * (1 + n % 3)) for n in range(20)]
    called = ObservedAgent(dialect="1.0", streaming=True, push=False)
    text, scenario = written(seen([*ends, failed("f", 200)], called=called), ceremonies=None)
    agent = scenario.fleet["quinn"]
    assert (agent.dialect, agent.streaming, agent.push) == ("1.0", True, False)
    assert agent.skills["review"].succeeds == pytest.approx(20 / 21, rel=0.001)
    assert [(source.agent, source.skill) for source in scenario.traffic] == [("quinn", "review")]
    assert "# 20 completed, 1 failed; 21 tasks only: shares and times are guesses" in text


@pytest.mark.parametrize("reason", ["a: b # c", "line\nbreak\x1b[31m", "'\"{}[]", "\u2028- x", "yes"])
def test_an_agents_text_stays_a_text(reason: str) -> None:
    _, scenario = written(seen([outcome("a"), failed("b", reason=reason)]))
    assert "\n" not in scenario.fleet["quinn"].skills["review"].fails_with


def test_names_that_a_scenario_cannot_have_are_left_out_and_reported() -> None:
    ends = [outcome("a"), outcome("b", skill="do this: now"), outcome("c", agent="x y\n# z", skill="s")]
    found = seen(ends)
    text, fitted = written(found)
    assert list(fitted.fleet) == ["quinn"]
    assert text.count("# Left out, since a scenario has no such name: ") == len(twin(found).left_out) == 2


@pytest.mark.slow
def test_the_fit_is_tested_with_no_more_requests_than_it_needs() -> None:
    many = [outcome(f"c{n}", n * 1.0) for n in range(6_000)]
    assert twin(seen(many)).duration_s == pytest.approx(2_000, rel=0.01)
