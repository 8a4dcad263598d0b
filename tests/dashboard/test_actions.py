"""Each action of the table does its work by its key; a row without a test here fails."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from textual.command import CommandPalette
from textual.events import Key
from textual.widgets import Input

from fleetsim.dashboard.actions import ACTIONS, RECORDING, character_of
from fleetsim.dashboard.chrome import HelpScreen
from fleetsim.dashboard.json_screen import JsonScreen
from fleetsim.dashboard.send_screen import SendScreen
from fleetsim.dashboard.wire_screen import WireScreen
from fleetsim.model.errors import UnknownTarget
from tests.dashboard.driver import EVENTS, Driver, answered, asking, showing
from tests.dashboard.journal import NOW, Journal
from tests.dashboard.recordings import a_run, write
from tests.sim.test_scenario_screen import Screen, replaying

pytestmark = pytest.mark.sockets  # the real loop, no socket is opened

QUESTIONS = tuple(asking()[0].events)
ACTED_ON = {"reply": QUESTIONS, **dict.fromkeys(("source", "save", "open-file"), tuple(answered()[0].events))}
"""The events of an action that needs others than ``EVENTS``."""
BY_ID = {action.id: action for action in ACTIONS}
Check = Callable[[Driver], bool]


def at(ui: Driver) -> int | None:
    return ui.main.rows.find(ui.main.key or "", 0)


def asked(ui: Driver) -> list[str]:
    return [call[0] for call in ui.desk.asked]


CHECKS: dict[str, tuple[str, Check]] = {
    "open": ("1", lambda ui: ui.pane.id == "agent"),
    "reply": ("2", lambda ui: ui.focused == "answer"),
    "request": ("1", lambda ui: isinstance(ui.app.screen, SendScreen)),
    "earlier": ("1 s h i ctrl+s 1 s", lambda ui: "1 of 1 earlier" in ui.text),
    "send": ("3 r o k", lambda ui: asked(ui) == ["answer"]),
    "reject": ("3", lambda ui: "Reject the question" in ui.text),
    "cancel": ("2", lambda ui: "Cancel task" in ui.text),
    "again": ("2 ctrl+a", lambda ui: "Send again" in ui.text),
    "fire": ("4", lambda ui: "Fire quinn.daily-digest now?" in ui.text),
    "refresh-card": ("1", lambda ui: asked(ui) == ["refresh"]),
    "related": ("1", lambda ui: ui.pane.id == "tasks" and ui.pane.filter_text.startswith("agent=")),
    "follow": ("5", lambda ui: not ui.main.follow),
    "source": ("2", lambda ui: "│ # Title" in ui.text),
    "save": ("2", lambda ui: "the folder for" in ui.text),
    "open-file": ("2", lambda ui: "save it first" in ui.status),
    "levels": ("5", lambda ui: "all levels" in ui.status),
    "filter": ("2", lambda ui: isinstance(ui.app.focused, Input)),
    "json": ("2", lambda ui: isinstance(ui.app.screen, JsonScreen)),
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
    "mark": ("2", lambda ui: len(ui.main.marks) == 1),
    "mark-all": ("2", lambda ui: len(ui.main.marks) == len(ui.main.rows.items)),
    "unmark": ("2 ctrl+a", lambda ui: not ui.main.marks),
    "problems": ("1", lambda ui: "problems only" in ui.status and len(ui.main.rows.items) < 5),
    "wide": ("2", lambda ui: not ui.app.query_one("#task").display),
    "sort-right": ("1", lambda ui: ui.main.order is not None and ui.main.order.name == "AGENT"),
    "sort-left": ("1", lambda ui: ui.main.order is not None and ui.main.order.name == "PUSH"),
    "reverse": ("1 greater_than_sign", lambda ui: ui.main.order is not None and ui.main.order.reverse),
    "left": ("2 W right right", lambda ui: ui.main.scroll_offset.x == 8),
    "right": ("2 W", lambda ui: ui.main.scroll_offset.x == 8),
    "command": ("1", lambda ui: ui.focused == "command"),
    "sort": ("1", lambda ui: ui.main.order is not None and ui.main.order.name == "P95"),
    "time": ("5", lambda ui: "Go to a moment" in ui.text),
    "previous": ("2 1", lambda ui: ui.pane.id == "tasks"),
    "history-back": ("2 3", lambda ui: ui.pane.id == "tasks"),
    "history-on": ("2 3 left_square_bracket", lambda ui: ui.pane.id == "inbox"),
    "hub": ("1", lambda ui: ui.desk.asked == [("attach", "other")]),
    "agent": ("2", lambda ui: ui.pane.id == "agent" and "quinn" in ui.status),
    "columns": ("1", lambda ui: "Columns" in ui.text and ui.focused == "columns"),
    "edit": ("3 r", lambda ui: "no terminal" in ui.status),
    "wire": ("2", lambda ui: isinstance(ui.app.screen, WireScreen)),
    "copy-curl": ("2 w", lambda ui: "no curl command" in ui.text),
    "copy-command": ("2 w", lambda ui: "no fleetsim command" in ui.text),
    "pager": ("2", lambda ui: "no terminal" in ui.status),
    "quit": ("1", lambda ui: ui.app._exit),
}
"""The keys before the action's own key, and what holds after it."""

