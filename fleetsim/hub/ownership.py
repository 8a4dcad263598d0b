"""Owners of requests: an agent's key reaches only the requests that were made with it.

The owner is the ``user_id`` of a request's source. Only this module sets it, so a body cannot.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace as replace_row

from msgspec.structs import replace

from fleetsim.api.answers import CeremonyFacts
from fleetsim.caller.tracker import Tracker
from fleetsim.ceremonies.runs import CeremonyRow, ceremony_facts
from fleetsim.events.fleet import ActionTaken, HubStopping, NoticeDelivered, NoticeFailed
from fleetsim.events.request import Event
from fleetsim.hub.fleet import CurrentFleet
from fleetsim.hub.keys import Principal
from fleetsim.ledger import Ledger, RunRecord
from fleetsim.model.errors import UnknownTarget
from fleetsim.model.text import one_line
from fleetsim.model.work import SkillRequest, Source
from fleetsim.request.records import RequestRecord
from fleetsim.runtime.inbound import Refusal

_REMEMBERED = 10_000


class Ownership:
    """Sets the owner of a request, and checks it later."""

    def __init__(self, tracker: Tracker, ledger: Ledger, fleet: CurrentFleet) -> None:
        self._tracker = tracker
        self._ledger = ledger
        self._fleet = fleet
        self._owners: OrderedDict[str, tuple[str | None, str, str]] = OrderedDict()

    async def stamped(self, request: SkillRequest, principal: Principal, *, given_id: bool) -> SkillRequest:
        """The request with its owner, and the name of a person. An agent's request runs in its own name, on its own
        tasks and contexts. Raises UnknownTarget if the task or context belongs to no request, or to another owner's.
        Refusal if the body has an id (``given_id``): it is also the default context, so it could name another owner's
        conversation."""
        if principal.agent is None:
            return request if principal.person is None else replace(request, system_actor=principal.person)
        if given_id:
            raise Refusal(400, "BAD_REQUEST", "correlationId: the hub gives the ids of what agents ask for")
        if request.context_id is not None and not request.targets:
            raise UnknownTarget("a context is one agent's", hint="name that agent as the one target")
        for agent in request.targets:
            if request.context_id is not None:
                await self._require_context(principal, agent, request.context_id)
        for agent in request.targets:
            if request.task_id is not None:  # last: without a wait between this check and the dispatcher's
                await self._require_task(principal, agent, request.task_id)
        return replace(
            request,
            system_actor=principal.agent,
            dispatcher_agent=principal.agent if request.dispatcher_agent else None,
            source=Source(interface="api", user_id=principal.agent),
        )

    async def require(self, principal: Principal, correlation_id: str) -> None:
        """Raises UnknownTarget unless the principal may see the request."""
        if not principal.sees_all and not await self.owns(principal, correlation_id):
            raise UnknownTarget(f"no request “{one_line(correlation_id, 64)}” is known")

    async def owns(self, principal: Principal, correlation_id: str) -> bool:
        """Whether the request was made with the principal's key, and its agent and skill exist for that key."""
        track = self._tracker.track(correlation_id)
        if track is not None or correlation_id not in self._owners:  # an open request may go to a fallback
            record = track.record if track is not None else await self._ledger.request(correlation_id)
            if record is None:
                return False
            self._owners[correlation_id] = record.request.source.user_id, record.agent, record.skill
            if len(self._owners) > _REMEMBERED:
                self._owners.popitem(last=False)
        owner, agent, skill = self._owners[correlation_id]
        return owner == principal.agent and self._fleet.may(principal.caller, agent, skill)

    async def hides(self, principal: Principal, correlation_id: str) -> bool:
        """Whether an agent's request was accepted, and its agent or skill does not exist for that key now."""
        accepted = await self._ledger.request(correlation_id) is not None
        return accepted and not await self.owns(principal, correlation_id)

    async def may_see(self, principal: Principal, event: Event) -> bool:
        """Whether the principal may see an event. An agent sees those of its own requests and ceremonies, and the hub's
        end, but not notices to people, nor who did what."""
        if principal.sees_all:
            return True
        if isinstance(event, NoticeDelivered | NoticeFailed | ActionTaken):
            return False
        if (created_by := getattr(event, "created_by", None)) is not None:
            own = created_by == principal.agent
            return own and not await self._hides_any(principal, getattr(event, "correlation_ids", ()))
        if event.correlation_id is not None:
            return await self.owns(principal, event.correlation_id)
        return isinstance(event, HubStopping)

    async def owns_run(self, principal: Principal, run: RunRecord) -> bool:
        """Whether the principal may see a run: another owner may have used the ceremony's id before."""
        return principal.sees_all or (
            bool(run.children)
            and await self.owns(principal, run.children[0])
            and not await self._hides_any(principal, run.children)
        )

    async def ceremonies(self, principal: Principal, rows: Iterable[CeremonyRow]) -> tuple[CeremonyFacts, ...]:
        """The principal's own ceremonies, or all, without last runs that had a request that is hidden now."""
        found = []
        for row in rows:
            if principal.sees_all or row.ceremony.created_by == principal.agent:
                hidden = row.last is not None and await self._hides_any(principal, row.last.children)
                found.append(ceremony_facts(replace_row(row, last=None) if hidden else row))
        return tuple(found)

    async def _hides_any(self, principal: Principal, children: Sequence[str]) -> bool:
        """Whether the principal's list hides one of the requests of its own run."""
        if self._fleet.access(principal.caller) is None:
            return False
        return not all([await self.owns(principal, child) for child in children])

    async def _require_task(self, principal: Principal, agent: str, task_id: str) -> None:
        last = await self._ledger.last_outcome(agent, task_id=task_id)
        record = await self._ledger.request(last.correlation_id) if last is not None else None
        holder = await self._tracker.find_holder(agent, task_id)
        if holder is not None:
            track = await self._tracker.find_track(holder)
            record = track.record if track is not None else None
        if record is None or not self._made_by(record, principal):
            raise UnknownTarget(f"no task “{one_line(task_id, 64)}” is known")

    async def _require_context(self, principal: Principal, agent: str, context_id: str) -> None:
        last = await self._ledger.last_outcome(agent, context_id=context_id)
        newest = await self._ledger.request(last.correlation_id) if last is not None else None
        for record in (track.record for track in self._tracker.open_tracks.values()):
            context = record.task.context_id if record.task is not None else record.request.context_id
            if record.agent == agent and (context or record.request.correlation_id) == context_id:
                newest = record
        if newest is None or not self._made_by(newest, principal):
            hint = "leave contextId out in the first turn; the answer has the id for the next ones"
            raise UnknownTarget(f"no context “{one_line(context_id, 64)}” is known", hint=hint)

    def _made_by(self, record: RequestRecord, principal: Principal) -> bool:
        made = record.request.source.user_id == principal.agent
        return made and self._fleet.may(principal.caller, record.agent, record.skill)
