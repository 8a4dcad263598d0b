"""The app: one test per key and per screen, on the machine's own loop because Textual's timers need it."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest
from textual.widgets import Input, TextArea

from fleetsim.dashboard.app import DRAWS_PER_S
from fleetsim.dashboard.markdown import without_marks
from fleetsim.dashboard.screens.inbox import InboxPane
from fleetsim.dashboard.theme import THEMES
from fleetsim.dashboard.widgets import Page
from fleetsim.events.fleet import HubStopping
from fleetsim.model.errors import NotAccepting, UnknownTarget
from tests.dashboard.driver import EVENTS, asking, showing
from tests.dashboard.journal import NOW, Journal, flood

pytestmark = pytest.mark.sockets  # the real loop, no socket is opened


async def test_each_screen_opens_by_its_key_with_its_table_and_no_text_field_focused() -> None:
    async with showing() as ui:
        for key, main, words in (
            ("2", "tasks-list", "LAST UPDATE"),
            ("3", "questions", "Which branch should I compare against?"),
            ("4", "ceremony-list", "quinn.daily-digest"),
            ("5", "event-list", "agent.skill.dispatched"),
            ("1", "agents", "connection refused"),
        ):
            await ui.press(key)
            assert ui.focused == main
            assert not isinstance(ui.app.focused, Input | TextArea)
            assert words in ui.text
            assert f"[{key} " in ui.text


async def test_a_key_pressed_right_after_a_screen_was_opened_goes_to_that_screen() -> None:
    async with showing(EVENTS, "5") as ui:
        ui.app.show_screen("fleet")
        assert ui.focused == "agents"


async def test_the_fleet_screen_shows_what_the_events_tell() -> None:
    async with showing() as ui:
        for words in ("● LIVE", "2026-11-21 13:55:59Z", "5 agents", "2 waiting", "◐ degraded", "○ down", "frank"):
            assert words in ui.text
        assert "5 of 5 agents shown" in ui.status


async def test_the_cursor_moves_by_letters_arrows_and_pages() -> None:
    async with showing(EVENTS, "2") as ui:
        grid, seen = ui.main, []
        for keys in (("j",), ("down",), ("k",), ("up",), ("G",), ("g",), ("ctrl+d",), ("ctrl+u",), ("end",), ("home",)):
            await ui.press(*keys)
            seen.append(grid.rows.find(grid.key or "", 0))
        last, half = len(grid.rows.items) - 1, seen[6]
        assert seen == [1, 2, 1, 0, last, 0, half, 0, last, 0]
        assert half is not None
        assert half > 2


async def test_tab_goes_from_pane_to_pane() -> None:
    async with showing() as ui:
        await ui.press("tab")
        assert ui.focused == "recent"
        await ui.press("shift+tab")
        assert ui.focused == "agents"


async def test_enter_opens_an_agent_and_escape_comes_back() -> None:
    async with showing(EVENTS, "down", "enter") as ui:
        assert ui.pane.id == "agent"
        assert "rpc url" in ui.text
        assert "echo" in ui.text
        await ui.press("escape")
        assert ui.pane.id == "fleet"
        await ui.press("escape", "escape")
        assert ui.app.is_running


async def test_enter_gives_a_task_all_the_room_and_escape_takes_it_back() -> None:
    async with showing(EVENTS, "2", "enter") as ui:
        assert not ui.main.display or ui.main.size.height == 0
        assert ui.focused == "live"
        await ui.press("escape")
        assert ui.focused == "tasks-list"
        assert ui.main.size.height > 5


async def test_enter_on_an_outcome_or_a_run_opens_its_task() -> None:
    async with showing(EVENTS, "tab", "enter") as ui:
        assert ui.pane.id == "tasks"
        assert ui.main.key == ui.app.view.recent[0].correlation_id
        await ui.press("4", "enter", "enter")
        assert ui.pane.id == "tasks"
        assert "qa_report" in ui.text


async def test_the_live_text_of_the_chosen_task_grows_while_one_looks() -> None:
    j = Journal(start=NOW)
    about = j.request("quinn", "echo", text="go on")
    j.bind(about)
    j.chunk(about, "first words")
    async with showing(j.events, "2") as ui:
        assert "first words" in ui.text
        count = len(j.events)
        j.chunk(about, " and more")
        j.end(about, text="The whole answer.")
        await ui.say(j.events[count])
        assert "first words and more" in ui.text
        await ui.say(*j.events[count + 1 :])
        assert "The whole answer." in ui.text


async def test_the_filter_narrows_while_it_is_typed_and_escape_takes_it_back() -> None:
    async with showing(EVENTS, "2") as ui:
        everything = len(ui.main.rows.items)
        some = sum(task.agent == "flaky" for task in ui.app.view.tasks)
        assert 0 < some < everything
        await ui.press("slash")
        assert isinstance(ui.app.focused, Input)
        await ui.press(*"flaky")
        assert len(ui.main.rows.items) == some
        await ui.press("escape")
        assert len(ui.main.rows.items) == everything
        await ui.press("slash", *"flaky", "enter")
        assert ui.focused == "tasks-list"
        assert "filter flaky" in ui.status
        await ui.press("1", "2")
        assert len(ui.main.rows.items) == some
        await ui.press("escape")
        assert len(ui.main.rows.items) == everything


async def test_help_shows_the_keys_of_this_screen() -> None:
    async with showing(EVENTS, "4", "question_mark") as ui:
        assert "fire now" in ui.text
        assert "Everywhere" in ui.text
        await ui.press("escape")
        assert "Everywhere" not in ui.text


async def test_help_scrolls_to_its_end_on_a_small_screen() -> None:
    async with showing(EVENTS, "4", "question_mark", size=(80, 24)) as ui:
        assert "fire now" in ui.text
        assert "too few outcomes" not in ui.text
        assert "j k scroll" in ui.text
        await ui.press("G")
        assert "too few outcomes to judge" in ui.text
        assert "╰" in ui.text
        await ui.press("g", *["down"] * 3)
        assert ui.app.screen.query_one(Page).scroll_offset.y == 3
        await ui.press("escape")
        assert "too few outcomes" not in ui.text


async def test_follow_goes_on_and_off_and_moving_stops_it() -> None:
    async with showing(EVENTS, "5") as ui:
        grid = ui.main
        assert grid.follow
        assert grid.key == str(len(EVENTS))
        await ui.press("k")
        assert not grid.follow
        key = grid.key
        await ui.say(HubStopping(seq=9_000, at=NOW))
        assert grid.key == key
        await ui.press("f")
        assert grid.follow
        assert grid.key == "9000"


async def test_levels_shows_debug_events_too() -> None:
    async with showing(EVENTS, "5") as ui:
        few = len(ui.main.rows.items)
        await ui.press("l")
        assert len(ui.main.rows.items) == len(EVENTS) > few


async def test_t_shows_the_tasks_of_the_agent_under_the_cursor() -> None:
    async with showing(EVENTS, "down", "t") as ui:
        assert ui.pane.id == "tasks"
        assert ui.pane.filter_text == "agent=flaky"


async def test_y_copies_the_id_under_the_cursor() -> None:
    async with showing(EVENTS, "2", "j", "y") as ui:
        assert ui.app.clipboard == ui.main.key
        assert "copied" in ui.status


async def test_themes_go_round() -> None:
    async with showing() as ui:
        names = [ui.app.theme]
        for _ in THEMES:
            await ui.press("ctrl+t")
            names.append(ui.app.theme)
        assert names[0] == names[-1]
        assert len(set(names)) == len(THEMES)


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
async def test_quit_ends_the_app(key: str) -> None:
    async with showing() as ui:
        await ui.pilot.press(key)
        await ui.pilot.pause()
        assert ui.app._exit


async def test_r_leads_from_a_task_to_its_question_and_ctrl_s_sends_what_was_typed() -> None:
    j, _, first, _, _ = asking()
    async with showing(j.events, "2", "r") as ui:
        assert ui.focused == "answer"
        await ui.press(*"main2q", "enter", *"now", "ctrl+s")
        assert ui.desk.asked == [("answer", first, "main2q\nnow")]
        assert "the agent took it" in ui.status
        assert ui.focused == "questions"
        assert ui.app.is_running


async def test_an_answer_is_sent_once_however_often_it_is_pressed() -> None:
    j, _, first, _, _ = asking()
    async with showing(j.events, "3", "enter") as ui:
        ui.desk.gate = asyncio.Event()
        await ui.press(*"yes", "ctrl+s", "ctrl+s", "ctrl+s")
        assert ui.desk.asked == [("answer", first, "yes")]
        ui.desk.gate.set()
        await ui.settle()
        assert ui.desk.asked == [("answer", first, "yes")]


async def test_an_empty_answer_is_not_sent() -> None:
    j, *_ = asking()
    async with showing(j.events, "3", "r", "space", "ctrl+s") as ui:
        assert ui.desk.asked == []
        assert "type an answer first" in ui.status


async def test_a_draft_belongs_to_its_question() -> None:
    j, *_ = asking()
    async with showing(j.events, "3", "r", *"for one", "escape", "j", "r") as ui:
        box = ui.pane.box if isinstance(ui.pane, InboxPane) else None
        assert box is not None
        assert box.text == ""
        await ui.press(*"for two", "escape", "k", "r")
        assert box.text == "for one"


async def test_what_was_typed_never_reaches_another_question() -> None:
    j, one, first, _, second = asking()
    async with showing(j.events, "3", "r", *"my words") as ui:
        count = len(j.events)
        j.answered(one, first, by="ava")
        await ui.say(*j.events[count:])
        assert ui.focused == "questions"
        assert "answer by ava meanwhile" in ui.status
        await ui.press("ctrl+s")
        assert ui.desk.asked == []
        await ui.press("r", *"ok", "ctrl+s")
        assert ui.desk.asked == [("answer", second, "ok")]


async def test_a_new_question_does_not_take_the_pen_away() -> None:
    j, _, first, _, _ = asking()
    later = Journal(start=NOW)
    async with showing(j.events, "3", "r", *"half a") as ui:
        about = later.request("quinn", "pr_review")
        later.ask(about, "and this?")
        await ui.say(*later.events)
        await ui.press(*" word", "ctrl+s")
        assert ui.desk.asked == [("answer", first, "half a word")]


async def test_reject_asks_first() -> None:
    j, _, first, _, _ = asking()
    async with showing(j.events, "3", "r", "ctrl+r") as ui:
        assert "Reject the question of quinn" in ui.text
        await ui.press("n")
        assert ui.desk.asked == []
        await ui.press("ctrl+r", "y")
        assert ui.desk.asked == [("reject", first)]


def vetoing(left_s: float = 120) -> tuple[Journal, str]:
    """Running work at an agent, with these seconds left in which it may be vetoed."""
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
    async with showing(j.events, "3") as ui:
        assert "Waiting for you (0), 1 may be stopped" in ui.text
        await ui.press("enter", "r", "ctrl+s")
        assert ui.desk.asked == [], "there is nothing to answer"
        await ui.press("ctrl+r")
        assert "Stop quinn at work on deploy?" in ui.text
        await ui.press("n")
        assert ui.desk.asked == []
        await ui.press("ctrl+r", "y")
        assert ui.desk.asked == [("veto", cid)]
        count = len(j.events)
        j.say(f"hitl.veto.{cid}", decision="vetoed", decidedBy="ada", correlation_id=cid)
        await ui.say(*j.events[count:])
        assert "Waiting for you (0)" in ui.text
        assert "vetoed" in ui.text


async def test_work_that_has_ended_can_no_longer_be_stopped() -> None:
    j, cid = vetoing()
    j.end({"correlation_id": cid, "agent": "quinn", "skill": "deploy"})
    async with showing(j.events, "3") as ui:
        assert "may be stopped" not in ui.text


async def test_a_window_that_nobody_was_there_to_close_is_no_longer_shown() -> None:
    j, _ = vetoing(left_s=-1)
    async with showing(j.events, "3") as ui:
        assert "may be stopped" not in ui.text


async def test_cancel_asks_first_and_names_the_task() -> None:
    j, one, *_ = asking()
    async with showing(j.events, "2", "x") as ui:
        assert f"Cancel task {one['correlation_id'][:8]}" in ui.text
        await ui.press("escape")
        assert ui.desk.asked == []
        await ui.press("x", "y")
        assert ui.desk.asked == [("cancel", one["correlation_id"])]


async def test_a_finished_task_is_not_cancelled() -> None:
    async with showing(EVENTS, "2", "G", "x") as ui:
        assert "no running task" in ui.status
        assert ui.desk.asked == []


def outage() -> Journal:
    """Of five requests, two reached nobody, one failed, one is at work, and one was sent again."""
    j = Journal()
    for number, (agent, kind) in enumerate((("quinn", "undeliverable"), ("quinn", "undeliverable"), ("ava", "failed"))):
        j.end(j.request(agent, "review", cid=f"old-{number}"), kind)
    j.bind(j.request("quinn", "review", cid="at-work"))
    j.end(j.request("quinn", "review", cid="old-9"), "failed")
    j.end(j.request("quinn", "review", cid="new-9", retryOf="old-9"), retryOf="old-9")
    return j


async def test_marked_tasks_are_sent_again_after_a_confirmation_that_names_what_may_have_run() -> None:
    async with showing(outage().events, "2", "ctrl+a", "a") as ui:
        assert "3 tasks" in ui.text
        assert "ava may have done 1" in ui.text
        assert "quinn may have done" not in ui.text
        assert ui.desk.asked == []
        await ui.press("y")
        assert sorted(ui.desk.asked) == [
            ("retry", "old-0"),
            ("retry", "old-1"),
            ("retry", "old-2", "may repeat"),
        ]


async def test_a_task_at_work_and_one_that_was_sent_again_are_not_sent_and_the_page_shows_the_chain() -> None:
    async with showing(outage().events, "2", "a") as ui:
        assert "sent again" in ui.status
        await ui.press("slash", *"task=old-9", "enter", "a")
        assert "was sent again" in ui.status
        assert "new-9" in ui.text
        await ui.press("escape", "slash", *"task=new-9", "enter")
        assert "old-9" in ui.text
        assert ui.desk.asked == []


async def test_fire_runs_the_ceremony_under_the_cursor_and_never_a_broken_one() -> None:
    async with showing(EVENTS, "4", "F") as ui:
        assert ui.desk.asked == []
        await ui.press("y")
        assert ui.desk.asked == [("fire", "quinn.daily-digest")]
        await ui.press("G", "F")
        assert len(ui.desk.asked) == 1
        assert ui.status.startswith(" !")


async def test_refresh_fetches_the_card_of_the_agent_under_the_cursor() -> None:
    async with showing(EVENTS, "R") as ui:
        assert ui.desk.asked == [("refresh", "frank")]


async def test_a_failure_is_said_with_its_reason_and_its_remedy() -> None:
    async with showing(EVENTS, "4") as ui:
        ui.desk.error = NotAccepting("the disk is full", hint="free some space")
        await ui.press("F", "y")
        assert "not fired: the disk is full (free some space)" in ui.status
        ui.desk.error = UnknownTarget("\x1b]52;c;x\x07[@click=app.quit]gone")
        await ui.press("F", "y")
        assert "\x1b" not in ui.text
        assert "[@click=app.quit]gone" in ui.text


async def test_an_unexpected_failure_does_not_end_the_app() -> None:
    async with showing(EVENTS, "4") as ui:
        ui.desk.error = RuntimeError("a bug")
        await ui.press("F", "y")
        assert "not fired: RuntimeError" in ui.status
        assert ui.app.is_running


async def test_a_reader_cannot_change_anything() -> None:
    async with showing(EVENTS, "4", "F", "2", "x", "r", "1", "R", "3", "ctrl+r", read_only=True) as ui:
        assert ui.desk.asked == []
        assert ui.pane.id == "inbox"
        assert "read only" in ui.text
        await ui.press("2")
        assert "x cancel" not in ui.text


async def test_a_reader_sees_no_hint_of_an_action() -> None:
    for keys in (("2",), ("3",), ("3", "enter")):
        async with showing(asking()[0].events, *keys) as ui:
            assert "to answer" in ui.text or "ctrl+s send" in ui.text
        async with showing(asking()[0].events, *keys, read_only=True) as ui:
            assert "to answer" not in ui.text
            assert "ctrl+s" not in ui.text
            assert "Your answer" not in ui.text


async def test_the_cursor_stays_on_its_agent_when_the_order_changes() -> None:
    j = Journal(start=NOW)
    for name in ("a", "b", "c"):
        j.card(name, "0.3", ("echo",))
        j.health(name, "up")
    async with showing(j.events, "j") as ui:
        assert ui.main.key == "b"
        count = len(j.events)
        j.health("c", "down", "x")
        await ui.say(*j.events[count:])
        assert [agent.name for agent in ui.main.rows.items] == ["c", "a", "b"]
        assert ui.main.key == "b"
        assert "▌ ● up       b" in ui.text


async def test_a_row_that_is_gone_leaves_the_cursor_in_its_place() -> None:
    j, one, first, _, second = asking()
    async with showing(j.events, "3") as ui:
        count = len(j.events)
        j.answered(one, first)
        await ui.say(*j.events[count:])
        assert ui.main.key == second


async def test_a_click_on_a_tab_opens_its_screen_and_a_second_click_on_a_row_opens_the_row() -> None:
    async with showing() as ui:
        tabs = ui.text.split("\n")[1]
        await ui.pilot.click("#tabs", offset=(tabs.index("2 Tasks") + 2, 0))
        await ui.settle()
        assert ui.pane.id == "tasks"
        await ui.pilot.click("#tasks-list", offset=(10, 3))
        await ui.settle()
        assert ui.main.rows.find(ui.main.key or "", 0) == 2
        await ui.pilot.click("#tasks-list", offset=(10, 3), times=2)
        await ui.settle()
        assert ui.focused == "live"


async def test_a_new_question_is_announced_wherever_one_looks() -> None:
    j, *_ = asking()
    async with showing(j.events) as ui:
        assert "asks you" not in ui.status
        later = Journal(start=NOW, seed=7)
        later.ask(later.request("flaky", "echo"), "may I?")
        await ui.say(*later.events)
        assert "? flaky asks you something: 3 opens the inbox" in ui.status
        await ui.press("3")
        assert "may I?" in ui.text or ui.app.view.counters.waiting == 3


async def test_a_flood_of_events_is_drawn_a_few_times_a_second() -> None:
    async with showing([]) as ui:
        ui.clock.at = NOW
        events = list(flood(6_000))
        before, began = ui.app.draws, time.monotonic()
        for at in range(0, len(events), 100):
            ui.feed.say(*events[at : at + 100])
            await asyncio.sleep(0.01)
        await ui.feed.heard()
        took = time.monotonic() - began
        # One at the beginning and at the end, and one of the connection.
        assert 0 < ui.app.draws - before <= took * DRAWS_PER_S + 3


async def test_nothing_is_drawn_on_a_screen_that_is_gone_already_while_the_dashboard_closes() -> None:
    async with showing() as ui:
        await ui.app.pane.remove()
        before = ui.app.draws
        ui.app.draw()
        assert ui.app.draws == before


async def test_nothing_is_drawn_when_nothing_happens() -> None:
    async with showing() as ui:
        before = ui.app.draws
        await asyncio.sleep(0.4)
        assert ui.app.draws == before
        ui.clock.pass_(1)
        await asyncio.sleep(0.4)
        assert ui.app.draws == before + 1


async def test_the_details_show_ids_whole() -> None:
    """Tables shorten ids; where one thing is shown, its id can be read, and ``y`` copies it."""
    j, one, *_ = asking()
    for key in ("2", "3"):
        async with showing(j.events, key) as ui:
            assert one["correlation_id"] in ui.text
            await ui.press("y")
            assert ui.app.clipboard == one["correlation_id"]


async def test_ceremonies_with_doubtful_targets_are_counted_below_the_list() -> None:
    j = Journal(start=NOW)
    facts = {"id": "a", "name": "A", "schedule": "0 9 * * *", "skill": "echo", "targets": ["quin"]}
    j.say("ceremony.loaded", ceremonies=[{**facts, "warnings": ["no such agent"]}, {**facts, "id": "b"}], errors=[])
    async with showing(j.events, "4") as ui:
        assert "2 of 2 ceremonies shown   2 on   0 paused   0 broken   1 warning" in ui.status


async def test_a_feed_that_breaks_is_told_and_what_is_shown_stays() -> None:
    async with showing() as ui:
        ui.feed.fail(OSError("connection lost"))
        await ui.pilot.pause()
        ui.clock.pass_(90)
        ui.app.draw()
        await ui.pilot.pause()
        assert "○ LOST 90s" in ui.text
        assert ("no more events" in ui.status, "connection lost" in ui.status) == (True, True)
        assert "frank" in ui.text


async def test_a_broken_file_is_a_banner() -> None:
    j = Journal(start=NOW)
    j.say("config.rejected", path="agents.yaml", error="agents.yaml:7:9 unknown key “urll”, did you mean “url”?")
    async with showing([*EVENTS, *j.events]) as ui:
        assert "did you mean “url”?" in ui.status


async def test_a_screen_that_fails_does_not_take_the_others_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(view: object) -> None:
        raise KeyError("latency")

    async with showing() as ui:
        monkeypatch.setattr(ui.app.query_one("#tasks"), "draw", broken)
        await ui.press("2")
        assert "tasks cannot be drawn (KeyError)" in ui.text
        await ui.press("1")
        assert "frank" in ui.text


async def test_every_screen_fits_every_size_and_a_small_one_says_so() -> None:
    async with showing() as ui:
        for width, height in ((200, 50), (80, 24), (40, 12)):
            await ui.pilot.resize_terminal(width, height)
            for key in "12345":
                await ui.press(key)
                lines = ui.text.split("\n")
                assert len(lines) == height
                assert "LIVE" in lines[0]
                assert "quit" in lines[-1]
        await ui.pilot.resize_terminal(36, 10)
        await ui.settle()
        assert "needs 40 x 12" in ui.text
        await ui.pilot.resize_terminal(120, 36)
        await ui.settle()
        assert "quinn" in ui.text
        assert ui.focused == ui.main.id


async def test_small_screens_read_and_answer_too() -> None:
    j, _, first, _, _ = asking()
    for size in ((60, 18), (40, 12)):
        async with showing(j.events, "3", "enter", *"ok", size=size) as ui:
            assert "which branch?" in ui.text
            assert "ok" in ui.text
            await ui.press("ctrl+s")
            assert ui.desk.asked == [("answer", first, "ok")]


async def test_ascii_means_ascii() -> None:
    async with showing(ascii=True) as ui:
        for key in ("1", "2", "3", "4", "5", "question_mark"):
            await ui.press(key)
            assert ui.text.isascii(), {c for c in ui.text if not c.isascii()}
        for key in ("C", "colon", "at", "ctrl+p"):
            await ui.press("escape", "5" if key == "at" else "1", key)
            await ui.pilot.pause(0.2)
            assert ui.text.isascii(), {c for c in ui.text if not c.isascii()}
        await ui.press("escape", "1")
        assert "+ up" in ui.text


async def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with showing() as ui:
        colours = {
            (segment.style.color.triplet.red, segment.style.color.triplet.green, segment.style.color.triplet.blue)
            for strip in ui.app.screen._compositor.render_strips()
            for segment in strip.apply_filter(ui.app._filters[-1], ui.app.background_colors[0])
            if segment.style and segment.style.color and segment.style.color.triplet
        }
        assert all(max(colour) - min(colour) <= 1 for colour in colours)


async def test_quitting_the_hubs_own_screen_asks_while_work_is_open() -> None:
    async with showing(EVENTS, "2") as ui:
        ui.app.stops = "They go on later."
        await ui.press("q", "n")
        assert ui.app.is_running
        await ui.press("q")
        assert "They go on later." in ui.text
        await ui.press("y")
        assert not ui.app.is_running


@pytest.mark.parametrize("size", [(60, 20), (80, 20), (120, 20), (120, 24), (200, 24)])
async def test_recent_outcomes_have_a_row_or_are_not_shown(size: tuple[int, int]) -> None:
    more = Journal(start=NOW - timedelta(minutes=1))
    for at in range(6):
        more.card(f"agent-{at}", "0.3", ("scan",))
    async with showing((*EVENTS, *more.events), size=size) as ui:
        await ui.settle()
        assert ("Recent outcomes" in ui.text) == ("13:55:03 ⊘" in ui.text)


def test_a_list_shows_a_line_of_markdown_without_its_marks() -> None:
    assert without_marks("# Title A **bold** `word` ~~or~~ 2 ** 3") == "Title A bold word or 2 ** 3"
