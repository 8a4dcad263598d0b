"""Each action of the table does its work by its key; a row without a test here fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from textual.command import CommandPalette
from textual.widgets import Input

from fleetsim.dashboard.actions import ACTIONS, BY_ID, RECORDING
from fleetsim.dashboard.chrome import HelpScreen
from tests.dashboard.driver import EVENTS, Driver, asking, showing
from tests.dashboard.recordings import a_run, write
from tests.dashboard.test_scenario_screen import Screen, replaying

pytestmark = pytest.mark.sockets  # the real loop, no socket is opened

QUESTIONS = tuple(asking()[0].events)
Check = Callable[[Driver], bool]


def at(ui: Driver) -> int | None:
    return ui.main.rows.find(ui.main.key or "", 0)


def asked(ui: Driver) -> list[str]:
    return [one[0] for one in ui.desk.asked]


CHECKS: dict[str, tuple[str, Check]] = {
    "open": ("1", lambda ui: ui.pane.id == "agent"),
    "reply": ("2", lambda ui: ui.focused == "answer"),
    "send": ("3 r o k", lambda ui: asked(ui) == ["answer"]),
    "reject": ("3", lambda ui: "Reject the question" in ui.text),
    "cancel": ("2", lambda ui: "Cancel task" in ui.text),
    "fire": ("4", lambda ui: asked(ui) == ["fire"]),
    "refresh-card": ("1", lambda ui: asked(ui) == ["refresh"]),
    "related": ("1", lambda ui: ui.pane.id == "tasks" and ui.pane.filter_text.startswith("agent=")),
    "follow": ("5", lambda ui: not ui.main.follow),
    "levels": ("5", lambda ui: "all levels" in ui.status),
    "filter": ("2", lambda ui: isinstance(ui.app.focused, Input)),
    "copy": ("2", lambda ui: ui.app.clipboard == ui.main.key),
    "back": ("1 enter", lambda ui: ui.pane.id == "fleet"),
    "down": ("2", lambda ui: at(ui) == 1),
    "up": ("2 j j", lambda ui: at(ui) == 1),
    "first": ("2 j j", lambda ui: at(ui) == 0),
    "last": ("2", lambda ui: at(ui) == len(ui.main.rows.items) - 1),
    "page-down": ("2", lambda ui: (at(ui) or 0) > 1),
    "page-up": ("2 G", lambda ui: (at(ui) or 0) < len(ui.main.rows.items) - 2),
    "next-pane": ("1", lambda ui: ui.focused == "recent"),
    "last-pane": ("1 tab", lambda ui: ui.focused == "agents"),
    "fleet": ("2", lambda ui: ui.pane.id == "fleet"),
    "tasks": ("1", lambda ui: ui.pane.id == "tasks"),
    "inbox": ("1", lambda ui: ui.pane.id == "inbox"),
    "ceremonies": ("1", lambda ui: ui.pane.id == "ceremonies"),
    "events": ("1", lambda ui: ui.pane.id == "events"),
    "palette": ("1", lambda ui: isinstance(ui.app.screen, CommandPalette)),
    "theme": ("1", lambda ui: ui.app.theme == "fleetsim-blue-orange"),
    "help": ("1", lambda ui: isinstance(ui.app.screen, HelpScreen)),
    "quit": ("1", lambda ui: ui.app._exit),
}
"""The keys before the action's own key, and what holds after it."""

PLAYED: dict[str, Callable[[Screen], bool]] = {
    "pause": lambda screen: screen.playback.paused,
    "faster": lambda screen: screen.playback.speed == 60,
    "slower": lambda screen: screen.playback.speed == 1,
    "step-back": lambda screen: screen.playback.at_s == 550,
    "step-on": lambda screen: screen.playback.at_s == 650,
    "jump": lambda screen: "Jump to a moment" in screen.text,
    "scenario": lambda screen: screen.app.pane.id == "scenario",
}


def test_every_action_has_its_test() -> None:
    assert sorted(CHECKS | PLAYED) == sorted(one.id for one in ACTIONS)
    assert sorted(PLAYED) == sorted(one.id for one in ACTIONS if RECORDING in one.on)


@pytest.mark.parametrize("action_id", CHECKS)
async def test_an_action_does_its_work(action_id: str) -> None:
    before, check = CHECKS[action_id]
    for key in BY_ID[action_id].keys.split(","):
        async with showing(EVENTS if action_id != "reply" else QUESTIONS, *before.split()) as ui:
            assert not check(ui)
            await ui.press(key)
            assert check(ui), ui.text


@pytest.mark.parametrize("action_id", PLAYED)
async def test_an_action_of_a_recording_does_its_work(action_id: str, tmp_path: Path) -> None:
    async with replaying(write(tmp_path / "run.jsonl", a_run())) as screen:
        screen.playback.pause()
        await screen.jump("10m", 600.0)
        screen.playback.paused = action_id != "pause"
        await screen.pilot.press("1")
        assert not PLAYED[action_id](screen)
        await screen.pilot.press(BY_ID[action_id].keys.split(",")[0])
        await screen.pilot.pause(0.2)
        assert PLAYED[action_id](screen)


@pytest.mark.parametrize("action_id", [one.id for one in ACTIONS if one.changes])
async def test_a_read_only_screen_says_that_an_action_is_not_available(action_id: str) -> None:
    before, check = CHECKS[action_id]
    async with showing(EVENTS, *before.split(), read_only=True) as ui:
        await ui.press(BY_ID[action_id].keys)
        assert "not available" in ui.status
        assert not check(ui)
        assert ui.desk.asked == []


async def test_the_palette_runs_an_action_of_the_open_screen() -> None:
    async with showing(EVENTS, "4", "ctrl+p", *"fire") as ui:
        await ui.pilot.pause(0.3)
        await ui.press("enter")
        await ui.settle()
        assert asked(ui) == ["fire"]


async def test_a_click_on_a_key_in_the_last_line_runs_its_action() -> None:
    async with showing(EVENTS, "4") as ui:
        await ui.pilot.click("#keys", offset=(ui.text.split("\n")[-1].index("fire now"), 0))
        await ui.settle()
        assert asked(ui) == ["fire"]
