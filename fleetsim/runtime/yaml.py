"""Reads a strict subset of YAML, bounded before a value is built, with the place of each value.

PyYAML gives its parser events (safe at any depth) and no values of YAML 1.1. The subset:

- mappings with unique text keys, lists, and scalars; one document; UTF-8;
- plain ``true``/``false`` are booleans, ``null``, ``~`` and nothing are null, decimal integers without leading
  zeros and decimal floats are numbers; ``no``, ``on``, ``12:30``, dates and ``007`` stay text;
- anything quoted is text. ``1.10`` is the float 1.1: where text is wanted the models refuse it and say to quote.

Refused: anchors, aliases, merge keys, tags, duplicate keys, and more bytes, nesting or nodes than allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import yaml

from fleetsim.model.errors import ConfigError
from fleetsim.model.text import one_line

Path: TypeAlias = tuple[str | int, ...]
"""Where a value is: mapping keys and list indices from the root."""

CEREMONY_BYTES_MAX = 32 * 1024
DEPTH_MAX = 16
NODES_MAX = 4_000

_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]{1,3})?", re.ASCII)
_NUMBER_CHARACTERS_MAX = 18
_WORDS: Mapping[str, bool | None] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
}
_SPECIAL = frozenset("*@%`")
"""Characters that cannot begin an unquoted value (YAML 1.2.2 section 5.3); cron schedules begin with two of them."""
_QUOTE = 'put the value in quotes, such as "* * * * *"'
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A position in a file; both numbers count from one."""

    line: int
    column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlDocument:
    """The value of a file, and the place of each value and key in it."""

    source: str
    value: Any
    places: Mapping[Path, Place]
    keys: Mapping[Path, Place]

    def place(self, path: Path, *, key: bool) -> Place:
        """Where a value (or its key) stands, or the nearest thing around it."""
        maps = (self.keys, self.places) if key else (self.places,)
        while True:
            for places in maps:
                if path in places:
                    return places[path]
            if not path:
                return Place(1, 1)
            path = path[:-1]

    def where(self, path: Path, *, key: bool = False) -> str:
        """``file:line:col`` of that place."""
        place = self.place(path, key=key)
        return f"{self.source}:{place.line}:{place.column}"

    def error(self, path: Path, message: str, *, key: bool = False, hint: str | None = None) -> ConfigError:
        """The error to raise about a value: one line that says where and what."""
        error = ConfigError(f"{self.where(path, key=key)}: {message}", hint=hint)
        error.path, error.said = path, message
        return error

    def at(self, path: Path) -> Any:
        """The value at ``path``, None if there is none."""
        value = self.value
        for step in path:
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                return None
        return value


def load(
    text: str | bytes, source: str, *, bytes_max: int = CEREMONY_BYTES_MAX, nodes_max: int = NODES_MAX
) -> YamlDocument:
    """Read one document of up to ``nodes_max`` values, keys counted too. Raises ConfigError with the place in
    ``source``: "source:line:col: what is wrong"."""
    try:
        data = text.encode() if isinstance(text, str) else text
        decoded = data.decode("utf-8-sig")
    except UnicodeError as error:
        raise ConfigError(f"{source}:1:1: not UTF-8 text") from error
    if len(data) > bytes_max:
        raise ConfigError(f"{source}:1:1: larger than {bytes_max} bytes")
    builder = _Builder(source, nodes_max)
    try:
        for event in yaml.parse(decoded, Loader=_LOADER):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{mark.line + 1}:{mark.column + 1}" if mark else "1:1"
        problem = one_line(error.problem or error.context or "not YAML", 160)
        lines = decoded.splitlines()
        line = lines[mark.line] if mark is not None and mark.line < len(lines) else ""
        until = line[: mark.column + 1] if mark is not None else ""
        hint = "indent with spaces, not tabs" if "\t" in until else None
        if hint is None and (special := [c for c in until[-2:] if c in _SPECIAL]):
            problem, hint = f"an unquoted value cannot begin with {special[0]}", _QUOTE
        raise ConfigError(f"{source}:{place}: {problem}", hint=hint) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}:1:1: {one_line(str(error), 160)}") from error
    return YamlDocument(source=source, value=builder.value, places=builder.places, keys=builder.keys)


class _Frame:
    """One open mapping or list."""

    __slots__ = ("key", "path", "value")

    def __init__(self, value: dict[str, Any] | list[Any], path: Path) -> None:
        self.value = value
        self.path = path
        self.key: str | None = None


