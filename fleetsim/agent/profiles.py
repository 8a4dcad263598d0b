"""Kinds of agents as data over the one service: quinn, selectools, almanac, tck.

Each is a shape, a set of skills and a few settings. Sources: the first seed (quinn), the selectools seed,
the two almanac seeds, and what the official conformance kits ask for (docs/reference/interop.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fleetsim.agent.agent import Agent
from fleetsim.agent.builtin import builtin_skills
from fleetsim.agent.dialect_behaviour import MANNERS
from fleetsim.agent.kit import direct_reply, kit_skills
from fleetsim.agent.limits import AgentLimits
from fleetsim.agent.personas import almanac_skills, quinn_skills, selectools_skills
from fleetsim.agent.quirks import REFERENCE, Quirks
from fleetsim.agent.skills import Skill
from fleetsim.model.call import Operation
from fleetsim.model.errors import ConfigError
from fleetsim.model.limits import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One kind of agent. ``options`` are those of ``Agent``."""

    name: str
    about: str
    skills: Callable[[], tuple[Skill, ...]]
    shape: Quirks = REFERENCE
    options: Mapping[str, Any] = field(default_factory=dict)


_SELECTOOLS_MANNERS = {
    **MANNERS,
    "0.3": replace(MANNERS["0.3"], waits=True, waits_always=True, stream_errors_as_events=False),
}

_SELECTOOLS = Profile(
    name="selectools",
    about="synchronous v1: every message is a new task that is finished within the request",
    skills=selectools_skills,
    shape=Quirks(
        manners=_SELECTOOLS_MANNERS,
        rpc_paths=("/a2a",),
        card_paths=("/.well-known/agent.json",),
        rest=False,
        operations=frozenset({Operation.SEND, Operation.GET, Operation.CANCEL}),
        card_url="",
        card_versions={"0.3": "0.2.6"},
        needs_text=True,
        forgets_tasks=True,
        cancels=False,
        oversize_status=200,
        bare_401=True,
        crash_reason="Agent execution failed ({error})",
    ),
    options={
        "description": "Research agent that answers within the request",
        "version": "0.21.0",
        "dialects": ("0.3",),
        "streaming": False,
        "push_notifications": False,
        "limits": AgentLimits(tasks_max=2_000, tasks_per_caller_max=2_000, terminal_ttl_s=1e9, body_bytes_max=MIB),
    },
)

_ALMANAC = Profile(
    name="almanac",
    about="legacy 0.1 at / and /subscribe, webhooks over HTTPS only",
    skills=almanac_skills,
    shape=Quirks(
        rpc_paths=("/",),
        stream_paths=("/subscribe",),
        rest=False,
        full_code=-32003,
        webhook_schemes=("https",),
        webhook_scheme_code=-32004,
        matches_text=True,
        drop_webhook_on_give_up=True,
    ),
    options={
        "description": "Answers dataset questions in the legacy dialect",
        "version": "1.0.0",
        "dialects": ("0.1",),
        "state_transition_history": True,
    },
)

_QUINN = Profile(
    name="quinn",
    about="the seed's own agent: QA skills, effects, cost, an API key",
    skills=quinn_skills,
    shape=Quirks(needs_text=True),
    options={
        "description": "QA engineer: reviews pull requests, triages bugs, audits the board",
        "version": "1.0.0",
        "dialects": ("0.3",),
        "organization": "protoLabsAI",
        "output_modes": ("text/markdown",),
    },
)

_TCK = Profile(
    name="tck",
    about="behaves as the official conformance kits ask, by the prefix of the message id",
    skills=kit_skills,
    shape=Quirks(direct_reply=direct_reply, needs_message_id=True, content_type_status=200),
    options={"description": "Stands in for a system under test", "version": "1.0.0", "dialects": ("1.0", "0.3")},
)

_REFERENCE = Profile(
    name="reference",
    about="one skill for everything an agent can do, every dialect",
    skills=builtin_skills,
    options={"description": "The fleet's reference agent: one skill for everything an agent can do"},
)

PROFILES: Mapping[str, Profile] = {p.name: p for p in (_REFERENCE, _QUINN, _SELECTOOLS, _ALMANAC, _TCK)}
"""Every profile by name."""


def profile_agent(profile: str, name: str | None = None, **options: Any) -> Agent:
    """An agent of that profile; ``options`` are those of ``Agent`` and win over the profile's.

    Raises:
        ConfigError: there is no such profile.
    """
    found = PROFILES.get(profile)
    if found is None:
        raise ConfigError(f"there is no profile {profile!r}", hint=f"one of {', '.join(PROFILES)}")
    chosen = {"skills": found.skills(), "shape": found.shape, **found.options, **options}
    return Agent(name or found.name, **chosen)
