"""Results on stdout: one JSON document, or plain lines that line up. And the log.

Each package keeps secrets out of its log lines; ``SafeFormatter`` is the second line behind them (threat T-41).
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from fleetsim.model.glyphs import ASCII, GLYPH
from fleetsim.model.text import GUTTER, Gutter, escape, indented, neutralise, one_line


def word(state: str, *, plain: bool = False) -> str:
    """A state as glyph and word; a state nobody knows stays the raw word."""
    glyph = GLYPH.get(state)
    return one_line(state, 24) if glyph is None else f"{ASCII[glyph] if plain else glyph} {state}"


def _plain(value: Any) -> Any:
    from fleetsim.api.answer import HubAnswer, to_json  # not for those who only read help

    return to_json(value) if isinstance(value, HubAnswer) else str(value)


def emit_json(value: Any) -> None:
    click.echo(escape(json.dumps(value, ensure_ascii=False, indent=2, default=_plain)))


def emit_json_line(value: Any) -> None:
    click.echo(escape(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)))


def labels(rows: Iterable[tuple[str, Any]]) -> None:
    """``Label: value`` lines; empty values are left out, and of a long one only the first line begins at the margin."""
    for label, value in rows:
        if value not in (None, "", []):
            line(f"{label}: {value}")


def line(text: str) -> None:
    """A line on stdout that may quote an agent: harmless wherever it goes, and no other line begins at the margin."""
    click.echo(indented(text))


def lines(text: str, *, err: bool = False) -> None:
    """Lines on stdout or stderr that are ours: each was made harmless when it was made."""
    click.echo(text, nl=False, err=err)


CELL_CHARS_MAX = 60
ID_CHARS_MAX = 128
IDS = frozenset({"ID", "QUESTION"})
"""Columns whose cells are typed and copied: the longest id there can be is shown whole."""


def table(head: Sequence[str], rows: Sequence[Sequence[Any]], *, right: frozenset[int] = frozenset()) -> None:
    """Columns padded to their widest cell; ``right`` align right. On a terminal the last is cut: a row may not wrap."""
    limits = [ID_CHARS_MAX if name in IDS else CELL_CHARS_MAX for name in head]
    cells = [
        [one_line("-" if c is None else str(c), limit) for c, limit in zip(row, limits, strict=True)] for row in rows
    ]
    lines = [list(head), *cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    if sys.stdout.isatty():
        room = shutil.get_terminal_size().columns - sum(widths[:-1]) - 2 * len(widths[:-1])
        widths[-1] = min(widths[-1], max(12, room))
    for row in lines:
        padded = (
            one_line(text, width).rjust(width) if i in right else one_line(text, width).ljust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        click.echo("  ".join(padded).rstrip())


def seconds(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 0.9995:
        return f"{1000 * value:.0f}ms"
    if value < 10:
        return f"{value:.1f}s"
    if value < 120:
        return f"{value:.0f}s"
    minutes, rest = divmod(int(value), 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


class AgentText:
    """An agent's text, piece by piece: behind a gutter on a terminal, byte for byte anywhere else."""

    def __init__(self, *, plain: bool = False, err: bool = False) -> None:
        columns = shutil.get_terminal_size().columns - 1
        on_terminal = (sys.stderr if err else sys.stdout).isatty()
        self._gutter = Gutter(columns, bar="| " if plain else GUTTER) if on_terminal else None
        self._err = err

    def add(self, text: str) -> None:
        shown = text if self._gutter is None else self._gutter.add(text)
        click.echo(shown.encode("utf-8", "replace"), nl=False, err=self._err)

    def end(self, text: str = "") -> None:
        """The last piece, and the end of its line."""
        self.add(text)
        if self._gutter is None or self._gutter.open:
            self.add("\n")


def quote(label: str, text: str, *, plain: bool, err: bool = False) -> None:
    """A label and an agent's text: below it on a terminal, else beside it."""
    on_terminal = text and (sys.stderr if err else sys.stdout).isatty()
    click.echo(indented(label if on_terminal or not text else f"{label}: {text}"), err=err)
    if on_terminal:
        AgentText(plain=plain, err=err).end(text)


def cut_short(chars: int, in_all: int, rest: str) -> tuple[str, str]:
    """The lines that say that a text is not whole, and how to read the rest."""
    what = f"cut: {chars:,} of {in_all:,} characters" if chars else f"not kept any longer: {in_all:,} characters"
    return f"the text is {what}", f"  next: {rest}"


HIDDEN = "(hidden)"
SECRET_CHARS_MIN = 8
"""A shorter value is not hidden: it would hide ordinary words, and protects little."""

_NAMED = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|PRIVATE")
_SHAPED = re.compile(r"whsec_[A-Za-z0-9+/=_-]+|[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])", re.ASCII)


class SafeFormatter(logging.Formatter):
    """Formats records so that only the first line of one begins at the margin, and hides secrets.

    Those are the values of environment variables named like secrets, the hub's own keys, and whatever has the shape
    of a callback token or a signing secret.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
        self._hidden: set[str] = set()

    def hide(self, secrets: Iterable[str]) -> None:
        """Blot these out from now on."""
        self._hidden |= {secret for secret in secrets if len(secret) >= SECRET_CHARS_MIN}

    def hide_environment(self, env: Mapping[str, str]) -> None:
        """Blot out the values of variables whose names say that they hold a secret."""
        self.hide(value.strip() for name, value in env.items() if _NAMED.search(name.upper()))

    def clean(self, text: str) -> str:
        """Text without secrets, harmless to a terminal."""
        for secret in sorted(self._hidden, key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        return neutralise(_SHAPED.sub(HIDDEN, text))

    def format(self, record: logging.LogRecord) -> str:
        return self.clean(super().format(record)).replace("\n", "\n  | ")

    def trace(self, error: BaseException) -> str:
        return self.clean("".join(traceback.format_exception(error))).rstrip("\n")


LOG_FORMAT = SafeFormatter()
"""The process's one formatter: what it hides is hidden in every log."""
