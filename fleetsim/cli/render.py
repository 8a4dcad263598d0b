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
IDS = frozenset({"ID", "QUESTION", "RUN"})
"""Columns of the hub's ids, any unique beginning of which a verb accepts. Tasks of agents have no such beginnings."""
ID_CHARS_MIN = 8
TASKS = frozenset({"TASK"})
"""Columns of agents' ids, which are accepted only whole."""
_LEAST = {"AGENT": 16, "CEREMONY": 16, "CHANNEL": 16}
"""Columns of names that people type get more characters than others before one column is left out."""


def table(head: Sequence[str], rows: Sequence[Sequence[Any]], *, right: frozenset[int] = frozenset()) -> None:
    """Columns padded to their widest cell; ``right`` align right. On a terminal a row fits its width.

    There the last column is cut first, then ids to a beginning that is unique here, then the widest columns. If that is
    not enough, the last columns are left out and named on stderr. Elsewhere ids are whole.
    """
    limits = [ID_CHARS_MAX if name in IDS or name in TASKS else CELL_CHARS_MAX for name in head]
    cells = [
        [one_line("-" if c is None else str(c), limit) for c, limit in zip(row, limits, strict=True)] for row in rows
    ]
    columns = [list(column) for column in zip(head, *cells, strict=True)]
    widths = [max(map(len, column)) for column in columns]
    if sys.stdout.isatty():
        widths = _fit(columns, widths, right, shutil.get_terminal_size().columns)
        if left_out := head[len(widths) :]:
            click.echo(f"not shown, for lack of room: {', '.join(filter(None, left_out))}", err=True)
    for row in zip(*columns[: len(widths)], strict=True):
        padded = (
            one_line(text, width).rjust(width) if i in right else one_line(text, width).ljust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        click.echo("  ".join(padded).rstrip())


def _fit(columns: list[list[str]], widths: list[int], right: frozenset[int], room: int) -> list[int]:
    """The widths of the columns that fit into ``room``. Ids in ``columns`` are cut to fit."""
    names = [column[0] for column in columns]
    least = [w if i in right or names[i] in TASKS else min(w, _LEAST.get(names[i], 8)) for i, w in enumerate(widths)]
    least[-1] = min(widths[-1], 12)
    for i, (name, *ids) in enumerate(columns):
        if name in IDS:
            shown = next(n for n in range(ID_CHARS_MIN, ID_CHARS_MAX + 1) if len({t[:n] for t in ids}) == len(set(ids)))
            least[i] = max(len(name), min(widths[i], shown))
    while len(widths) > 2 and sum(least[: len(widths)]) + 2 * len(widths) - 2 > room:
        widths = widths[:-1]
    over = sum(widths) + 2 * len(widths) - 2 - room
    for i in [len(widths) - 1, *(i for i in range(len(widths)) if names[i] in IDS)]:
        cut = max(0, min(over, widths[i] - least[i]))
        if cut and names[i] in IDS:
            cut, columns[i][1:] = widths[i] - least[i], [text[: least[i]] for text in columns[i][1:]]
        widths[i] -= cut
        over -= cut
    while over > 0 and (wide := [i for i in range(len(widths)) if widths[i] > least[i]]):
        widths[max(wide, key=widths.__getitem__)] -= 1
        over -= 1
    return widths


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

SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|PRIVATE")
"""A variable of the environment with such a name (in capitals) holds a secret."""
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
        self.hide(value.strip() for name, value in env.items() if SECRET_NAME.search(name.upper()))

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
