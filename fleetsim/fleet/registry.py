"""Resolves the targets and the skill of a request to agent names. Pure.

Unlike in Workstacean, an unknown target is an error and never another agent, ``all`` means all, and several
targets are several children.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Protocol, TypeAlias

from fleetsim.fleet.access import OWNER, Access, AllowLists, Caller, access_of
from fleetsim.model.errors import UnknownTarget
from fleetsim.model.text import one_line
from fleetsim.model.work import ALL
from fleetsim.runtime.ports import Rng

if TYPE_CHECKING:
    from fleetsim.fleet.cards import CardBroker

_Fleet: TypeAlias = tuple[Mapping[str, Collection[str]], frozenset[str], Mapping[str, str], AllowLists | None]

_NAMES_SHOWN = 12


Judge: TypeAlias = Callable[[str, str, Caller], str]
"""A sentence with the reason why a target cannot take a skill for a caller; empty if it can."""


class CameThrough(UnknownTarget):
    """Only hubs that the request has already passed could take it, which would be a loop."""


class Weights(Protocol):
    """The agents' shares of work at this moment, and the allow-lists, if there are any."""

    lists: AllowLists | None

    def weights(self) -> Mapping[str, float]:
        """The share of each agent; an agent without history has the weight 1."""


class Registry:
    """Resolves with the current fleet."""

    def __init__(self, fleet: CardBroker, weights: Weights, rng: Rng) -> None:
        self._fleet = fleet
        self._judged: tuple[_Fleet, Judge] | None = None
        self._offered: Mapping[str, Collection[str]] = {}
        self._by_skill: dict[str, tuple[str, ...]] = {}  # the agents by skill, valid for one ``_offered``
        self._weights = weights
        self._chance = rng.stream("registry").random

    def resolve(
        self,
        skill: str | None,
        targets: Sequence[str] = (),
        avoid: Collection[str] = (),
        access: Access | None = None,
    ) -> tuple[str, ...]:
        """The agents to send to: at least one, without those of ``avoid``. Raises UnknownTarget, CameThrough."""
        offers = self._fleet.offers()
        if access is None and not avoid and skill is not None and not targets:
            # Most requests name a skill only, so the agents of a skill are cached.
            if offers is not self._offered:
                self._offered, self._by_skill = offers, {}
            if skill not in self._by_skill:
                self._by_skill[skill] = _everyone(skill, offers)
            return (_choose(self._by_skill[skill], self._weights.weights(), self._chance),)
        disabled = self._fleet.disabled()
        if access is not None:
            access.require(skill, targets)
            offers, disabled, avoid = access.offers(offers), access.seen(disabled), list(filter(access.may, avoid))
        if avoid:
            for name in targets:
                if name in avoid:
                    raise CameThrough(f"agent “{name}” is a hub that the request came through")
            left = {name: skills for name, skills in offers.items() if name not in avoid}
            if not any(skill is None or skill in skills for skills in left.values()) and any(
                skill is None or skill in offers[name] for name in avoid if name in offers
            ):
                raise CameThrough(
                    f"only hubs that the request came through offer “{one_line(skill or 'any skill', 64)}”"
                )
            offers = left
        weights = {} if targets or skill is None else self._weights.weights()
        return resolve(skill, targets, offers=offers, weights=weights, chance=self._chance, disabled=disabled)

    def access(self, caller: Caller) -> Access | None:
        """The rights of a caller now; None if it may use everything."""
        return access_of(self._weights.lists, caller)

    def judge(self) -> Judge:
        """A function that judges a skill and a target with the current fleet. It changes only with the fleet and its
        allow-lists."""
        fleet = (
            dict(self._fleet.offers()),
            frozenset(self._fleet.unread()),
            dict(self._fleet.disabled()),
            self._weights.lists,
        )
        if self._judged is None or self._judged[0] != fleet:
            offers, unread, disabled, lists = fleet
            self._judged = fleet, judge(offers=offers, unread=unread, disabled=disabled, lists=lists)
        return self._judged[1]


