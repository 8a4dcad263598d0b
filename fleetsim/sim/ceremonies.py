"""Ceremonies in a run: a span of their slots as a scenario, and a person who edits their files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from os.path import relpath
from pathlib import Path
from random import Random  # noqa: TID251 - the type of a stream of chance, which the runtime hands in
from typing import TypeAlias

from fleetsim.ceremonies.folder import FolderContents, contents_of
from fleetsim.ceremonies.runs import agents_of
from fleetsim.ceremony.file import Ceremony, next_due
from fleetsim.channels.alerts import AlertSettings
from fleetsim.fleet.access import Caller
from fleetsim.fleet.registry import Judge, nearest_of, resolve
from fleetsim.fleet.settings import FleetSettings
from fleetsim.health.figures import Expectation
from fleetsim.model.errors import ConfigError, UnknownTarget
from fleetsim.model.spans import SPAN_S_MAX
from fleetsim.model.work import ALL, ID
from fleetsim.sim.calls import LineWriter
from fleetsim.sim.scenario import People, Scenario, SimulatedAgent, SkillBehaviour
from fleetsim.testbed.runtime import MemoryFiles

LEAD_S = 30.0
"""The hub starts this long before the span: it reads the cards, and does not miss a slot at the first moment."""
SHORT_S = 5.0
"""The hub stops this long before the end of the span: a slot at the last moment belongs to the next span, also if
reading the cards took a moment or the machine is slow.
"""
SLOTS_MAX = 50_000
REQUEST_S = 0.005
"""Seconds that a simulated request takes to play, with its part of the report: longer with much trouble."""
SKILLS_MAX = 100

Offers: TypeAlias = Mapping[str, Collection[str]]
"""The skills of each agent."""


def chosen(texts: Mapping[str, bytes], ids: Sequence[str], folder: Path) -> dict[str, bytes]:
    """The files of these ceremonies. Raises UnknownTarget if one is not in force."""
    contents = contents_of(texts, folder)
    for wanted_id in ids:
        if wanted_id not in contents.ceremonies:
            errors = [problem.error for problem in contents.problems if problem.ceremony_id == wanted_id]
            hint = errors[0] if errors else nearest_of(wanted_id, contents.ceremonies)
            raise UnknownTarget(f"there is no ceremony “{wanted_id}” in {folder}", hint=hint)
    return {name: texts[name] for name in (relpath(contents.stored[ceremony_id].path, folder) for ceremony_id in ids)}


def problems_of(contents: FolderContents, say: Judge) -> tuple[str, ...]:
    """A sentence for each file that is not in force, and for each target that ``say`` doubts."""
    files = [line for problem in contents.problems for line in problem.error.splitlines()]
    doubts = [
        f"{ceremony.ceremony_id}: {doubt}"
        for ceremony in contents.ceremonies.values()
        if ceremony.enabled
        for target in ceremony.targets
        if (doubt := say(ceremony.skill, target, Caller.firing(ceremony)))
    ]
    return (*files, *doubts)


def due_in(ceremonies: Iterable[Ceremony], begins: datetime, ends: datetime) -> dict[str, int]:
    """How many slots the file of each enabled ceremony has after ``begins`` and until ``ends``, by id. Raises
    ConfigError if there are more than can be played.
    """
    fires: dict[str, int] = {}
    for ceremony in ceremonies:
        slot, count = next_due(ceremony, begins) if ceremony.enabled else None, 0
        while slot is not None and slot <= ends:
            count += 1
            slot = next_due(ceremony, slot)
            if count + sum(fires.values()) > SLOTS_MAX:
                raise ConfigError(f"more than {SLOTS_MAX:,} slots are due", hint="play a shorter span")
        fires[ceremony.ceremony_id] = count
    return fires


def requests_in(ceremonies: Iterable[Ceremony], due: Mapping[str, int], offers: Offers) -> int:
    """The number of requests of those slots, without those that no agent can serve."""
    resolved = partial(resolve, offers=offers, weights={}, chance=lambda: 0.0)
    return sum(due[c.ceremony_id] * len(agents_of(c, resolved)[0]) for c in ceremonies if due[c.ceremony_id])


def requests_of(scenario: Scenario, texts: Mapping[str, bytes]) -> int:
    """The number of requests of a scenario that are expected, with those of the ceremonies in ``texts``. Raises
    ConfigError if they have more slots than can be played.
    """
    ceremonies = contents_of(texts, Path()).ceremonies.values()
    due = due_in(ceremonies, scenario.start, scenario.start + timedelta(seconds=scenario.duration))
    count = float(requests_in(ceremonies, due, {name: agent.skills for name, agent in scenario.agents}))
    for traffic in scenario.traffic:
        begins, ends = traffic.window(scenario.start, scenario.duration)
        count += traffic.rate * max(0.0, ends - begins) * traffic.burst * traffic.turns
    return round(count)


def span_scenario(
    ceremonies: Sequence[Ceremony],
    begins: datetime,
    ends: datetime,
    *,
    fleet: Scenario | None = None,
    offers: Offers | None = None,
    unread: Collection[str] = (),
    settings: FleetSettings | None = None,
    expect: Sequence[Expectation] = (),
    nobody_answers: bool = False,
) -> Scenario:
    """The slots from ``begins`` on and before ``ends``, as a scenario.

    The agents are those of the scenario ``fleet``, with its people and settings; else those of ``offers``, each with
    its skills. An agent in ``unread``, whose skills are unknown, also has every skill that is asked of it. Each task
    takes as long as a simulated one does by default; agents stream and call no webhooks. Channels are left out. Raises
    ConfigError if the span is empty or too long.
    """
    duration = (ends - begins).total_seconds() + LEAD_S - SHORT_S
    if not LEAD_S < duration <= SPAN_S_MAX:
        raise ConfigError("the span must be longer than 5 seconds, and at most 366 days", hint="--to is after --from")
    given = {"start": begins - timedelta(seconds=LEAD_S), "duration": duration, "expect": list(expect)}
    if fleet is not None:
        nothing: dict[str, object] = {"traffic": [], "weather": [], "mix": None, "ceremonies": None}
        return fleet.model_copy(update={**given, **nothing})
    settings = replace(
        settings or FleetSettings(), base_url=None, internal_base_url=None, question_channels=(), alerts=AlertSettings()
    )
    agents = {name: _agent(name, skills, ceremonies, name in unread) for name, skills in (offers or {}).items()}
    people = People(never=1.0) if nobody_answers else People()
    plain = Scenario.model_construct(name="ceremonies", fleet=agents, settings=settings, people=people)
    return plain.model_copy(update=given)


def _agent(name: str, offered: Collection[str], ceremonies: Sequence[Ceremony], unread: bool) -> SimulatedAgent:
    """An agent with the skills that a scenario can name; skills that ceremonies ask for come first."""
    asked = {ceremony.skill for ceremony in ceremonies if ceremony.enabled and {name, ALL} & set(ceremony.targets)}
    skills = {*offered, *asked} if unread else {*offered}
    valid = [skill for skill in sorted(skills, key=lambda s: (s not in asked, s)) if ID.fullmatch(skill)]
    return SimulatedAgent.model_construct(skills={skill: SkillBehaviour() for skill in valid[:SKILLS_MAX]}, push=False)


EDITS = ("disabled", "deleted", "half written", "as it was")
_ZONE = re.compile(rb"^timezone:.*\n", re.MULTILINE)


class CeremonyEditor:
    """Edits the files that a run began with, and writes a line with the ceremony's id for each edit."""

    def __init__(self, files: MemoryFiles, folder: Path, write: LineWriter) -> None:
        self._files = files
        self._record = write
        self._edited: set[Path] = set()
        self._whole = {path: content for path, content in files.content().items() if path.suffix in {".yaml", ".yml"}}

    async def edit(self, rng: Random) -> None:
        """Makes a random edit of a random file."""
        if self._whole:
            await self._make(rng.choice(sorted(self._whole)), rng.choice(EDITS))

    async def move(self, rng: Random, zone: str) -> Path | None:
        """Moves one ceremony to the time zone ``zone``. Returns its file."""
        if not self._whole:
            return None
        path = rng.choice(sorted(self._whole))
        await self._make(path, "as it was", zone)
        return path

    async def move_back(self, path: Path) -> None:
        await self._make(path, "as it was")

    async def put_back(self) -> bool:
        """Restores every file. Returns whether one was edited."""
        edited = sorted(self._edited)
        for path in edited:
            await self._make(path, "as it was")
        return bool(edited)

    async def _make(self, path: Path, what: str, zone: str = "") -> None:
        whole = self._whole[path]
        if zone:
            whole = _ZONE.sub(b"", whole) + f"timezone: {zone}\n".encode()
        match what:
            case "deleted":
                await self._files.remove(path)
            case "disabled" if b"enabled:" not in whole:
                self._files.put(path, whole + b"enabled: false\n")
            case "half written":
                self._files.put(path, whole[: len(whole) // 2])
            case _:
                self._files.put(path, whole)
        (self._edited.discard if what == EDITS[-1] and not zone else self._edited.add)(path)
        self._record("edited", file=path.stem, what=what, zone=zone)
