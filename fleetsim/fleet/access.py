"""Allow-lists: the agents and skills that an agent's key or a ceremony may use. Pure.

Every door gets the ``Access`` of its caller here, and works with the fleet that ``Access`` leaves. So an agent or skill
off the list is refused as an unknown name is, and no hint names it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from fleetsim.ceremony.file import Ceremony
from fleetsim.fleet.settings import AllowEntry, CallerEntry, FleetConfig
from fleetsim.model.errors import UnknownTarget
from fleetsim.model.text import one_line
from fleetsim.model.work import ALL, SkillRequest

T = TypeVar("T")

_List: TypeAlias = tuple[AllowEntry, ...] | None
"""None allows everything."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The agent whose key a request has, or a ceremony with its owner; with neither, the hub's owner."""

    key: str | None = None
    ceremony: str | None = None

    @classmethod
    def of(cls, request: SkillRequest) -> Caller:
        """The caller of a request that the hub has accepted or will accept."""
        ceremony = request.metadata.get("ceremonyId") if request.source.interface == "cron" else None
        return cls(request.source.user_id, str(ceremony) if ceremony is not None else None)

    @classmethod
    def firing(cls, ceremony: Ceremony) -> Caller:
        return cls(ceremony.created_by, ceremony.ceremony_id)


OWNER = Caller()


@dataclass(frozen=True, slots=True)
class Access:
    """The rights of one caller: both lists must allow, that of its key and that of its ceremony."""

    caller: Caller
    key: _List = None
    ceremony: _List = None

    def may(self, agent: str, skill: str | None = None) -> bool:
        """Whether the caller may use this skill of the agent; without a skill, whether the agent exists for it."""
        return all(any(_fits(entry, agent, skill) for entry in entries) for entries in self._lists())

    def may_all(self, agent: str) -> bool:
        """Whether the caller may use every skill of the agent."""
        return all(any(_fits(e, agent) and not e.skills for e in entries) for entries in self._lists())

    def _lists(self) -> Iterator[tuple[AllowEntry, ...]]:
        return (entries for entries in (self.key, self.ceremony) if entries is not None)

    def require(self, skill: str | None, targets: Iterable[str], *, of_key: bool = False) -> None:
        """Raises UnknownTarget with the reason if the ceremony's own list forbids a target. The reason depends on the
        list alone, never on the fleet. ``of_key``: also for the list of the owner's key, which the owner must not read.
        """
        caller = self.caller
        for who, place, entries in (
            (f"ceremony “{caller.ceremony}”", f"ceremonies: {caller.ceremony}", self.ceremony),
            (f"the key of {caller.key}", f"keys: {caller.key}", self.key if of_key else None),
        ):
            for target in targets if entries is not None else ():
                if not any(_fits(entry, target, skill) for entry in entries or ()):
                    used = f"the skill “{one_line(skill or '', 64)}” of {'any agent' if target == ALL else target}"
                    raise UnknownTarget(f"{who} may not use {used}", hint=f"agents.yaml may allow it, under {place}")

    def offers(self, offers: Mapping[str, Collection[str]]) -> Mapping[str, Collection[str]]:
        """These agents and skills as far as the caller may use them."""
        seen = self.seen(offers)
        return {name: skills if self.may_all(name) else self.skills(name, skills) for name, skills in seen.items()}

    def seen(self, by_agent: Mapping[str, T]) -> dict[str, T]:
        """The items of the agents that exist for the caller."""
        return {name: value for name, value in by_agent.items() if self.may(name)}

    def skills(self, agent: str, skills: Iterable[str]) -> tuple[str, ...]:
        return tuple(skill for skill in skills if self.may(agent, skill))


@dataclass(frozen=True, slots=True)
class AllowLists:
    """The lists in agents.yaml by key and by ceremony. ``holders`` are the agents that have a key now."""

    keys: Mapping[str, CallerEntry] = field(default_factory=dict)
    ceremonies: Mapping[str, CallerEntry] = field(default_factory=dict)
    deny_by_default: bool = False
    holders: frozenset[str] = frozenset()

    @classmethod
    def of(cls, config: FleetConfig, holders: Iterable[str] = ()) -> AllowLists | None:
        """The lists of a fleet; None if it has none and allows by default."""
        if not (config.keys or config.ceremonies or config.settings.deny_by_default):
            return None
        return cls(config.keys, config.ceremonies, config.settings.deny_by_default, frozenset(holders))

    def access(self, caller: Caller) -> Access | None:
        """The rights of a caller; None if it may use everything.

        A ceremony of an agent with a key may use only what that key may use, so that no key gains rights by a ceremony.
        """
        fallback = () if self.deny_by_default else None
        key = ceremony = None
        if caller.ceremony is not None:
            ceremony = _may(self.ceremonies, caller.ceremony)
            if caller.key in self.holders or caller.key in self.keys:
                key = _may(self.keys, caller.key, fallback)
            elif ceremony is None:
                ceremony = fallback
        elif caller.key is not None:
            key = _may(self.keys, caller.key, fallback)
        return None if key is None and ceremony is None else Access(caller, key, ceremony)


def access_of(lists: AllowLists | None, caller: Caller) -> Access | None:
    """The rights of a caller in a fleet with these lists; None if it may use everything."""
    return None if lists is None else lists.access(caller)


def _may(entries: Mapping[str, CallerEntry], name: str | None, fallback: _List = None) -> _List:
    entry = entries.get(name or "")
    return fallback if entry is None or entry.may is None else entry.may


def _fits(entry: AllowEntry, agent: str, skill: str | None = None) -> bool:
    """Whether the entry allows this; ``ALL`` as agent is any agent."""
    named = entry.agent == agent or ALL in {entry.agent, agent}
    return named and (skill is None or not entry.skills or skill in entry.skills)