TYPED = {"hub": ":hub other", "sort": ":sort p95", "agent": ":agent quinn"}
"""The lines of actions without a key."""

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
    assert sorted(CHECKS | PLAYED) == sorted(action.id for action in ACTIONS)
    assert sorted(PLAYED) == sorted(action.id for action in ACTIONS if RECORDING in action.on)


@pytest.mark.parametrize("action_id", CHECKS)
async def test_an_action_does_its_work(action_id: str) -> None:
    before, check = CHECKS[action_id]
    for key in BY_ID[action_id].key_list or [TYPED[action_id]]:
        events, width = ACTED_ON.get(action_id, EVENTS), (60 if action_id in {"left", "right"} else 120)
        async with showing(events, *before.split(), size=(width, 36)) as ui:
            assert not check(ui)
            await ui.press(*([key] if not key.startswith(":") else ["colon", *key[1:], "enter"]))
            await ui.settle()
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


async def test_over_a_recording_its_keys_belong_to_it_alone(tmp_path: Path) -> None:
    async with replaying(write(tmp_path / "run.jsonl", a_run())) as screen:
        await screen.pilot.press("2")
        await screen.until(0.0)
        assert "space pause" in screen.text
        assert "mark" not in screen.text.split("\n")[-1]
        await screen.pilot.press("4", "backspace")
        assert screen.app.pane.id == "tasks"


@pytest.mark.parametrize("action_id", [action.id for action in ACTIONS if action.role])
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
        await ui.press("y")
        assert asked(ui) == ["fire"]


async def test_a_click_on_a_key_in_the_last_line_runs_its_action() -> None:
    async with showing(EVENTS, "4") as ui:
        await ui.pilot.click("#keys", offset=(ui.text.split("\n")[-1].index("fire now"), 0))
        await ui.press("y")
        assert asked(ui) == ["fire"]


def many_questions(count: int = 37) -> Journal:
    j = Journal(start=NOW - timedelta(minutes=5))
    for at in range(count):
        about = j.request(("quinn", "protopen")[at % 2], "pr_review")
        j.bind(about)
        j.ask(about, f"question {at}?")
    return j


async def test_the_footer_names_no_key_that_the_answer_takes_as_text() -> None:
    async with showing(many_questions(2).events, "3") as ui:
        in_list = ui.text.split("\n")[-1]
        await ui.press("r")
        while_typing = ui.text.split("\n")[-1]
        assert "q quit" in in_list
        assert "q quit" not in while_typing
        assert "filter" in in_list
        assert "filter" not in while_typing
        assert "ctrl+c quit" in while_typing
        assert "ctrl+s send" in while_typing
        await ui.press("escape")
        assert ui.text.split("\n")[-1] == in_list