class _Builder:
    """Builds the value from parser events on a stack of its own; never recurses."""

    def __init__(self, source: str, nodes_max: int) -> None:
        self.value: Any = None
        self.places: dict[Path, Place] = {}
        self.keys: dict[Path, Place] = {}
        self._source = source
        self._nodes_max = nodes_max
        self._stack: list[_Frame] = []
        self._nodes = 0
        self._documents = 0

    def take(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise self._error(event, "a second document; one file holds one")
            if event.tags:
                raise self._error(event, "a tag directive; tags are not used here")
        elif isinstance(event, yaml.AliasEvent):
            raise self._error(event, "an alias (*name); write the value out", hint=_QUOTE)
        elif isinstance(event, yaml.NodeEvent):
            self._node(event)
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            self._stack.pop()

    def _node(self, event: yaml.NodeEvent) -> None:
        if event.anchor is not None:
            raise self._error(event, "an anchor (&name); write the value out where it is needed")
        if getattr(event, "tag", None) is not None:
            raise self._error(event, "a tag (!name); write plain values")
        self._nodes += 1
        if self._nodes > self._nodes_max:
            raise self._error(event, f"more than {self._nodes_max} values")
        frame = self._stack[-1] if self._stack else None
        if frame is not None and isinstance(frame.value, dict) and frame.key is None:
            self._key(frame, event)
            return
        path: Path = ()
        if frame is not None:
            path = (*frame.path, len(frame.value) if isinstance(frame.value, list) else frame.key or "")
        self.places[path] = _place(event)
        if isinstance(event, yaml.ScalarEvent):
            self._put(frame, self._scalar(event))
            return
        if len(self._stack) >= DEPTH_MAX:
            raise self._error(event, f"nested deeper than {DEPTH_MAX}")
        opened: dict[str, Any] | list[Any] = {} if isinstance(event, yaml.MappingStartEvent) else []
        self._put(frame, opened)
        self._stack.append(_Frame(opened, path))

    def _key(self, frame: _Frame, event: yaml.NodeEvent) -> None:
        if not isinstance(event, yaml.ScalarEvent) or not event.value:
            raise self._error(event, "a key that is not plain text")
        if event.value == "<<":
            raise self._error(event, "a merge key (<<); write the keys out")
        if event.value in frame.value:
            first = self.keys[(*frame.path, event.value)]
            shown = one_line(event.value, 80)
            raise self._error(event, f"the key {shown!r} stands here twice; first on line {first.line}")
        frame.key = event.value
        self.keys[(*frame.path, event.value)] = _place(event)

    def _put(self, frame: _Frame | None, value: Any) -> None:
        if frame is None:
            self.value = value
        elif isinstance(frame.value, list):
            frame.value.append(value)
        else:
            frame.value[frame.key or ""] = value
            frame.key = None

    def _scalar(self, event: yaml.ScalarEvent) -> Any:
        text: str = event.value
        if event.style not in {None, ""}:
            return text
        if text in _WORDS:
            return _WORDS[text]
        whole = _INT.fullmatch(text)
        if whole is None and not _FLOAT.fullmatch(text):
            return text
        # A fraction as programs write it comes back as it was, whatever its length: cut-down scenarios hold such.
        if len(text) > _NUMBER_CHARACTERS_MAX and (whole or repr(float(text)) != text):
            raise self._error(event, f"a number of more than {_NUMBER_CHARACTERS_MAX} characters; quote it to keep it")
        return int(text) if whole else float(text)

    def _error(self, event: yaml.Event, message: str, *, hint: str | None = None) -> ConfigError:
        place = _place(event)
        return ConfigError(f"{self._source}:{place.line}:{place.column}: {message}", hint=hint)


def _place(event: yaml.Event) -> Place:
    mark = event.start_mark
    return Place(mark.line + 1, mark.column + 1) if mark else Place(1, 1)


def strings(value: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Every text value (not keys) under ``value`` with its path. Depth is bounded by ``load``."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from strings(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from strings(inner, (*path, index))


# -- environment variables in values ---------------------------------------------------------------------------------
# ``${VAR}`` and ``${VAR:-default}`` in the text values of a loaded document, from an environment handed in.
#
# Done after parsing, so a value can never become structure, and only where the caller says. Values are never
# shown. Ceremonies are not interpolated at all: their authors need not be trusted with the environment.


_REFERENCE = re.compile(
    r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^{}]*))?\}|(?P<open>\$\{)", re.ASCII
)
NAMES = re.compile(r"[A-Z_][A-Z0-9_]{0,127}", re.ASCII)
"""Variables that may be referred to, unless the caller is stricter."""

VALUE_CHARACTERS_MAX = 8_192


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingVariable:
    """A reference to a variable that is not set and has no default."""

    path: Path
    name: str
    error: ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class InterpolatedDocument:
    """The document with references replaced; those in ``missing`` stand as written."""

    document: YamlDocument
    missing: tuple[MissingVariable, ...]


def interpolate(
    document: YamlDocument,
    env: Mapping[str, str],
    *,
    where: Callable[[Path], bool] = lambda _path: True,
    names: re.Pattern[str] = NAMES,
) -> InterpolatedDocument:
    """Replace references in the text values whose path ``where`` accepts. ``$${`` stands for a literal ``${``. Raises
    ConfigError for an unfinished reference, and for a variable whose name ``names`` does not match in full."""
    value = _copy(document.value)
    missing: list[MissingVariable] = []
    for path, text in list(strings(document.value)):
        if "${" in text and where(path):
            expanded = _expand(document, path, text, env, names, missing)
            if not path:
                value = expanded
                break
            parent = value
            for step in path[:-1]:
                parent = parent[step]
            parent[path[-1]] = expanded
    return InterpolatedDocument(document=replace(document, value=value), missing=tuple(missing))


def _expand(
    document: YamlDocument,
    path: Path,
    text: str,
    env: Mapping[str, str],
    names: re.Pattern[str],
    missing: list[MissingVariable],
) -> str:
    def one(match: re.Match[str]) -> str:
        name, default = match["name"], match["default"]
        if match["open"]:
            raise document.error(path, "a reference that is not ${VAR} or ${VAR:-default}", hint="write $${ for ${")
        if name is None:
            return "${"
        if not names.fullmatch(name):
            raise document.error(path, f"the variable {one_line(name, 60)} may not be used here")
        value = env.get(name)
        if value is None or (not value and default is not None):
            value = default
        if value is None:
            error = document.error(path, f"the environment variable {name} is not set", hint=f"export {name}=…")
            missing.append(MissingVariable(path=path, name=name, error=error))
            return match[0]
        return value

    expanded = _REFERENCE.sub(one, text)
    if len(expanded) > VALUE_CHARACTERS_MAX:
        raise document.error(path, f"longer than {VALUE_CHARACTERS_MAX} characters once filled in")
    return expanded


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(inner) for key, inner in value.items()}
    return [_copy(inner) for inner in value] if isinstance(value, list) else value
