"""The reference agent against the whole checklist, in process and on virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from fleetsim.agent.agent import Agent
from fleetsim.agent.builtin import echo, reference_agent
from fleetsim.check.evidence import Verdict
from fleetsim.check.report import Report
from fleetsim.check.runner import select
from fleetsim.runtime.ports import Runtime
from tests.broken.inprocess import ALLOW, check_app

pytestmark = pytest.mark.slow

KEY, OTHER = "a-key-nobody-may-see", "another-key-nobody-may-see"


async def checked(*patterns: str, check: dict[str, Any] | None = None, **options: Any) -> Report:
    made = {"allow_webhook": (ALLOW,), **options}

    def make(runtime: Runtime) -> Any:
        return reference_agent(runtime=runtime, **made).app()

    return await check_app(make, requirements=select(patterns), **(check or {}))


def told(report: Report, verdict: Verdict) -> dict[str, str]:
    return {finding.key: finding.reason for finding in report.of(verdict)}


@pytest.mark.parametrize("dialects", [("0.3", "1.0"), ("0.3",), ("1.0",), ("0.1",)])
async def test_the_reference_agent_keeps_every_promise(dialects: tuple[str, ...]) -> None:
    report = await checked(check={"dialects": dialects})
    assert told(report, Verdict.FAIL) == {}
    assert told(report, Verdict.NOT_TESTED) == {}
    assert report.tested > 40


async def test_with_keys_the_reference_agent_keeps_the_promises_of_credentials_too() -> None:
    check = {"headers": {"x-api-key": KEY}, "other_headers": {"x-api-key": OTHER}}
    report = await checked(check=check, api_keys={"one": KEY, "two": OTHER})
    assert told(report, Verdict.FAIL) == {}
    assert {f.verdict for f in report.findings if f.requirement.section == "Credentials"} == {Verdict.PASS}


async def test_a_flag_that_is_false_is_tested_and_the_rows_behind_it_do_not_apply() -> None:
    report = await checked("C-06", "C-07", "S-*", "P-*", "M-*", streaming=False, push_notifications=False)
    assert told(report, Verdict.FAIL) == {}
    assert report.finding("C-06").verdict is report.finding("C-07").verdict is Verdict.PASS
    assert report.finding("M-06").verdict is Verdict.PASS
    assert {f.verdict for f in report.findings if f.requirement.section in {"Streams", "Webhooks"}} == {
        Verdict.NOT_APPLICABLE
    }


async def test_an_agent_that_refuses_the_listener_passes_the_guard_and_its_deliveries_are_not_tested() -> None:
    report = await checked("P-*", allow_webhook=())
    assert told(report, Verdict.FAIL) == {}
    assert {report.finding(row).verdict for row in ("P-08", "P-09", "P-13", "P-14")} == {Verdict.PASS}
    reason = report.finding("P-17").reason
    assert report.finding("P-17").verdict is Verdict.NOT_TESTED
    assert "--allow-webhook checker:9199" in reason


async def test_rows_that_need_a_skill_are_not_tested_without_one_and_name_the_option() -> None:
    def make(runtime: Runtime) -> Any:
        return Agent("plain", runtime=runtime, skills=[echo], allow_webhook=(ALLOW,)).app()

    report = await check_app(make)
    assert told(report, Verdict.FAIL) == {}
    untested = told(report, Verdict.NOT_TESTED)
    assert "--skill-slow" in untested["T-08@1.0"]
    assert "--skill-ask" in untested["T-15@0.3"]
    assert "--skill-fail" in untested["T-21@0.3"]
    assert report.finding("T-09", "0.3").verdict is Verdict.PASS


async def test_costly_probes_are_skipped_unless_allowed() -> None:
    report = await checked("H-03", "E-19", "P-35", check={"side_effects": False})
    assert {f.verdict for f in report.findings} == {Verdict.NOT_TESTED}
    assert {f.reason for f in report.findings} == {"costs or leaves traces: add --allow-side-effects"}


async def test_a_run_with_another_seed_has_another_order_and_the_same_verdicts() -> None:
    report = await checked("T-*", "S-*", check={"seed": 7, "jobs": 16})
    assert told(report, Verdict.FAIL) == {}


async def test_secrets_appear_in_no_report() -> None:
    from fleetsim.check.formats import FORMATS, render

    check = {"headers": {"authorization": f"Bearer {KEY}"}}
    report = await checked("C-10", "A-*", "E-*", "P-19", check=check, bearer=KEY, url="http://wrong:1/nowhere")
    pages = [render(report, verbose=True), *(write(report) for write in FORMATS.values())]
    assert report.tested
    assert [page for page in pages if KEY in page] == []