async def test_one_answer_goes_to_all_marked_questions_after_one_confirmation_that_counts_them() -> None:
    async with showing(many_questions().events, "3", "ctrl+a", "r", *"yes", "ctrl+s") as ui:
        assert ui.desk.asked == []
        for words in ("37 questions", "19  quinn / pr_review", "18  protopen / pr_review", "yes"):
            assert words in ui.text
        await ui.press("n")
        assert ui.desk.asked == []
        await ui.press("ctrl+s", "y")
        assert sorted(set(ui.desk.asked)) == sorted(ui.desk.asked)
        assert [(what, text) for what, _, text in ui.desk.asked] == [("answer", "yes")] * 37
        assert "sent to 37 questions" in ui.status
        assert not ui.main.marks


async def test_only_the_shown_rows_of_a_filter_are_marked_and_cancelled() -> None:
    async with showing(many_questions().events, "2", "ctrl+a", "slash", *"agent=quinn", "enter") as ui:
        assert len(ui.main.marked) == 19
        await ui.press("x")
        assert "19 tasks" in ui.text
        await ui.press("y")
        assert asked(ui) == ["cancel"] * 19


async def test_the_failures_of_many_actions_are_counted_and_the_marks_stay() -> None:
    async with showing(many_questions(3).events, "2", "ctrl+a", "x") as ui:
        ui.desk.error = UnknownTarget("gone", hint="look again")
        await ui.press("y")
        assert "3 of 3 failed, first: gone (look again)" in ui.status
        assert len(ui.main.marks) == 3


async def test_only_the_rows_that_failed_stay_marked() -> None:
    async with showing(many_questions(3).events, "2", "ctrl+a") as ui:
        failing = ui.main.marked[1]
        ui.desk.refused.add(failing)
        await ui.press("x", "y")
        assert "1 of 3 failed" in ui.status
        assert ui.main.marked == [failing]


async def test_several_ceremonies_are_fired_after_a_confirmation() -> None:
    async with showing(EVENTS, "4", "space", "space", "F") as ui:
        assert "Fire now: 2 runs" in ui.text
        await ui.press("y")
        assert asked(ui) == ["fire", "fire"]


async def test_a_click_on_a_column_sorts_by_it_then_turns_round_then_restores_the_order() -> None:
    async with showing(size=(160, 36)) as ui:
        names = [agent.name for agent in ui.main.rows.items]
        seen = []
        for _ in range(3):
            column = ui.text.split("\n")[ui.main.region.y].index("AGENT")
            await ui.pilot.click("#agents", offset=(column + 1, 0))
            await ui.settle()
            seen.append([agent.name for agent in ui.main.rows.items])
        assert seen == [sorted(names), sorted(names, reverse=True), names]


async def test_the_command_line_completes_takes_words_and_remembers() -> None:
    async with showing(EVENTS, "colon", *"tas", "tab", *" agent=flaky", "enter") as ui:
        await ui.settle()
        assert ui.pane.id == "tasks"
        assert ui.pane.filter_text == "agent=flaky"
        await ui.press("colon", *"fleet", "enter")
        await ui.press("colon", "up", "up")
        assert ui.app.query_one("#command", Input).value == "tasks agent=flaky"
        await ui.press("down", "escape")
        assert ui.focused == "agents"


@pytest.mark.parametrize(
    ("typed", "answer"),
    [("cancle", "did you mean cancel"), ("quit now", "takes no words"), ("agent nobody", "no agent")],
)
async def test_a_command_that_is_none_is_named_with_the_nearest(typed: str, answer: str) -> None:
    async with showing(EVENTS, "2", "colon", *typed, "enter") as ui:
        await ui.settle()
        assert answer in ui.status
        assert ui.desk.asked == []


async def burst(ui: Driver, *keys: str) -> None:
    """Send keys as one read of a terminal does: all of them before the app handles the first one."""
    for key in keys:
        ui.app.post_message(Key(key, key if len(key) == 1 else character_of(key)))
    for _ in keys:
        await ui.pilot.pause()
    await ui.settle()


