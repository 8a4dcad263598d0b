"""The agent's card, built from what is mounted, so that it cannot promise what is not there.

Sources: seed "The agent card" (url is the endpoint, both paths, honest flags), A2A 1.0 section 8,
docs/reference/interop.md for the hybrid that clients of both versions read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import Response

from fleetsim.agent.settings import AgentSettings
from fleetsim.agent.skills import Skill
from fleetsim.model.card import AgentCard, AgentExtension, AgentInterface, Capabilities
from fleetsim.model.extensions import BLAST, CONFIDENCE, COST, EFFECT_DOMAIN, HITL_MODE, WORLDSTATE_DELTA
from fleetsim.wire.dialect import VERSION_HEADER, advertised, dialect, write_card_for
from fleetsim.wire.json import dump


def build_card(settings: AgentSettings, url: str, *, extended: bool = False) -> AgentCard:
    """The public card for an endpoint at ``url``, or the one for authenticated callers."""
    shown = tuple(skill for skill in settings.offered if skill.public or extended)
    schemes = settings.authenticator().schemes()
    return AgentCard(
        name=settings.name,
        description=settings.description or settings.name,
        version=settings.version,
        interfaces=tuple(
            AgentInterface(url=url, protocol_version=dialect(name).card_version)
            for name in advertised(settings.dialects)
        ),
        capabilities=Capabilities(
            streaming=settings.streaming,
            push_notifications=settings.push_notifications,
            state_transition_history=settings.state_transition_history,
            extended_card=settings.extended_card,
            extensions=tuple(_extensions(shown)),
        ),
        skills=tuple(skill.card_entry() for skill in shown),
        default_input_modes=settings.input_modes or ("text/plain",),
        default_output_modes=settings.output_modes,
        provider_organization=settings.organization,
        provider_url=settings.provider_url,
        documentation_url=settings.documentation_url,
        security_schemes=schemes,
        security=tuple({name: []} for name in schemes),
    )


def _extensions(skills: Iterable[Skill]) -> Iterable[AgentExtension]:
    """The fleet's extensions as far as a skill uses them (seed "Extensions")."""
    skills = tuple(skills)
    if any(skill.cost for skill in skills):
        yield AgentExtension(uri=COST, description="Tokens, time and cost of a task")
    if any(skill.sure for skill in skills):
        yield AgentExtension(uri=CONFIDENCE, description="How sure the agent is of its answer")
    if effects := {s.skill_id: {"effects": [asdict(e) for e in s.effects]} for s in skills if s.effects}:
        yield AgentExtension(uri=EFFECT_DOMAIN, description="What each skill changes", params={"skills": effects})
        yield AgentExtension(uri=WORLDSTATE_DELTA, description="What a task has changed")
    if radii := {s.skill_id: {"radius": s.radius} for s in skills if s.radius}:
        yield AgentExtension(uri=BLAST, description="How far each skill reaches", params={"skills": radii})
    if modes := {s.skill_id: {"mode": s.hitl} for s in skills if s.hitl}:
        yield AgentExtension(uri=HITL_MODE, description="When each skill asks a human", params={"skills": modes})


def undeclared(skills: Iterable[Skill]) -> dict[str, tuple[str, ...]]:
    """What skills were seen to do and do not declare, by skill id; empty when card and conduct agree."""
    return {skill.skill_id: tuple(sorted(skill.undeclared)) for skill in skills if skill.undeclared}


MAX_AGE_S = 60

_CORS = {
    "access-control-allow-origin": "*",
    "access-control-allow-methods": "GET, HEAD, OPTIONS",
    "access-control-allow-headers": "*",
    "access-control-max-age": "600",
}


class CardEndpoint:
    """Serves the public card. ``card_at`` builds it for the endpoint's own URL."""

    def __init__(self, card_at: Callable[[str], AgentCard], url: str | None, rpc_path: str) -> None:
        self._card_at, self._url, self._rpc_path = card_at, url, rpc_path

    async def answer(self, request: Request) -> Response:
        """Answer GET, HEAD and the browser's OPTIONS."""
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=_CORS)
        body = dump(write_card_for(self._card_at(self.url_for(request)), request.headers.get(VERSION_HEADER)))
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        cached = {"cache-control": f"public, max-age={MAX_AGE_S}", "vary": VERSION_HEADER, "etag": etag}
        headers = {**_CORS, **cached}
        known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
        if etag in known or known == ["*"]:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type="application/json")

    def url_for(self, request: Request) -> str:
        """The endpoint's URL: as configured, else the socket's own address. Never what a Host header says."""
        if self._url is not None:
            return self._url
        host, port = request.scope.get("server") or ("127.0.0.1", None)
        host = f"[{host}]" if ":" in host else host
        return f"{request.url.scheme}://{host}{f':{port}' if port else ''}{self._rpc_path}"
