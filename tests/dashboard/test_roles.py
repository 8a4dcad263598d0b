"""The screens of a person whose key has a role: its actions, hints and refusals."""

from __future__ import annotations

import pytest

from fleetsim.api.answers import AccessRole
from fleetsim.dashboard.actions import ACTIONS
from fleetsim.dashboard.view import ViewBuilder
from fleetsim.hub.endpoints import ENDPOINTS
from tests.dashboard.driver import EVENTS, asking, showing

pytestmark = pytest.mark.sockets  # the real loop, no socket is opened

ENDPOINT_OF = {
    "request": "request",
    "send": "reply",
    "reply": "reply",
    "edit": "reply",
    "reject": "reply",
    "cancel": "cancel",
    "again": "retry",
    "fire": "run_ceremony",
    "refresh-card": "refresh",
    "save": "task",
    "open-file": "task",
}
"""What each change on the screens calls at the hub."""


def test_each_action_needs_the_role_of_its_endpoint() -> None:
    roles = {endpoint.name: endpoint.role for endpoint in ENDPOINTS}
    changes = [action for action in ACTIONS if action.role]
    assert {a.id: a.role for a in changes} == {a.id: roles[ENDPOINT_OF[a.id]] for a in changes}


@pytest.mark.parametrize(
    ("role", "asked"),
    [
        (AccessRole.VIEWER, set()),
        (AccessRole.ANSWERER, {"reject", "answer"}),
        (AccessRole.OPERATOR, {"fire", "cancel", "refresh", "reject", "answer"}),
    ],
)
async def test_a_person_acts_as_the_role_of_the_key_allows(role: AccessRole, asked: set[str]) -> None:
    keys = ("4", "F", "y", "1", "R", "2", "x", "y", "3", "ctrl+r", "y", "enter", "o", "k", "ctrl+s")
    async with showing(EVENTS, *keys, role=role) as ui:
        await ui.settle()
        assert {what[0] for what in ui.desk.asked} == asked
        await ui.press("escape", "2")
        assert ("x cancel" in ui.text) is (role is AccessRole.OPERATOR)
        await ui.press("3")
        assert ("ctrl+s send" in ui.text) is (role is not AccessRole.VIEWER)


async def test_a_refused_action_names_the_roles_that_may() -> None:
    async with showing(EVENTS, "2", "x", role=AccessRole.VIEWER) as ui:
        assert "operator" in ui.status
        assert "viewer" in ui.status


async def test_another_hub_brings_the_role_of_the_key_there() -> None:
    async with showing(EVENTS) as ui:
        ui.desk.role_there = AccessRole.VIEWER
        await ui.app.run_command("hub http://other.example")
        await ui.settle()
        await ui.press("2")
        assert "x cancel" not in ui.text


async def test_the_page_of_a_task_names_who_cancelled_it() -> None:
    journal, about, *_ = asking()
    journal.say("audit.cancel", **about, by="olga", role="operator", action="cancel", object="x")
    builder = ViewBuilder()
    builder.fold_all(journal.events)
    detail = builder.detail(about["correlation_id"])
    assert detail is not None
    assert "cancel by olga" in [step.what for step in detail.steps]
