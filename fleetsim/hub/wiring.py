"""From configuration to the parts' own settings, and from an agent's view to how it is called. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit

from fleetsim.caller.agent_limiter import GateLimits
from fleetsim.caller.cards import AgentView
from fleetsim.caller.dispatcher import AgentRoute
from fleetsim.caller.fleet import AgentEntry, FleetSettings
from fleetsim.caller.ledger import OtherWay
from fleetsim.caller.skill_policy import read_declared
from fleetsim.caller.track import Rules
from fleetsim.model.skills import skill_hint
from fleetsim.model.work import SkillRequest
from fleetsim.wire.dialect import dialect

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def rules_of(settings: FleetSettings) -> Rules:
    """The limits a request lives by."""
    return Rules(
        poll_interval_s=settings.poll_interval_s,
        task_limit_s=settings.task_limit_s,
        question_ttl_s=settings.question_ttl_s,
        question_expiry_cancels=settings.question_expiry == "cancel",
        retry_waits_s=settings.retry_waits_s,
        rates=settings.rates,
    )


def gate_limits_of(settings: FleetSettings) -> GateLimits:
    """How much of an agent may be used at once, and when it is left alone."""
    return GateLimits(
        calls_max=settings.calls_max,
        calls_per_agent_max=settings.calls_per_agent_max,
        failures_max=settings.breaker_failures,
        pause_s=settings.breaker_pause_s,
    )


def callback_base(entry: AgentEntry, settings: FleetSettings, own_url: str | None) -> str | None:
    """Where the agent can reach our webhooks; None means polling only.

    In order: ``external`` agents take ``base_url``; single-label hosts ``internal_base_url``; agents on this
    machine the hub's own address; everybody else ``base_url`` (Workstacean's order, but for localhost).
    """
    host = (urlsplit(entry.url).hostname or "").lower()
    if entry.external:
        return settings.base_url
    if host in LOOPBACK or host.startswith("127."):
        return own_url or settings.base_url
    if "." not in host and ":" not in host and settings.internal_base_url:
        return settings.internal_base_url
    return settings.base_url


def way_of(
    view: AgentView, request: SkillRequest, *, reachable_by_webhook: bool, timeout_s: float | None = None
) -> AgentRoute:
    """How the agent is called for the request now. An explicit ``push`` in agents.yaml overrules the card's silence."""
    entry, capabilities = view.entry, view.capabilities
    wanted = entry.push in {"inline", "set"} or (entry.push == "auto" and capabilities.push_notifications)
    hint = skill_hint(view.card, request.skill, continues=request.task_id is not None)
    dialect_name = view.choice.dialect_name if view.choice else entry.wire or "0.3"

    def rejoins(name: str) -> bool:
        return dialect(name).rejoins if entry.rejoin is None else entry.rejoin

    other = None
    if view.choice is not None and (way := view.choice.other) is not None:
        rejoin = rejoins(way.dialect_name)
        other = OtherWay(dialect=way.dialect_name, rpc_url=way.url, tenant=way.tenant, rejoin=rejoin)
    return AgentRoute(
        agent=entry.name,
        url=entry.url,
        dialect=dialect_name,
        rpc_url=view.choice.url if view.choice else "",
        tenant=view.choice.tenant if view.choice else None,
        hint=hint,
        declared=read_declared(view.card, hint),
        streaming=capabilities.streaming,
        other=other,
        rejoin=rejoins(dialect_name),
        push=wanted and reachable_by_webhook,
        register_push=wanted and reachable_by_webhook and entry.push == "set",
        timeout_s=timeout_s,
    )
