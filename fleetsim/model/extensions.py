"""The fleet's extensions: their URIs, media types and payloads, read the same way from every channel.

Sources: the seed guide's "Extensions" list and the documents of the named extensions. Numbers from an
agent are hostile: each is type-checked, must be finite, and is clamped to a published bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from fleetsim.model.card import AgentCard
from fleetsim.model.task import DataPart, Part, Task

BASE = "https://proto-labs.ai/a2a/ext/"
COST = BASE + "cost-v1"
CONFIDENCE = BASE + "confidence-v1"
WORLDSTATE_DELTA = BASE + "worldstate-delta-v1"
EFFECT_DOMAIN = BASE + "effect-domain-v1"
BLAST = BASE + "blast-v1"
HITL_MODE = BASE + "hitl-mode-v1"
TRACE = BASE + "trace-v1"

COST_TYPE = "application/vnd.protolabs.cost-v1+json"
CONFIDENCE_TYPE = "application/vnd.protolabs.confidence-v1+json"
WORLDSTATE_DELTA_TYPE = "application/vnd.protolabs.worldstate-delta+json"
WORLDSTATE_DELTA_TYPES = (WORLDSTATE_DELTA_TYPE, "application/vnd.protolabs.worldstate-delta-v1+json")

PAYLOAD_TYPES = frozenset({COST_TYPE, COST, CONFIDENCE_TYPE, CONFIDENCE, *WORLDSTATE_DELTA_TYPES, WORLDSTATE_DELTA})
"""What a data part names itself when it is a payload that ``read_extras`` reads."""

TOKENS_MAX = 10**12
COST_USD_MAX = 1e6
DURATION_MS_MAX = 7 * 24 * 3600 * 1000
DELTAS_MAX = 256
EFFECTS_MAX = 100
EFFECT_CHARS_MAX = 200
EFFECT_DELTA_MAX = 1e12
TEXT_MAX = 2_000


class Usage(Struct, frozen=True, kw_only=True):
    """Tokens a task used."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0


class Cost(Struct, frozen=True, kw_only=True):
    """cost-v1: what a task used and, if the agent knows, what it cost in US dollars."""

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
    """effect-domain-v1: a change that a skill promises. ``delta``: by how much; ``confidence``: how surely, 0 to 1."""

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


def read_extras(task: Task) -> Extras:
    """Collect the payloads of a task's artifacts; malformed ones are left out.

    ``deltas_left_out`` counts those beyond ``DELTAS_MAX``, which are not kept.

    A payload is a task's total: the last of a kind counts, and reading twice changes nothing.
    """
    cost: Cost | None = None
    confidence: Confidence | None = None
    deltas: dict[str, EffectDelta] = {}
    beyond = 0
    for artifact_id, kind, data in _payloads(task):
        if kind in {COST_TYPE, COST}:
            cost = _cost(data) or cost
        elif kind in {CONFIDENCE_TYPE, CONFIDENCE}:
            confidence = _confidence(data) or confidence
        elif kind in {*WORLDSTATE_DELTA_TYPES, WORLDSTATE_DELTA}:
            listed = data.get("deltas")
            beyond += max(0, len(listed) - DELTAS_MAX) if isinstance(listed, list) else 0
            for at, delta in enumerate(_deltas(data)):
                deltas[f"{artifact_id}/{at}/{delta}"] = delta
    kept = tuple(deltas.values())[:DELTAS_MAX]
    return Extras(cost=cost, confidence=confidence, deltas=kept, deltas_left_out=beyond + len(deltas) - len(kept))


def is_payload(part: Part) -> bool:
    """Whether a part is an extension's payload, and no data of the user's."""
    return isinstance(part, DataPart) and isinstance(part.data, Mapping) and _type_of(part) in PAYLOAD_TYPES


def _type_of(part: DataPart) -> str | None:
    kind = part.metadata.get("mimeType") or part.media_type
    return kind if isinstance(kind, str) else None


def _payloads(task: Task) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
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
    found = data.get("deltas", [data])
    for item in found[:DELTAS_MAX] if isinstance(found, list) else []:
        if not isinstance(item, Mapping):
            continue
        domain, path, op = item.get("domain"), item.get("path"), item.get("op")
        if not (isinstance(domain, str) and isinstance(path, str) and isinstance(op, str)):
            continue
        if op in {"set", "inc", "push"}:
            yield EffectDelta(domain=domain[:200], path=path[:200], op=op, value=item.get("value"))


def declared(card: AgentCard, uri: str, skill: str) -> Mapping[str, Any] | None:
    """What the card declares for one skill under an extension's ``params.skills``."""
    extension = card.extension(uri)
    skills = extension.params.get("skills") if extension else None
    entry = skills.get(skill) if isinstance(skills, Mapping) else None
    return entry if isinstance(entry, Mapping) else None


def declared_effects(card: AgentCard | None, skill: str) -> tuple[DeclaredEffect, ...] | None:
    """The first effects that the card declares for one skill; None if it declares no list of them."""
    entry = declared(card, EFFECT_DOMAIN, skill) if card else None
    listed = entry.get("effects") if entry else None
    if not isinstance(listed, list):
        return None
    found = []
    for item in listed[:EFFECTS_MAX]:
        match item:
            case {"domain": str(domain), "path": str(path)}:
                found.append(
                    DeclaredEffect(
                        domain=domain[:EFFECT_CHARS_MAX],
                        path=path[:EFFECT_CHARS_MAX],
                        delta=_number(item.get("delta"), -EFFECT_DELTA_MAX, EFFECT_DELTA_MAX),
                        confidence=_number(item.get("confidence"), 0, 1),
                    )
                )
    return tuple(found)
