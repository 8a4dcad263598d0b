"""A person's settings of the dashboard: keys, themes and columns.

The person writes ``dashboard.yaml``, the dashboard ``dashboard.json`` (the last theme and the chosen columns). Both are
in ``$XDG_CONFIG_HOME/fleetsim``.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from textual.color import Color, ColorParseError
from textual.theme import Theme

from fleetsim.dashboard.actions import ACTIONS, LIST, RECORDING, WRITTEN, Action
from fleetsim.dashboard.theme import BASES, COLOURS, THEMES, theme_of
from fleetsim.model.errors import ConfigError
from fleetsim.runtime.explain import combine, did_you_mean, explain, unknown_key
from fleetsim.runtime.yaml import YamlDocument, load

SETTINGS_BYTES_MAX = 32 * 1024
_KEY = re.compile(r"(?:(?:ctrl|alt|shift)\+)*(?:[a-z0-9_]+|[A-Z])")
_SAME_KEYS = {"ctrl+h": "backspace", "ctrl+m": "enter", "ctrl+i": "tab", "ctrl+left_square_bracket": "escape"}
"""Keys that a terminal cannot tell from another one."""
_NAMES = {written: name for name, written in WRITTEN.items()}


def _colour(text: str) -> str:
    try:
        return Color.parse(text).hex
    except ColorParseError:
        raise ValueError("is not a colour, such as #6cb6ff") from None


def _key(text: str) -> str:
    """Textual's name of a key, for its name or its character."""
    text = text.strip()
    if len(text) == 1 and not text.isalnum() and text not in _NAMES:
        text = unicodedata.name(text, "").lower().replace(" ", "_").replace("-", "_")
    name = "+".join(_NAMES.get(part, part) for part in text.split("+")) if len(text) > 1 else _NAMES.get(text, text)
    if not _KEY.fullmatch(name):
        raise ValueError("is not a key, such as x, ctrl+x, f5, slash or space")
    if name in _SAME_KEYS:
        raise ValueError(f"a terminal cannot tell this key from {_SAME_KEYS[name]}")
    return name


_Colour = Annotated[str, AfterValidator(_colour)]
_Key = Annotated[str, AfterValidator(_key)]


class ThemeEntry(BaseModel):
    """A theme: the colours that differ from those of ``base``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base: Literal["fleetsim-night", "fleetsim-blue-orange", "fleetsim-contrast", "fleetsim-day"] = "fleetsim-night"
    colours: dict[str, _Colour] = {}


class SettingsFile(BaseModel):
    """``dashboard.yaml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    theme: str = ""
    keys: dict[str, _Key | Annotated[list[_Key], Field(max_length=5)]] = {}
    themes: Annotated[dict[str, ThemeEntry], Field(max_length=20)] = {}


@dataclass(slots=True)
class Settings:
    """The table of actions with the person's keys, the themes, and the choices that ``save`` keeps in ``path``."""

    actions: Sequence[Action] = ACTIONS
    themes: Sequence[Theme] = THEMES
    theme: str = THEMES[0].name
    hidden: dict[str, list[str]] = field(default_factory=dict)
    """The names of the columns that a list (by its id) does not show."""
    path: Path | None = None

    def save(self) -> None:
        """Keep the theme and the columns. Raises OSError."""
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fresh = self.path.with_suffix(".new")
            fresh.write_text(json.dumps({"theme": self.theme, "hidden": self.hidden}), encoding="utf-8")
            os.replace(fresh, self.path)


def settings_folder(env: Mapping[str, str]) -> Path:
    """``fleetsim`` in the user's XDG configuration directory."""
    base = env.get("XDG_CONFIG_HOME") or ""
    return (Path(base) if os.path.isabs(base) else Path.home() / ".config") / "fleetsim"


def read_settings(folder: Path) -> Settings:
    """The settings of a folder; the usual ones without files. Raises ConfigError with the place of a wrong key, action,
    colour or theme in dashboard.yaml.
    """
    path = folder / "dashboard.yaml"
    actions, themes, theme = ACTIONS, THEMES, ""
    if path.exists():
        written = load(path.read_bytes()[: SETTINGS_BYTES_MAX + 1], str(path), bytes_max=SETTINGS_BYTES_MAX)
        try:
            file = SettingsFile.model_validate({} if written.value is None else written.value)
        except ValidationError as error:
            raise combine(explain(written, error, SettingsFile)) from None
        actions, theme = _with_keys(file, written), file.theme
        for name, entry in file.themes.items():
            for colour in entry.colours:
                if colour not in COLOURS:
                    raise unknown_key(written, ("themes", name, "colours", colour), COLOURS)
        themes = (*THEMES, *(_theme(name, entry) for name, entry in file.themes.items()))
        if theme and theme not in {one.name for one in themes}:
            near = did_you_mean(theme, [one.name for one in themes])
            raise written.error(("theme",), f"there is no theme {theme!r}{near}")
    kept = _kept(folder / "dashboard.json")
    names, chosen = [one.name for one in themes], kept.get("theme")
    return Settings(
        actions=actions,
        themes=themes,
        theme=chosen if chosen in names else theme or names[0],
        hidden=_columns(kept.get("hidden")),
        path=folder / "dashboard.json",
    )


def _theme(name: str, entry: ThemeEntry) -> Theme:
    colours, dark = BASES[entry.base]
    return theme_of(name, {**colours, **entry.colours}, dark=dark)


def _kept(path: Path) -> Mapping[str, Any]:
    """The choices of earlier; a broken file counts as none."""
    try:
        kept = json.loads(path.read_bytes()[:SETTINGS_BYTES_MAX])
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def _columns(hidden: object) -> dict[str, list[str]]:
    lists = hidden.items() if isinstance(hidden, dict) else ()
    return {str(grid): [str(name) for name in names] for grid, names in lists if isinstance(names, list)}


def _with_keys(file: SettingsFile, written: YamlDocument) -> tuple[Action, ...]:
    """The table with the keys of the file. Raises ConfigError for an unknown action and for a key of two actions."""
    by_id = {one.id: one for one in ACTIONS}
    for name in file.keys:
        if name not in by_id:
            near = did_you_mean(name, by_id)
            raise written.error(("keys", name), f"there is no action {name!r}{near}", key=True)
    keys = {name: key if isinstance(key, str) else ",".join(key) for name, key in file.keys.items()}
    actions = tuple(replace(one, keys=keys.get(one.id, one.keys)) for one in ACTIONS)
    problems: list[ConfigError] = []
    for key, one, other in conflicts(actions):
        action, against = (one, other) if one.id in keys else (other, one)
        message = f"{WRITTEN.get(key, key)!r} is the key of {against.id!r}, too ({against.where})"
        error = written.error(("keys", action.id), message)
        error.hint = f"give {against.id!r} another key, too"
        problems.append(error)
    if problems:
        raise combine(tuple(problems))
    return actions


def conflicts(actions: Sequence[Action]) -> Iterator[tuple[str, Action, Action]]:
    """Each key of two actions on one screen. The keys of a recording win, so they conflict only with each other."""
    for at, one in enumerate(actions):
        for other in actions[at + 1 :]:
            scopes = set(one.on), set(other.on)
            if (RECORDING in one.on) != (RECORDING in other.on):
                continue
            apart = all(scopes) and LIST not in scopes[0] | scopes[1] and not scopes[0] & scopes[1]
            for key in [] if apart else one.key_list:
                if key in other.key_list:
                    yield key, one, other
