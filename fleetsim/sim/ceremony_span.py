"""A span of ceremonies as a scenario: every slot between two moments, and agents for what they ask."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from fleetsim.caller.channels.alerts import AlertSettings
from fleetsim.caller.config import NAME
from fleetsim.caller.expectation import Expectation
from fleetsim.caller.fleet import AgentEntry, FleetSettings
from fleetsim.ceremony.file import Ceremony, next_due, parse_ceremony
from fleetsim.model.errors import ConfigError, UnknownTarget
from fleetsim.model.work import ALL
from fleetsim.runtime.explain import did_you_mean
from fleetsim.runtime.yaml import CEREMONY_BYTES_MAX, load
from fleetsim.sim.quantities import SPAN_S_MAX
from fleetsim.sim.scenario import People, Scenario, SimulatedAgent, SkillBehaviour

LEAD_S = 30.0
"""For so long the hub runs before the span: cards are read, and a slot at its first moment is not over yet."""
SHORT_S = 5.0
"""So long before the end of the span it stops: a slot at its last moment is the next span's, also where cards took a
moment, or the machine is slow.
"""
SLOTS_MAX = 50_000


def read_folder(folder: Path, ids: Sequence[str] = ()) -> tuple[dict[str, bytes], list[Ceremony]]:
    """The files of a folder and what they hold, all or those of these ids.

    Raises:
        ConfigError: there is no such folder, or a file in it is wrong.
        UnknownTarget: there is no ceremony of that id.
    """
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}", hint="--folder DIR says where ceremonies are")
    files: dict[str, bytes] = {}
    found: list[Ceremony] = []
    known: set[str] = set()
    for path in sorted(path for path in folder.iterdir() if path.suffix in {".yaml", ".yml"} and path.is_file()):
        with path.open("rb") as file:
            text = file.read(CEREMONY_BYTES_MAX + 1)
        ceremony = parse_ceremony(load(text, str(path)))
        known.add(ceremony.ceremony_id)
        if not ids or ceremony.ceremony_id in ids:
            files[path.name] = text
            found.append(ceremony)
    for one in ids:
        if one not in known:
            raise UnknownTarget(f"there is no ceremony “{one}” in {folder}{did_you_mean(one, known)}")
    return files, found


def due_in(ceremonies: Iterable[Ceremony], begins: datetime, ends: datetime) -> dict[str, int]:
    """How many slots each enabled ceremony has after ``begins`` and until ``ends``, by id.

    Counted from the files alone, not by who fires them. Raises ConfigError if there are more than can be played.
    """
    found: dict[str, int] = {}
    for ceremony in ceremonies:
        slot, count = next_due(ceremony, begins) if ceremony.enabled else None, 0
        while slot is not None and slot <= ends:
            count += 1
            slot = next_due(ceremony, slot)
            if count + sum(found.values()) > SLOTS_MAX:
                raise ConfigError(f"more than {SLOTS_MAX:,} slots are due", hint="play a shorter span")
        found[ceremony.ceremony_id] = count
    return found


def span_scenario(
    ceremonies: Sequence[Ceremony],
    begins: datetime,
    ends: datetime,
    *,
    fleet: Scenario | None = None,
    entries: Sequence[AgentEntry] = (),
    settings: FleetSettings | None = None,
    expect: Sequence[Expectation] = (),
    nobody_answers: bool = False,
) -> Scenario:
    """What fires from ``begins`` on and before ``ends``.

    The agents are those of the scenario ``fleet``, with its people and settings; else those of ``entries`` and any that
    a ceremony names, with every skill that is asked of them, each task taking as long as a simulated one does by
    default. Nobody is told of anything: channels are left out.

    Raises:
        ConfigError: the span is empty or too long.
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
    asked = _asked(ceremonies, {entry.name: entry.skill_names for entry in entries})
    agents = {
        name: SimulatedAgent(skills={skill: SkillBehaviour() for skill in skills}) for name, skills in asked.items()
    }
    people = People(never=1.0) if nobody_answers else People()
    plain = Scenario.model_construct(name="ceremonies", fleet=agents, settings=settings, people=people)
    return plain.model_copy(update=given)


def _asked(ceremonies: Iterable[Ceremony], pinned: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """What each agent is asked for: of the known ones what they pin too, and of all whatever they might offer."""
    found: dict[str, list[str]] = {name: list(skills) for name, skills in pinned.items()}
    wanted = [one for one in ceremonies if one.enabled]
    for ceremony in wanted:
        for target in ceremony.targets:
            if target != ALL and re.fullmatch(NAME, target):
                found.setdefault(target, []).append(ceremony.skill)
    for ceremony in wanted:
        if ALL in ceremony.targets:
            who = [name for name, skills in found.items() if ceremony.skill in skills] or list(found) or ["agent"]
            for name in who:
                found.setdefault(name, []).append(ceremony.skill)
    return {name: list(dict.fromkeys(skills)) for name, skills in found.items() if skills} or {"agent": ["anything"]}
