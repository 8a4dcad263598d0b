"""The app: one test per key and per screen, on the machine's own loop because Textual's timers need it."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest
from textual.widgets import Input, TextArea

from fleetsim.caller.fleet_events import HubStopping
from fleetsim.dashboard.app import DRAWS_PER_S
from fleetsim.dashboard.screens.inbox import InboxPane
from fleetsim.dashboard.widgets import Page
from fleetsim.model.errors import NotAccepting, UnknownTarget
from tests.dashboard.journal import NOW, Journal, flood
from tests.dashboard.stage import EVENTS, asking, showing

pytestmark = pytest.mark.sockets  # the real loop, no socket is opened


async def test_each_screen_opens_by_its_key_with_its_table_and_no_text_field_focused() -> None:
    async with showing() as stage:
        for key, main, words in (
            ("2", "tasks-list", "LAST UPDATE"),
            ("3", "questions", "Which branch should I compare against?"),
            ("4", "ceremony-list", "quinn.daily-digest"),
            ("5", "event-list", "agent.skill.dispatched"),
            ("1", "agents", "connection refused"),
        ):
            await stage.press(key)
            assert stage.focused == main
            assert not isinstance(stage.app.focused, Input | TextArea)
            assert words in stage.text
            assert f"[{key} " in stage.text


async def test_a_key_pressed_right_after_a_screen_was_opened_goes_to_that_screen() -> None:
    async with showing(EVENTS, "5") as stage:
        stage.app.show_screen("fleet")
        assert stage.focused == "agents"


async def test_the_fleet_screen_shows_what_the_events_tell() -> None:
    async with showing() as stage:
        for words in ("● LIVE", "2026-11-21 13:55:59Z", "5 agents", "2 waiting", "◐ degraded", "○ down", "frank"):
            assert words in stage.text
        assert "5 of 5 agents shown" in stage.status


async def test_the_cursor_moves_by_letters_arrows_and_pages() -> None:
    async with showing(EVENTS, "2") as stage:
        grid, seen = stage.main, []
        for keys in (("j",), ("down",), ("k",), ("up",), ("G",), ("g",), ("ctrl+d",), ("ctrl+u",), ("end",), ("home",)):
            await stage.press(*keys)
            seen.append(grid.rows.find(grid.key or "", 0))
        last, half = len(grid.rows.items) - 1, seen[6]
        assert seen == [1, 2, 1, 0, last, 0, half, 0, last, 0]
        assert half is not None
        assert half > 2


async def test_tab_goes_from_pane_to_pane() -> None:
    async with showing() as stage:
        await stage.press("tab")
        assert stage.focused == "recent"
        await stage.press("shift+tab")
        assert stage.focused == "agents"


async def test_enter_opens_an_agent_and_escape_comes_back() -> None:
    async with showing(EVENTS, "down", "enter") as stage:
        assert stage.pane.id == "agent"
        assert "rpc url" in stage.text
        assert "echo" in stage.text
        await stage.press("escape")
        assert stage.pane.id == "fleet"
        await stage.press("escape", "escape")
        assert stage.app.is_running


async def test_enter_gives_a_task_all_the_room_and_escape_takes_it_back() -> None:
    async with showing(EVENTS, "2", "enter") as stage:
        assert not stage.main.display or stage.main.size.height == 0
        assert stage.focused == "live"
        await stage.press("escape")
        assert stage.focused == "tasks-list"
        assert stage.main.size.height > 5


async def test_enter_on_an_outcome_or_a_run_opens_its_task() -> None:
    async with showing(EVENTS, "tab", "enter") as stage:
        assert stage.pane.id == "tasks"
        assert stage.main.key == stage.app.view.recent[0].correlation_id
        await stage.press("4", "enter", "enter")
        assert stage.pane.id == "tasks"
        assert "qa_report" in stage.text


async def test_the_live_text_of_the_chosen_task_grows_while_one_looks() -> None:
    j = Journal(start=NOW)
    about = j.request("quinn", "echo", text="go on")
    j.bind(about)
    j.chunk(about, "first words")
    async with showing(j.events, "2") as stage:
        assert "first words" in stage.text
        count = len(j.events)
        j.chunk(about, " and more")
        j.end(about, text="The whole answer.")
        await stage.say(j.events[count])
        assert "first words and more" in stage.text
        await stage.say(*j.events[count + 1 :])
        assert "The whole answer." in stage.text


async def test_the_filter_narrows_while_it_is_typed_and_escape_takes_it_back() -> None:
    async with showing(EVENTS, "2") as stage:
        everything = len(stage.main.rows.items)
        some = sum(task.agent == "flaky" for task in stage.app.view.tasks)
        assert 0 < some < everything
        await stage.press("slash")
        assert isinstance(stage.app.focused, Input)
        await stage.press(*"flaky")
        assert len(stage.main.rows.items) == some
        await stage.press("escape")
        assert len(stage.main.rows.items) == everything
        await stage.press("slash", *"flaky", "enter")
        assert stage.focused == "tasks-list"
        assert "filter flaky" in stage.status
        await stage.press("1", "2")
        assert len(stage.main.rows.items) == some
        await stage.press("escape")
        assert len(stage.main.rows.items) == everything


async def test_help_shows_the_keys_of_this_screen() -> None:
    async with showing(EVENTS, "4", "question_mark") as stage:
        assert "fire now" in stage.text
        assert "shift+tab" in stage.text
        await stage.press("escape")
        assert "shift+tab" not in stage.text


async def test_help_scrolls_to_its_end_on_a_small_screen() -> None:
    async with showing(EVENTS, "4", "question_mark", size=(80, 24)) as stage:
        assert "fire now" in stage.text
        assert "too few outcomes" not in stage.text
        assert "j k scroll" in stage.text
        await stage.press("G")
        assert "too few outcomes to judge" in stage.text
        assert "╰" in stage.text
        await stage.press("g", *["down"] * 3)
        assert stage.app.screen.query_one(Page).scroll_offset.y == 3
        await stage.press("escape")
        assert "too few outcomes" not in stage.text


async def test_follow_goes_on_and_off_and_moving_stops_it() -> None:
    async with showing(EVENTS, "5") as stage:
        grid = stage.main
        assert grid.follow
        assert grid.key == str(len(EVENTS))
        await stage.press("k")
        assert not grid.follow
        key = grid.key
        await stage.say(HubStopping(seq=9_000, at=NOW))
        assert grid.key == key
        await stage.press("f")
        assert grid.follow
        assert grid.key == "9000"


async def test_levels_shows_debug_events_too() -> None:
    async with showing(EVENTS, "5") as stage:
        few = len(stage.main.rows.items)
        await stage.press("l")
        assert len(stage.main.rows.items) == len(EVENTS) > few


async def test_t_shows_the_tasks_of_the_agent_under_the_cursor() -> None:
    async with showing(EVENTS, "down", "t") as stage:
        assert stage.pane.id == "tasks"
        assert stage.pane.filter_text == "agent=flaky"


async def test_y_copies_the_id_under_the_cursor() -> None:
    async with showing(EVENTS, "2", "j", "y") as stage:
        assert stage.app.clipboard == stage.main.key
        assert "copied" in stage.status


async def test_themes_go_round() -> None:
    async with showing() as stage:
        names = [stage.app.theme]
        for _ in range(3):
            await stage.press("ctrl+t")
            names.append(stage.app.theme)
        assert names[0] == names[3]
        assert len(set(names)) == 3


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
async def test_quit_ends_the_app(key: str) -> None:
    async with showing() as stage:
        await stage.pilot.press(key)
        await stage.pilot.pause()
        assert stage.app._exit


async def test_r_leads_from_a_task_to_its_question_and_ctrl_s_sends_what_was_typed() -> None:
    j, _, first, _, _ = asking()
    async with showing(j.events, "2", "r") as stage:
        assert stage.focused == "answer"
        await stage.press(*"main2q", "enter", *"now", "ctrl+s")
        assert stage.desk.asked == [("answer", first, "main2q\nnow")]
        assert "the agent took it" in stage.status
        assert stage.focused == "questions"
        assert stage.app.is_running


async def test_an_answer_is_sent_once_however_often_it_is_pressed() -> None:
    j, _, first, _, _ = asking()
    async with showing(j.events, "3", "enter") as stage:
        stage.desk.gate = asyncio.Event()
        await stage.press(*"yes", "ctrl+s", "ctrl+s", "ctrl+s")
        assert stage.desk.asked == [("answer", first, "yes")]
        stage.desk.gate.set()
        await stage.settle()
        assert stage.desk.asked == [("answer", first, "yes")]


async def test_an_empty_answer_is_not_sent() -> None:
    j, *_ = asking()
    async with showing(j.events, "3", "r", "space", "ctrl+s") as stage:
        assert stage.desk.asked == []
        assert "type an answer first" in stage.status


async def test_a_draft_belongs_to_its_question() -> None:
    j, *_ = asking()
    async with showing(j.events, "3", "r", *"for one", "escape", "j", "r") as stage:
        box = stage.pane.box if isinstance(stage.pane, InboxPane) else None
        assert box is not None
        assert box.text == ""
        await stage.press(*"for two", "escape", "k", "r")
        assert box.text == "for one"


async def test_what_was_typed_never_reaches_another_question() -> None:
    j, one, first, _, second = asking()
    async with showing(j.events, "3", "r", *"my words") as stage:
        count = len(j.events)
        j.answered(one, first, by="ava")
        await stage.say(*j.events[count:])
        assert stage.focused == "questions"
        assert "answer by ava meanwhile" in stage.status
        await stage.press("ctrl+s")
        assert stage.desk.asked == []
        await stage.press("r", *"ok", "ctrl+s")
        assert stage.desk.asked == [("answer", second, "ok")]


async def test_a_new_question_does_not_take_the_pen_away() -> None:
    j, _, first, _, _ = asking()
    later = Journal(start=NOW)
    async with showing(j.events, "3", "r", *"half a") as stage:
        about = later.request("quinn", "pr_review")
        later.ask(about, "and this?")
        await stage.say(*later.events)
        await stage.press(*" word", "ctrl+s")
        assert stage.desk.asked == [("answer", first, "half a word")]


async def test_reject_asks_first() -> None:
    j, _, first, _, _ = asking()
    async with showing(j.events, "3", "r", "ctrl+r") as stage:
        assert "Reject the question of quinn" in stage.text
        await stage.press("n")
        assert stage.desk.asked == []
        await stage.press("ctrl+r", "y")
        assert stage.desk.asked == [("reject", first)]


def vetoing(left_s: float = 120) -> tuple[Journal, str]:
    """Work under way at an agent, with so many seconds left in which it may be stopped."""
    j = Journal(start=NOW - timedelta(minutes=1))
    work = j.request("quinn", "deploy")
    j.bind(work)
    cid: str = work["correlation_id"]
    until = NOW + timedelta(seconds=left_s)
    about = {"correlation_id": cid, "agent": "quinn", "skill": "deploy"}
    j.say(f"hitl.veto.{cid}", decision="open", expiresAt=until.isoformat(), **about)
    return j, cid


async def test_work_that_may_be_stopped_is_vetoed_from_the_inbox_after_asking() -> None:
    j, cid = vetoing()
    async with showing(j.events, "3") as stage:
        assert "Waiting for you (0), 1 may be stopped" in stage.text
        await stage.press("enter", "r", "ctrl+s")
        assert stage.desk.asked == [], "there is nothing to answer"
        await stage.press("ctrl+r")
        assert "Stop quinn at work on deploy?" in stage.text
        await stage.press("n")
        assert stage.desk.asked == []
        await stage.press("ctrl+r", "y")
        assert stage.desk.asked == [("veto", cid)]
        count = len(j.events)
        j.say(f"hitl.veto.{cid}", decision="vetoed", decidedBy="ada", correlation_id=cid)
        await stage.say(*j.events[count:])
        assert "Waiting for you (0)" in stage.text
        assert "vetoed" in stage.text


async def test_work_that_has_ended_can_no_longer_be_stopped() -> None:
    j, cid = vetoing()
    j.end({"correlation_id": cid, "agent": "quinn", "skill": "deploy"})
    async with showing(j.events, "3") as stage:
        assert "may be stopped" not in stage.text


async def test_a_window_that_nobody_was_there_to_close_is_no_longer_shown() -> None:
    j, _ = vetoing(left_s=-1)
    async with showing(j.events, "3") as stage:
        assert "may be stopped" not in stage.text


async def test_cancel_asks_first_and_names_the_task() -> None:
    j, one, *_ = asking()
    async with showing(j.events, "2", "x") as stage:
        assert f"Cancel task {one['correlation_id'][:8]}" in stage.text
        await stage.press("escape")
        assert stage.desk.asked == []
        await stage.press("x", "y")
        assert stage.desk.asked == [("cancel", one["correlation_id"])]


async def test_a_finished_task_is_not_cancelled() -> None:
    async with showing(EVENTS, "2", "G", "x") as stage:
        assert "no running task" in stage.status
        assert stage.desk.asked == []


async def test_fire_runs_the_ceremony_under_the_cursor_and_never_a_broken_one() -> None:
    async with showing(EVENTS, "4", "F") as stage:
        assert stage.desk.asked == [("fire", "quinn.daily-digest")]
        await stage.press("G", "F")
        assert len(stage.desk.asked) == 1
        assert stage.status.startswith(" !")


async def test_refresh_fetches_the_card_of_the_agent_under_the_cursor() -> None:
    async with showing(EVENTS, "R") as stage:
        assert stage.desk.asked == [("refresh", "frank")]


async def test_a_failure_is_said_with_its_reason_and_its_remedy() -> None:
    async with showing(EVENTS, "4") as stage:
        stage.desk.error = NotAccepting("the disk is full", hint="free some space")
        await stage.press("F")
        assert "not fired: the disk is full (free some space)" in stage.status
        stage.desk.error = UnknownTarget("\x1b]52;c;x\x07[@click=app.quit]gone")
        await stage.press("F")
        assert "\x1b" not in stage.text
        assert "[@click=app.quit]gone" in stage.text


async def test_an_unexpected_failure_does_not_end_the_app() -> None:
    async with showing(EVENTS, "4") as stage:
        stage.desk.error = RuntimeError("a bug")
        await stage.press("F")
        assert "not fired: RuntimeError" in stage.status
        assert stage.app.is_running


async def test_a_reader_cannot_change_anything() -> None:
    async with showing(EVENTS, "4", "F", "2", "x", "r", "1", "R", "3", "ctrl+r", read_only=True) as stage:
        assert stage.desk.asked == []
        assert stage.pane.id == "inbox"
        assert "read only" in stage.text
        await stage.press("2")
        assert "x cancel" not in stage.text


async def test_the_cursor_stays_on_its_agent_when_the_order_changes() -> None:
    j = Journal(start=NOW)
    for name in ("a", "b", "c"):
        j.card(name, "0.3", ("echo",))
        j.health(name, "up")
    async with showing(j.events, "j") as stage:
        assert stage.main.key == "b"
        count = len(j.events)
        j.health("c", "down", "x")
        await stage.say(*j.events[count:])
        assert [agent.name for agent in stage.main.rows.items] == ["c", "a", "b"]
        assert stage.main.key == "b"
        assert "▌ ● up       b" in stage.text


async def test_a_row_that_is_gone_leaves_the_cursor_in_its_place() -> None:
    j, one, first, _, second = asking()
    async with showing(j.events, "3") as stage:
        count = len(j.events)
        j.answered(one, first)
        await stage.say(*j.events[count:])
        assert stage.main.key == second


async def test_a_click_on_a_tab_opens_its_screen_and_a_second_click_on_a_row_opens_the_row() -> None:
    async with showing() as stage:
        tabs = stage.text.split("\n")[1]
        await stage.pilot.click("#tabs", offset=(tabs.index("2 Tasks") + 2, 0))
        await stage.settle()
        assert stage.pane.id == "tasks"
        await stage.pilot.click("#tasks-list", offset=(10, 3))
        await stage.settle()
        assert stage.main.rows.find(stage.main.key or "", 0) == 2
        await stage.pilot.click("#tasks-list", offset=(10, 3), times=2)
        await stage.settle()
        assert stage.focused == "live"


async def test_a_list_is_painted_again_where_a_row_the_second_or_the_theme_is_another() -> None:
    j = Journal(start=NOW)
    first, second = j.request("quinn", "echo"), j.request("flaky", "echo")
    j.bind(first)
    j.bind(second)
    async with showing(j.events, "2") as stage:
        assert stage.main.key == first["correlation_id"], "what is looked at is a row of the list alone"
        count = len(j.events)
        j.status(second, "half way")
        await stage.say(*j.events[count:])
        assert "0s half way" in stage.text
        stage.clock.pass_(7)
        await stage.settle()
        assert "7s half way" in stage.text
        before = stage.main.render_line(2)
        await stage.press("ctrl+t", "ctrl+t")
        after = stage.main.render_line(2)
        assert (after.text, after == before) == (before.text, False)


async def test_a_new_question_is_announced_wherever_one_looks() -> None:
    j, *_ = asking()
    async with showing(j.events) as stage:
        assert "asks you" not in stage.status
        later = Journal(start=NOW, seed=7)
        later.ask(later.request("flaky", "echo"), "may I?")
        await stage.say(*later.events)
        assert "? flaky asks you something: 3 opens the inbox" in stage.status
        await stage.press("3")
        assert "may I?" in stage.text or stage.app.view.counters.waiting == 3


async def test_a_flood_of_events_is_drawn_a_few_times_a_second() -> None:
    async with showing([]) as stage:
        stage.clock.at = NOW
        events = list(flood(6_000))
        before, began = stage.app.draws, time.monotonic()
        for at in range(0, len(events), 100):
            stage.feed.say(*events[at : at + 100])
            await asyncio.sleep(0.01)
        await stage.feed.heard()
        took = time.monotonic() - began
        assert 0 < stage.app.draws - before <= took * DRAWS_PER_S + 2


async def test_nothing_is_drawn_on_a_screen_that_is_gone_already_while_the_dashboard_closes() -> None:
    async with showing() as stage:
        await stage.app.pane.remove()
        before = stage.app.draws
        stage.app.draw()
        assert stage.app.draws == before


async def test_nothing_is_drawn_when_nothing_happens() -> None:
    async with showing() as stage:
        before = stage.app.draws
        await asyncio.sleep(0.4)
        assert stage.app.draws == before
        stage.clock.pass_(1)
        await asyncio.sleep(0.4)
        assert stage.app.draws == before + 1


async def test_the_details_show_ids_whole() -> None:
    """Tables shorten ids; where one thing is shown, its id can be read, and ``y`` copies it."""
    j, one, *_ = asking()
    for key in ("2", "3"):
        async with showing(j.events, key) as stage:
            assert one["correlation_id"] in stage.text
            await stage.press("y")
            assert stage.app.clipboard == one["correlation_id"]


async def test_a_screen_without_anything_to_show_says_so() -> None:
    async with showing([]) as stage:
        for key, words in (
            ("1", "Waiting for the hub"),
            ("2", "No tasks yet"),
            ("3", "Nothing waits for you"),
            ("4", "Waiting for the ceremonies"),
            ("5", "Nothing has happened yet"),
        ):
            await stage.press(key)
            assert words in stage.text


async def test_ceremonies_with_doubtful_targets_are_counted_below_the_list() -> None:
    j = Journal(start=NOW)
    facts = {"id": "a", "name": "A", "schedule": "0 9 * * *", "skill": "echo", "targets": ["quin"]}
    j.say("ceremony.loaded", ceremonies=[{**facts, "warnings": ["no such agent"]}, {**facts, "id": "b"}], errors=[])
    async with showing(j.events, "4") as stage:
        assert "2 of 2 ceremonies shown   2 on   0 paused   0 broken   1 warning" in stage.status


async def test_a_feed_that_breaks_is_told_and_what_is_shown_stays() -> None:
    async with showing() as stage:
        stage.feed.fail(OSError("connection lost"))
        await stage.pilot.pause()
        stage.clock.pass_(90)
        stage.app.draw()
        await stage.pilot.pause()
        assert "○ LOST 90s" in stage.text
        assert "no more events: connection lost" in stage.status
        assert "frank" in stage.text


async def test_a_broken_file_is_a_banner() -> None:
    j = Journal(start=NOW)
    j.say("config.rejected", path="agents.yaml", error="agents.yaml:7:9 unknown key “urll”, did you mean “url”?")
    async with showing([*EVENTS, *j.events]) as stage:
        assert "did you mean “url”?" in stage.status


async def test_a_screen_that_fails_does_not_take_the_others_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(view: object) -> None:
        raise KeyError("latency")

    async with showing() as stage:
        monkeypatch.setattr(stage.app.query_one("#tasks"), "draw", broken)
        await stage.press("2")
        assert "this screen failed (KeyError)" in stage.status
        await stage.press("1")
        assert "frank" in stage.text


async def test_every_screen_fits_every_size_and_a_small_one_says_so() -> None:
    async with showing() as stage:
        for width, height in ((200, 50), (80, 24), (40, 12)):
            await stage.pilot.resize_terminal(width, height)
            for key in "12345":
                await stage.press(key)
                lines = stage.text.split("\n")
                assert len(lines) == height
                assert "LIVE" in lines[0]
                assert "quit" in lines[-1]
        await stage.pilot.resize_terminal(36, 10)
        await stage.settle()
        assert "needs 40 x 12" in stage.text
        await stage.pilot.resize_terminal(120, 36)
        await stage.settle()
        assert "quinn" in stage.text
        assert stage.focused == stage.main.id


async def test_small_screens_read_and_answer_too() -> None:
    j, _, first, _, _ = asking()
    for size in ((60, 18), (40, 12)):
        async with showing(j.events, "3", "enter", *"ok", size=size) as stage:
            assert "which branch?" in stage.text
            assert "ok" in stage.text
            await stage.press("ctrl+s")
            assert stage.desk.asked == [("answer", first, "ok")]


async def test_ascii_means_ascii() -> None:
    async with showing(ascii=True) as stage:
        for key in ("1", "2", "3", "4", "5", "question_mark"):
            await stage.press(key)
            assert stage.text.isascii(), {c for c in stage.text if not c.isascii()}
        await stage.press("escape", "1")
        assert "+ up" in stage.text


async def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with showing() as stage:
        colours = {
            (segment.style.color.triplet.red, segment.style.color.triplet.green, segment.style.color.triplet.blue)
            for strip in stage.app.screen._compositor.render_strips()
            for segment in strip.apply_filter(stage.app._filters[-1], stage.app.background_colors[0])
            if segment.style and segment.style.color and segment.style.color.triplet
        }
        assert all(max(colour) - min(colour) <= 1 for colour in colours)
