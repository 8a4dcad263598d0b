"""What a broken agent is: the healthy one with one thing wrong, the row that must find it, and where it happened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.applications import Starlette

from fleetsim.agent import Agent
from fleetsim.agent.engine import Engine
from fleetsim.agent.notify import Notifier
from fleetsim.agent.runner import Runner
from fleetsim.agent.service import Service
from fleetsim.agent.settings import AgentSettings
from fleetsim.agent.store import Store
from fleetsim.check.broken.wire import Edit, Rewired
from fleetsim.runtime.webhook import WebhookSender

Make = Callable[[Agent], Agent]

DIALECTS = ("0.1", "0.3", "1.0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One broken agent.

    ``make`` breaks a healthy agent. ``row`` is the row of the checklist that fails for it; ``also`` are the
    other rows (ids in one text) that fail for the same fault, with the reason why. ``incident`` says where
    the fault was met, if it was. ``dialects`` are those it is to be checked in, None for those of its card.
    """

    mutant_id: str
    row: str
    title: str
    make: Make = field(repr=False)
    incident: str | None = None
    also: Mapping[str, str] = field(default_factory=dict)
    dialects: tuple[str, ...] | None = DIALECTS

    def may_fail(self, row_id: str) -> str | None:
        """Why the row may fail, or None if it may not."""
        if row_id == self.row:
            return self.title
        return next((why for rows, why in self.also.items() if row_id in rows.split()), None)


class BrokenAgent(Agent):
    """An agent with other settings, other parts or edits in front of it; used as any ``Agent`` is."""

    def __init__(
        self, healthy: Agent, settings: AgentSettings, parts: Mapping[str, type], edits: tuple[Edit, ...]
    ) -> None:
        super().__init__(settings.name, runtime=healthy._runtime)
        self._settings = settings
        self._parts = parts
        self._engine = type("BrokenEngine", (Engine,), dict(parts))
        self._edits = edits
        self._healthy = healthy

    def engine(self) -> Engine:
        """A fresh engine with the broken parts."""
        engine = self._engine(self._settings, self._runtime)
        assert isinstance(engine, Engine)
        return engine

    def replace(self, **changes: Any) -> Agent:
        """A copy that is broken in the same way. Raises ConfigError for an unknown setting."""
        healthy = self._healthy.replace(**changes)
        changes.pop("runtime", None)
        return BrokenAgent(healthy, replace(self._settings, **changes), self._parts, self._edits)

    def mount(self, engine: Engine) -> Starlette:
        """The healthy agent's application with the edits in front."""
        app = self._healthy.mount(engine)
        if self._edits:
            app.add_middleware(Rewired, edits=self._edits)
        return app


def breaks(
    *edits: Edit,
    settings: Callable[[AgentSettings], AgentSettings] | None = None,
    store: type[Store] | None = None,
    sender: type[WebhookSender] | None = None,
    notifier: type[Notifier] | None = None,
    runner: type[Runner] | None = None,
    service: type[Service] | None = None,
) -> Make:
    """How to break an agent: edits of its wire, changed settings, parts to put in."""
    given = {
        "store_type": store,
        "sender_type": sender,
        "notifier_type": notifier,
        "runner_type": runner,
        "service_type": service,
    }
    parts = {name: part for name, part in given.items() if part is not None}

    def make(healthy: Agent) -> Agent:
        changed = settings(healthy.settings) if settings else healthy.settings
        return BrokenAgent(healthy, changed, parts, edits)

    return make


def with_limits(**limits: Any) -> Callable[[AgentSettings], AgentSettings]:
    """Settings with some limits changed."""
    return lambda settings: replace(settings, limits=replace(settings.limits, **limits))


def with_manners(dialect: str, **fields: Any) -> Callable[[AgentSettings], AgentSettings]:
    """Settings in which one dialect behaves otherwise."""

    def change(settings: AgentSettings) -> AgentSettings:
        manners = settings.shape.manners
        changed = {**manners, dialect: replace(manners[dialect], **fields)}
        return replace(settings, shape=replace(settings.shape, manners=changed))

    return change


class Catalogue:
    """Collects mutants of one section: ``add(id, row, title, *edits, settings=..., store=...)``."""

    def __init__(self) -> None:
        self.mutants: list[Mutant] = []

    def add(
        self,
        mutant_id: str,
        row: str,
        title: str,
        *edits: Edit,
        incident: str | None = None,
        also: Mapping[str, str] | None = None,
        as_offered: bool = False,
        **parts: Any,
    ) -> None:
        """Add one; ``parts`` are the options of ``breaks``, ``as_offered`` has it checked in its card's dialects."""
        made = Mutant(
            mutant_id=mutant_id, row=row, title=title, make=breaks(*edits, **parts), incident=incident, also=also or {}
        )
        self.mutants.append(replace(made, dialects=None) if as_offered else made)
