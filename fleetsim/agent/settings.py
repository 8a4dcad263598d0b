"""Everything that makes one agent, as one frozen value; what it serves and shows is derived from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, TypedDict

from starlette.types import ASGIApp

from fleetsim.agent.card_signer import CardSigner
from fleetsim.agent.durable import TaskWriter
from fleetsim.agent.guard import Authenticator
from fleetsim.agent.limits import AgentLimits
from fleetsim.agent.operations import BEHAVIOURS, DialectBehaviour, Operations
from fleetsim.agent.skills import Skill, SkillChoice, choose_skill
from fleetsim.agent.tasks import Record, TaskKey, TaskMove
from fleetsim.model.errors import ConfigError
from fleetsim.model.task import JsonObject
from fleetsim.runtime.address import AddressPolicy
from fleetsim.runtime.webhook import WebhookSender
from fleetsim.wire.dialect import OVER_JSON_RPC
from fleetsim.wire.json import present

CARD_PATHS = ("/.well-known/agent-card.json", "/.well-known/agent.json")

Keeping: TypeAlias = Callable[[Callable[[TaskKey], Record]], TaskWriter]
"""Makes the keeper of an agent's tasks; it is given a function that reads a task as it is now."""


class AgentOptions(TypedDict, total=False):
    """The arguments of ``Agent``, beside its name and runtime."""

    description: str
    version: str
    skills: Iterable[Skill]
    default_skill: str | None
    choose: SkillChoice
    api_key: str | None
    api_keys: Mapping[str, str] | None
    bearer: str | None
    bearers: Mapping[str, str] | None
    allow_webhook: Iterable[str]
    dialects: Iterable[str]
    behaviours: Mapping[str, DialectBehaviour]
    send_wait_s: float | None
    repeat_artifact: bool | None
    url: str | None
    path: str
    rest: bool
    streaming: bool
    push_notifications: bool
    state_transition_history: bool
    drop_failed_webhooks: bool
    webhook_sender: Callable[..., WebhookSender]
    organization: str | None
    provider_url: str | None
    documentation_url: str | None
    input_modes: Iterable[str] | None
    output_modes: Iterable[str]
    state: Path | str | Keeping | None
    sign_key: Path | str | None
    limits: AgentLimits | None
    interceptors: Iterable[Callable[[Operations], Operations]]
    middleware: Iterable[Callable[[ASGIApp], ASGIApp]]
    offers: Callable[[], Iterable[Skill]] | None
    callers: Authenticator | None
    task_metadata: Callable[[], JsonObject]
    listeners: Iterable[Callable[[TaskMove], None]]
    resumes: bool


_LISTS = (
    *("allow_webhook", "dialects", "input_modes", "interceptors"),
    *("listeners", "middleware", "output_modes", "skills"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """One agent's settings; ``Agent`` says what each means. Secrets are kept out of every repr."""

    name: str
    description: str = ""
    version: str = "1.0.0"
    skills: tuple[Skill, ...] = ()
    default_skill: str | None = None
    choose: SkillChoice = choose_skill
    dialects: tuple[str, ...] = tuple(OVER_JSON_RPC)
    behaviours: Mapping[str, DialectBehaviour] = field(default_factory=lambda: BEHAVIOURS)
    url: str | None = None
    path: str = "/a2a"
    rest: bool = True
    streaming: bool = True
    push_notifications: bool = True
    state_transition_history: bool = False
    drop_failed_webhooks: bool = False
    webhook_sender: Callable[..., WebhookSender] = WebhookSender
    api_keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    bearers: Mapping[str, str] = field(default_factory=dict, repr=False)
    allow_webhook: tuple[str, ...] = ()
    organization: str | None = None
    provider_url: str | None = None
    documentation_url: str | None = None
    input_modes: tuple[str, ...] | None = None
    output_modes: tuple[str, ...] = ("text/plain",)
    state: Path | Keeping | None = None
    signer: CardSigner | None = None
    limits: AgentLimits = field(default_factory=AgentLimits)
    interceptors: tuple[Callable[[Operations], Operations], ...] = ()
    middleware: tuple[Callable[[ASGIApp], ASGIApp], ...] = ()
    offers: Callable[[], Iterable[Skill]] | None = None
    callers: Authenticator | None = None
    task_metadata: Callable[[], JsonObject] = dict
    listeners: tuple[Callable[[TaskMove], None], ...] = ()
    resumes: bool = False

    @classmethod
    def of(cls, name: str, options: AgentOptions) -> AgentSettings:
        """The settings from the arguments of ``Agent``. Raises TypeError for an unknown one."""
        given: dict[str, Any] = dict(options)
        given |= {key: tuple(given[key]) for key in _LISTS if given.get(key) is not None}
        for one, named in (("api_key", "api_keys"), ("bearer", "bearers")):
            secret = given.pop(one, None)
            given[named] = {**({} if secret is None else {"caller": secret}), **(given.get(named) or {})}
        older = present(wait_s=given.pop("send_wait_s", None), repeats_artifact=given.pop("repeat_artifact", None))
        behaviours = given.get("behaviours", BEHAVIOURS)
        given["behaviours"] = {**behaviours, "0.3": replace(behaviours["0.3"], **older)}
        if isinstance(state := given.get("state"), str):
            given["state"] = Path(state)
        if sign_key := given.pop("sign_key", None):
            given["signer"] = CardSigner.of_file(Path(sign_key))
        given["limits"] = given.get("limits") or AgentLimits()
        return cls(name=name, **given)

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
