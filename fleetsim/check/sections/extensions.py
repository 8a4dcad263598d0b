"""Rows about declared extensions: effects, deltas, cost, confidence, and unknown ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleetsim.check.agent_under_test import Hint
from fleetsim.check.evidence import Exchange, fail_unless, not_applicable_unless, not_tested_unless
from fleetsim.check.raw_dialect import listed, mapping
from fleetsim.check.requirement import BUILD_GUIDE, ONCE, must, should
from fleetsim.check.sections.card import served_card
from fleetsim.check.session import Session
from fleetsim.model.call import Operation
from fleetsim.model.extensions import (
    CONFIDENCE,
    CONFIDENCE_TYPE,
    COST,
    COST_TYPE,
    EFFECT_DOMAIN,
    WORLDSTATE_DELTA,
    WORLDSTATE_DELTA_TYPES,
    payloads,
)
from fleetsim.model.task import Artifact, DataPart, Task, TaskState, TaskStatus

NEW, OLD = "/.well-known/agent-card.json", "/.well-known/agent.json"


@must(
    "X-01: Declared extensions are well formed",
    ONCE,
    source="A2A 0.3 §5.5.2.1, 1.0 §4.4.4",
    remedy="Write each extension as {uri, description, required, params}.",
)
async def extensions_are_whole(session: Session) -> None:
    """Read capabilities.extensions: an array of objects with a uri."""
    _, reply = served_card(session)
    written = session.agent.capabilities.get("extensions")
    not_applicable_unless(written is not None, "the card declares no extensions")
    fail_unless(isinstance(written, list), "capabilities.extensions is no array", reply)
    for entry in listed(written):
        fail_unless(isinstance(mapping(entry).get("uri"), str), "an extension without a uri", reply)
        params = mapping(entry).get("params")
        fail_unless(params is None or isinstance(params, dict), "an extension's params are not an object", reply)


def _declared(session: Session, uri: str) -> Mapping[str, Any] | None:
    """The card's declaration of an extension by its whole URI, as the hub reads it; None if there is none."""
    entries = map(mapping, listed(session.agent.capabilities.get("extensions")))
    return next((entry for entry in entries if entry.get("uri") == uri), None)


def _effect_skills(session: Session) -> Mapping[str, Any] | None:
    """The effects of each skill by effect-domain-v1; None if the card does not declare it."""
    entry = _declared(session, EFFECT_DOMAIN)
    return None if entry is None else mapping(mapping(entry.get("params")).get("skills"))


def _effects(session: Session) -> Mapping[str, Any]:
    skills = _effect_skills(session)
    not_applicable_unless(skills is not None, "the card does not declare effect-domain-v1")
    return skills or {}


@should(
    "X-02: effect-domain-v1 lists effects of skills that exist",
    ONCE,
    source=f"{BUILD_GUIDE}, checklist 'Extensions'",
    remedy="Declare effects under the ids of the card's skills.",
)
async def effects_are_of_skills(session: Session) -> None:
    """Read the extension's params.skills: every key is a skill of the card, every effect has domain and path."""
    _, reply = served_card(session)
    if mutating := session.options.mutating:
        declared = _effect_skills(session) or {}
        silent = [skill for skill in mutating if not listed(mapping(declared.get(skill)).get("effects"))]
        fail_unless(not silent, f"changes the world and declares no effect: {', '.join(silent)}", reply)
    skills = _effects(session)
    fail_unless(skills, "effect-domain-v1 is declared without params.skills", reply)
    ids = {str(skill.get("id")) for skill in session.agent.skills()}
    strange = set(skills) - ids
    fail_unless(not strange, f"effects of skills that do not exist: {', '.join(sorted(map(str, strange)))}", reply)
    for name, entry in skills.items():
        effects = listed(mapping(entry).get("effects"))
        whole = all(isinstance(mapping(e).get(k), str) for e in effects for k in ("domain", "path"))
        fail_unless(effects and whole, f"{name} has no effects with domain and path", reply)


def _payloads(session: Session, reply: Exchange, *kinds: str) -> list[Mapping[str, Any]]:
    """The payloads of an extension on a task, where the hub reads them: in data parts of artifacts or in metadata."""
    artifacts = [
        Artifact(
            artifact_id=str(artifact.get("artifactId")),
            parts=tuple(
                DataPart(data=part["data"], metadata=mapping(part.get("metadata")), media_type=part.get("mediaType"))
                for part in map(mapping, listed(artifact.get("parts")))
                if "data" in part
            ),
            metadata=mapping(artifact.get("metadata")),
        )
        for artifact in map(mapping, listed(session.dialect.task(reply.result).get("artifacts")))
    ]
    task = Task(task_id="", context_id="", status=TaskStatus(state=TaskState.UNKNOWN), artifacts=tuple(artifacts))
    return [payload for _, kind, payload in payloads(task) if kind in kinds]


