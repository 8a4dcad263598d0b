"""An agent that does one task at a time gets the same verdicts in any order of the probes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fleetsim.agent.builtin import reference_agent
from fleetsim.agent.settings import AgentSettings
from fleetsim.agent.skills import SkillContext, SkillFunction
from fleetsim.check.agent_under_test import Options, Target
from fleetsim.check.evidence import Verdict
from fleetsim.check.listener import Listener, Sink
from fleetsim.check.report import Report
from fleetsim.check.runner import SAME_MAX, discover, one_at_a_time, run_check, select, settle
from fleetsim.check.session import Session
from fleetsim.model.call import Operation
from fleetsim.runtime.ports import Runtime
from fleetsim.testbed.network import MemoryNetwork
from fleetsim.testbed.runtime import virtual_runtime
from tests.broken.build import breaks, with_skills
from tests.broken.editors import about, answer_if
from tests.broken.inprocess import AGENT, ALLOW, CHECKER, CHECKER_ADDRESS
from tests.broken.senders import OneShotSender, Untold, sending
from tests.broken.wire import Edit

pytestmark = pytest.mark.slow


def one_after_another(settings: AgentSettings, *, at_once: int = 1, takes_s: float = 1.5) -> AgentSettings:
    """Every skill waits for the ones before it, and takes ``takes_s`` at least; a question blocks no other."""
    turn = asyncio.Semaphore(at_once)

    async def in_turn(run: SkillFunction, task: SkillContext) -> str | None:
        async with turn:
            await asyncio.sleep(takes_s)
            if task.skill.skill_id != "ask":
                return await run(task)
        return await run(task)

    return with_skills(in_turn)(settings)


def two_at_a_time(settings: AgentSettings) -> AgentSettings:
    return one_after_another(settings, at_once=2, takes_s=5.0)


NEVER_TOLD = sending(lambda _delivery: None)


@asynccontextmanager
async def env(seed: int, *edits: Edit, **broken: Any) -> AsyncIterator[tuple[Runtime, Listener]]:
    """An agent at ``AGENT``, and the runtime and listener of its check."""
    network = MemoryNetwork(seed=seed)
    network.addresses["checker"] = (CHECKER_ADDRESS,)
    listener = Listener(CHECKER, Sink())
    healthy = reference_agent(runtime=virtual_runtime(seed, network, name="agent"), allow_webhook=(ALLOW,))
    network.mount(AGENT, breaks(*edits, **broken)(healthy).app())
    network.mount(CHECKER, listener.sink)
    async with network:
        yield virtual_runtime(seed, network, name="checker"), listener


async def checked(seed: int = 0, rows: tuple[str, ...] = (), **broken: Any) -> Report:
    async with env(seed, **broken) as (runtime, listener):
        options = Options(side_effects=True, seed=seed)
        return await run_check(
            Target(url=AGENT), runtime, listener=listener, options=options, requirements=select(rows)
        )


def verdicts(report: Report) -> dict[str, str]:
    return {finding.key: finding.verdict.value for finding in report.findings}


def failed(report: Report) -> set[str]:
    return {finding.requirement.id for finding in report.of(Verdict.FAIL)}


async def test_an_agent_that_does_one_task_at_a_time_gets_the_same_verdicts_in_every_order() -> None:
    quick = await checked()
    found = [await checked(seed, settings=one_after_another) for seed in (0, 1)]
    assert [failed(report) for report in found] == [set(), set()]
    assert verdicts(found[0]) == verdicts(found[1])
    # The slow skill's progress comes late there; every other row is tested as well as with a parallel agent.
    differs = {key for key, verdict in verdicts(quick).items() if verdicts(found[0])[key] != verdict}
    assert {key.partition("@")[0] for key in differs} == {"S-17"}
    assert "one thing at a time" in found[0].note
    assert quick.note == ""
    # Its tasks alone take that long, in any order.
    assert max(report.seconds for report in found) < 450


@pytest.mark.parametrize(("broken", "rows"), [("never-retried", {"P-27"}), ("late-untold", {"P-25"})])
async def test_a_fault_of_an_agent_that_does_one_task_at_a_time_is_found_in_every_order(
    broken: str, rows: set[str]
) -> None:
    parts = {
        "never-retried": {"sender": OneShotSender},
        "late-untold": {"pair": lambda: Untold(lambda task: task.terminal)},
    }[broken]
    found = [await checked(seed, ("P-*", "L-*"), settings=one_after_another, **parts) for seed in (0, 1)]
    assert [failed(report) for report in found] == [rows, rows]
    assert verdicts(found[0]) == verdicts(found[1])


async def test_a_row_that_timed_out_beside_other_probes_is_repeated_alone() -> None:
    found = [await checked(seed, ("P-*",), settings=two_at_a_time) for seed in (0, 1)]
    assert [failed(report) for report in found] == [set(), set()]
    assert verdicts(found[0]) == verdicts(found[1])
    assert found[0].note == ""


async def test_a_row_that_times_out_alone_too_is_repeated_three_times_at_most() -> None:
    done: list[str] = []
    async with env(0, sender=NEVER_TOLD) as (runtime, listener):
        rows = select(["P-*"])
        report = await run_check(
            Target(url=AGENT),
            runtime,
            listener=listener,
            requirements=rows,
            progress=lambda _done, _all, found: done.append(found),
        )
    applicable = sum(finding.verdict is not Verdict.NOT_APPLICABLE for finding in report.findings)
    assert {"P-15", "P-24", "P-26"} <= failed(report)
    assert len(done) == applicable + SAME_MAX


async def test_a_task_that_refuses_its_cancel_as_finished_is_not_awaited() -> None:
    unreadable = answer_if(about(Operation.GET), {"jsonrpc": "2.0", "id": 1, "result": {}}, status=200)
    async with env(0, unreadable) as (runtime, _):
        agent = await discover(Target(url=AGENT), runtime, Options(), None)
        session = Session(agent, "0.3")
        _, sent = await session.begin()
        await asyncio.sleep(5)
        began = session.now()
        await settle(session, [sent])
        assert session.now() - began < 1


async def test_a_row_that_times_out_with_no_probe_beside_it_is_not_repeated() -> None:
    done: list[str] = []
    async with env(0, sender=NEVER_TOLD) as (runtime, listener):
        await run_check(
            Target(url=AGENT),
            runtime,
            listener=listener,
            requirements=select(["P-24"]),
            progress=lambda _done, _all, found: done.append(found),
        )
    assert done == ["P-24", "P-24"]  # in each dialect once


@pytest.mark.parametrize(("settings", "serial"), [(None, False), (one_after_another, True), (two_at_a_time, False)])
@pytest.mark.parametrize("slow_is_known", [True, False])
async def test_the_check_detects_whether_an_agent_does_one_task_at_a_time(
    settings: Any, serial: bool, slow_is_known: bool
) -> None:
    async with env(0, settings=settings) as (runtime, listener):
        agent = await discover(Target(url=AGENT), runtime, Options(), listener)
        if not slow_is_known:
            del agent.hints["slow"]
        assert await one_at_a_time(Session(agent, "1.0")) is serial


async def test_a_selection_of_rows_sends_only_the_requests_that_they_need() -> None:
    sent: list[str] = []

    async def counted(run: SkillFunction, task: SkillContext) -> str | None:
        sent.append(task.task_id)
        return await run(task)

    await checked(rows=("M-01",), settings=with_skills(counted))
    assert len(sent) <= 3
