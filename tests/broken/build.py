"""A broken agent: the healthy one with one fault, the row that must find it, and the place where it happened."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from joserfc.jwk import ECKey

from fleetsim.agent import Agent, SkillContext
from fleetsim.agent.agent import Runtimes
from fleetsim.agent.card_signer import CardSigner
from fleetsim.agent.operations import Operations
from fleetsim.agent.settings import AgentSettings
from fleetsim.agent.skills import SkillFunction
from fleetsim.check.requirement import ALL
from fleetsim.runtime.address import AddressPolicy
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.webhook import WebhookSender
from tests.broken.wire import Edit, Headers, Rewired

Make = Callable[[Agent], Agent]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One broken agent. ``make`` breaks a healthy agent. ``row`` is the row of the checklist that fails for it;
    ``also`` are the other rows (ids in one text) that fail for the same fault, with the reason why. ``incident`` says
    where the fault was met, if it was. ``dialects`` are those it is to be checked in, None for those of its card."""

    mutant_id: str
    row: str
    title: str
    make: Make = field(repr=False)
    incident: str | None = None
    also: Mapping[str, str] = field(default_factory=dict)
    dialects: tuple[str, ...] | None = ALL

    def may_fail(self, row_id: str) -> str | None:
        """Why the row may fail, or None if it may not."""
        if row_id == self.row:
            return self.title
        return next((why for rows, why in self.also.items() if row_id in rows.split()), None)


def signed(agent: Agent) -> Agent:
    """An agent that signs its card with a new key."""
    key = ECKey.generate_key("P-256").as_dict(private=True)
    return agent.replace(signer=CardSigner(json.dumps(key).encode(), "a new key"))


class Pair(Protocol):
    """The guard in front of the operations and the sender of webhooks, made for each other."""

    def intercept(self, inner: Operations) -> Operations:
        """As an interceptor of the settings."""
        ...

    def sender(self, runtime: Runtime, policy: AddressPolicy, **options: Any) -> WebhookSender: ...


def breaks(
    *edits: Edit,
    settings: Callable[[AgentSettings], AgentSettings] | None = None,
    intercept: Callable[[Operations], Operations] | None = None,
    sender: Callable[..., WebhookSender] | None = None,
    pair: Callable[[], Pair] | None = None,
    runtime: Callable[[Runtime], Runtime] | None = None,
) -> Make:
    """The faults of an agent: edits of its wire, its settings, its calls, its webhooks, and its runtime."""

    def make(healthy: Agent) -> Agent:
        changed = settings(healthy.settings) if settings else healthy.settings
        made = pair() if pair else None
        inner, sends = (made.intercept, made.sender) if made else (intercept, sender)
        if inner is not None:
            changed = replace(changed, interceptors=(*changed.interceptors, inner))
        if sends is not None:
            changed = replace(changed, webhook_sender=sends)
        if edits:
            changed = replace(changed, middleware=(partial(Rewired, edits=edits), *changed.middleware))
        fields = {name: getattr(changed, name) for name in AgentSettings.__dataclass_fields__}
        return healthy.replace(**fields, runtime=healthy.runtime if runtime is None else _edited(healthy, runtime))

    return make


def _edited(healthy: Agent, change: Callable[[Runtime], Runtime]) -> Runtime | Runtimes:
    given = healthy.runtime
    if not callable(given):
        return change(given)

    @asynccontextmanager
    async def opened() -> AsyncIterator[Runtime]:
        async with given() as runtime:
            yield change(runtime)

    return opened


def with_limits(**limits: Any) -> Callable[[AgentSettings], AgentSettings]:
    """Settings with some limits changed."""
    return lambda settings: replace(settings, limits=replace(settings.limits, **limits))


def with_behaviour(dialect: str, **fields: Any) -> Callable[[AgentSettings], AgentSettings]:
    """Settings in which one dialect behaves otherwise."""

    def change(settings: AgentSettings) -> AgentSettings:
        behaviours = settings.behaviours
        return replace(settings, behaviours={**behaviours, dialect: replace(behaviours[dialect], **fields)})

    return change


def with_skills(
    run: Callable[[SkillFunction, SkillContext], Awaitable[str | None]],
) -> Callable[[AgentSettings], AgentSettings]:
    """Settings in which every skill is run by ``run``."""

    def change(settings: AgentSettings) -> AgentSettings:
        skills = (replace(skill, run=partial(run, skill.run)) for skill in settings.skills)
        return replace(settings, skills=tuple(skills))

    return change


NOBODY = "nobody-in-particular"


def letting_in(*, without_any: bool = False, with_any: bool = False) -> Callable[[AgentSettings], AgentSettings]:
    """Settings that accept any credentials, or none, as an anonymous caller."""

    def change(settings: AgentSettings) -> AgentSettings:
        keys = {key.encode().decode("latin-1") for key in settings.api_keys.values()}
        tokens = {f"Bearer {token}" for token in settings.bearers.values()}

        def lend(headers: Headers) -> Headers:
            shown = {name: headers[name] for name in ("x-api-key", "authorization") if name in headers}
            good = shown.get("x-api-key") in keys or shown.get("authorization") in tokens
            if (with_any and shown and not good) or (without_any and not shown):
                rest = {name: value for name, value in headers.items() if name not in shown}
                return {**rest, "x-api-key": NOBODY}
            return headers

        door = partial(Rewired, edits=(Edit(headers=lend),))
        keyed = {**settings.api_keys, NOBODY: NOBODY}
        return replace(settings, api_keys=keyed, middleware=(door, *settings.middleware))

    return change


class Catalogue:
    """Collects the broken agents of one section."""

    def __init__(self) -> None:
        self.mutants: list[Mutant] = []

    def add(
        self,
        heading: str,
        *edits: Edit,
        incident: str | None = None,
        also: Mapping[str, str] | None = None,
        as_offered: bool = False,
        **parts: Any,
    ) -> None:
        """Add one. ``heading`` is its row, its id and its title, as in ``C-05 skill-untagged: a skill has no tags``.
        ``parts`` are the options of ``breaks``, ``as_offered`` has it checked in its card's dialects."""
        names, _, title = heading.partition(": ")
        row, mutant_id = names.split()
        self.mutants.append(
            Mutant(
                mutant_id=mutant_id,
                row=row,
                title=title,
                make=breaks(*edits, **parts),
                incident=incident,
                also=also or {},
                dialects=None if as_offered else ALL,
            )
        )
