"""Rows and exchanges as folded JSON, with search; texts of agents stay harmless."""

from __future__ import annotations

import pytest
from textual.widgets import Tree

from fleetsim.dashboard.json_screen import JsonScreen, parsed
from tests.dashboard.driver import EVENTS, Driver, answered, showing
from tests.dashboard.test_wire_screen import exchange, open_log

pytestmark = pytest.mark.sockets  # the real loop, no socket is opened


async def search(ui: Driver, words: str) -> str:
    """The label under the cursor after a search."""
    await ui.press("slash", *words, "enter")
    node = ui.app.screen.query_one(Tree).cursor_node
    return "" if node is None else str(node.label)


async def test_a_search_goes_to_each_place_in_turn_and_escape_closes_one_thing_at_a_time() -> None:
    async with showing(answered()[0].events, "2", "d", size=(60, 20)) as ui:
        first = await search(ui, "quinn")
        assert "quinn" in first
        await ui.press("n")
        assert await search(ui, "request accepted") == 'what: "request accepted"'
        await ui.press("slash", *"nowhere", "enter")
        assert "not found" in ui.text
        await ui.press("slash", "escape")
        assert isinstance(ui.app.screen, JsonScreen)
        await ui.press("escape")
        assert ui.pane.id == "tasks"


async def test_an_agent_without_skills_has_its_facts() -> None:
    async with showing(EVENTS, "enter", "d") as ui:
        assert await search(ui, "refused") == 'why: "connection refused"'


async def test_the_bodies_of_an_exchange_are_branches_and_harmless() -> None:
    frames = [{"afterS": 0.1, "bytes": 9, "text": 'data: {"done": 7}'}]
    reply = '{"[/evil]\\u202e": "\\u001b[31m[bold]red\\nmore"}'
    async with open_log(exchange(1, reply=reply, frames=frames)) as ui:
        await ui.press("d")
        assert await search(ui, "hello") == 'text: "hello"'
        assert "red more" in await search(ui, "more")
        assert not {"\x1b", "\u202e"} & set(ui.text)
        assert await search(ui, "done") == "done: 7"


def test_a_text_that_is_no_json_stays_a_text() -> None:
    assert parsed("{broken") == "{broken"
