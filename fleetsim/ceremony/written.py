"""Writes ceremonies as YAML that a person can read and edit, and changes keys of a file in place. Pure.

A change keeps every other line, with its comments and spaces (ruamel.yaml would indent lists and space flow lists its
own way). If the whole file is one ``{...}``, a change writes a new file without comments.

Scalars are written here: what PyYAML writes for a next-line character reads back as a space, and some texts with line
breaks do not read back at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import yaml

from fleetsim.ceremony.file import Ceremony, CeremonyFile, parse_ceremony
from fleetsim.model.errors import ConfigError
from fleetsim.model.work import ALL
from fleetsim.runtime.yaml import load


class CeremonyInvalid(ConfigError):
    """A wrong value in a ceremony. ``field`` is its key, empty for the whole file; ``said`` is the problem."""

    def __init__(self, field: str, said: str, *, hint: str | None = None) -> None:
        super().__init__(f"{field}: {said}" if field and f"'{field}'" not in said else said, hint=hint)
        self.field = field
        self.said = said


KEYS = tuple(member.alias or name for name, member in CeremonyFile.model_fields.items())
"""The keys in the order of a file."""

IN_S_MAX = 366 * 86_400
_SPAN = re.compile(r"([0-9]{1,9})\s*([smhd])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_PLAIN_CEREMONY = {"id": "x", "name": "x", "skill": "x", "targets": [ALL]}

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./@-]*(?: [A-Za-z0-9_./@-]+)*")
_NOT_PLAIN = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
"""Words that YAML, of one version or another, does not read as text."""

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_SHOWN = re.compile(r"[\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]*")
"""Text without an escape: printable, and without a line break of YAML."""


def timed(values: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """The values with ``in`` (seconds, or 30m, 2h, 1d) as the moment it means; ``at`` without a schedule means once.
    Raises CeremonyInvalid if ``in`` is not a span, or ``at`` is given, too."""
    wanted = dict(values)
    span = wanted.pop("in", None)
    if span is not None:
        if wanted.get("at") is not None:
            raise CeremonyInvalid("in", "'in' and 'at' both say when; give one")
        match = _SPAN.fullmatch(span.strip()) if isinstance(span, str) else None
        seconds = int(match[1]) * _SECONDS[match[2]] if match else span
        if not isinstance(seconds, int) or isinstance(seconds, bool) or not 0 <= seconds <= IN_S_MAX:
            raise CeremonyInvalid("in", "'in' must be seconds, or a number with s, m, h or d, of a year at most")
        moment = now.astimezone(UTC) + timedelta(seconds=seconds)
        wanted["at"] = moment.replace(microsecond=0).isoformat().replace("+00:00", "Z")
    if wanted.get("at") is not None and wanted.get("schedule") is None:
        wanted.setdefault("once", True)
    return wanted


def checked(text: str) -> Ceremony:
    """The ceremony of a file with this text. Raises CeremonyInvalid."""
    try:
        return parse_ceremony(load(text, "ceremony"))
    except ConfigError as error:
        field = str(error.path[0]) if error.path else ""
        message = error.said or re.sub(r"^ceremony:\d+:\d+: ", "", str(error))  # not YAML, or too large
        raise CeremonyInvalid(field, message, hint=error.hint) from None


def check_changes(changes: Mapping[str, Any], now: datetime) -> None:
    """Check each change by itself, without the file of the ceremony, which may still contradict it. Raises
    CeremonyInvalid for a value that no ceremony may have."""
    for key, value in changes.items():
        if value is not None and key != "once":
            when = {} if key in {"at", "in"} else {"schedule": "@daily"}
            checked(written(timed({**_PLAIN_CEREMONY, **when, key: value}, now)))


def written(values: Mapping[str, Any]) -> str:
    """The text of a file with these keys."""
    order = [key for key in KEYS if key in values] + [key for key in values if key not in KEYS]
    return "".join(f"{_pair(key, values[key])}\n" for key in order)


def changed(text: str, changes: Mapping[str, Any]) -> str:
    """The file's text with some keys changed, added or (None) removed. Raises ConfigError if it is not YAML."""
    before = load(text, "ceremony").value
    if not isinstance(before, dict):
        raise ConfigError("a ceremony file holds one mapping")
    merged = {**before, **changes}
    wanted = {key: value for key, value in merged.items() if value is not None or key not in changes}
    edited = text
    for key, value in changes.items():
        edited = _with(edited, key, value)
    try:
        if load(edited, "ceremony").value == wanted:
            return edited
    except ConfigError:
        pass
    return written(wanted)


def _with(text: str, key: str, value: Any) -> str:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    places = [(name.start_mark.index, node) for name, node in pairs if name.value == key]
    if not places:
        if value is None:
            return text
        return text + ("" if text.endswith("\n") or not text else "\n") + f"{_pair(key, value)}\n"
    start, node = places[0]
    end = node.end_mark.index
    scalar = isinstance(node, yaml.ScalarNode)
    if not scalar or node.style in {"|", ">"}:
        # A list or a block ends at the next key; comments before that key belong to it.
        lines = text[start:end].splitlines(keepends=True)
        while not lines[-1].strip() or (not scalar and lines[-1].lstrip().startswith("#")):
            lines.pop()
        end = start + len("".join(lines).rstrip("\r\n"))
    line_end = text.find("\n", end) if "\n" in text[end:] else len(text)
    if value is None:
        return text[:start] + text[line_end + 1 :]
    return text[:start] + _pair(key, value, block=not text[end:line_end].strip()) + text[end:]


def _pair(key: str, value: Any, *, block: bool = True) -> str:
    if block and isinstance(value, str) and _fits_block(value):
        body = "\n".join(f"  {line}" if line else "" for line in value.removesuffix("\n").split("\n"))
        return f"{_text(key)}: {'|' if value.endswith(chr(10)) else '|-'}\n{body}"
    return f"{_text(key)}: {value_text(value)}"


def _fits_block(text: str) -> bool:
    """Whether a block scalar can hold the lines: all are printable, and the first does not begin with a space."""
    lines = text.removesuffix("\n").split("\n")
    fits = len(lines) > 1 and lines[0].strip() and lines[-1].strip() and not lines[0].startswith(" ")
    return bool(fits) and all(map(_SHOWN.fullmatch, lines))


def value_text(value: Any) -> str:
    """A value as YAML on one line."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(value_text, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_text(str(key))}: {value_text(inner)}' for key, inner in value.items())}}}"
    return json.dumps(value)


def _text(text: str) -> str:
    plain = _PLAIN.fullmatch(text) and text.lower() not in _NOT_PLAIN
    return text if plain else _quoted(text)


def _quoted(text: str) -> str:
    def escaped(character: str) -> str:
        if character in _ESCAPES:
            return _ESCAPES[character]
        return character if _SHOWN.fullmatch(character) else f"\\u{ord(character):04x}"

    return f'"{"".join(map(escaped, text))}"'
