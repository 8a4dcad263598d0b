"""Ceremonies over HTTP, on the paths and in the shapes of Workstacean's ``manage_cron``, and without its incidents.

Nothing is made over another, an update re-enables nothing, who made a ceremony is stamped by the key and stays, and an
agent's key sees its own ceremonies alone: anybody else's is not there for any verb.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from fleetsim.api.bodies import CreateCeremonyBody, EmptyBody, RunCeremonyBody, UpdateCeremonyBody
from fleetsim.caller.ceremonies.facts import ceremony_facts, dry_run, run_facts
from fleetsim.caller.ceremonies.store import CeremonyNotFound, CeremonyStore, StoredCeremony
from fleetsim.caller.ledger import RunRecord
from fleetsim.ceremony.written import CeremonyInvalid
from fleetsim.hub.http import PAGE_MAX, answer, number, principal_of, read_body
from fleetsim.hub.hub import Hub
from fleetsim.hub.keys import Principal
from fleetsim.hub.ownership import Ownership
from fleetsim.model.errors import UnknownTarget
from fleetsim.model.text import one_line
from fleetsim.runtime.inbound import Refusal


class CeremonyApi:
    """The endpoints of ceremonies."""

    def __init__(self, hub: Hub, ownership: Ownership) -> None:
        self._hub = hub
        self._ownership = ownership

    async def ceremonies(self, request: Request) -> Response:
        """Ceremonies in force, disabled ones too: an agent's own, or all."""
        principal = principal_of(request)
        if request.query_params.get("all") == "true" and not principal.is_admin:
            raise Refusal(401, "UNAUTHORIZED", "Unauthorized", hint="leave all out to see your own ceremonies")
        scheduler = self._hub.scheduler
        rows = scheduler.rows() if scheduler else ()
        own = [row for row in rows if principal.is_admin or row.ceremony.created_by == principal.agent]
        return answer([ceremony_facts(row) for row in own])

    async def ceremony_errors(self, _: Request) -> Response:
        """What is wrong with files that are not in force as they stand."""
        scheduler = self._hub.scheduler
        return answer(list(scheduler.problems() if scheduler else ()))

    async def create_ceremony(self, request: Request) -> Response:
        """Write a new ceremony; never over another."""
        body = await read_body(request, CreateCeremonyBody)
        principal = principal_of(request)
        values: dict[str, Any] = body.model_dump(by_alias=True, exclude_unset=True)
        values.setdefault("targets", body.targets)
        by = principal.agent or body.created_by
        self._require_channel(values, by)
        return self._answer(await self._store().create(values, created_by=by))

    async def update_ceremony(self, request: Request) -> Response:
        """Change what is named, and nothing else; null takes a key out."""
        body = await read_body(request, UpdateCeremonyBody)
        changes: dict[str, Any] = body.model_dump(by_alias=True, exclude_unset=True)
        changes.pop("createdBy", None)
        if changes.get("enabled", True) is None:  # a tool that was told nothing of it says null
            del changes["enabled"]
        ceremony_id, owner = request.path_params["id"], principal_of(request).agent
        self._require_channel(changes, self._store().get(ceremony_id, owner=owner).ceremony.created_by)
        return self._answer(await self._store().update(ceremony_id, changes, owner=owner))

    async def delete_ceremony(self, request: Request) -> Response:
        """Remove a ceremony's file."""
        await read_body(request, EmptyBody)
        ceremony_id = request.path_params["id"]
        await self._store().delete(ceremony_id, owner=principal_of(request).agent)
        return answer({"id": ceremony_id}, message=f'Ceremony "{one_line(ceremony_id, 128)}" deleted')

    async def run_ceremony(self, request: Request) -> Response:
        """Fire a ceremony now, whatever its schedule says, or say what that would send."""
        body = await read_body(request, RunCeremonyBody)
        ceremony_id = request.path_params["id"]
        self._require(principal_of(request), ceremony_id)
        if body.dry_run:
            ceremony = self._store().get(ceremony_id).ceremony
            await self._hub.broker.until_read(ceremony.skill, ceremony.targets)
            return answer(dry_run(ceremony, self._hub.registry.resolve))
        run_id = await self._hub.require_scheduler().run_now(ceremony_id)
        return answer({"runId": run_id}, message=f'Ceremony "{one_line(ceremony_id, 128)}" triggered')

    async def ceremony_runs(self, request: Request) -> Response:
        """A ceremony's runs, newest first. An agent sees those of which it may see the requests: somebody else may have
        had the id before.
        """
        principal = principal_of(request)
        self._require(principal, request.path_params["id"])
        runs = await self._hub.ledger.runs(request.path_params["id"], limit=number(request, "limit", 100, PAGE_MAX))
        return answer([run_facts(run) for run in runs if await self._is_own(run, principal)])

    async def _is_own(self, run: RunRecord, principal: Principal) -> bool:
        return principal.is_admin or (bool(run.children) and await self._ownership.owns(principal, run.children[0]))

    def _require(self, principal: Principal, ceremony_id: str) -> None:
        """Raises CeremonyNotFound unless it is the principal's."""
        if not principal.is_admin:
            self._store().get(ceremony_id, owner=principal.agent)

    def _require_channel(self, values: Mapping[str, Any], owner: str) -> None:
        """Raises CeremonyInvalid if ceremonies of ``owner`` may not tell people on the channel that is named."""
        channel = self._hub.config.channels.get(str(values.get("notifyChannel") or ""))
        if channel is not None and (said := channel.refusal(owner)):
            raise CeremonyInvalid("notifyChannel", said)

    def _store(self) -> CeremonyStore:
        if self._hub.ceremonies is None:
            raise UnknownTarget("this hub has no ceremonies folder", hint="start it with --ceremonies FOLDER")
        return self._hub.ceremonies

    def _answer(self, stored: StoredCeremony) -> Response:
        rows = self._hub.require_scheduler().rows()
        row = next((row for row in rows if row.ceremony.ceremony_id == stored.ceremony.ceremony_id), None)
        if row is None:  # somebody removed the file already
            raise CeremonyNotFound(f'Ceremony "{stored.ceremony.ceremony_id}" not found')
        return answer(ceremony_facts(row))
