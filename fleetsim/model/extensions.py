"""The extensions of A2A that the fleet uses: URIs, media types, payloads and declarations on cards.

Sources: the seed guide's "Extensions" list and the documents of the named extensions. Numbers from an agent are
hostile: each is type-checked, must be finite, and is clamped to a published bound.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Any

from msgspec import Struct

from fleetsim.model.card import AgentCard, AgentExtension
from fleetsim.model.task import DataPart, Part, Task
from fleetsim.model.text import one_line

BASE = "https://proto-labs.ai/a2a/ext/"
COST = BASE + "cost-v1"
CONFIDENCE = BASE + "confidence-v1"
WORLDSTATE_DELTA = BASE + "worldstate-delta-v1"
EFFECT_DOMAIN = BASE + "effect-domain-v1"
BLAST = BASE + "blast-v1"
HITL_MODE = BASE + "hitl-mode-v1"
TRACE = BASE + "trace-v1"
IDEMPOTENT = "urn:fleetsim:idempotent-v1"
"""Our own: a card declares skills that may do the same request twice without harm (docs/howto/send-again.md)."""

SUPPORTED = frozenset({COST, CONFIDENCE, WORLDSTATE_DELTA, EFFECT_DOMAIN, BLAST, HITL_MODE, TRACE, IDEMPOTENT})
"""The extensions that our caller knows. It activates one that a card requires."""

COST_TYPE = "application/vnd.protolabs.cost-v1+json"
CONFIDENCE_TYPE = "application/vnd.protolabs.confidence-v1+json"
WORLDSTATE_DELTA_TYPE = "application/vnd.protolabs.worldstate-delta+json"
WORLDSTATE_DELTA_TYPES = (WORLDSTATE_DELTA_TYPE, "application/vnd.protolabs.worldstate-delta-v1+json")

PAYLOAD_TYPES = frozenset({COST_TYPE, COST, CONFIDENCE_TYPE, CONFIDENCE, *WORLDSTATE_DELTA_TYPES, WORLDSTATE_DELTA})
"""Media types of the data parts that ``read_extras`` reads."""

TOKENS_MAX = 10**12
COST_USD_MAX = 1e6
DURATION_MS_MAX = 7 * 24 * 3600 * 1000
DELTAS_MAX = 256
EFFECTS_MAX = 100
EFFECT_CHARS_MAX = 200
EFFECT_DELTA_MAX = 1e12
TEXT_MAX = 2_000
DOUBTS_MAX = 10


class Usage(Struct, frozen=True, kw_only=True):
    """The tokens that a task used."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0


class Cost(Struct, frozen=True, kw_only=True):
    """cost-v1: the tokens of a task and, if the agent knows it, the cost in US dollars."""

    usage: Usage
    duration_ms: int | None = None
    cost_usd: float | None = None
    success: bool | None = None
    model: str | None = None


class Confidence(Struct, frozen=True, kw_only=True):
    """confidence-v1: how sure the agent is, 0 to 1."""

    confidence: float
    explanation: str | None = None
    success: bool | None = None


class EffectDelta(Struct, frozen=True, kw_only=True):
    """worldstate-delta-v1: one observed change; ``op`` is set, inc or push."""

    domain: str
    path: str
    op: str
    value: Any = None


class DeclaredEffect(Struct, frozen=True, kw_only=True):
    """effect-domain-v1: a change that a skill promises. ``delta`` is its size, ``confidence`` its certainty, 0 to 1."""

    domain: str
    path: str
    delta: float | None = None
    confidence: float | None = None


class Extras(Struct, frozen=True, kw_only=True):
    """All extension payloads of one task."""

    cost: Cost | None = None
    confidence: Confidence | None = None
    deltas: tuple[EffectDelta, ...] = ()
    deltas_left_out: int = 0

    @property
    def denies_success(self) -> bool:
        """Whether a payload says ``success: false``."""
        return any(x is not None and x.success is False for x in (self.cost, self.confidence))


def required_extensions(card: AgentCard) -> tuple[list[str], list[str]]:
    """The URIs of the extensions that a card requires: those that our caller knows, and the others."""
    required = [item.uri for item in card.capabilities.extensions if item.required]
    return [uri for uri in required if uri in SUPPORTED], [uri for uri in required if uri not in SUPPORTED]


