"""Loading, stale, lost, filtered and empty look different on every screen; a failure stays in its place."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from fleetsim.dashboard.chrome import LinkState
from fleetsim.dashboard.labels import Tone
from fleetsim.dashboard.screens import fleet
from fleetsim.dashboard.view_fleet import AgentRow
from tests.dashboard.driver import EVENTS, Driver, bare, showing
from tests.dashboard.journal import NOW

pytestmark = pytest.mark.sockets

SCREENS = "12345"


def body(ui: Driver) -> str:
    """The text of the list, if it shows no row."""
    return "\n".join(row.plain for row in ui.main.instead)


async def each(ui: Driver) -> list[str]:
    texts = []
    for key in SCREENS:
        await ui.press(key)
        texts.append(body(ui))
    return texts


async def test_loading_stale_lost_filtered_and_empty_differ_on_each_screen() -> None:
    async with showing([]) as ui:
        loading = await each(ui)
    async with showing(bare().events) as ui:
        empty = await each(ui)
        ui.feed.lost = "connection refused"
        ui.app.tick()
        assert ui.app.link.state is LinkState.STALE
        ui.clock.pass_(12)
        stale = await each(ui)
        assert "◐ STALE 12s" in ui.text
        ui.feed.lost = ""
        ui.app.tick()
        assert ui.app.link.state is LinkState.LIVE
        ui.feed.fail(OSError("gone"))
        await ui.pilot.pause()
        lost = await each(ui)
    async with showing() as ui:
        await ui.press("slash", *"nosuchword", "enter")
        filtered = body(ui)
        assert "nosuchword" in ui.text
    for at, screen in enumerate(("fleet", "tasks", "inbox", "ceremonies")):
        five = {loading[at], stale[at], lost[at], empty[at], filtered}
        assert len(five) == 5, screen
        assert all(five), screen
    assert loading[4] != ""  # the screen of events lists the events of the empty hub


async def test_a_screen_that_waits_for_a_hub_gives_the_reason() -> None:
    async with showing([]) as ui:
        ui.feed.lost = "no hub is running"
        ui.app.tick()
        await ui.settle()
        assert "no hub is running" in body(ui)
        assert "nothing waits" not in ui.text


async def test_old_data_is_dimmed_and_its_moment_is_named() -> None:
    async with showing() as ui:
        plain = ui.app.body.opacity
        ui.feed.lost = "connection refused"
        ui.app.tick()
        await ui.settle()
        assert ui.app.body.opacity < plain
        assert f"as of {EVENTS[-1].at:%H:%M:%SZ}" in ui.text
        assert ui.status_line.lines[0].spans[0].style == Tone.WARN
        ui.feed.lost = ""
        ui.app.tick()
        await ui.settle()
        assert ui.app.body.opacity == plain


async def test_a_panel_without_rows_disappears() -> None:
    async with showing(bare().events) as ui:
        for key, panels in (("1", ["recent"]), ("2", ["task"]), ("3", ["settled", "reading"]), ("4", ["ceremony"])):
            await ui.press(key)
            assert [name for name in panels if ui.app.query_one(f"#{name}").display] == []


async def test_a_screen_that_cannot_be_drawn_keeps_its_mark_until_it_can(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(view: object) -> None:
        raise KeyError("latency")

    log = logging.FileHandler(tmp_path / "hub.log")
    monkeypatch.setattr(logging.getLogger(), "handlers", [log])
    try:
        async with showing() as ui:
            with monkeypatch.context() as patch:
                patch.setattr(ui.app.panes["tasks"], "draw", broken)
                await ui.press("2")
                ui.clock.pass_(600)
                await ui.settle()
                assert "tasks cannot be drawn (KeyError)" in ui.text
                assert str(tmp_path / "hub.log") in ui.text.replace("\n", "").replace(" ", "")
                await ui.press("1")
                assert "frank" in ui.text
                assert "cannot be drawn" not in ui.text
            await ui.press("2")
            assert "cannot be drawn" not in ui.text
        assert (tmp_path / "hub.log").read_text().count("Traceback") == 1
    finally:
        log.close()


@pytest.mark.parametrize("part", ["header", "tabs"])
async def test_a_broken_frame_leaves_the_screen(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    def broken(*_: object) -> None:
        raise ValueError("width")

    async with showing() as ui:
        monkeypatch.setattr(f"fleetsim.dashboard.chrome.{part}", broken)
        await ui.press("1")
        assert f"{part} cannot be drawn (ValueError)" in ui.text
        assert "frank" in ui.text


async def test_a_row_that_cannot_be_drawn_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = fleet.row

    def broken(agent: AgentRow, now: object) -> object:
        if agent.name == "frank":
            raise KeyError("p95")
        return drawn(agent, NOW)

    async with showing() as ui:
        monkeypatch.setattr(fleet, "row", broken)
        ui.main.drawn.clear()
        ui.clock.pass_(1)
        await ui.settle()
        assert "this row cannot be drawn (KeyError)" in ui.text
        assert "quinn" in ui.text


async def test_an_event_or_a_list_that_fails_is_named_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("slot")

    monkeypatch.setattr("fleetsim.dashboard.view_ceremonies.CeremonyFold.fired", broken)
    async with showing() as ui:
        assert "was not counted (KeyError)" in ui.text
        assert ui.app.link.state is LinkState.LIVE
        assert "frank" in ui.text
        monkeypatch.setattr("fleetsim.dashboard.view_ceremonies.CeremonyFold.rows", broken)
        await ui.press("4")
        assert "the ceremonies are old (KeyError)" in " ".join(ui.app.view.faults)
        assert ui.main.rows.items
        await ui.press("2")
        assert ui.main.rows.items
