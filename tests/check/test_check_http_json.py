"""A check over HTTP+JSON, of an agent that offers no other binding."""

from __future__ import annotations

from typing import Any

import pytest

from fleetsim.agent.builtin import reference_agent
from fleetsim.check.agent_under_test import Options
from fleetsim.check.evidence import Verdict
from fleetsim.check.raw_dialect import RawDialect
from fleetsim.check.report import Report
from fleetsim.check.runner import run_check, select
from fleetsim.model.call import PushConfig, SetPush
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.real import running_runtime
from fleetsim.testbed.asgi import App
from fleetsim.wire.dialect import DIALECTS
from tests.broken.build import breaks
from tests.broken.editors import answer_if, edit_card
from tests.broken.inprocess import ALLOW, check_app
from tests.broken.wire import HttpRequest
from tests.client.scripted import of_the_text
from tests.field.peer import Peer, case

pytestmark = pytest.mark.slow
HOOK = "http://127.0.0.1:1/hook"


async def field_report() -> Report:
    async with Peer(case("03")) as peer, running_runtime() as runtime:
        return await run_check(peer.base, runtime, options=Options(patience_s=2.0))


@pytest.mark.sockets
async def test_an_agent_with_http_json_alone_is_checked_over_it() -> None:
    report = await field_report()
    verdicts = {finding.requirement.id: finding.verdict for finding in report.findings}
    assert report.dialects == ("1.0+http",)
    kept = ("C-03", "C-06", "C-12", "M-01", "M-02", "M-04", "M-11", "T-01", "T-06", "S-01", "S-02", "S-05", "S-08")
    assert {row: verdicts.get(row, verdicts.get(f"{row}@1.0+http")) for row in kept} == dict.fromkeys(
        kept, Verdict.PASS
    )
    needing_json_rpc = {f.requirement.id for f in report.findings if f.reason.startswith("needs JSON-RPC")}
    assert {"E-01", "E-06", "E-10", "E-16", "S-03"} <= needing_json_rpc
    # It keeps no messages and accepts any message.
    failed = {f.requirement.id for f in report.of(Verdict.FAIL)}
    assert {"T-32", "E-24", "T-12"} <= failed


@pytest.mark.parametrize("dialect", ["1.0+http", "0.3+http"])
async def test_the_reference_agent_passes_every_row_over_http_json(dialect: str) -> None:
    def make(runtime: Runtime) -> App:
        return reference_agent(runtime=runtime, allow_webhook=(ALLOW,)).app()

    report = await check_app(make, dialects=(dialect,))
    assert {f.key: f.reason for f in report.of(Verdict.FAIL)} == {}
    untested = {f.reason for f in report.of(Verdict.NOT_TESTED)}
    assert untested <= {"needs JSON-RPC: this check runs over HTTP+JSON"}
    assert len(report.of(Verdict.PASS)) > 110


@pytest.mark.parametrize("url", ["http://a.example/a2a", "http://a.example/v1"])
@pytest.mark.parametrize("name", [name for name in DIALECTS if name != "0.1"])
def test_the_check_writes_webhooks_like_our_caller(name: str, url: str) -> None:
    raw, spoken = RawDialect(name, url), DIALECTS[name].at(url)
    for config, members in (
        (PushConfig(url=HOOK, config_id="one"), {"id": "one"}),
        (PushConfig(url=HOOK, token="t"), {"token": "t"}),
        (PushConfig(url=HOOK, scheme="Bearer", credentials="k"), {"credentials": "k"}),
    ):
        call = SetPush(task_id="t-1", config=config)
        assert raw.set_hook("t-1", raw.hook(HOOK, **members)) == spoken.write_params(call)


async def test_an_agent_by_the_text_of_0_3_is_probed_with_the_objects_of_that_text() -> None:
    def make(runtime: Runtime) -> App:
        return of_the_text(reference_agent(runtime=runtime, allow_webhook=(ALLOW,)).app())[0]

    report = await check_app(make, dialects=("0.3+http",))
    assert {f.key: f.reason for f in report.of(Verdict.FAIL)} == {}
    assert report.endpoints["0.3+http"].endswith("/a2a/v1")
    assert len(report.of(Verdict.PASS)) > 110


@pytest.mark.parametrize("name", ["1.0", "1.0+http"])
async def test_the_tenant_on_the_card_is_sent_with_each_call(name: str) -> None:
    tenants = set()

    def noted(asked: HttpRequest) -> bool:
        if asked.operation and "/" not in asked.method:
            tenants.add(asked.params.get("tenant"))
        elif asked.path.startswith("/a2a/"):
            tenants.add(asked.path.split("/")[2])
        return False

    def of_blue(card: dict[str, Any]) -> dict[str, Any]:
        return {
            **card,
            "supportedInterfaces": [{**interface, "tenant": "blue"} for interface in card["supportedInterfaces"]],
        }

    def make(runtime: Runtime) -> App:
        agent = reference_agent(runtime=runtime)
        return breaks(edit_card(of_blue), answer_if(noted, {}, status=200))(agent).app()

    report = await check_app(make, dialects=(name,), requirements=select(("T-01", "T-06", "E-13", "S-02")))
    assert {finding.key: finding.reason for finding in report.of(Verdict.FAIL)} == {}
    assert tenants == {"blue"}
