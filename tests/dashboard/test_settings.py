"""A person's keys, themes and columns: read, refused with a place, kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.color import Color

from fleetsim.dashboard.actions import ACTIONS
from fleetsim.dashboard.settings import Settings, conflicts, read_settings
from fleetsim.dashboard.theme import BASES
from fleetsim.model.errors import ConfigError
from tests.dashboard.driver import EVENTS, showing


def written(folder: Path, text: str) -> Path:
    (folder / "dashboard.yaml").write_text(text)
    return folder


def test_the_usual_keys_have_no_conflict() -> None:
    assert list(conflicts(ACTIONS)) == []


def test_without_files_the_settings_are_the_usual_ones(tmp_path: Path) -> None:
    settings = read_settings(tmp_path / "none")
    assert settings.actions == ACTIONS
    assert settings.theme == "fleetsim-night"


@pytest.mark.sockets
async def test_the_keys_of_the_file_replace_the_usual_ones_in_keys_footer_and_help(tmp_path: Path) -> None:
    settings = read_settings(written(tmp_path, "keys:\n  related: ';'\n  down: [n, down]\n  edit: f4\n"))
    async with showing(settings=settings) as ui:
        await ui.press("j", "n")
        assert ui.main.rows.find(ui.main.key or "", 0) == 1
        assert "; tasks" in ui.text
        await ui.press("question_mark")
        assert "n ↓" in ui.text
        await ui.press("escape", "t")
        assert ui.pane.id == "fleet"
        await ui.press("semicolon")
        assert ui.pane.id == "tasks"


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("keys:\n  cancle: X\n", "2:3", "cancel"),
        ("keys:\n  cancel: r\n", "2:11", "reply"),
        ("keys:\n  cancel: j\n", "2:11", "down"),
        ("keys:\n  cancel: ctrl+i\n", "2:11", "tab"),
        ("keys:\n  cancel: strg+x\n", "2:11", "not a key"),
        ("keyz: {}\n", "1:1", "keys"),
        ("theme: nigt\n", "1:8", "fleetsim-night"),
        ("themes:\n  mine: {colours: {quiet: mud}}\n", "2:27", "not a colour"),
        ("themes:\n  mine: {colours: {quite: red}}\n", "2:20", "quiet"),
    ],
)
def test_a_wrong_line_is_refused_with_its_place_and_what_is_near(
    tmp_path: Path, text: str, place: str, words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        read_settings(written(tmp_path, text))
    assert f"dashboard.yaml:{place}: " in str(refused.value)
    assert words in str(refused.value)


def test_a_key_may_serve_two_screens(tmp_path: Path) -> None:
    settings = read_settings(written(tmp_path, "keys: {fire: r}\n"))
    assert next(action.keys for action in settings.actions if action.id == "fire") == "r"


@pytest.mark.sockets
async def test_a_theme_of_the_person_is_used_and_the_last_choice_is_kept(tmp_path: Path) -> None:
    text = "theme: mine\nthemes:\n  mine: {base: fleetsim-day, colours: {primary: navy}}\n"
    settings = read_settings(written(tmp_path, text))
    async with showing(settings=settings) as ui:
        assert ui.app.theme == "mine"
        assert Color.parse(ui.app.theme_variables["primary"]) == Color.parse("navy")
        await ui.press("colon", *"theme contrast", "enter")
        await ui.settle()
    assert read_settings(tmp_path).theme == "fleetsim-contrast"


@pytest.mark.sockets
async def test_the_chosen_columns_stay_until_the_next_start(tmp_path: Path) -> None:
    async with showing(EVENTS, "C", settings=read_settings(tmp_path)) as ui:
        await ui.press("down", "down", "space", "escape")
        assert "WIRE" not in ui.text
        assert "SKILLS" in ui.text
    async with showing(settings=read_settings(tmp_path)) as ui:
        assert "WIRE" not in ui.text
        assert "◐ degraded  flaky       1.0" not in ui.text


def test_a_broken_file_of_choices_counts_as_none(tmp_path: Path) -> None:
    for broken in ("[", "[1]", '{"theme": 7, "hidden": {"agents": 3}}'):
        (tmp_path / "dashboard.json").write_text(broken)
        assert read_settings(tmp_path) == Settings(path=tmp_path / "dashboard.json")


def _contrast(one: str, other: str) -> float:
    """The contrast of two colours by WCAG 2.2: 1 to 21."""

    def light(text: str) -> float:
        parts = (
            value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
            for value in Color.parse(text).normalized
        )
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True))

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", BASES)
def test_every_tone_can_be_read_on_its_ground_and_under_the_cursor(name: str) -> None:
    colours, _ = BASES[name]
    least = 7.0 if name == "fleetsim-contrast" else 4.5
    tones = ("foreground", "primary", "accent", "success", "warning", "error", "quiet")
    read = {tone: round(_contrast(colours[tone], colours["background"]), 1) for tone in tones}
    assert {tone: ratio for tone, ratio in read.items() if ratio < least} == {}


@pytest.mark.sockets
async def test_a_list_without_any_chosen_column_in_its_narrow_form_shows_them_all() -> None:
    settings = Settings(hidden={"event-list": ["TIME", "TOPIC", "DETAIL"]})
    async with showing(EVENTS, "5", size=(60, 20), settings=settings) as ui:
        assert "DETAIL" in ui.text
        assert "failed" not in ui.status
