"""Everything that makes one agent, as one frozen value; what it mounts is derived from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from fleetsim.agent.auth import Authenticator
from fleetsim.agent.cards import Mounted, check
from fleetsim.agent.limits import AgentLimits
from fleetsim.agent.quirks import REFERENCE, Quirks
from fleetsim.agent.skills import Skill
from fleetsim.model.errors import ConfigError
from fleetsim.runtime.address import AddressPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """One agent's settings. Secrets are kept out of every repr; see ``Agent`` for what each field means."""

    name: str
    description: str = ""
    version: str = "1.0.0"
    skills: tuple[Skill, ...] = ()
    default_skill: str | None = None
    dialects: tuple[str, ...] = ("1.0", "0.3", "0.1")
    url: str | None = None
    streaming: bool = True
    push_notifications: bool = True
    state_transition_history: bool = False
    api_keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    bearers: Mapping[str, str] = field(default_factory=dict, repr=False)
    allow_webhook: tuple[str, ...] = ()
    organization: str | None = None
    provider_url: str | None = None
    documentation_url: str | None = None
    input_modes: tuple[str, ...] | None = None
    output_modes: tuple[str, ...] = ("text/plain",)
    state: Path | None = None
    shape: Quirks = REFERENCE
    limits: AgentLimits = field(default_factory=AgentLimits)

    def with_skill(self, skill: Skill) -> AgentSettings:
        """These settings with one more skill."""
        return replace(self, skills=(*self.skills, skill))

    def gate(self) -> Authenticator:
        """Who may call. Raises ConfigError for an unusable secret."""
        return Authenticator(api_keys=self.api_keys, bearers=self.bearers)

    def policy(self) -> AddressPolicy:
        """Which webhook addresses may be called. Raises ConfigError for an unreadable entry."""
        return AddressPolicy.allowing(*self.allow_webhook)

    def first_skill(self) -> str:
        """The skill a message without a hint is for. Raises ConfigError."""
        ids = [skill.skill_id for skill in self.skills]
        if self.default_skill is not None and self.default_skill not in ids:
            raise ConfigError(f"default skill {self.default_skill!r} is not among the skills", hint=", ".join(ids))
        return self.default_skill or ids[0]

    def mounted(self) -> Mounted:
        """What is really served, for the card. Raises ConfigError where the card would mislead."""
        mounted = Mounted(
            name=self.name,
            description=self.description,
            version=self.version,
            skills=self.skills,
            dialects=self.dialects,
            streaming=self.streaming,
            push_notifications=self.push_notifications,
            state_transition_history=self.state_transition_history,
            organization=self.organization,
            provider_url=self.provider_url,
            documentation_url=self.documentation_url,
            security_schemes=self.gate().schemes(),
            input_modes=self.input_modes or ("text/plain",),
            output_modes=self.output_modes,
            interface_versions=self.shape.card_versions,
        )
        check(mounted)
        self.first_skill()
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"the agent's url {self.url!r} is no http address", hint="e.g. https://host/a2a")
        return mounted