def resolve(
    skill: str | None,
    targets: Sequence[str],
    *,
    offers: Mapping[str, Collection[str]],
    weights: Mapping[str, float],
    chance: Callable[[], float],
    disabled: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """The agents to send to: each target once, every agent for ``all``, one chosen by weight without targets.

    ``chance`` returns uniform numbers in [0, 1). Without a skill the targets are taken as they are. Raises
    UnknownTarget for a target that does not exist, is disabled or lacks the skill, and for a skill that no agent has;
    it names agents that have it.
    """
    for name in targets:
        if name not in offers and disabled is not None and name in disabled:
            raise UnknownTarget(f"agent “{name}” takes no work: {disabled[name]}")
        if name != ALL and name not in offers:
            raise UnknownTarget(f"unknown agent “{one_line(name, 64)}”", hint=nearest_of(name, offers))
    if ALL in targets:
        return _everyone(skill, offers)
    if targets:
        for name in targets:
            if skill is not None and skill not in offers[name]:
                raise _lacks(name, skill, offers)
        return tuple(dict.fromkeys(targets))
    if skill is None:
        raise UnknownTarget("the request names neither a skill nor an agent", hint="name one of them")
    return (_choose(_everyone(skill, offers), weights, chance),)


def judge(
    *,
    offers: Mapping[str, Collection[str]],
    unread: Collection[str] = (),
    disabled: Mapping[str, str] | None = None,
    lists: AllowLists | None = None,
) -> Judge:
    """Judges (skill, target, caller). An ``unread`` agent may have any skill."""

    every = {skill for skills in offers.values() for skill in skills}

    def say(skill: str, target: str, caller: Caller = OWNER, /) -> str:
        access, here, new, closed, offered = access_of(lists, caller), offers, unread, disabled, every
        try:
            if access is not None:
                access.require(skill, (target,))
                here, closed = access.offers(offers), access.seen(disabled or {})
                new = [name for name in unread if access.may(name, skill)]
                offered = {skill for skills in here.values() for skill in skills}
            if target in new or (target == ALL and (new or skill in offered)):
                return ""
            resolve(skill, (target,), offers=here, weights={}, chance=lambda: 0.0, disabled=closed)
        except UnknownTarget as error:
            return f"{error} ({error.hint})" if error.hint else str(error)
        return ""

    return say


def _everyone(skill: str | None, offers: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    names = tuple([name for name, skills in offers.items() if skill is None or skill in skills])
    if names:
        return names
    if skill is None or not offers:
        raise UnknownTarget("the fleet has no enabled agents", hint="add one to agents.yaml")
    every = {s for skills in offers.values() for s in skills}
    raise UnknownTarget(f"no agent offers the skill “{one_line(skill, 64)}”", hint=nearest_of(skill, every))


def _choose(names: tuple[str, ...], weights: Mapping[str, float], chance: Callable[[], float]) -> str:
    """Weighted choice; the first name if all weights are 0, as in Workstacean."""
    shares = [max(0.0, weights.get(name, 1.0)) for name in names]
    left = chance() * sum(shares)
    for name, share in zip(names, shares, strict=True):
        left -= share
        if left < 0:
            return name
    return names[0]


def _lacks(name: str, skill: str, offers: Mapping[str, Collection[str]]) -> UnknownTarget:
    who = [other for other, skills in offers.items() if skill in skills]
    if who:
        hint = f"{_listed(who)} {'offers' if len(who) == 1 else 'offer'} it"
    elif offers[name]:
        hint = nearest_of(skill, offers[name])
    else:
        hint = f"{name} offers no skill yet: its card has not been read and agents.yaml lists none"
    return UnknownTarget(f"agent “{name}” does not offer the skill “{one_line(skill, 64)}”", hint=hint)


def nearest_of(word: str, known: Collection[str]) -> str:
    """A hint with the name that is closest to ``word``."""
    close = get_close_matches(word[:64], list(known), n=1)
    if close:
        return f"did you mean “{one_line(close[0], 64)}”?"
    return f"known: {_listed(sorted(known))}" if known else "there are none"


def _listed(names: Collection[str]) -> str:
    shown = [one_line(name, 64) for name in list(names)[:_NAMES_SHOWN]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
