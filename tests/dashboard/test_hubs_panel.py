"""The panel of the hubs that share the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from fleetsim.dashboard.labels import Tone
from fleetsim.dashboard.widgets import Grid
from fleetsim.model.errors import NotAccepting
from tests.dashboard.driver import Driver, bare, showing
from tests.dashboard.journal import NOW


def hub(name: str, **facts: Any) -> Mapping[str, Any]:
    started = (NOW - timedelta(hours=3)).isoformat()
    row = {"hub": 1, "name": name, "version": "0.1.0", "startedAt": started, "leaseAgeS": 3.2, "leaseS": 30.0}
    return {**row, "owned": 0, "took": 0, "tookAt": None, "here": False, **facts}


def panel(ui: Driver) -> Grid:
    return ui.app.query_one("#hubs", Grid)


def tones(ui: Driver, at: int) -> set[str]:
    row = panel(ui).rows
    return {str(span.style) for cell in row.words(row.items[at]).cells for span in cell.spans}


async def look(ui: Driver) -> None:
    ui.app.look_for_hubs()
    await ui.settle()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
async def test_hubs_that_share_a_ledger_have_a_panel_with_work_lease_and_take_over(width: int) -> None:
    async with showing(size=(width, 36)) as ui:
        assert not panel(ui).display
        took_at = (NOW - timedelta(minutes=5)).isoformat()
        ui.desk.members = [hub("vm:/one", here=True, owned=12), hub("vm:/two", took=7, tookAt=took_at)]
        await look(ui)
        assert panel(ui).display
        one, two = (text for text in ui.text.splitlines() if "vm:/" in text)
        assert ("12" in one, "3s of 30s" in one) == (True, True)
        assert ("7" in two, "5m ago" in two) == (True, True)
        ui.desk.members = []
        await look(ui)
        assert not panel(ui).display


async def test_a_late_lease_and_a_second_version_stand_out() -> None:
    async with showing() as ui:
        ui.desk.members = [hub("vm:/one"), hub("vm:/two")]
        await look(ui)
        assert not {Tone.WARN, Tone.BAD} & tones(ui, 1)
        ui.desk.members[1] = hub("vm:/two", leaseAgeS=16.0)
        await look(ui)
        assert Tone.WARN in tones(ui, 1)
        ui.desk.members[1] = hub("vm:/two", version="0.2.0", leaseAgeS=31.0)
        await look(ui)
        assert {Tone.WARN, Tone.BAD} <= tones(ui, 1)


async def test_hubs_that_cannot_be_read_stay_with_the_reason() -> None:
    async with showing() as ui:
        ui.desk.members = [hub("vm:/one")]
        await look(ui)
        ui.desk.error = NotAccepting("no database")
        await look(ui)
        assert ("vm:/one" in ui.text, "no database" in ui.text) == (True, True)


async def test_another_hub_that_stops_does_not_stop_the_screen() -> None:
    j = bare()
    async with showing(j.events) as ui:
        ui.desk.members = [hub("vm:/one", here=True)]
        await look(ui)
        j.say("hub.stopping")
        await ui.say(*j.events[-1:])
        assert "STOPPING" not in ui.text
        ui.desk.members = []
        await look(ui)
        assert "STOPPING" in ui.text


async def test_enter_on_a_hub_opens_nothing() -> None:
    async with showing() as ui:
        ui.desk.members = [hub("vm:/one")]
        await look(ui)
        panel(ui).focus()
        await ui.press("enter")
        assert ui.app.body.current == "fleet"
        await ui.press("y")
        assert ui.app.clipboard == "vm:/one"
