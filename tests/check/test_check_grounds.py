"""Verdicts that were once wrong about agents by other authors: each row fails or passes for its own reason only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route

from fleetsim.agent.builtin import reference_agent
from fleetsim.check.agent_under_test import Hint, Options
from fleetsim.check.evidence import Verdict
from fleetsim.check.listener import Listener, Sink
from fleetsim.check.report import Finding, Report
from fleetsim.check.requirement import Severity
from fleetsim.check.runner import run_check, select
from fleetsim.model.call import Operation
from fleetsim.model.errors import ConfigError
from fleetsim.model.extensions import COST, COST_TYPE, EFFECT_DOMAIN
from fleetsim.runtime.ports import Runtime
from fleetsim.testbed.loop import run
from fleetsim.testbed.network import MemoryNetwork
from fleetsim.testbed.runtime import virtual_runtime
from tests.broken.bench import checked
from tests.broken.build import Mutant, breaks, with_limits
from tests.broken.catalogue import mutant
from tests.broken.editors import (
    about,
    answer_as,
    answer_error,
    answer_if,
    at,
    drop_frame,
    edit_card,
    edit_error,
    edit_everything,
    edit_frames,
    edit_headers,
    edit_params,
    in_dialect,
    kind_of,
)
from tests.broken.inprocess import AGENT, ALLOW, check_app
from tests.broken.wire import Edit, Headers, HttpRequest, HttpResponse
from tests.client.mounted import PATH, RPC, mounted

JsonObject = dict[str, Any]


def broken(row: str, *edits: Edit, **parts: Any) -> Mutant:
    return Mutant(mutant_id="made-here", row=row, title="made here", make=breaks(*edits, **parts))


def judged(agent: Mutant, *patterns: str) -> dict[str, Finding]:
    return {finding.key: finding for finding in checked(agent, select(patterns)).findings}


@pytest.mark.parametrize(
    ("mutant_id", "patterns", "reason"),
    [
        ("no-push-set", ("P-08", "P-09", "P-10", "P-11", "P-12", "P-13", "P-07"), "(M-07)"),
        ("no-cancel", ("H-04", "T-08", "E-14"), "(M-05)"),
        ("no-get", ("S-14", "T-06", "E-13"), "(M-04)"),
        ("no-list", ("T-22", "T-23"), "(M-11)"),
    ],
)
def test_rows_that_need_a_missing_method_are_not_tested_because_of_its_row(
    mutant_id: str, patterns: tuple[str, ...], reason: str
) -> None:
    found = judged(mutant(mutant_id), *patterns)
    asked = {key: f for key, f in found.items() if not key.endswith("@0.1")}
    assert {f.requirement.id for f in asked.values()} == set(patterns)
    assert {(f.verdict, f.reason[-6:]) for f in asked.values()} == {(Verdict.NOT_TESTED, reason)}


def test_a_question_in_a_frameworks_form_is_recognized_and_answered_in_it() -> None:
    call = {"id": "call-1", "name": "who", "args": {"prompt": "Who shall I greet?"}}

    def as_a_call(obj: dict[str, Any]) -> None:
        parts = obj.get("parts")
        if isinstance(parts, list) and parts and parts[0].get("text") == "Who shall I greet?":
            kind = {"kind": "data"} if "kind" in parts[0] else {}
            obj["parts"] = [{**kind, "data": call, "metadata": {"adk_type": "function_call"}}]

    answers: list[JsonObject] = []

    def note(params: JsonObject) -> JsonObject:
        if params["message"].get("taskId"):
            answers.extend(params["message"]["parts"])
        return params

    found = judged(broken("T-15", edit_everything(as_a_call), edit_params(Operation.SEND, to=note)), "T-15", "T-14")
    assert {f.verdict for key, f in found.items() if not key.endswith("@0.1")} == {Verdict.PASS}
    assert len(answers) == 3
    for part in answers:
        assert part["metadata"] == {"adk_type": "function_response"}
        assert part["data"] == {"id": "call-1", "name": "who", "response": part["data"]["response"]}


@pytest.mark.slow
def test_a_missing_method_is_reported_once() -> None:
    report = checked(mutant("no-push-set"), select(("M-07", "P-*")))
    assert {f.requirement.id for f in report.of(Verdict.FAIL)} == {"M-07"}


@pytest.mark.slow
def test_streams_of_an_agent_with_only_the_old_name_are_tested_by_that_name() -> None:
    found = judged(mutant("old-stream-name-alone"), "M-02", "M-03", "S-01", "S-02", "S-14", "S-15")
    assert found["M-02@0.3"].verdict is Verdict.FAIL
    assert {key: f.verdict for key, f in found.items() if key.endswith("@0.3") and key != "M-02@0.3"} == {
        f"{row}@0.3": Verdict.PASS for row in ("M-03", "S-01", "S-02", "S-14", "S-15")
    }


def test_a_missing_extended_card_is_a_fault_in_1_0_and_not_in_0_3() -> None:
    agent = broken(
        "C-13", edit_error(-32007, to=-32601), edit_error(-32004, to=-32601, on=about(Operation.EXTENDED_CARD))
    )
    found = judged(agent, "C-13")
    assert found["C-13@0.3"].verdict is Verdict.PASS
    assert found["C-13@1.0"].verdict is Verdict.FAIL


def _told_next(event: JsonObject, _seen: list[JsonObject]) -> Iterable[JsonObject]:
    """The snapshot without its message, which comes as the next event."""
    message = event.get("status", {}).pop("message", None) if kind_of(event) == "task" else None
    if message is None:
        return [event]
    ids = {"taskId": event["id"], "contextId": event["contextId"]}
    status = {**event["status"], "message": message}
    return [event, {"kind": "status-update", **ids, "status": status, "final": False}]


@pytest.mark.slow
def test_progress_in_the_event_after_the_snapshot_counts() -> None:
    agent = broken("S-17", edit_frames(_told_next, on=in_dialect("0.3", Operation.SUBSCRIBE)))
    assert judged(agent, "S-17")["S-17@0.3"].verdict is Verdict.PASS
    assert judged(mutant("progress-lost"), "S-17")["S-17@0.3"].verdict is Verdict.FAIL


def test_a_rest_cancel_is_seen_by_rest_if_tasks_cannot_be_read_otherwise() -> None:
    agent = broken("M-04", answer_error(about(Operation.GET), -32601, "Method not found"))
    assert judged(agent, "R-05")["R-05"].verdict is Verdict.PASS


@pytest.mark.slow
def test_a_shadowed_alias_is_a_fault_and_a_missing_one_is_not() -> None:
    assert judged(mutant("rest-subscribe-shadowed"), "R-04")["R-04"].verdict is Verdict.FAIL
    gone = broken("R-04", answer_error(lambda asked: asked.path.endswith(":subscribe"), -32601, "Not here"))
    assert judged(gone, "R-04")["R-04"].verdict is not Verdict.PASS


def test_the_message_of_a_refused_send_names_the_sent_text() -> None:
    def text_taken(asked: HttpRequest) -> bool:
        return asked.params.get("message") == "hello"

    found = judged(broken("E-08", answer_error(text_taken, -32603, "Internal error")), "E-08")
    assert "a send whose message is a text" in found["E-08@0.3"].reason
    assert '"message":"hello"' in found["E-08@0.3"].evidence[0]


def _uncached(headers: Headers) -> Headers:
    return {name: value for name, value in headers.items() if name not in {"cache-control", "etag"}}


async def checked_app(*patterns: str, check: JsonObject | None = None, **options: Any) -> Report:
    def make(runtime: Runtime) -> Any:
        return reference_agent(runtime=runtime, allow_webhook=(ALLOW,), **options).app()

    return await check_app(make, requirements=select(patterns), **(check or {}))


def test_a_card_is_checked_against_the_sources_of_its_own_dialects() -> None:
    card = edit_headers(lambda asked: asked.path.startswith("/.well-known"), _uncached)
    verdicts = {}

    async def story() -> None:
        for dialects in (("0.3",), ("0.3", "1.0")):

            def make(runtime: Runtime, dialects: tuple[str, ...] = dialects) -> Any:
                return breaks(card)(reference_agent(runtime=runtime, dialects=dialects)).app()

            report = await check_app(make, requirements=select(("C-10",)))
            verdicts[dialects] = report.finding("C-10").verdict

    run(story, strict=False)
    assert verdicts == {("0.3",): Verdict.NOT_APPLICABLE, ("0.3", "1.0"): Verdict.FAIL}


async def checked_with(options: Options, *patterns: str, **agent_options: Any) -> Report:
    network = MemoryNetwork()
    agent = reference_agent(runtime=virtual_runtime(0, network, name="agent"), **agent_options)
    network.mount("http://agent:9000", agent.app())
    async with network:
        return await run_check(
            "http://agent:9000",
            virtual_runtime(0, network, name="checker"),
            options=options,
            requirements=select(patterns),
        )


async def test_a_skill_that_changes_the_world_must_declare_its_effects() -> None:
    silent = await checked_with(Options(mutating=("echo",)), "X-02")
    assert silent.finding("X-02").verdict is Verdict.FAIL
    assert "echo" in silent.finding("X-02").reason
    declared = await checked_with(Options(mutating=("file_bug",)), "X-02")
    assert declared.finding("X-02").verdict is Verdict.PASS


def test_an_extension_under_another_uri_is_no_declaration_as_for_the_hub() -> None:
    def elsewhere(card: Any) -> Any:
        return json.loads(json.dumps(card).replace(EFFECT_DOMAIN, EFFECT_DOMAIN.replace("proto-labs", "elsewhere")))

    found = judged(broken("X-02", edit_card(elsewhere)), "X-02")
    assert found["X-02"].verdict is Verdict.NOT_APPLICABLE


@pytest.mark.slow
async def test_slow_readers_are_not_tested_with_a_stream_too_short_to_block() -> None:
    short = await checked_with(Options(hints={"stream": Hint("stream", "three short words")}), "S-28")
    assert {f.verdict for f in short.findings} == {Verdict.NOT_TESTED}
    assert "--skill-stream" in short.finding("S-28").reason
    long = await checked_with(Options(), "S-28")
    assert {f.verdict for f in long.findings} == {Verdict.PASS}


def test_an_answer_in_artifact_alone_is_a_warning_and_under_the_profile_of_the_original_a_failure() -> None:
    found = checked(mutant("webhook-artifact-alone"), select(("P-23", "P-38")))
    assert found.finding("P-23", "0.3").verdict is Verdict.PASS
    warned = found.finding("P-38", "0.3")
    assert (warned.verdict, warned.requirement.severity) == (Verdict.FAIL, Severity.SHOULD)
    assert "empty answers" in warned.requirement.incident
    assert found.passed()


async def test_the_profile_of_the_original_makes_the_list_a_must() -> None:
    report = await checked_with(Options(profile="workstacean"), "P-38", "P-16")
    bound = {f.requirement.id: f.requirement.severity for f in report.findings}
    assert bound == {"P-38": Severity.MUST, "P-16": select(("P-16",))[0].severity}


async def test_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError) as refused:
        await checked_with(Options(profile="other"), "C-01")
    assert "workstacean" in str(refused.value.hint)


def offering(version: str | None) -> Callable[[Any], Any]:
    """A card with one interface and no member of 0.3, of this version or of none."""

    def edit(card: Any) -> Any:
        kept = {name: value for name, value in card.items() if name not in OLDER_MEMBERS}
        entry = {"url": card.get("url") or card["supportedInterfaces"][0]["url"], "protocolBinding": "JSONRPC"}
        return {**kept, "supportedInterfaces": [{**entry, **({"protocolVersion": version} if version else {})}]}

    return edit


OLDER_MEMBERS = {"url", "preferredTransport", "additionalInterfaces", "protocolVersion"}


@pytest.mark.slow
@pytest.mark.parametrize(("spoken", "version", "reads_as"), [("1.0", None, "0.3"), ("0.3", "1.0", "1.0")])
async def test_a_card_in_another_dialect_than_the_agent_speaks_is_one_failure_and_the_rest_is_probed(
    spoken: str, version: str | None, reads_as: str
) -> None:
    make = breaks(edit_card(offering(version)), settings=lambda settings: replace(settings, dialects=(spoken,)))

    def app(runtime: Runtime) -> Any:
        return make(reference_agent(runtime=runtime, allow_webhook=(ALLOW,))).app()

    report = await check_app(app, requirements=select(("C-*", "M-*", "T-*")))
    assert report.dialects == (spoken,)
    (failed,) = report.of(Verdict.FAIL)
    assert failed.requirement.id == "C-19"
    assert f"reads as A2A {reads_as}" in failed.reason
    assert failed.reason.endswith(f"it speaks {spoken}")
    assert len(report.of(Verdict.PASS)) > 25


async def test_a_requested_dialect_is_probed_although_the_agent_does_not_know_it() -> None:
    make = breaks(edit_card(offering(None)), settings=lambda settings: replace(settings, dialects=("1.0",)))

    def app(runtime: Runtime) -> Any:
        return make(reference_agent(runtime=runtime, allow_webhook=(ALLOW,))).app()

    report = await check_app(app, requirements=select(("T-01", "C-19")), dialects=("0.3",))
    assert report.dialects == ("0.3",)
    assert report.finding("C-19").reason.endswith("it speaks 1.0")
    assert report.finding("T-01", "0.3").verdict is not Verdict.PASS


@pytest.mark.slow
async def test_an_endpoint_that_redirects_fails_its_own_row_and_the_rest_is_probed_at_the_target() -> None:
    def moved(card: Any) -> Any:
        return {**card, "url": "http://agent:9000/old", "additionalInterfaces": []}

    async def away(_: Request) -> Response:
        return RedirectResponse("/a2a", status_code=307)

    def app(runtime: Runtime) -> Any:
        agent = reference_agent(runtime=runtime, allow_webhook=(ALLOW,), dialects=("0.3",))
        inner = breaks(edit_card(moved))(agent).app()
        return Starlette(routes=[Route("/old", away, methods=["POST"]), Mount("/", inner)])

    report = await check_app(app, requirements=select(("C-03", "C-15", "M-*", "T-*")))
    (failed,) = report.of(Verdict.FAIL)
    assert (failed.requirement.id, "HTTP 307" in failed.reason) == ("C-03", True)
    assert report.endpoints == {"0.3": "http://agent:9000/a2a"}


async def test_a_mounted_agent_is_checked_at_the_endpoint_its_card_names() -> None:
    report = await check_app(
        lambda runtime: mounted(AGENT, runtime), requirements=select(("C-0[123]", "M-0*")), path=PATH
    )
    assert report.endpoints == dict.fromkeys(("0.3", "1.0"), AGENT + PATH + RPC)
    assert report.of(Verdict.FAIL) == ()


async def test_an_endpoint_that_guards_the_paths_below_it_does_not_make_the_card_look_protected() -> None:
    async def closed(_: Request) -> Response:
        return Response(status_code=401)

    def app(runtime: Runtime) -> Any:
        agent = reference_agent(runtime=runtime, allow_webhook=(ALLOW,), api_keys={"me": "k" * 20})
        return Starlette(routes=[Route("/a2a/{rest:path}", closed, methods=["GET"]), Mount("/", agent.app())])

    report = await check_app(
        app, requirements=select(("A-01", "C-01", "C-02")), path="/a2a", headers={"X-API-Key": "k" * 20}
    )
    assert {found.requirement.id for found in report.of(Verdict.PASS)} == {"A-01", "C-01", "C-02"}


def verdicts(found: dict[str, Finding]) -> dict[str, Verdict]:
    return {key: finding.verdict for key, finding in found.items()}


def test_without_registrations_rows_of_webhooks_are_not_tested_and_the_row_of_the_card_fails() -> None:
    agent = broken("C-07", answer_error(about(Operation.PUSH_SET), -32003, "Push is not supported"))
    found = judged(agent, "C-07", "P-07", "P-08", "P-14", "P-26", "L-06")
    assert {f.verdict for f in found.values() if f.requirement.id == "C-07"} == {Verdict.FAIL}
    others = {f.verdict for f in found.values() if f.requirement.id != "C-07"}
    assert others == {Verdict.NOT_TESTED}


def test_the_bound_of_webhooks_is_not_tested_if_they_cannot_be_listed() -> None:
    unlisted = answer_error(about(Operation.PUSH_LIST), -32603, "Internal error")
    agent = broken("P-35", unlisted, settings=with_limits(pushes_per_task_max=10_000))
    assert {f.verdict for f in judged(agent, "P-35").values()} == {Verdict.NOT_TESTED}


def test_tasks_that_cannot_be_read_back_are_reported_by_one_row() -> None:
    agent = broken("T-06", answer_error(about(Operation.GET, Operation.CANCEL), -32001, "Task not found"))
    found = judged(agent, "T-06", "T-08", "T-09", "T-12", "T-20", "E-13", "S-14")
    assert {f.requirement.id for f in found.values() if f.verdict is Verdict.FAIL} == {"T-06"}
    assert {f.requirement.id for f in found.values() if f.verdict is Verdict.PASS} == {"E-13"}


def test_a_missing_extended_card_that_is_a_404_is_not_served() -> None:
    asked = about(Operation.EXTENDED_CARD)
    agent = broken("C-13", answer_if(asked, {"detail": "Not Found"}, status=404))
    found = judged(agent, "C-13")
    assert {f.verdict for f in found.values()} == {Verdict.FAIL}
    assert {"404" in f.reason for f in found.values()} == {True}


@pytest.mark.parametrize(("url", "verdict"), [("https://h.example/a2a", Verdict.PASS), ("/a2a", Verdict.FAIL)])
def test_the_url_of_another_binding_is_a_url(url: str, verdict: Verdict) -> None:
    def rest_alone(card: JsonObject) -> JsonObject:
        entry = {"url": url, "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}
        return {**{k: v for k, v in card.items() if k not in OLDER_MEMBERS}, "supportedInterfaces": [entry]}

    assert judged(broken("C-16", edit_card(rest_alone)), "C-16")["C-16"].verdict is verdict


def test_a_cost_in_an_artifacts_metadata_is_the_cost_that_the_hub_reads() -> None:
    def moved(obj: JsonObject) -> None:
        parts = obj.get("parts")
        costs = [p for p in parts or () if p.get("metadata", {}).get("mimeType") == COST_TYPE]
        if costs and "artifactId" in obj:
            obj["parts"] = [part for part in parts if part not in costs]
            obj["metadata"] = {**obj.get("metadata", {}), COST: costs[0]["data"]}

    assert set(verdicts(judged(broken("X-04", edit_everything(moved)), "X-04")).values()) == {Verdict.PASS}


@pytest.mark.parametrize(
    ("also_open", "failing"), [((), set()), (("10.0.0.0/8:*",), {"P-09"}), (("169.254.0.0/16:*",), {"P-10", "P-14"})]
)
async def test_an_allowed_listener_leaves_the_addresses_of_its_own_range_untested(
    also_open: tuple[str, ...], failing: set[str]
) -> None:
    opened = await local_check(("127.0.0.0/8:*", *also_open), "P-08", "P-09", "P-10", "P-11", "P-12", "P-14")
    expected = dict.fromkeys(("P-08", "P-09", "P-10", "P-11", "P-12", "P-14"), Verdict.PASS)
    expected |= {"P-08": Verdict.NOT_TESTED} | dict.fromkeys(failing, Verdict.FAIL)
    assert opened == {f"{row}@{dialect}": verdict for row, verdict in expected.items() for dialect in ("0.3", "1.0")}


async def local_check(allowed: tuple[str, ...], *patterns: str) -> dict[str, Verdict]:
    """A check with a listener at a loopback address, of an agent that allows webhooks to these networks."""
    network, listener = MemoryNetwork(), Listener("http://127.0.0.1:9199", Sink())
    agent = reference_agent(runtime=virtual_runtime(0, network, name="agent"), allow_webhook=allowed)
    network.mount(AGENT, agent.app())
    network.mount(listener.origin, listener.sink)
    async with network:
        report = await run_check(
            AGENT,
            virtual_runtime(0, network, name="checker"),
            listener=listener,
            options=Options(),
            requirements=select(patterns),
        )
    return {finding.key: finding.verdict for finding in report.findings}


async def test_only_a_skill_on_the_card_can_be_named_as_mutating() -> None:
    with pytest.raises(ConfigError) as refused:
        await checked_with(Options(mutating=("file_bugs",)), "X-02")
    assert "file_bug" in str(refused.value.hint)


def test_a_row_that_follows_the_seeds_against_the_text_of_0_3_is_marked() -> None:
    against = {found.id for found in select(()) if "0.3" in found.against}
    assert against == {"T-02", "T-03", "S-10"}


@pytest.mark.slow
@pytest.mark.parametrize("mutant_id", ["queued", "undead", "traceback-told"])
def test_a_row_about_all_responses_causes_some_if_it_is_probed_alone(mutant_id: str) -> None:
    agent = mutant(mutant_id)
    assert Verdict.FAIL in verdicts(judged(agent, agent.row)).values()


def test_states_of_an_agent_that_shows_no_task_are_not_tested() -> None:
    message = {"kind": "message", "messageId": "m-1", "role": "agent", "parts": [{"kind": "text", "text": "pong"}]}
    reply = {"jsonrpc": "2.0", "id": 1, "result": message}
    agent = broken("T-07", answer_if(in_dialect("0.3", Operation.SEND), reply, status=200))
    assert verdicts(judged(agent, "T-07"))["T-07@0.3"] is Verdict.NOT_TESTED


def test_lists_that_are_not_supported_are_reported_by_one_row() -> None:
    found = judged(
        broken("T-22", answer_error(about(Operation.LIST), -32004, "Not supported")), "T-22", "T-23", "T-24", "T-25"
    )
    assert verdicts(found) == {
        "T-22@1.0": Verdict.FAIL,
        **{f"T-{row}@1.0": Verdict.NOT_TESTED for row in (23, 24, 25)},
    }


def test_events_that_never_came_are_not_tested() -> None:
    without_pieces = broken("S-11", drop_frame(lambda event: kind_of(event) == "artifact-update"))
    task_alone = broken("S-12", drop_frame(lambda event: kind_of(event) != "task"))
    refused = broken("C-06", answer_error(about(Operation.STREAM), -32603, "Internal error"))
    for agent, rows in (
        (without_pieces, ["S-11"]),
        (task_alone, ["S-12"]),
        (refused, ["S-02", "S-04", "S-05", "S-06"]),
    ):
        assert set(verdicts(judged(agent, *rows)).values()) <= {Verdict.NOT_TESTED}, rows


def test_an_alias_that_redirects_is_not_an_alias() -> None:
    def elsewhere(asked: HttpRequest, reply: HttpResponse) -> None:
        reply.status, reply.headers = 307, {"location": "/message:send/", "content-length": "0"}
        reply.body = b""

    agent = broken("R-01", answer_as(at("/message:send"), elsewhere))
    assert judged(agent, "R-01")["R-01"].verdict is Verdict.NOT_APPLICABLE


@pytest.mark.parametrize("row", ["C-13", "M-04", "T-06", "E-13"])
def test_a_call_that_requires_a_credential_is_not_tested(row: str) -> None:
    calls = about(Operation.EXTENDED_CARD, Operation.GET)
    found = judged(broken(row, answer_if(calls, {"error": "no"}, status=401)), row)
    assert set(verdicts(found).values()) == {Verdict.NOT_TESTED}
    assert {"401" in finding.reason for finding in found.values()} == {True}
