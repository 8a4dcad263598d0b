from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from fleetsim.check.cli.run import exit_code
from fleetsim.check.evidence import Exchange, Frame, Verdict
from fleetsim.check.formats import as_json, explain, html, junit, markdown, render
from fleetsim.check.report import Finding, Report, marked, read_baseline, sdks, stale, write_baseline
from fleetsim.check.requirement import Requirement
from fleetsim.check.sections import REQUIREMENTS
from fleetsim.cli.main import Exit
from fleetsim.model.errors import ConfigError
from fleetsim.model.masking import masked

NASTY = "<script>alert(1)</script> `|* \x1b[31m \x00 ]]> & \u202e"


def found(row: str, verdict: Verdict, dialect: str = "0.3", **more: object) -> Finding:
    made: dict[str, object] = {"requirement": REQUIREMENTS[row], "dialect": dialect, "verdict": verdict, **more}
    return Finding(**made)  # type: ignore[arg-type]


def report(*findings: Finding) -> Report:
    return Report(
        url="http://agent",
        agent=NASTY,
        dialects=("0.3",),
        endpoints={"0.3": "http://agent/a2a"},
        findings=findings,
        began="2026-01-01T00:00:00+00:00",
    )


PASS = found("T-01", Verdict.PASS)
MUST = found("P-17", Verdict.FAIL, reason=NASTY, evidence=(f"POST /x\n{NASTY}",))
SHOULD = found("C-02", Verdict.FAIL, "any", reason="no old path")
UNTESTED = found("T-08", Verdict.NOT_TESTED, reason="no skill")
MOOT = found("S-01", Verdict.NOT_APPLICABLE, reason="no streams")
LOST = found("T-06", Verdict.NOT_TESTED, reason="the connection did not hold", lost=True)


def row(severity: str) -> Requirement:
    return next(row for row in REQUIREMENTS.values() if row.severity == severity)


@pytest.mark.parametrize(
    ("findings", "strict", "code"),
    [
        ((PASS,), False, Exit.OK),
        ((PASS, MOOT, UNTESTED), False, Exit.OK),
        ((PASS, MUST), False, Exit.FAILED),
        ((PASS, SHOULD), False, Exit.OK),
        ((PASS, SHOULD), True, Exit.FAILED),
        ((PASS, LOST), False, Exit.UNREACHABLE),
        ((PASS, LOST, MUST), False, Exit.FAILED),
        ((UNTESTED, MOOT), False, Exit.NOTHING_RAN),
        ((), False, Exit.NOTHING_RAN),
    ],
)
def test_the_exit_code_follows_the_verdicts(findings: tuple[Finding, ...], strict: bool, code: Exit) -> None:
    assert exit_code(report(*findings), strict=strict) is code


def test_too_small_a_share_of_tested_rows_fails() -> None:
    assert exit_code(report(PASS, UNTESTED), strict=False, min_tested=50) is Exit.OK
    assert exit_code(report(PASS, UNTESTED), strict=False, min_tested=51) is Exit.FAILED
    assert exit_code(report(UNTESTED), strict=False, min_tested=50) is Exit.NOTHING_RAN


def test_the_card_alone_of_an_agent_without_a_shared_dialect_is_nothing_tested() -> None:
    card = replace(report(PASS, UNTESTED), dialects=())
    assert (exit_code(card, strict=False), card.word(), card.passed()) == (Exit.NOTHING_RAN, "NOTHING TESTED", False)


def test_the_totals_name_all_four_verdicts_and_never_count_one_as_another() -> None:
    whole = report(PASS, MUST, SHOULD, UNTESTED, MOOT)
    assert whole.totals() == {"pass": 1, "fail": 2, "not applicable": 1, "not tested": 1}
    assert whole.verdict_line() == (
        "FAILED: 1 passed, 2 failed, 1 not tested, 1 not applicable; 75 % of what applies was tested"
    )
    assert report(UNTESTED).verdict_line().startswith("NOTHING TESTED")


def test_a_passed_check_names_the_number_of_accepted_failures() -> None:
    accepted = report(PASS, SHOULD, MUST).with_accepted({"P-17": "the platform sends no webhook"})
    assert "2 failed (1 accepted)" in accepted.verdict_line()


def test_the_text_lists_failures_first_with_evidence_and_the_fix() -> None:
    shown = render(report(SHOULD, MUST, PASS, UNTESTED), plain=True)
    assert shown.index("FAIL P-17 MUST") < shown.index("FAIL C-02 SHOULD") < shown.index("Not tested (")
    assert "fix:  Notify from the cancel path as well." in shown
    assert "    | POST /x" in shown
    assert shown.startswith("FAILED: 1 passed, 2 failed, 1 not tested, 0 not applicable")
    assert "\x1b" not in shown


def lacking(count: int, reason: str) -> list[Finding]:
    ids = [key for key in REQUIREMENTS if key.startswith("P-")][:count]
    return [found(key, Verdict.NOT_TESTED, reason=reason) for key in ids]


