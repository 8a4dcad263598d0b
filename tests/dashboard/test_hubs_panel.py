"""The panel of the hubs that share the ledger."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from fleetsim.api.health import HubMember
from fleetsim.api.state import HubState
from fleetsim.dashboard.labels import Tone
from fleetsim.dashboard.widgets import Grid
from fleetsim.events.fleet import StateRead
from tests.dashboard.driver import Driver, bare, showing
from tests.dashboard.journal import NOW


def hub(name: str, **facts: Any) -> HubMember:
    row = HubMember(
        hub=1, name=name, version="0.1.0", started_at=NOW - timedelta(hours=3), lease_age_s=3.2, lease_s=30.0, owned=0
    )
    return replace(row, **facts)


def panel(ui: Driver) -> Grid:
    return ui.app.query_one("#hubs", Grid)


def tones(ui: Driver, at: int) -> set[str]:
    row = panel(ui).rows
    return {str(span.style) for cell in row.words(row.items[at]).cells for span in cell.spans}


async def look(ui: Driver, *hubs: HubMember, **facts: Any) -> None:
    """The state of a hub that shares its ledger with others arrives."""
    await ui.say(StateRead.of(HubState(seq=1, at=NOW, hubs=hubs, **facts)))


@pytest.mark.parametrize("width", [60, 80, 120, 200])
async def test_hubs_that_share_a_ledger_have_a_panel_with_work_lease_and_take_over(width: int) -> None:
    async with showing(size=(width, 36)) as ui:
        assert not panel(ui).display
        took_at = NOW - timedelta(minutes=5)
        await look(ui, hub("vm:/one", here=True, owned=12), hub("vm:/two", took=7, took_at=took_at))
        assert panel(ui).display
        one, two = (text for text in ui.text.splitlines() if "vm:/" in text)
        assert ("12" in one, "3s of 30s" in one) == (True, True)
        assert ("7" in two, "5m ago" in two) == (True, True)
        await look(ui)
        assert not panel(ui).display


async def test_a_late_lease_and_a_second_version_stand_out() -> None:
    async with showing() as ui:
        await look(ui, hub("vm:/one"), hub("vm:/two"))
        assert not {Tone.WARN, Tone.BAD} & tones(ui, 1)
        await look(ui, hub("vm:/one"), hub("vm:/two", lease_age_s=16.0))
        assert Tone.WARN in tones(ui, 1)
        await look(ui, hub("vm:/one"), hub("vm:/two", version="0.2.0", lease_age_s=31.0))
        assert {Tone.WARN, Tone.BAD} <= tones(ui, 1)


async def test_another_hub_that_stops_does_not_stop_the_screen() -> None:
    j = bare()
    async with showing(j.events) as ui:
        await look(ui, hub("vm:/one", here=True))
        j.say("hub.stopping")
        await ui.say(*j.events[-1:])
        assert "STOPPING" not in ui.text
        await look(ui, stopping=True)
        assert "STOPPING" in ui.text


async def test_enter_on_a_hub_opens_nothing() -> None:
    async with showing() as ui:
        await look(ui, hub("vm:/one"))
        panel(ui).focus()
        await ui.press("enter")
        assert ui.app.body.current == "fleet"
        await ui.press("y")
        assert ui.app.clipboard == "vm:/one"
