"""Kinds of agents as data over the one service: quinn, selectools, almanac, tck.

Each is a set of skills and the options of an ``Agent``, quirks included. Sources: the first seed (quinn), the
selectools seed, the two almanac seeds, and what the official conformance kits ask for (docs/reference/interop.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fleetsim.agent.agent import Agent
from fleetsim.agent.builtin import builtin_skills
from fleetsim.agent.limits import AgentLimits
from fleetsim.agent.profiles.quirks import (
    Almanac,
    AlmanacHttp,
    ConformanceKit,
    ConformanceKitHttp,
    ForgetsTasks,
    NeedsText,
    Selectools,
    SelectoolsHttp,
    by_words,
)
from fleetsim.agent.profiles.stand_ins import almanac_skills, kit_skills, quinn_skills, selectools_skills
from fleetsim.agent.settings import BEHAVIOURS
from fleetsim.agent.skills import Skill
from fleetsim.model.errors import ConfigError
from fleetsim.model.limits import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One kind of agent. ``first`` is a text to try it with; ``options`` are those of ``Agent``."""

    name: str
    about: str
    first: str
    skills: Callable[[], tuple[Skill, ...]]
    options: Mapping[str, Any] = field(default_factory=dict)


_SELECTOOLS_BEHAVIOURS = {**BEHAVIOURS, "0.3": replace(BEHAVIOURS["0.3"], waits=True, stream_errors_as_events=False)}

_SELECTOOLS = Profile(
    name="selectools",
    about="synchronous v1: every message is a new task that is finished within the request",
    first="/summarize a long text",
    skills=selectools_skills,
    options={
        "description": "Research agent that answers within the request",
        "version": "0.21.0",
        "dialects": ("0.3",),
        "streaming": False,
        "behaviours": _SELECTOOLS_BEHAVIOURS,
        "interceptors": (ForgetsTasks, NeedsText, Selectools),
        "middleware": (SelectoolsHttp,),
        "push_notifications": False,
        "limits": AgentLimits(tasks_max=2_000, tasks_per_caller_max=2_000, terminal_ttl_s=1e9, body_bytes_max=MIB),
    },
)

_ALMANAC = Profile(
    name="almanac",
    about="legacy 0.1 at / and /subscribe, webhooks over HTTPS only",
    first="/analyze sales",
    skills=almanac_skills,
    options={
        "description": "Answers dataset questions in the legacy dialect",
        "version": "1.0.0",
        "dialects": ("0.1",),
        "path": "/",
        "choose": by_words,
        "drop_failed_webhooks": True,
        "interceptors": (Almanac,),
        "middleware": (AlmanacHttp,),
        "state_transition_history": True,
    },
)

_QUINN = Profile(
    name="quinn",
    about="the seed's own agent: QA skills, effects, cost, an API key",
    first="/qa_report",
    skills=quinn_skills,
    options={
        "description": "QA engineer: reviews pull requests, triages bugs, audits the board",
        "version": "1.0.0",
        "dialects": ("0.3",),
        "organization": "protoLabsAI",
        "interceptors": (NeedsText,),
        "output_modes": ("text/markdown",),
    },
)

_TCK = Profile(
    name="tck",
    about="behaves as the official conformance kits ask, by the prefix of the message id",
    first="/tck hello",
    skills=kit_skills,
    options={
        "description": "Stands in for a system under test",
        "version": "1.0.0",
        "dialects": ("1.0", "0.3"),
        "interceptors": (ConformanceKit,),
        "middleware": (ConformanceKitHttp,),
    },
)

_REFERENCE = Profile(
    name="reference",
    about="one skill for everything an agent can do, every dialect",
    first="/echo hello",
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
    chosen = {"skills": found.skills(), **found.options, **options}
    return Agent(name or found.name, **chosen)