def doubts_of(card: AgentCard | None, activated: Collection[str] = ()) -> tuple[str, ...]:
    """Warnings of a card for requesters of its agent: a failed signature, and the extensions that it
    requires and our caller does not know. ``activated`` are URIs that a program knows itself."""
    if card is None:
        return ()
    unknown = [one_line(uri, 200) for uri in required_extensions(card)[1] if uri not in activated][:DOUBTS_MAX]
    required = (f"it requires an extension that fleetsim does not support: {uri}" for uri in unknown)
    return (*filter(None, [card.proof.doubt]), *required)


def read_extras(task: Task) -> Extras:
    """Collect the payloads of a task's artifacts; malformed ones are skipped.

    ``deltas_left_out`` counts the deltas beyond ``DELTAS_MAX``, which are dropped. A payload describes the whole task,
    so the last one of a kind counts.
    """
    cost: Cost | None = None
    confidence: Confidence | None = None
    deltas: dict[str, EffectDelta] = {}
    beyond = 0
    for artifact_id, kind, data in payloads(task):
        if kind in {COST_TYPE, COST}:
            cost = _cost(data) or cost
        elif kind in {CONFIDENCE_TYPE, CONFIDENCE}:
            confidence = _confidence(data) or confidence
        elif kind in {*WORLDSTATE_DELTA_TYPES, WORLDSTATE_DELTA}:
            listed = data.get("deltas")
            beyond += max(0, len(listed) - DELTAS_MAX) if isinstance(listed, list) else 0
            for at, delta in enumerate(_deltas(data)):
                deltas[f"{artifact_id}/{at}/{delta}"] = delta
    first = tuple(deltas.values())[:DELTAS_MAX]
    return Extras(cost=cost, confidence=confidence, deltas=first, deltas_left_out=beyond + len(deltas) - len(first))


def is_payload(part: Part) -> bool:
    """Whether a part is the payload of an extension, and not the user's data."""
    return isinstance(part, DataPart) and isinstance(part.data, Mapping) and _type_of(part) in PAYLOAD_TYPES


def _type_of(part: DataPart) -> str | None:
    kind = part.metadata.get("mimeType") or part.media_type
    return kind if isinstance(kind, str) else None


def payloads(task: Task) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """(artifact id, media type or URI, payload): an artifact's data parts first, then its metadata keyed by URI."""
    for artifact in task.artifacts:
        for part in artifact.parts:
            if isinstance(part, DataPart) and isinstance(part.data, Mapping):
                kind = _type_of(part)
                if kind is not None:
                    yield artifact.artifact_id, kind, part.data
        if artifact.metadata:
            for uri, data in artifact.metadata.items():
                if isinstance(data, Mapping):
                    yield artifact.artifact_id, uri, data


