"""The bench: a broken agent and the check of it in one process, on virtual time.

The agent demands the keys of two callers and may call the check's listener; its log is read and hours pass.
Run it inside ``testbed.run`` (or on any virtual loop).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from fleetsim.agent import Agent, AgentLimits
from fleetsim.agent.builtin import reference_agent
from fleetsim.check.evidence import Verdict
from fleetsim.check.report import Report
from fleetsim.check.requirement import ALL, Requirement
from fleetsim.runtime.ports import Runtime
from fleetsim.testbed.asgi import App
from fleetsim.testbed.loop import Deadlock, LeftOver, run
from fleetsim.testbed.runtime import CountedIds
from tests.broken.build import Mutant, signed
from tests.broken.inprocess import ALLOW, check_app

KEY, OTHER = "bench-key-of-the-first-caller", "bench-key-of-another-caller"


class ScatteredIds(CountedIds):
    """Ids that do not count up, the same for a seed."""

    def new(self) -> str:
        digest = hashlib.sha256(super().new().encode()).hexdigest()
        return f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-8{digest[17:20]}-{digest[20:32]}"


def healthy_agent(runtime: Runtime) -> Agent:
    """The reference agent as it stands on the bench."""
    agent = reference_agent(
        runtime=runtime,
        api_keys={"first": KEY, "second": OTHER},
        allow_webhook=(ALLOW,),
        limits=AgentLimits(stop_s=0.5, drain_s=0.5),
    )
    return signed(agent)


async def examine(broken: Mutant | None, requirements: Iterable[Requirement] | None = None, *, seed: int = 0) -> Report:
    """Check the agent, broken or not, in every dialect; hours included."""

    def make(runtime: Runtime) -> App:
        agent = healthy_agent(replace(runtime, ids=ScatteredIds(seed, "agent")))
        app: App = (broken.make(agent) if broken else agent).app()
        return app

    return await check_app(
        make,
        requirements=requirements,
        dialects=broken.dialects if broken else ALL,
        headers={"X-API-Key": KEY},
        other_headers={"X-API-Key": OTHER},
        seed=seed,
        path="/a2a",
    )


def checked(broken: Mutant | None, requirements: Iterable[Requirement] | None = None, *, seed: int = 0) -> Report:
    """``examine`` on a virtual loop of its own. Workers that a broken agent leaves running do not fail it."""
    reports: list[Report] = []

    async def story() -> None:
        reports.append(await examine(broken, requirements, seed=seed))

    with suppress(*() if broken is None else (LeftOver, Deadlock)):
        run(story, seed=seed, strict=broken is None)
    return reports[0]


@dataclass(frozen=True, slots=True)
class MutantOutcome:
    """The check's findings about one broken agent, compared with the expected ones."""

    mutant: Mutant
    failed: frozenset[str]
    reasons: dict[str, str] = field(default_factory=dict, compare=False)

    @property
    def caught(self) -> bool:
        return self.mutant.row in self.failed

    @property
    def strays(self) -> tuple[str, ...]:
        """Rows that failed and should not have."""
        return tuple(sorted(row for row in self.failed if self.mutant.may_fail(row) is None))


def outcome(broken: Mutant, report: Report) -> MutantOutcome:
    """Judge a report of a broken agent."""
    fails = report.of(Verdict.FAIL)
    return MutantOutcome(broken, frozenset(f.requirement.id for f in fails), {f.key: f.reason for f in fails})
