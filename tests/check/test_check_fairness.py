"""Rows that blamed released agents wrongly, and faults of released agents that the check overlooked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fleetsim.agent.builtin import reference_agent
from fleetsim.check.agent_under_test import Hint, Options, Target
from fleetsim.check.evidence import Verdict
from fleetsim.check.report import Report
from fleetsim.check.runner import discover, select
from fleetsim.model.call import Operation
from fleetsim.model.text import one_line
from fleetsim.runtime.ports import Runtime
from fleetsim.testbed.faults import LoseRequest
from fleetsim.testbed.network import MemoryNetwork
from fleetsim.testbed.runtime import virtual_runtime
from fleetsim.wire.rest import read_error
from tests.broken.build import breaks
from tests.broken.editors import answer_as
from tests.broken.inprocess import AGENT, ALLOW, check_app
from tests.broken.wire import HttpRequest, HttpResponse

Answer = tuple[int, Any]
Edit = Callable[[Any, Answer], Answer]


class Edited:
    """An agent whose JSON responses are edited on their way; ``asked`` are the requests with their headers."""

    def __init__(self, app: Any, edit: Edit) -> None:
        self._app = app
        self._edit = edit
        self.asked: list[tuple[Any, dict[str, str]]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body, start = b"", {}
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}

        async def heard() -> Any:
            nonlocal body
            message = await receive()
            body += message.get("body", b"")
            return message

        async def say(message: Any) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
                return
            if dict(start["headers"]).get(b"content-type", b"") != b"application/json" or message.get("more_body"):
                if "sent" not in start:
                    await send({k: v for k, v in start.items() if k != "sent"})
                    start["sent"] = True
                await send(message)
                return
            asked = _read(body)
            self.asked.append((asked, headers))
            status, value = self._edit(asked, (start["status"], _read(message["body"])))
            told = json.dumps(value).encode()
            kept = [pair for pair in start["headers"] if pair[0] != b"content-length"]
            await send({"type": "http.response.start", "status": status, "headers": kept})
            await send({"type": "http.response.body", "body": told})

        await self._app(scope, heard, say)


def _read(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


async def checked(edit: Edit, *rows: str, hints: dict[str, Hint] | None = None) -> tuple[Report, Edited]:
    made: list[Edited] = []

    def make(runtime: Runtime) -> Any:
        made.append(Edited(reference_agent(runtime=runtime, allow_webhook=(ALLOW,)).app(), edit))
        return made[0]

    return await check_app(make, requirements=select(rows), hints=hints), made[0]


def as_it_is(asked: Any, answer: Answer) -> Answer:
    return answer


def method(asked: Any) -> str:
    return str(asked.get("method", "")) if isinstance(asked, dict) else ""


async def test_a_delete_without_result_and_error_fails_the_row_of_responses() -> None:
    def silent(asked: Any, answer: Answer) -> Answer:
        if not method(asked).endswith("pushNotificationConfig/delete"):
            return answer
        return answer[0], {"jsonrpc": "2.0", "id": asked["id"]}

    report, _ = await checked(silent, "E-17")
    assert report.finding("E-17", "0.3").verdict is Verdict.FAIL
    assert report.finding("E-17", "1.0").verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("dialect", "failing"),
    # 1.0 over HTTP+JSON demands 400 for what is not supported.
    [("1.0", {"E-17"}), ("1.0+http", {"C-06", "C-07"}), ("0.3", {"E-17"}), ("0.3+http", set())],
)
async def test_a_refusal_in_the_agents_own_form_fails_the_rows_of_its_form_and_status(
    dialect: str, failing: set[str]
) -> None:
    def plainly(asked: HttpRequest, answer: HttpResponse) -> None:
        problem = read_error(answer.json, Operation.GET)
        if problem is not None and (dialect.endswith("+http") or asked.operation):
            status = {-32001: 404, -32601: 404, -32003: 501, -32004: 501}.get(problem.wire_code, 400)
            answer.say({"problem": f"{status}: {one_line(str(problem))}"}, status=status)

    def make(runtime: Runtime) -> Any:
        edit = answer_as(lambda _asked: True, plainly)
        plain = breaks(edit, settings=lambda settings: replace(settings, streaming=False, push_notifications=False))
        return plain(reference_agent(runtime=runtime)).app()

    rows = ("E-0[89]", "E-1[3-57]", "E-2[145]", "V-02", "T-09", "M-0[124-9]", "M-10", "C-0[67]")
    report = await check_app(make, dialects=(dialect,), requirements=select(rows))
    assert {f.requirement.id for f in report.of(Verdict.FAIL)} == failing
    assert {f.verdict for f in report.findings if f.requirement.id[0] == "M"} == {Verdict.PASS}
    assert report.finding("E-13").verdict is (Verdict.PASS if dialect.endswith("+http") else Verdict.NOT_TESTED)


async def test_a_parse_error_as_http_400_fails_the_row_of_statuses() -> None:
    def strict(asked: Any, answer: Answer) -> Answer:
        return (400, answer[1]) if asked is None else answer

    report, _ = await checked(strict, "E-01", "E-16")
    assert {f.verdict for f in report.findings if f.requirement.id == "E-01"} == {Verdict.PASS}
    assert {f.verdict for f in report.findings if f.requirement.id == "E-16"} == {Verdict.FAIL}


async def test_a_slow_skill_that_ends_before_the_cancel_leaves_cancelling_untested() -> None:
    report, _ = await checked(as_it_is, "T-08", hints={"slow": Hint("echo", "quick")})
    assert {f.verdict for f in report.findings} == {Verdict.NOT_TESTED}
    assert "name a slower one" in report.findings[0].reason


@pytest.mark.slow
async def test_rows_that_wait_for_a_slow_task_are_not_tested_if_it_takes_too_long() -> None:
    rows = ("S-1*", "S-2[25]", "T-05", "T-08", "P-04", "P-1[56]", "P-24", "P-3*", "R-04", "L-07")
    report, _ = await checked(as_it_is, *rows, hints={"slow": Hint("slow", "45")})
    assert {f.key: f.reason for f in report.of(Verdict.FAIL)} == {}
    waiting = [f for f in report.findings if "end" in f.requirement.needs]
    assert {f.verdict for f in waiting} == {Verdict.NOT_TESTED, Verdict.NOT_APPLICABLE}
    assert {f.reason.rpartition(" ")[2] for f in waiting if f.verdict is Verdict.NOT_TESTED} == {"--skill-slow"}
    assert report.finding("T-08", "1.0").verdict is report.finding("P-16", "1.0").verdict is Verdict.PASS


async def test_a_refused_cancel_of_a_running_task_fails() -> None:
    def stubborn(asked: Any, answer: Answer) -> Answer:
        if method(asked) not in {"tasks/cancel", "CancelTask"}:
            return answer
        error = {"code": -32002, "message": "no"}
        return 200, {"jsonrpc": "2.0", "id": asked["id"], "error": error}

    report, _ = await checked(stubborn, "T-08")
    assert {f.verdict for f in report.findings} == {Verdict.FAIL}


async def test_listing_is_probed_for_one_task_only() -> None:
    report, agent = await checked(as_it_is, "M-11")
    assert report.finding("M-11").verdict is Verdict.PASS
    (params,) = [asked["params"] for asked, _ in agent.asked if method(asked) == "ListTasks"]
    assert params == {"pageSize": 1, "historyLength": 0}


async def test_a_broken_connection_is_retried_once() -> None:
    for times, lost in ((1, False), (2, True)):
        network = MemoryNetwork()
        network.mount(AGENT, reference_agent(runtime=virtual_runtime(0, network, name="agent")).app())
        async with network:
            agent = await discover(Target(url=AGENT), virtual_runtime(0, network, name="checker"), Options(), None)
            network.fault(LoseRequest(), times=times)
            made = await agent.exchange("GET", f"{AGENT}/.well-known/agent-card.json")
        assert (made.status is None) is lost
        assert not made.unreached


async def test_calls_do_not_ask_to_close_their_connection_which_node_answers_with_400() -> None:
    _, agent = await checked(as_it_is, "E-0*")
    assert agent.asked
    assert {headers.get("connection") for _, headers in agent.asked} == {None}


async def test_a_client_certificate_is_reported_as_required_only_if_the_call_fails() -> None:
    def mutual(asked: Any, answer: Answer) -> Answer:
        status, value = answer
        if asked is None and isinstance(value, dict) and "skills" in value:
            value |= {"securitySchemes": {"c": {"type": "mutualTLS"}}, "security": [{"c": []}]}
        return status, value

    report, _ = await checked(mutual, "A-05")
    assert {finding.verdict for finding in report.findings} == {Verdict.NOT_TESTED}