def passing(count: int) -> list[Finding]:
    return [found(key, Verdict.PASS) for key in [key for key in REQUIREMENTS if key.startswith("T-")][:count]]


@pytest.mark.parametrize(("passed", "untested", "word"), [(7, 3, "PASSED"), (6, 3, "INCOMPLETE"), (1, 9, "INCOMPLETE")])
def test_a_check_with_a_third_untested_has_not_passed(passed: int, untested: int, word: str) -> None:
    whole = report(*passing(passed), *lacking(untested, "no webhook listener: add --webhook-listen 127.0.0.1:0"))
    assert render(whole).startswith(f"{word}: {passed} passed, 0 failed, {untested} not tested")
    assert whole.as_json()["verdict"] == word.lower()
    assert (f'"verdict {"pass" if word == "PASSED" else "warn"}"' in html(whole)) is True
    assert exit_code(whole, strict=False) is Exit.OK, "every MUST that was tested is kept"


def test_a_lost_row_makes_a_check_incomplete() -> None:
    assert report(PASS, PASS, PASS, PASS, LOST).word() == "INCOMPLETE"


def test_untested_rows_are_one_line_per_option_with_the_command_that_tests_most() -> None:
    whole = report(
        *passing(9),
        *lacking(3, "no webhook listener: add --webhook-listen 127.0.0.1:0"),
        *lacking(2, "costs or leaves traces: add --allow-side-effects"),
        *lacking(1, "no skill is known for this: add --skill-slow SKILL[=TEXT]"),
        *lacking(4, "needs hours"),
    )
    shown = render(whole, command="fleetsim check http://agent --only 'P-*'")
    told = shown[shown.index("Not tested") :].splitlines()
    assert [line.split()[:2] for line in told[1:5]] == [
        ["3", "--webhook-listen"],
        ["2", "--allow-side-effects"],
        ["1", "--skill-slow"],
        ["4", "needs"],
    ]
    assert told[6] == "To test 6 more:"
    assert told[7] == (
        "  fleetsim check http://agent --only 'P-*' --webhook-listen 127.0.0.1:9199 --allow-side-effects"
        " --skill-slow SKILL"
    )
    assert "P-01" not in shown
    assert "P-01@0.3" in render(whole, verbose=True)


def test_an_accepted_failure_does_not_fail_the_check_and_is_listed_as_a_failure() -> None:
    accepted = report(PASS, MUST).with_accepted({"P-17@0.3": "the SDK has no such webhook"})
    assert accepted.passed()
    assert accepted.totals()["fail"] == 1
    assert "the SDK has no such webhook" in render(accepted)
    assert "accepted failure: the SDK" in junit(accepted)


def test_acceptance_is_by_row_or_by_row_and_dialect() -> None:
    assert report(MUST).with_accepted({"P-17": "any dialect"}).passed()
    assert not report(MUST).with_accepted({"P-17@1.0": "another dialect"}).passed()


def test_a_written_baseline_is_read_back_and_accepts_its_failures() -> None:
    whole = report(PASS, MUST, SHOULD)
    accepted = read_baseline(write_baseline(whole), "b.yaml")
    assert set(accepted) == {"P-17@0.3", "C-02"}
    assert whole.with_accepted(accepted).passed(strict=True)
    assert read_baseline(write_baseline(report(PASS)), "b.yaml") == {}


@pytest.mark.parametrize(
    ("text", "column"),
    [("[]", 1), ("accepted: {P-99: why}", 12), ("accepted: {P-17: ''}", 18), ("accepted: {P-17: 3}", 18)],
)
def test_a_malformed_baseline_is_refused_with_its_place(text: str, column: int) -> None:
    with pytest.raises(ConfigError) as caught:
        read_baseline(text, "b.yaml")
    assert f"b.yaml:1:{column}:" in str(caught.value)


def test_a_baseline_entry_that_passes_now_is_stale() -> None:
    assert stale(report(PASS, MUST), {"T-01@0.3": "x", "P-17": "y", "T-08": "z"}) == ["T-01@0.3"]


def test_junit_is_xml_with_a_case_for_each_finding_and_the_verdict_in_words() -> None:
    root = ET.fromstring(junit(report(PASS, MUST, SHOULD, UNTESTED, MOOT)))
    suite = root[0]
    cases = {case.get("name", "")[:4]: [child.tag for child in case] for case in suite.iter("testcase")}
    assert cases == {"T-01": [], "P-17": ["failure"], "C-02": ["skipped"], "T-08": ["skipped"], "S-01": ["skipped"]}
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("5", "1", "3")
    told = [skipped.get("message") for skipped in suite.iter("skipped")]
    assert told == ["warning, SHOULD failed: no old path", "not tested: no skill", "not applicable: no streams"]


def test_html_runs_no_script_fetches_nothing_and_escapes_the_agents_text() -> None:
    page = html(report(PASS, MUST, UNTESTED))
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "default-src 'none'" in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert page.index("FAILED: 1 passed, 1 failed") < page.index("Totals") < page.index("P-17@0.3")
    assert page.index("P-17@0.3") < page.index("Not tested")
    assert not {'http-equiv="refresh', "<img", "<link", "src=", "javascript:"} & set(page.split())