@pytest.mark.parametrize("screen", ["1", "2", "4"])
async def test_a_line_that_arrives_in_one_burst_is_typed_into_its_input(screen: str) -> None:
    """Each of its characters is the key of an action of some screen."""
    line = "".join(sorted({key for action in ACTIONS for key in action.keys.split(",") if len(key) == 1}))
    async with showing(EVENTS, screen) as ui:
        for opens, box in (("slash", "#filter"), ("colon", "#command")):
            for typed in (line, line[::-1], f"q{line}"):
                await burst(ui, opens, *typed)
                assert ui.app.query_one(box, Input).value == typed
                await ui.press("escape")
        assert (ui.desk.asked, ui.app.is_running, len(ui.app.screen_stack)) == ([], True, 1)


async def test_keys_after_those_that_open_or_close_an_input_or_dialog_in_one_burst() -> None:
    async with showing(QUESTIONS, "2") as ui:
        await burst(ui, "r", *"quit x", "ctrl+s")
        assert [call[2] for call in ui.desk.asked] == ["quit x"]
        await burst(ui, "escape", "2", "slash", *"Fq", "enter", "escape", "colon", *"inbox", "enter", "r", *"qx")
        assert (ui.pane.id, ui.focused, ui.app.is_running) == ("inbox", "answer", True)
        await burst(ui, "escape", "4", "question_mark", *"q", "ctrl+p", *"quinn", "escape", "5", "at", *"q")
        assert (ui.pane.id, ui.app.is_running) == ("events", True)
        assert ui.app.screen.query_one(Input).value == "q"


async def test_the_command_line_of_a_read_only_screen_changes_nothing() -> None:
    async with showing(EVENTS, "4", "colon", *"fire", "enter", read_only=True) as ui:
        await ui.settle()
        assert "not available" in ui.status
        assert ui.desk.asked == []


@pytest.mark.parametrize(("typed", "first"), [("13:50", "13:50"), ("10m", "13:45"), ("start", None), ("99:99", None)])
async def test_events_go_to_a_moment(typed: str, first: str | None) -> None:
    async with showing(EVENTS, "5", "at", *typed, "enter") as ui:
        await ui.settle()
        event = ui.main.rows.items[at(ui) or 0]
        if first is not None:
            hour, minute = map(int, first.split(":"))
            wanted = NOW.replace(hour=hour, minute=minute, second=0 if "m" not in typed else NOW.second)
            assert event.at >= wanted
            assert ui.main.rows.items[(at(ui) or 0) - 1].at < wanted
        elif typed == "start":
            assert at(ui) == 0
        else:
            assert "not a moment" in ui.status


async def test_text_is_selected_with_the_mouse_and_ctrl_c_copies_it_instead_of_quitting() -> None:
    async with showing(EVENTS, "3") as ui:
        line = next(at for at, text in enumerate(ui.text.split("\n")) if "Which branch" in text)
        left = ui.text.split("\n")[line].index("Which branch")
        await ui.pilot.mouse_down(offset=(left, line))
        await ui.pilot.hover(offset=(left + 12, line))
        await ui.pilot.mouse_up(offset=(left + 12, line))
        await ui.press("ctrl+c")
        assert ui.app.clipboard.startswith("Which branch")
        assert ui.app.is_running


async def test_a_click_on_a_card_opens_what_it_is_about() -> None:
    async with showing() as ui:
        for at_x, screen in ((40, "tasks"), (70, "inbox"), (100, "ceremonies")):
            await ui.pilot.click(offset=(at_x, 6))
            await ui.settle()
            assert ui.pane.id == screen
            await ui.press("1")
        await ui.pilot.click(offset=(10, 6))
        await ui.settle()
        assert ui.pane.problems


async def test_a_column_that_is_out_of_sight_comes_with_right_and_the_cursor_stays_visible() -> None:
    async with showing(EVENTS, "2", "W", *["right"] * 30, size=(60, 20)) as ui:
        assert "TRY" in ui.text
        assert "▌" in ui.text


@pytest.mark.parametrize("width", [40, 60, 100, 160, 220])
async def test_every_screen_is_drawn_at_every_width_in_both_views(width: int) -> None:
    async with showing(size=(width, 30)) as ui:
        for key in "12345":
            await ui.press(key, "W")
            assert all(len(row) <= width for row in ui.text.split("\n"))
            assert "▌" in ui.text
            await ui.press("W")