def _place(effect: Mapping[str, Any]) -> tuple[Any, Any]:
    return effect.get("domain"), effect.get("path")


@should(
    "X-03: A changed world is reported as declared (worldstate-delta-v1)",
    source=f"{BUILD_GUIDE}, checklist 'Extensions'",
    remedy="Emit the delta on the terminal task whenever a tool with known effects succeeds.",
    needs=("side-effects",),
)
async def deltas_agree(session: Session) -> None:
    """Run a skill with declared effects; the terminal task carries a delta part that agrees with them."""
    skills = _effects(session)
    not_tested_unless(skills, "no skill declares effects")
    skill, entry = next(iter(skills.items()))
    _, reply = await session.finished(Hint(str(skill), "fleetsim check"))
    not_tested_unless(session.state(reply) == "completed", f"{skill} ended {session.state(reply)}", reply)
    payload = _payloads(session, reply, *WORLDSTATE_DELTA_TYPES, WORLDSTATE_DELTA)
    deltas = [mapping(d) for part in payload for d in listed(part.get("deltas", [part]))]
    fail_unless(deltas, f"{skill} declares effects, but its task carries no worldstate delta", reply)
    declared = [_place(mapping(effect)) for effect in listed(mapping(entry).get("effects"))]
    odd = [delta for delta in deltas if _place(delta) not in declared]
    fail_unless(not odd, "a delta that the card does not declare", reply)


async def _told(session: Session, name: str, otherwise: str, *kinds: str) -> tuple[Mapping[str, Any], Exchange]:
    """The payload on a task of the skill for it: ``estimate``, ``name`` or a skill with such a tag, else ``otherwise``.

    Raises NotPassed: *fail* without a payload, *not tested* if no skill promised it.
    """
    words = {"estimate", name}
    skills = [s for s in session.agent.skills() if words & {str(s.get("id")), *map(str, listed(s.get("tags")))}]
    hint = Hint(str(skills[0].get("id")), "fleetsim check") if skills else None
    _, reply = await session.finished(hint or session.agent.hints.get(otherwise, session.quick()))
    found = _payloads(session, reply, *kinds)
    needs = f"needs a task with {name}: no skill of the card is called estimate or {name}, or has that tag"
    not_tested_unless(found or skills, needs, reply)
    fail_unless(found, f"{name}-v1 is declared, but no artifact carries it (as {kinds[0]})", reply)
    return found[-1], reply


@should(
    "X-04: cost-v1: what a task cost is on the terminal task",
    source=f"{BUILD_GUIDE}, checklist 'Extensions' (Quinn PR #56)",
    remedy="Add {usage, durationMs} as a data part of the terminal artifact whenever usage was tracked.",
)
async def cost_is_told(session: Session) -> None:
    """Run a skill that declares cost; its terminal task carries usage and durationMs, as a data part or in metadata."""
    not_applicable_unless(_declared(session, COST), "the card does not declare cost-v1")
    cost, reply = await _told(session, "cost", "stream", COST_TYPE, COST)
    fail_unless(mapping(cost.get("usage")), "the cost has no usage", reply)
    took = cost.get("durationMs")
    fits = isinstance(took, int | float) and not isinstance(took, bool) and took >= 0
    fail_unless(fits, "durationMs is missing or no number", reply)


@should(
    "X-05: confidence-v1: confidence is a number from 0 to 1",
    source=f"{BUILD_GUIDE}, checklist 'Extensions'",
    remedy="Send {confidence, explanation} with confidence between 0 and 1.",
)
async def confidence_is_a_number(session: Session) -> None:
    """Run a skill that declares confidence and read what its terminal task says of it, in a data part or metadata."""
    not_applicable_unless(_declared(session, CONFIDENCE), "the card does not declare confidence-v1")
    confidence, reply = await _told(session, "confidence", "quick", CONFIDENCE_TYPE, CONFIDENCE)
    level = confidence.get("confidence")
    fits = isinstance(level, int | float) and not isinstance(level, bool) and 0 <= level <= 1
    fail_unless(fits, f"confidence is {level!r}, no number from 0 to 1", reply)


@must(
    "X-06: An extension nobody knows is ignored",
    source="A2A 0.3 §3.3, 1.0 §4.6",
    remedy="Activate the extensions you know and ignore the rest.",
)
async def unknown_extension_is_ignored(session: Session) -> None:
    """Send with an extension header that names an unknown URI; the call must work."""
    name = "a2a-extensions" if session.dialect.current else "x-a2a-extensions"
    headers = {name: "https://fleetsim.example/extensions/unknown/v1"}
    reply = await session.call(Operation.SEND, session.params(), headers=headers)
    fail_unless(reply.granted, f"a send with an unknown extension gave {reply}", reply)