def test_an_agents_text_cannot_leave_its_place_in_markdown() -> None:
    page = markdown(report(PASS, found("P-17", Verdict.FAIL, reason=NASTY, evidence=("a ``` b ```` c",)), UNTESTED))
    assert "<script>" not in page
    assert "\n`````\na ``` b ```` c\n`````\n" in page


def test_sentences_fit_the_width_of_a_terminal_and_commands_stay_whole() -> None:
    needs = "needs hours: seen where fleetsim runs the agent itself (fleetsim check --app MODULE:ATTR)"
    rows = (MUST, UNTESTED, found("H-01", Verdict.NOT_TESTED, reason=needs), found("T-02", Verdict.FAIL, reason="slow"))
    whole = replace(report(*(replace(row, evidence=()) for row in rows)), note="the agent does one task at a time " * 4)
    shown = render(replace(whole, agent="reference"), width=60)
    assert {line for line in shown.splitlines() if len(line) > 60} == set()
    assert "--app MODULE:ATTR" in " ".join(shown.split())


def test_every_report_marks_the_failures_of_the_sdk() -> None:
    marked_one = replace(report(replace(SHOULD, sdk="a2a-sdk 1.3.0")), note="1 of 1 failures")
    for page in (html(marked_one), markdown(marked_one), render(marked_one)):
        assert "every agent on a2a-sdk 1.3.0" in page
        assert "1 of 1 failures" in page


def test_json_contains_every_finding_and_names_its_schema() -> None:
    value = json.loads(as_json(report(PASS, MUST)))
    assert value["schema"] == "fleetsim-check/1"
    assert value["passed"] is False
    assert [finding["id"] for finding in value["findings"]] == ["T-01", "P-17"]


def test_an_exchange_is_shown_trimmed_and_without_secrets() -> None:
    made = Exchange(
        "POST",
        "http://agent/a2a",
        {"authorization": "Bearer s3cret-value", "x-a2a-version": "1.0"},
        b'{"params": {"token": "hook-token", "text": "s3cret-value"}}',
        0.0,
        secrets=("s3cret-value",),
    )
    made.status, made.body = 200, b"x" * 10_000
    shown = made.shown()
    assert "s3cret-value" not in shown
    assert "hook-token" not in shown
    assert "(10000 characters)" in shown
    assert len(shown) < 2_500


def test_a_long_stream_is_shown_by_its_first_and_last_events() -> None:
    made = Exchange("POST", "http://agent/a2a", {}, b"", 0.0)
    made.status = 200
    made.frames = [Frame(float(n), f'{{"n": {n}}}') for n in range(100)]
    assert "88 more" in made.shown()
    assert '"n": 99' in made.shown()


def test_members_that_usually_hold_a_secret_are_masked_in_every_report() -> None:
    assert masked('{"credentials": "abc\\"def", "x": 1}') == '{"credentials": "***", "x": 1}'


def test_a_row_is_explained_with_source_probe_fix_and_incident() -> None:
    told = explain(REQUIREMENTS["P-17"])
    for word in ("P-17 MUST", "Source:", "How:", "Fix:", "Quinn PR #19", "Needs:"):
        assert word in told


def test_failures_of_all_agents_on_an_sdk_are_marked() -> None:
    def found(key: str, verdict: Verdict) -> Finding:
        row, _, dialect = key.partition("@")
        return Finding(requirement=REQUIREMENTS[row], dialect=dialect or "any", verdict=verdict)

    keys = sorted(sdks()["a2a-sdk 1.3.0"])
    agent = [found(key, Verdict.FAIL) for key in keys if not key.endswith("@0.3")] + [found("E-01@1.0", Verdict.FAIL)]
    findings, note = marked(agent)
    assert {finding.key for finding in findings if not finding.sdk} == {"E-01@1.0"}
    assert {finding.sdk for finding in findings if finding.sdk} == {"a2a-sdk 1.3.0"}
    assert note.startswith(f"{len(agent) - 1} of {len(agent)} failures")
    others = [
        found(f"{row}@1.0", Verdict.FAIL) for row in REQUIREMENTS if row[0] in "TSMHE" and f"{row}@1.0" not in keys
    ]
    assert len(others) > len(agent)
    assert marked([*agent, *others])[1] == ""
    good, silent = marked([found(key, Verdict.PASS) for key in keys])
    assert ({finding.sdk for finding in good}, silent) == ({""}, "")
    named, _ = marked([found(keys[0], Verdict.FAIL)], "a2a-sdk 1.3.0")
    assert named[0].sdk == "a2a-sdk 1.3.0"


def test_a_baseline_of_an_sdk_names_rows_that_exist() -> None:
    assert set(sdks()) == {"a2a-sdk 0.3.26", "a2a-sdk 1.3.0", "@a2a-js/sdk 0.3.14", "@a2a-js/sdk 1.3.0"}
    for keys in sdks().values():
        assert {key.partition("@")[0] for key in keys} <= set(REQUIREMENTS)
