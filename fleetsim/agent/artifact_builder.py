"""A task's results while they grow: artifacts piece by piece, and what the task used.

Text is kept in pieces and joined when somebody looks, so a long stream costs linear time. Knows
values only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetsim.agent.limits import OutputLimit
from fleetsim.model.extensions import (
    CONFIDENCE,
    CONFIDENCE_TYPE,
    COST,
    COST_TYPE,
    DELTAS_MAX,
    WORLDSTATE_DELTA,
    WORLDSTATE_DELTA_TYPE,
    EffectDelta,
)
from fleetsim.model.task import Artifact, DataPart, FilePart, Part, TaskState, TextPart

MAIN_NAME = "response"


@dataclass(slots=True, kw_only=True)
class UsageTotals:
    """What a task used, how sure it is and what it changed in the world; empty until a skill says so."""

    tokens: dict[str, int] = field(default_factory=dict)
    cost_usd: float | None = None
    model: str | None = None
    confidence: float | None = None
    explanation: str | None = None
    effects: list[EffectDelta] = field(default_factory=list)

    def use(self, tokens: Mapping[str, int], cost_usd: float | None, model: str | None) -> None:
        """Add one model call. Raises ValueError for a negative or endless amount."""
        if any(count < 0 for count in tokens.values()) or (cost_usd is not None and not 0 <= cost_usd < math.inf):
            raise ValueError("tokens and cost cannot be negative or infinite")
        for kind, count in tokens.items():
            self.tokens[kind] = self.tokens.get(kind, 0) + count
        if cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + cost_usd
        self.model = model or self.model

    def add(self, effect: EffectDelta) -> None:
        """Note one observed change. Raises OutputLimit beyond the published count."""
        if len(self.effects) >= DELTAS_MAX:
            raise OutputLimit(f"a task may report at most {DELTAS_MAX} effects")
        self.effects.append(effect)

    def parts(self, state: TaskState, duration_ms: int) -> tuple[tuple[Part, ...], tuple[str, ...]]:
        """The data parts for the terminal artifact and the URIs they belong to (seed "Extensions")."""
        success = state is TaskState.COMPLETED
        found: list[tuple[str, str, dict[str, Any]]] = []
        if self.effects:
            deltas = [{"domain": e.domain, "path": e.path, "op": e.op, "value": e.value} for e in self.effects]
            found.append((WORLDSTATE_DELTA, WORLDSTATE_DELTA_TYPE, {"deltas": deltas}))
        if self.tokens or self.cost_usd is not None:
            cost: dict[str, Any] = {"usage": dict(self.tokens), "durationMs": duration_ms, "success": success}
            cost |= {} if self.cost_usd is None else {"costUsd": self.cost_usd}
            found.append((COST, COST_TYPE, cost | ({} if self.model is None else {"model": self.model})))
        if self.confidence is not None:
            sure: dict[str, Any] = {"confidence": self.confidence, "success": success}
            found.append((CONFIDENCE, CONFIDENCE_TYPE, sure | _explained(self.explanation)))
        parts = tuple(DataPart(data=data, media_type=kind, metadata={"mimeType": kind}) for _, kind, data in found)
        return parts, tuple(uri for uri, _, _ in found)


def _explained(text: str | None) -> dict[str, str]:
    return {} if text is None else {"explanation": text}


@dataclass(slots=True)
class _Piece:
    """One artifact in the making. ``text`` is the run of text at the end of ``parts``."""

    head: Artifact
    parts: list[Part] = field(default_factory=list)
    text: list[str] = field(default_factory=list)

    def add(self, part: Part) -> None:
        if isinstance(part, TextPart) and not part.metadata and not part.media_type:
            self.text.append(part.text)
            return
        self.settle()
        self.parts.append(part)

    def settle(self) -> None:
        if not self.text:
            return
        run = "".join(self.text)
        self.text.clear()
        last = self.parts[-1] if self.parts else None
        if isinstance(last, TextPart) and not last.metadata and not last.media_type:
            self.parts[-1] = TextPart(text=last.text + run)
        else:
            self.parts.append(TextPart(text=run))

    def artifact(self) -> Artifact:
        self.settle()
        head = self.head
        return Artifact(
            artifact_id=head.artifact_id,
            parts=tuple(self.parts),
            name=head.name,
            description=head.description,
            extensions=head.extensions,
            metadata=head.metadata,
        )


@dataclass(frozen=True, slots=True)
class Closing:
    """The main artifact as it ends. ``added`` is what its pieces so far lack; None if they do not hold any more."""

    main: Artifact
    added: tuple[Part, ...] | None


class ArtifactBuilder:
    """The artifacts of one open task. The main one carries the task's own id."""

    def __init__(self, main_id: str, *, chars_max: int) -> None:
        self.main_id = main_id
        self.tally = UsageTotals()
        self.chars = 0
        self._chars_max = chars_max
        self._pieces: dict[str, _Piece] = {}

    def put(self, artifact: Artifact, *, append: bool) -> None:
        """Start, replace or extend an artifact. Raises OutputLimit when the task would hold too much."""
        weight = sum(map(weigh_part, artifact.parts))
        if self.chars + weight > self._chars_max:
            raise OutputLimit(f"a task may hold at most {self._chars_max} characters of output")
        self.chars += weight
        piece = self._pieces.get(artifact.artifact_id) if append else None
        if piece is None:
            piece = self._pieces[artifact.artifact_id] = _Piece(head=artifact)
        for part in artifact.parts:
            piece.add(part)

    def artifacts(self) -> tuple[Artifact, ...]:
        """All artifacts as they stand; ones without parts are left out."""
        return tuple(a for a in (piece.artifact() for piece in self._pieces.values()) if a.parts)

    def close(self, state: TaskState, text: str | None, duration_ms: int) -> Closing | None:
        """Finish the main artifact: the final text in place of the pieces if given, then the tally's parts.

        A completed task always has an artifact; others only if they had something to show.
        """
        extra, uris = self.tally.parts(state, duration_ms)
        piece = self._pieces.get(self.main_id)
        told: tuple[Part, ...] = piece.artifact().parts if piece else ()
        body = told if text is None else self._replaced(told, text)
        added = extra if body == told else None
        others = {name: other for name, other in self._pieces.items() if name != self.main_id}
        if not body and state is TaskState.COMPLETED and not others:
            body = (TextPart(text=""),)
        if not body and not extra:
            return None
        main = Artifact(artifact_id=self.main_id, name=MAIN_NAME, parts=(*body, *extra), extensions=uris)
        self._pieces = {self.main_id: _Piece(head=main, parts=list(main.parts)), **others}
        return Closing(main, added)

    def _replaced(self, body: tuple[Part, ...], text: str) -> tuple[Part, ...]:
        """The final text instead of what was said on the way. Raises OutputLimit before anything changes."""
        chars = self.chars - sum(map(weigh_part, body)) + len(text)
        if chars > self._chars_max:
            raise OutputLimit(f"a task may hold at most {self._chars_max} characters of output")
        self.chars = chars
        return (TextPart(text=text),)


def weigh_part(part: Part) -> int:
    """About how many characters a part keeps in memory."""
    match part:
        case TextPart(text=text):
            return len(text)
        case FilePart(raw=raw, uri=uri):
            return len(raw or "") + len(uri or "")
        case DataPart(data=data):
            return weigh_data(data)


def weigh_data(data: Any) -> int:
    """About how many characters JSON data keeps in memory. Depth is bounded by the parser that made it."""
    if isinstance(data, str):
        return len(data)
    if isinstance(data, Mapping):
        return sum(len(str(key)) + weigh_data(value) for key, value in data.items()) + 2
    if isinstance(data, list | tuple):
        return sum(map(weigh_data, data)) + 2
    return 8
