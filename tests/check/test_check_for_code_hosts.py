"""Reports for code hosts, and the comparison of two deployments."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleetsim.agent.builtin import reference_agent
from fleetsim.check.cli.run import exit_code
from fleetsim.check.comparison import OtherSide, compare
from fleetsim.check.evidence import Verdict
from fleetsim.check.formats import FORMATS, as_json, joined
from fleetsim.cli.main import Exit
from fleetsim.model.errors import ConfigError
from tests.check.sarif import run_in
from tests.check.test_check_cli import called
from tests.check.test_check_reports import MOOT, MUST, NASTY, PASS, SHOULD, UNTESTED, found, report


def test_a_sarif_log_fits_the_schema_and_has_each_failure_with_its_rule_level_and_place() -> None:
    log = run_in(FORMATS["sarif"](report(PASS, SHOULD, MUST, UNTESTED, MOOT)))
    rules = [rule["id"] for rule in log["tool"]["driver"]["rules"]]
    assert all(rule["fullDescription"]["text"] for rule in log["tool"]["driver"]["rules"]), "GitHub requires it"
    results = {rules[result["ruleIndex"]]: result for result in log["results"]}
    assert {rule: found["level"] for rule, found in results.items()} == {"P-17": "error", "C-02": "warning"}
    place = results["C-02"]["locations"][0]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "agents.yaml"
    assert place["logicalLocations"][0]["fullyQualifiedName"] == "http://agent"
    assert not {"\x1b", "\x00", "\u202e"} & set(json.dumps(log, ensure_ascii=False))


def test_a_failure_keeps_its_fingerprint_when_its_words_change() -> None:
    texts = [FORMATS["sarif"](report(found("P-17", Verdict.FAIL, reason=reason))) for reason in ("a", "b")]
    assert len({json.dumps(run_in(text)["results"][0]["partialFingerprints"]) for text in texts}) == 1


def test_an_accepted_failure_is_suppressed_with_its_reason() -> None:
    (result,) = run_in(FORMATS["sarif"](report(MUST).with_accepted({"P-17": "next release"})))["results"]
    assert result["suppressions"] == [{"kind": "external", "justification": "next release"}]
    assert FORMATS["github"](report(MUST).with_accepted({"P-17": "next release"})) == ""


@pytest.mark.parametrize(
    ("file", "uri"), [("a b/agent.py", "a%20b/agent.py"), ("/srv/agent.py", "file:///srv/agent.py")]
)
def test_the_file_of_a_failure_is_a_uri(file: str, uri: str) -> None:
    (result,) = run_in(FORMATS["sarif"](replace(report(MUST), file=file)))["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == uri


@pytest.mark.parametrize("kind", ["sarif", "github"])
def test_a_report_without_failures_is_valid_and_empty(kind: str) -> None:
    text = FORMATS[kind](report(PASS, UNTESTED))
    assert (text == "") if kind == "github" else (run_in(text)["results"] == [])


def test_an_annotation_is_one_command_for_any_text_of_the_agent() -> None:
    reason = f"100%\n::stop-commands::x\r::error file=a,line=2::b {NASTY}"
    text = FORMATS["github"](report(SHOULD, found("P-17", Verdict.FAIL, reason=reason)))
    first, second = text.splitlines()
    assert first.startswith("::error file=agents.yaml,line=1,title=P-17@0.3 MUST")
    assert "100%25%0A::stop-commands" in first
    assert second.startswith("::warning file=agents.yaml")


PASSED_THERE = OtherSide.of(report(found("P-17", Verdict.PASS), found("C-02", Verdict.FAIL, "any"), PASS, UNTESTED))


def test_a_row_that_fails_on_one_side_only_fails_the_comparison() -> None:
    accepted, compared = compare(report(MUST, SHOULD, PASS, UNTESTED), PASSED_THERE)
    assert [row.key for row in compared.worse] == ["P-17@0.3"]
    assert compared.better == ()
    assert compared.same == 3
    assert exit_code(accepted, strict=True) is Exit.FAILED


def test_rows_that_fail_on_both_sides_are_accepted() -> None:
    accepted, compared = compare(report(MUST, SHOULD, PASS), OtherSide.of(report(MUST, SHOULD, PASS)))
    assert compared.changed == ()
    assert exit_code(accepted, strict=True) is Exit.OK


def test_a_comparison_names_better_rows_and_dialects_of_one_side() -> None:
    here = report(found("C-02", Verdict.PASS, "any"), found("T-01", Verdict.PASS, "1.0"))
    _, compared = compare(here, PASSED_THERE)
    assert [row.key for row in compared.better] == ["C-02"]
    assert (dict(compared.only_here), dict(compared.only_there)) == ({"1.0": 1}, {"0.3": 3})
    assert joined(compared.lines()).startswith("NOT WORSE")


def test_a_row_that_was_not_tested_here_is_not_better() -> None:
    _, compared = compare(report(found("C-02", Verdict.NOT_TESTED, "any")), PASSED_THERE)
    assert (len(compared.changed), compared.better) == (1, ())


def test_a_written_report_can_be_a_side() -> None:
    whole = report(MUST, SHOULD, PASS, UNTESTED, MOOT)
    read = OtherSide.read(as_json(whole).encode(), "before.json")
    assert read.verdicts == OtherSide.of(whole).verdicts


@pytest.mark.parametrize("text", [b"{}", b"[]", b"\xff", b'{"schema": "fleetsim-check/1", "findings": [{}]}'])
def test_another_file_cannot_be_a_side(text: bytes) -> None:
    with pytest.raises(ConfigError):
        OtherSide.read(text, "before.json")


@pytest.mark.sockets
async def test_two_deployments_are_compared_and_the_worse_one_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    only = ["--only", "C-03", "--only", "T-02"]
    async with reference_agent().serving() as good, reference_agent(url="http://127.0.0.1:1/no").serving() as bad:
        assert await called("check", bad, *only, "--against", good, "--report", "github=-") == Exit.FAILED
        told = capsys.readouterr().out
        assert await called("check", bad, *only, "--report", "json=before.json") == Exit.FAILED
        assert await called("check", bad, *only, "--against", "before.json") == Exit.OK
        capsys.readouterr()
        assert (
            await called("-o", "json", "check", good, *only, "--against", bad, "--report", "sarif=c.sarif") == Exit.OK
        )
    told_json: Any = json.loads(capsys.readouterr().out)
    stop, first, *lines = told.splitlines()
    assert stop.startswith("::stop-commands::")
    assert first.startswith("WORSE: 1 rows")
    go_on = lines.index(f"::{stop.rpartition('::')[2]}::")
    assert [number for number, line in enumerate(lines) if line.lstrip().startswith("::error")] > [go_on]
    assert told_json["comparison"]["better"] == ["C-03"]
    assert run_in((tmp_path / "c.sarif").read_text())["results"] == []
