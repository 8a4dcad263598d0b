"""Glyph, word and tone of every state, and the format of figures. Pure.

Each state has a glyph and a word, so that nobody needs to see its colour; a theme adds a colour by the tone.
Tables: docs/reference/dashboard.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property

from fleetsim.api.health import HealthWord
from fleetsim.model.glyphs import ASCII, GLYPH


class Tone(StrEnum):
    """The meaning of a piece of text; a theme maps it to a style."""

    PLAIN = "$foreground"
    STRONG = "bold $foreground"
    MUTED = "$quiet"
    HEAD = "bold $quiet"
    PRIMARY = "$primary"
    ACCENT = "bold $accent"
    CALM = "$calm"
    GOOD = "$success"
    WARN = "$warning"
    BAD = "$error"


STRONG, MUTED = Tone.STRONG, Tone.MUTED
"""The two most frequent tones."""


@dataclass(frozen=True)
class StateLabel:
    """The glyph, word and tone of a state."""

    glyph: str
    word: str
    tone: Tone

    @cached_property
    def label(self) -> str:
        return f"{self.glyph} {self.word}" if self.glyph else self.word

    @cached_property
    def piece(self) -> tuple[str, Tone]:
        """Glyph and word with their tone, as pieces of a line."""
        return self.label, self.tone


class Marks(dict[str, StateLabel]):
    """Marks by word. An unknown word appears unchanged, as a warning."""

    def __missing__(self, word: str) -> StateLabel:
        return StateLabel("", word or "?", Tone.WARN)


def _labels(tones: Mapping[str, Tone]) -> Marks:
    return Marks({word: StateLabel(GLYPH[word], word, tone) for word, tone in tones.items()})


HEALTH: Mapping[HealthWord, StateLabel] = {
    word: StateLabel(GLYPH[word.value], word.value, tone)
    for word, tone in (
        (HealthWord.DOWN, Tone.BAD),
        (HealthWord.DEGRADED, Tone.WARN),
        (HealthWord.TOO_FEW, Tone.MUTED),
        (HealthWord.UNKNOWN, Tone.MUTED),
        (HealthWord.UP, Tone.GOOD),
        (HealthWord.PAUSED, Tone.MUTED),
    )
}
"""An agent's health word, worst first."""
HEALTH_ORDER: Mapping[HealthWord, int] = {word: at for at, word in enumerate(HEALTH)}

STATE = _labels(
    {
        "submitted": Tone.MUTED,
        "working": Tone.PRIMARY,
        "input-required": Tone.ACCENT,
        "auth-required": Tone.ACCENT,
        "completed": Tone.GOOD,
        "failed": Tone.BAD,
        "canceled": Tone.MUTED,
        "rejected": Tone.BAD,
        "undeliverable": Tone.BAD,
        "lost": Tone.BAD,
        "expired": Tone.WARN,
        "protocol_error": Tone.BAD,
        "unknown": Tone.WARN,
    }
)
"""Task states and outcome kinds by their word in an event."""

RUN = _labels(
    {
        "running": Tone.PRIMARY,
        "success": Tone.GOOD,
        "failure": Tone.BAD,
        "timeout": Tone.WARN,
        "skipped": Tone.WARN,
        "missed": Tone.WARN,
    }
)
"""The state of a ceremony's run."""

WANTS = Marks(
    {
        "input-required": STATE["input-required"],
        "auth-required": STATE["auth-required"],
        "veto": StateLabel("!", "veto?", Tone.WARN),
    }
)
"""The action that a person should take."""

DECISION = Marks(
    {
        "answer": StateLabel("✓", "answered", Tone.GOOD),
        "reject": StateLabel("✗", "rejected", Tone.BAD),
        "expired": StateLabel("◷", "expired", Tone.WARN),
        "withdrawn": StateLabel("–", "withdrawn", Tone.MUTED),
        "vetoed": StateLabel("✗", "vetoed", Tone.BAD),
        "lapsed": StateLabel("–", "let go on", Tone.MUTED),
    }
)
"""The result of a question or of a veto window."""

