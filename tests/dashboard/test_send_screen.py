"""The form for a request to an agent: its draft, its history, and the request that both kinds of dashboards send."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from textual.app import App

from fleetsim.agent import Agent, SkillContext
from fleetsim.cli.controls import AttachedControls, HubControls
from fleetsim.dashboard.app import SENT_MAX
from fleetsim.dashboard.controls import TypedRequest
from fleetsim.dashboard.send_screen import SendScreen
from fleetsim.model.errors import ConfigError, NotAccepting, UnknownTarget
from fleetsim.model.task import DataPart, FilePart
from tests.dashboard.driver import Driver, showing
from tests.hub.local_hub import local_hub


def clerk() -> Agent:
    agent = Agent("quinn")

    @agent.skill("count")
    async def count(task: SkillContext) -> str:
        files = [part.filename for part in task.message.parts if isinstance(part, FilePart)]
        data = [part.data for part in task.message.parts if isinstance(part, DataPart)]
        return json.dumps([task.text, files, data])

    return agent


async def test_both_dashboards_send_text_files_and_data_of_the_form(tmp_path: Path) -> None:
    (tmp_path / "a b.txt").write_text("x")
    files = f"'{tmp_path}/a b.txt'"
    draft = TypedRequest(agent="quinn", skill="count", text="how many?", files=files, data='{"n": 1}')
    async with local_hub(clerk()) as t:
        for controls in (HubControls(t.hub), AttachedControls(lambda: t.remote)):
            outcome = await t.hub.tracker.wait(await controls.send(draft))
            assert json.loads(outcome.text) == ["how many?", ["a b.txt"], [{"n": 1}]]


@pytest.mark.parametrize(
    "wrong", [{"files": "nowhere.txt"}, {"files": "/dev/null"}, {"files": "'open"}, {"data": "{"}, {"data": "@secret"}]
)
async def test_a_file_or_data_that_cannot_be_read_is_refused_before_sending(wrong: dict[str, str]) -> None:
    async with local_hub(clerk()) as t:
        for controls in (HubControls(t.hub), AttachedControls(lambda: t.remote)):
            with pytest.raises(ConfigError):
                await controls.send(TypedRequest(agent="quinn", text="x", **wrong))
            with pytest.raises(UnknownTarget):
                await controls.send(TypedRequest(agent="nobody", text="x"))


def draft(ui: Driver) -> TypedRequest:
    assert isinstance(ui.app.screen, SendScreen)
    return ui.app.screen.draft


@pytest.mark.sockets
async def test_an_escape_and_a_refusal_keep_the_text() -> None:
    async with showing() as ui:
        await ui.press("s", *"hi q", "escape")
        assert "not sent" in ui.status
        assert ui.app.pane.id == "fleet"
        await ui.press("s")
        assert draft(ui).text == "hi q"
        ui.desk.error = NotAccepting("the disk is full")
        await ui.press("ctrl+s")
        assert "the disk is full" in ui.text
        assert draft(ui).text == "hi q"
        ui.desk.error = None
        await ui.press("ctrl+s")
        assert ui.pane.id == "tasks"
        assert ui.main.key == "sent-1"
        await ui.press("1", "s")
        assert draft(ui).blank
        await ui.press("ctrl+s")
        assert [one[0] for one in ui.desk.asked] == ["send", "send"]


@pytest.mark.sockets
async def test_a_form_in_a_browser_names_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(App, "is_web", True)
    async with showing() as ui:
        await ui.press("s")
        assert not ui.app.screen.query_one("#send-files").display


@pytest.mark.sockets
async def test_the_history_is_bounded_and_has_no_secrets() -> None:
    async with showing() as ui:
        for at in range(SENT_MAX + 1):
            await ui.press("1", "s", *str(at), "tab", "tab", *'{"password":"hunter22"}', "ctrl+s")
        await ui.press("1", "s", "ctrl+r")
        assert draft(ui).text == str(SENT_MAX)
        assert "hunter22" not in draft(ui).data
        await ui.press(*["ctrl+r"] * (SENT_MAX - 1))
        assert draft(ui).text == "1"
