"""The report of a run as files: for a colleague, a CI system and a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from typing import Any

import pytest

from fleetsim.health.figures import Expectation
from fleetsim.sim.charts import TICKS_MAX, Axis, Timeline, timeline_of
from fleetsim.sim.report import SimulationReport, report_of
from fleetsim.sim.report_formats import FORMATS, endings_about
from fleetsim.sim.troubles import Trouble
from tests.check.sarif import run_in
from tests.sim.scenes import recorded, run_of, scenario

pytestmark = pytest.mark.slow

CEREMONIES = {
    f"herald.{name}.yaml": (
        f"id: herald.{name}\nname: {name}\nschedule: '*/5 * * * *'\nskill: sitrep\ntargets: [herald]\n"
    ).encode()
    for name in ("digest", "brief")
}
HOSTILE = "</pre><script>alert(1)</script>\x1b[31m\x00 & <b>"


@cache
def run() -> list[dict[str, Any]]:
    return run_of(wanted(), CEREMONIES)[0]


def wanted() -> Any:
    down = Trouble.model_validate({"fault": "agent-down", "agent": "quinn", "at": "10m", "lasts": "5m"})
    expect = [Expectation.read("quinn.success_rate == 100%"), Expectation.read("herald.lost == 0")]
    return scenario(duration=1_800.0, weather=[down], expect=expect)


def report(lines: list[dict[str, Any]] | None = None) -> SimulationReport:
    return report_of(recorded(lines or run()))


def hostile() -> list[dict[str, Any]]:
    """The same run with a reason from every agent that would act as markup if it were not escaped."""
    lines: list[dict[str, Any]] = json.loads(json.dumps(run()))
    for line in lines:
        if line["kind"] == "event" and line["type"] == "OutcomeDecided":
            line["event"]["payload"].update(success=False, reason=HOSTILE)
        if line["kind"] == "start":
            line["scenario"] = HOSTILE
        if line["kind"] == "played":
            line["source"] = f"{HOSTILE}.yaml"
        if line["kind"] == "trouble":
            line["agent"] = line["said"] = HOSTILE
    return lines


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}


def test_equal_slots_of_two_ceremonies_are_counted_separately() -> None:
    (slots,) = [verdict for verdict in report().verdicts if verdict.invariant.number == "I-06"]
    assert slots.cases == 2 * len(timeline_of(report().run).ceremonies["herald.digest"]) > 4
    assert slots.violations == ()


def test_junit_has_a_case_for_each_expectation_and_rule_with_agent_time_and_replay_command() -> None:
    suite = ET.fromstring(FORMATS["junit"](report()))[0]
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert len(cases) == len(report().verdicts) + 2 == int(suite.get("tests", ""))
    assert cases["herald.lost == 0"].find("failure") is None
    failure = cases["quinn.success_rate == 100%"].find("failure")
    assert failure is not None
    assert suite.get("failures") == "1"
    told = failure.text or ""
    assert re.search(r"\d+ x \w+ at quinn, first at 00:\d\d:\d\d", told)
    assert told.endswith("play it again: fleetsim sim small.yaml --seed 1 --record run.jsonl")


@pytest.mark.parametrize(
    ("expect", "first"),
    [
        ("archivist.p95 < 1s", r"[\w.]+ at archivist, ended 00:\d\d:\d\d"),
        ("quinn.duration_max < 1s", r"[\w.]+ at quinn, ended 00:\d\d:\d\d"),
        ("cost < $0.01", r"\$0.0[23]\d\d at quinn, ended 00:\d\d:\d\d"),
        ("undeliverable == 0", r"\d+ x undeliverable at quinn, first at 00:1\d:\d\d amid agent-down of quinn"),
    ],
)
def test_a_broken_expectation_names_the_agent_the_time_and_the_troubles(expect: str, first: str) -> None:
    lines = endings_about(report(), Expectation.read(expect))
    assert re.fullmatch(first, next(lines))
    assert re.match(r"  \w+ [0-9a-f-]{36}: ", next(lines))


def test_moments_are_on_the_clock_of_the_scenario_with_the_day_if_it_differs() -> None:
    lines: list[dict[str, Any]] = json.loads(json.dumps(run()))
    for start, told in (
        ("2026-03-02T23:45:00Z", "first at 23:5"),
        ("2026-03-02T23:55:00Z", "first at Tue 03 Mar 00:0"),
    ):
        lines[0]["start"] = start
        assert told in next(endings_about(report(lines), Expectation.read("success_rate == 100%")))


def test_an_agent_with_a_name_like_a_replica_is_counted_by_itself() -> None:
    lines: list[dict[str, Any]] = json.loads(json.dumps(run()).replace('"archivist"', '"quinn-2"'))
    expect = Expectation.read("quinn.p95 < 1s")
    told = endings_about(report(lines), expect)
    assert not any("at quinn-2," in line for line in told)
    lines[0]["replicas"] = {"quinn-2": "quinn"}
    assert any(
        "at quinn-2," in line for line in endings_about(report(lines), Expectation.read("quinn.duration_max < 1s"))
    )


def test_the_slowest_requests_are_listed_slowest_first() -> None:
    ended = [outcome for _, _, outcome in report().run.endings() if outcome.agent == "quinn"]
    slow = max(ended, key=lambda outcome: outcome.duration_ms)
    lines = list(endings_about(report(), Expectation.read("quinn.duration_p95 < 1s")))
    assert slow.correlation_id in lines[1]
    assert len(lines) == 6


def test_the_json_report_contains_the_whole_report() -> None:
    assert json.loads(FORMATS["json"](report())) == json.loads(json.dumps(report().as_json()))


def test_the_html_report_needs_no_other_file() -> None:
    text = FORMATS["html"](report())
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert not {a for a in page.attributes if a in {"src", "href", "style"} or a.startswith("on")}
    style = re.search("<style>(.*)</style>", text, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in text
    assert "prefers-color-scheme:dark" in text


def test_texts_of_agents_and_scenarios_are_never_markup() -> None:
    calm, marked = Page(FORMATS["html"](report())), FORMATS["html"](report(hostile()))
    assert set(Page(marked).tags) <= set(calm.tags)
    assert "&lt;script&gt;alert(1)" in marked
    assert "\x1b" not in marked
    ET.fromstring(FORMATS["junit"](report(hostile())))


def test_the_charts_show_events_and_their_times() -> None:
    timeline = timeline_of(report().run)
    assert sum(sum(counts.values()) for counts in timeline.outcomes.values()) == report().figures["fleet"]["outcomes"]
    assert timeline.in_flight[-1][1] == 0
    assert timeline.cost[-1][1] == pytest.approx(report().figures["fleet"]["cost"])
    ((begins_s, ends_s, said),) = timeline.troubles["agent-down of quinn"]
    assert ends_s - begins_s == pytest.approx(300)
    assert said == "agent-down of quinn at 10m for 5m"
    assert "down" in {period.what for period in timeline.health["quinn"]}
    assert {h.what for h in timeline.ceremonies["herald.brief"]} == {"success"}
    assert set(timeline.latency) == {"quinn", "herald", "archivist"}
    text = FORMATS["html"](report())
    for title in ("Trouble", "Outcomes", "In flight", "Health", "own time", "Ceremonies", "Cost"):
        assert title in text


def test_a_sarif_log_fits_the_schema_and_names_the_broken_expectation_with_its_line() -> None:
    (result,) = run_in(FORMATS["sarif"](replace(report(), file="day.yaml", places=(7, 8))))["results"]
    assert (result["ruleId"], result["level"]) == ("expectation", "error")
    place = result["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("day.yaml", 7)


def test_annotations_of_a_hostile_run_are_one_command_each() -> None:
    run_in(FORMATS["sarif"](report(hostile())))
    lines = FORMATS["github"](report(hostile())).splitlines()
    assert lines
    assert all(line.startswith("::error file=") for line in lines)


@pytest.mark.parametrize("lasts_s", [2.0, 30.0, 300.0, 3_600.0, 90_000.0])
def test_the_axis_has_marks_for_any_length_of_the_run(lasts_s: float) -> None:
    assert 2 <= len(Axis(Timeline(ends_s=lasts_s)).ticks) <= TICKS_MAX + 1