LEVEL = Marks(
    {
        "debug": StateLabel("", "debug", Tone.MUTED),
        "info": StateLabel("", "info", Tone.PLAIN),
        "warn": StateLabel("", "warn", Tone.WARN),
        "error": StateLabel("", "error", Tone.BAD),
    }
)


_TO_ASCII = str.maketrans(dict(ASCII))


def plain_ascii(text: str) -> str:
    """The text with our glyphs in ASCII and ``?`` for every other character outside ASCII."""
    if text.isascii():
        return text
    return text.translate(_TO_ASCII).encode("ascii", "replace").decode("ascii")


BARS = "▁▂▃▄▅▆▇"
"""Without the full block: bars in adjacent rows would touch."""


def bar(share: float) -> str:
    """One bar for a share of 0 to 1."""
    return BARS[min(6, max(0, round(share * 6)))]


def spark(values: Sequence[float], top: float | None = None) -> str:
    """Bars scaled to ``top`` or the largest value; zero alone is the lowest bar."""
    top = max(values, default=0) if top is None else top
    return "".join(BARS[max(1, round(value / top * 6))] if value > 0 else BARS[0] for value in values)


def age(seconds: float) -> str:
    """A rough duration in at most four characters: ``119s``, ``2m``, ``119m``, ``2h``, ``3d``. No unit says just 1: it
    would look shorter than ``90s``.
    """
    seconds = max(0.0, seconds)
    if seconds < 120:
        return f"{int(seconds)}s"
    if seconds < 120 * 60:
        return f"{int(seconds // 60)}m"
    if seconds < 48 * 3600:
        return f"{int(seconds // 3600)}h"
    return f"{min(999, int(seconds // 86400))}d"


def at_most(seconds: float) -> str:
    """A span, rounded up in its unit: all of it lies within ``2h``."""
    unit = next((unit for unit in (1, 60) if seconds < 100 * unit), 3600)
    return age(math.ceil(seconds / unit) * unit)


def since(then: datetime | None, now: datetime) -> str:
    """A rough age; a dash for never."""
    return "-" if then is None else age((now - then).total_seconds())


def countdown(seconds: float) -> str:
    """``00:04:01``, with days in front if there are any; zero and below is ``now``."""
    left = int(seconds)
    if left <= 0:
        return "now"
    days, rest = divmod(left, 86400)
    hours, rest = divmod(rest, 3600)
    text = f"{hours:02d}:{rest // 60:02d}:{rest % 60:02d}"
    return f"{days}d {text}" if days else text


def duration(ms: float | None) -> str:
    """A measured duration: ``412ms``, ``4.1s``, ``3m02s``, ``2h05m``; a dash for none."""
    if ms is None:
        return "-"
    if ms < 1000:
        return f"{max(0, int(ms))}ms"
    if ms < 99_950:
        return f"{ms / 1000:.1f}s"
    seconds = int(ms // 1000)
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    return f"{min(9999, seconds // 3600)}h{seconds % 3600 // 60:02d}m"


def money(usd: float | None) -> str:
    """US dollars with the digits that matter; a dash for none."""
    if usd is None:
        return "-"
    if usd >= 1000:
        return f"{usd:,.0f}"
    return f"{usd:.2f}" if usd >= 1 else f"{usd:.3f}"


def percent(ok: int, runs: int) -> str:
    """``98.7`` or ``100``; a dash for no runs."""
    if not runs:
        return "-"
    return "100" if ok == runs else f"{min(99.9, 100 * ok / runs):.1f}"


def plural(count: int, one: str, many: str | None = None) -> str:
    """``1 agent``, ``5 agents``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def moment(at: datetime, now: datetime) -> str:
    """A moment in UTC in its shortest form: time today, weekday within six days, else the date."""
    if at.date() == now.date():
        return f"{at:%H:%MZ}"
    if timedelta(0) < at - now < timedelta(days=6):
        return f"{at:%a %H:%MZ}"
    return f"{at:%m-%d %H:%MZ}"


LABEL_MAX = 24
"""The widest column for agents' names, in cells."""


def origin(actor: str) -> str:
    """The requester: ``ceremony.quinn.daily`` is the ceremony quinn.daily."""
    return "ceremony " + actor[len("ceremony.") :] if actor.startswith("ceremony.") else actor or "-"
