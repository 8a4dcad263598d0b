"""``${VAR}`` and ``${VAR:-default}`` in the text values of a loaded document, from an environment handed in.

Done after parsing, so a value can never become structure, and only where the caller says. Values are never
shown. Ceremonies are not interpolated at all: their authors need not be trusted with the environment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fleetsim.model.errors import ConfigError
from fleetsim.model.text import one_line
from fleetsim.runtime.yaml import Path, YamlDocument, strings

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
    """Replace references in the text values whose path ``where`` accepts. ``$${`` stands for a literal ``${``.

    Raises:
        ConfigError: an unfinished reference, or a variable whose name ``names`` does not match in full.
    """
    value = _copy(document.value)
    missing: list[MissingVariable] = []
    for path, text in list(strings(document.value)):
        if "${" in text and where(path):
            _set(value, path, _expand(document, path, text, env, names, missing))
    if isinstance(document.value, str) and "${" in document.value and where(()):
        value = _expand(document, (), document.value, env, names, missing)
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
        found = env.get(name)
        if found is None or (not found and default is not None):
            found = default
        if found is None:
            error = document.error(path, f"the environment variable {name} is not set", hint=f"export {name}=…")
            missing.append(MissingVariable(path=path, name=name, error=error))
            return match[0]
        return found

    expanded = _REFERENCE.sub(one, text)
    if len(expanded) > VALUE_CHARACTERS_MAX:
        raise document.error(path, f"longer than {VALUE_CHARACTERS_MAX} characters once filled in")
    return expanded


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(inner) for key, inner in value.items()}
    return [_copy(inner) for inner in value] if isinstance(value, list) else value


def _set(root: Any, path: Path, value: str) -> None:
    if not path:
        return
    for step in path[:-1]:
        root = root[step]
    root[path[-1]] = value
