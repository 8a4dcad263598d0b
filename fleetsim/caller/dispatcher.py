"""The one door for requests (Workstacean's SkillDispatcherPlugin): resolve, cool down, record, hand on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from fleetsim.caller.declared import Declared
from fleetsim.caller.events import EventLog
from fleetsim.caller.ledger import Ledger, RequestRecord, RunRecord
from fleetsim.caller.tracker import Tracker
from fleetsim.model.errors import FleetsimError, NotAccepting, UnknownTarget
from fleetsim.model.journal import Level
from fleetsim.model.work import SkillRequest
from fleetsim.runtime.ports import Runtime

TEXT_CHARS_MAX = 256 * 1024
SHOWN_MAX = 500
DEFAULT_SKILL = "chat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How an agent is to be called for a skill, taken from its card and entry at this moment."""

    agent: str
    dialect: str
    rpc_url: str = ""
    tenant: str | None = None
    declared: Declared = field(default_factory=Declared)
    streaming: bool = False
    rejoin: bool = True
    push: bool = False
    register_push: bool = False
    timeout_s: float | None = None


class Dispatcher:
    """Accepts requests. ``resolve`` maps (skill, targets) to agent names, ``way`` an agent
    and a skill to how it is called."""

    def __init__(
        self,
        runtime: Runtime,
        ledger: Ledger,
        events: EventLog,
        tracker: Tracker,
        *,
        resolve: Callable[[str | None, tuple[str, ...]], tuple[str, ...]],
        way: Callable[[str, str], Way],
        cooldowns_s: Mapping[str, float] | None = None,
        token_epoch: Callable[[], int] = lambda: 1,
    ) -> None:
        self._runtime = runtime
        self._ledger = ledger
        self._events = events
        self._tracker = tracker
        self._resolve = resolve
        self._way = way
        self._cooldowns_s = dict(cooldowns_s or {})
        self._token_epoch = token_epoch
        self._last: dict[tuple[str, str], float] = {}
        self.accepting = True

    async def submit(self, request: SkillRequest) -> tuple[str, ...]:
        """Accept a request, durably, and return one correlation id per target.

        Raises:
            UnknownTarget: no such agent or skill, or the skill is cooling down.
            NotAccepting: the ledger cannot record it, or the hub is closing; nothing was sent.
        """
        records = self.plan(request)
        await self._record(records, None)
        return tuple(r.request.correlation_id for r in records)

    async def submit_run(self, requests: Sequence[SkillRequest], run: RunRecord) -> bool:
        """Accept a ceremony's children and its slot in one transaction; False if the slot was taken."""
        records = [record for request in requests for record in self.plan(request, child=True)]
        return await self._record(records, run)

    def plan(self, request: SkillRequest, *, child: bool = False) -> list[RequestRecord]:
        """The records a request becomes: one per target, children of one parent if there are several."""
        if not self.accepting:
            raise self._dropped(request, "closing", NotAccepting("the hub is closing and takes no new work"))
        if len(request.text) > TEXT_CHARS_MAX:
            raise self._dropped(
                request, "too_long", UnknownTarget(f"the text is longer than {TEXT_CHARS_MAX} characters")
            )
        try:
            agents = self._resolve(request.skill, request.targets)
        except UnknownTarget as error:
            raise self._dropped(request, "target_unresolved", error) from None
        if len(agents) == 1 or child:
            return [self._one(request, agent) for agent in agents]
        parent = request.correlation_id
        return [
            self._one(replace(request, correlation_id=self._runtime.ids.new(), parent_id=parent), agent)
            for agent in agents
        ]

    def _one(self, request: SkillRequest, agent: str) -> RequestRecord:
        skill = request.skill or DEFAULT_SKILL
        self._cool_down(request, agent, skill)
        now = self._runtime.clock.now()
        way = self._way(agent, skill)
        limit = request.timeout_s or way.timeout_s or self._tracker.rules.task_limit_s
        return RequestRecord(
            request=replace(request, targets=(agent,), skill=skill),
            agent=agent,
            skill=skill,
            accepted_at=now,
            deadline_at=now + timedelta(seconds=limit),
            message_id=self._runtime.ids.new(),
            dialect=way.dialect,
            rpc_url=way.rpc_url,
            tenant=way.tenant,
            declared=way.declared,
            streaming=way.streaming,
            rejoin=way.rejoin,
            push=way.push,
            register_push=way.register_push,
            token_epoch=self._token_epoch(),
        )

    def _cool_down(self, request: SkillRequest, agent: str, skill: str) -> None:
        window = self._cooldowns_s.get(skill, 0.0)
        now = self._runtime.clock.monotonic()
        last = self._last.get((agent, skill))
        if window and last is not None and now - last < window:
            left = window - (now - last)
            error = UnknownTarget(f"cooldown: {skill} at {agent} may be asked again in {left:.1f} s")
            raise self._dropped(request, "cooldown", error)
        if window:
            self._last[agent, skill] = now

    async def _record(self, records: Sequence[RequestRecord], run: RunRecord | None) -> bool:
        if not await self._ledger.accept(records, run=run):
            return False
        for record in records:
            request = record.request
            self._events.publish(
                "agent.skill.request",
                correlation_id=request.correlation_id,
                parent_id=request.parent_id,
                agent=record.agent,
                skill=record.skill,
                text=request.text[:SHOWN_MAX],
                targets=list(request.targets),
                systemActor=request.system_actor,
                source=request.source.interface,
            )
            self._tracker.begin(record)
        return True

    def _dropped(self, request: SkillRequest, why: str, error: FleetsimError) -> FleetsimError:
        self._events.publish(
            f"dispatch.dropped.{why}",
            level=Level.WARN,
            correlation_id=request.correlation_id,
            skill=request.skill,
            message=str(error),
            targets=list(request.targets),
        )
        return error
