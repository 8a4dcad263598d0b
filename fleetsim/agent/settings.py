"""Everything that makes one agent, as one frozen value; what it serves and shows is derived from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from starlette.types import ASGIApp

from fleetsim.agent.card_signer import CardSigner
from fleetsim.agent.durable import TaskWriter
from fleetsim.agent.guard import Authenticator
from fleetsim.agent.limits import AgentLimits
from fleetsim.agent.operations import BEHAVIOURS, DialectBehaviour, Operations
from fleetsim.agent.skills import Skill, SkillChoice
from fleetsim.agent.tasks import Record, TaskKey, TaskMove
from fleetsim.model.errors import (
    ConfigError,
)
from fleetsim.model.task import JsonObject
from fleetsim.runtime.address import AddressPolicy
from fleetsim.runtime.webhook import WebhookSender

CARD_PATHS = ("/.well-known/agent-card.json", "/.well-known/agent.json")

Keeping: TypeAlias = Callable[[Callable[[TaskKey], Record]], TaskWriter]
"""Makes the keeper of an agent's tasks; it is given a function that reads a task as it is now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """One agent's settings. Secrets are kept out of every repr; see ``Agent`` for what each means, and for defaults."""

    name: str
    description: str
    version: str
    skills: tuple[Skill, ...]
    default_skill: str | None
    choose: SkillChoice
    dialects: tuple[str, ...]
    behaviours: Mapping[str, DialectBehaviour]
    url: str | None
    path: str
    rest: bool
    streaming: bool
    push_notifications: bool
    state_transition_history: bool
    drop_failed_webhooks: bool
    webhook_sender: Callable[..., WebhookSender]
    api_keys: Mapping[str, str] = field(repr=False)
    bearers: Mapping[str, str] = field(repr=False)
    allow_webhook: tuple[str, ...]
    organization: str | None
    provider_url: str | None
    documentation_url: str | None
    input_modes: tuple[str, ...] | None
    output_modes: tuple[str, ...]
    state: Path | Keeping | None
    signer: CardSigner | None
    limits: AgentLimits
    interceptors: tuple[Callable[[Operations], Operations], ...]
    middleware: tuple[Callable[[ASGIApp], ASGIApp], ...]
    offers: Callable[[], Iterable[Skill]] | None
    callers: Authenticator | None
    task_metadata: Callable[[], JsonObject]
    listeners: tuple[Callable[[TaskMove], None], ...]
    resumes: bool

    def with_skill(self, skill: Skill) -> AgentSettings:
        return replace(self, skills=(*self.skills, skill))

    def authenticator(self) -> Authenticator:
        """Who may call. Raises ConfigError for an unusable secret."""
        return self.callers or Authenticator(api_keys=self.api_keys, bearers=self.bearers)

    def webhook_policy(self) -> AddressPolicy:
        """Which webhook addresses may be called. Raises ConfigError for an unreadable entry."""
        return AddressPolicy.allowing(*self.allow_webhook)

    @property
    def offered(self) -> tuple[Skill, ...]:
        """The skills as a card has them now."""
        return self.skills if self.offers is None else tuple(self.offers())

    @property
    def extended_card(self) -> bool:
        """Whether some skills are for authenticated callers' eyes only."""
        return any(not skill.public for skill in self.skills)

    def first_skill(self) -> str:
        """The skill a message without a hint is for. Raises ConfigError."""
        ids = [skill.skill_id for skill in self.skills]
        if self.default_skill is not None and self.default_skill not in ids:
            raise ConfigError(f"default skill {self.default_skill!r} is not among the skills", hint=", ".join(ids))
        return self.default_skill or ids[0]

    def check(self) -> None:
        """Refuse to start with a card that would mislead. Raises ConfigError."""
        if not self.name.strip():
            raise ConfigError("an agent needs a name")
        if not self.skills:
            raise ConfigError(f"agent {self.name!r} has no skill", hint="decorate an async function with @agent.skill")
        seen: set[str] = set()
        for skill in self.skills:
            if skill.skill_id in seen:
                raise ConfigError(f"agent {self.name!r} has two skills {skill.skill_id!r}")
            seen.add(skill.skill_id)
        unknown = [name for name in self.dialects if name not in BEHAVIOURS]
        if unknown or not self.dialects:
            raise ConfigError(f"{(unknown or ['nothing'])[0]!r} is no dialect", hint="choose from 1.0, 0.3 and 0.1")
        if self.extended_card and not self.authenticator().schemes():
            raise ConfigError(
                "a skill is kept from the public card, but nobody can authenticate to see it",
                hint="give the agent an API key or a bearer token, or make the skill public",
            )
        self.first_skill()
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"the agent's url {self.url!r} is no http address", hint="e.g. https://host/a2a")