def _number(value: Any, low: float, high: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return high if value > 0 else low
    return min(max(number, low), high) if math.isfinite(number) else None


def _count(value: Any, high: int) -> int:
    return int(_number(value, 0, high) or 0)


def _text(value: Any) -> str | None:
    if not isinstance(value, str) or not value:
        return None
    return value if len(value) <= TEXT_MAX else value[: TEXT_MAX - 1] + "…"


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _cost(data: Mapping[str, Any]) -> Cost | None:
    usage = data.get("usage")
    if not isinstance(usage, Mapping):
        usage = {}
    duration = _number(data.get("durationMs"), 0, DURATION_MS_MAX)
    cost_usd = _number(data.get("costUsd"), 0, COST_USD_MAX)
    success = _flag(data.get("success"))
    if not usage and duration is None and cost_usd is None and success is None:
        return None
    return Cost(
        usage=Usage(
            input_tokens=_count(usage.get("input_tokens"), TOKENS_MAX),
            output_tokens=_count(usage.get("output_tokens"), TOKENS_MAX),
            cache_creation_input_tokens=_count(usage.get("cache_creation_input_tokens"), TOKENS_MAX),
            cache_read_input_tokens=_count(usage.get("cache_read_input_tokens"), TOKENS_MAX),
        ),
        duration_ms=None if duration is None else int(duration),
        cost_usd=cost_usd,
        success=success,
        model=_text(data.get("model")),
    )


def _confidence(data: Mapping[str, Any]) -> Confidence | None:
    level = _number(data.get("confidence"), 0, 1)
    if level is None:
        return None
    why = _text(data.get("explanation")) or _text(data.get("confidenceExplanation"))
    return Confidence(confidence=level, explanation=why, success=_flag(data.get("success")))


def _deltas(data: Mapping[str, Any]) -> Iterator[EffectDelta]:
    """Both shapes in use: ``{deltas: [...]}`` and one flat delta."""
    listed = data.get("deltas", [data])
    for item in listed[:DELTAS_MAX] if isinstance(listed, list) else []:
        if not isinstance(item, Mapping):
            continue
        domain, path, op = item.get("domain"), item.get("path"), item.get("op")
        if not (isinstance(domain, str) and isinstance(path, str) and isinstance(op, str)):
            continue
        if op in {"set", "inc", "push"}:
            yield EffectDelta(domain=domain[:200], path=path[:200], op=op, value=item.get("value"))


def declared(card: AgentCard, uri: str, skill: str) -> Mapping[str, Any] | None:
    """Return the card's declaration for one skill under an extension's ``params.skills``."""
    extension = card.extension(uri)
    skills = extension.params.get("skills") if extension else None
    entry = skills.get(skill) if isinstance(skills, Mapping) else None
    return entry if isinstance(entry, Mapping) else None


def declared_effects(card: AgentCard | None, skill: str) -> tuple[DeclaredEffect, ...] | None:
    """Return the first ``EFFECTS_MAX`` effects that the card declares for one skill; None if it has no list of them."""
    entry = declared(card, EFFECT_DOMAIN, skill) if card else None
    listed = entry.get("effects") if entry else None
    if not isinstance(listed, list):
        return None
    effects = []
    for item in listed[:EFFECTS_MAX]:
        match item:
            case {"domain": str(domain), "path": str(path)}:
                effects.append(
                    DeclaredEffect(
                        domain=domain[:EFFECT_CHARS_MAX],
                        path=path[:EFFECT_CHARS_MAX],
                        delta=_number(item.get("delta"), -EFFECT_DELTA_MAX, EFFECT_DELTA_MAX),
                        confidence=_number(item.get("confidence"), 0, 1),
                    )
                )
    return tuple(effects)


# ------------------------------------------------------------------ declarations of a card about a skill

VETO_WINDOW_S = 60.0
VETO_WINDOW_MAX_S = 24 * 3600.0
SKILLS_READ_MAX = 500


class HitlMode(StrEnum):
    """The part of a person in a skill (hitl-mode-v1), the least strict mode first."""

    AUTONOMOUS = "autonomous"
    NOTIFICATION = "notification"
    VETO = "veto"
    GATED = "gated"
    COMPOUND = "compound"


PERSON_ONLY = frozenset({HitlMode.GATED, HitlMode.COMPOUND})


@dataclass(frozen=True, slots=True, kw_only=True)
class HitlRule:
    """The card's rule about people for one skill; ``veto_window_s`` in seconds."""

    mode: HitlMode
    veto_window_s: float = VETO_WINDOW_S
    operator_only: bool = False

    @property
    def person_only(self) -> bool:
        """Whether only a person may answer its questions."""
        return self.operator_only or self.mode in PERSON_ONLY


@dataclass(frozen=True, slots=True, order=True)
class PromisedEffect:
    """An effect that a skill promises: a domain and a path in it."""

    domain: str
    path: str

    def __str__(self) -> str:
        return one_line(f"{self.domain}/{self.path}", 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillPolicy:
    """The card's declarations for one skill at the time of dispatch. A later card affects only new work.

    ``effects`` is None without a declaration. With ``any_skill`` the agent chooses the skill, so the declarations of
    all its skills count together.
    """

    hitl: HitlRule | None = None
    effects: tuple[PromisedEffect, ...] | None = None
    any_skill: bool = False


def read_declared(card: AgentCard | None, skill: str | None) -> SkillPolicy:
    """Read a card's declarations for a skill, with limits; malformed ones are ignored.

    Without a skill the strictest rule of the card's skills counts, and the promised effects of all of them.
    """
    if skill is not None:
        one = declared_effects(card, skill)
        return SkillPolicy(hitl=read_hitl(card, skill), effects=None if one is None else _promised(one))
    rules = [rule for name in _declared_skills(card, HITL_MODE) if (rule := read_hitl(card, name)) is not None]
    declaring = [
        one for name in _declared_skills(card, EFFECT_DOMAIN) if (one := declared_effects(card, name)) is not None
    ]
    effects = _promised(chain.from_iterable(declaring))[:EFFECTS_MAX] if declaring else None
    if not rules:
        return SkillPolicy(effects=effects, any_skill=True)
    mode = max((rule.mode for rule in rules), key=list(HitlMode).index)  # the strictest
    hitl = HitlRule(
        mode=mode,
        veto_window_s=max(rule.veto_window_s for rule in rules if rule.mode is mode),  # the longest of that mode
        operator_only=any(rule.operator_only for rule in rules),
    )
    return SkillPolicy(hitl=hitl, effects=effects, any_skill=True)


def _declared_skills(card: AgentCard | None, uri: str) -> list[str]:
    """Return the skills in an extension's declarations, whether the card lists them or not."""
    extension = card.extension(uri) if card else None
    skills = extension.params.get("skills") if extension else None
    return list(skills)[:SKILLS_READ_MAX] if isinstance(skills, Mapping) else []


def read_hitl(card: AgentCard | None, skill: str) -> HitlRule | None:
    """Return the hitl-mode-v1 rule for a skill, or None; unknown modes and invalid numbers are ignored."""
    entry = declared(card, HITL_MODE, skill) if card else None
    mode = entry.get("mode") if entry is not None else None
    if entry is None or not isinstance(mode, str) or mode not in set(HitlMode):
        return None
    window = entry.get("vetoTtlMs")
    usable = isinstance(window, int | float) and not isinstance(window, bool) and window > 0
    return HitlRule(
        mode=HitlMode(mode),
        veto_window_s=min(window / 1000, VETO_WINDOW_MAX_S) if usable and window is not None else VETO_WINDOW_S,
        operator_only=entry.get("reviewer") == "operator",
    )


def _promised(declarations: Iterable[DeclaredEffect]) -> tuple[PromisedEffect, ...]:
    return tuple(sorted({PromisedEffect(declaration.domain, declaration.path) for declaration in declarations}))


# ------------------------------------------------------------------ hubs that call hubs, without a circle

HUBS_MAX = 4
"""The most hubs that a request may pass; the next one refuses it."""

HUBS_HEADER = "X-Fleetsim-Hubs"
HUBS_KEY = "fleetsim.hubs"
"""Metadata key of a message, for agents between hubs that forward metadata but not headers."""

REASON_CHARS_MAX = 500
"""Characters of the reason of a failure on its one line; the text has all of it."""

CAUSE_KEY = "fleetsim.cause"
"""Metadata key of a final status: the cause, set by a hub if the request itself is wrong."""

HUB_EXTENSION = "urn:fleetsim:hub-v1"
"""Extension on the card of a hub; its parameter ``hub`` is the hub's id."""

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def hubs_of(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the ids of the hubs in the metadata, in order. Raises ValueError if the value is not a list of ids."""
    return _ids(metadata.get(HUBS_KEY, ()), HUBS_KEY)


def hubs_in(header: str | None) -> tuple[str, ...]:
    """Return the ids of the hubs in the header, in order. Raises ValueError if it is not a list of ids."""
    return _ids([] if not header else [hub.strip() for hub in header.split(",")], HUBS_HEADER)


def _ids(ids: object, where: str) -> tuple[str, ...]:
    if not isinstance(ids, list | tuple) or not all(isinstance(hub, str) and _ID.fullmatch(hub) for hub in ids):
        raise ValueError(f"{where} is a list of hubs' ids")
    return tuple(ids)


def hub_extension(hub_id: str) -> AgentExtension:
    """Return the extension that marks the card of a hub."""
    return AgentExtension(uri=HUB_EXTENSION, params={"hub": hub_id})


def hub_of(card: AgentCard | None) -> str:
    """Return the id of the hub with this card; empty for any other agent."""
    extensions = card.capabilities.extensions if card is not None else ()
    hub_id = next((ext.params.get("hub") for ext in extensions if ext.uri == HUB_EXTENSION and ext.params), "")
    return hub_id if isinstance(hub_id, str) else ""


def reason_of(task: Task) -> str:
    """Return the reason of a failure from data or metadata, for agents that send no text; empty without one."""
    message = task.status.message
    parts = (*(message.parts if message else ()), *(part for artifact in task.artifacts for part in artifact.parts))
    noted = (*(part.data for part in parts if isinstance(part, DataPart)), message and message.metadata, task.metadata)
    for values in filter(lambda values: isinstance(values, Mapping), noted):
        for name in ("error", "reason", "message", "detail"):
            said = values.get(name)
            said = said.get("message") if isinstance(said, Mapping) else said
            if isinstance(said, str) and (line := one_line(said, REASON_CHARS_MAX)):
                return line
    return ""


def cause_from_hub(task: Task | None) -> str:
    """Return the cause that a hub gave for the end of a task; empty if it gave none."""
    message = task.status.message if task is not None else None
    cause = message.metadata.get(CAUSE_KEY, "") if message is not None else ""
    return cause if isinstance(cause, str) else ""
