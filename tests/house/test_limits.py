"""A documented limit is enforced."""

from __future__ import annotations

import re
from typing import get_type_hints

import pytest

from fleetsim.agent.limits import AgentLimits
from fleetsim.caller.receiver import ReceiverLimits
from fleetsim.client import ClientLimits, hub_client
from fleetsim.hub import http as hub_http
from fleetsim.ledger import LedgerLimits
from fleetsim.model.limits import PARTS_BYTES_MAX, ROW_BYTES_MAX, TEXT_CHARS_MAX
from fleetsim.request.track import Rules
from fleetsim.runtime import webhook
from fleetsim.runtime.ports import Limits
from fleetsim.runtime.sse import StreamLimits
from fleetsim.wire import json
from tests.house.tree import TOP, sources


def test_every_text_within_the_two_chosen_limits_fits_through_every_door() -> None:
    """A character is twelve bytes at worst, base64 four for three: no limit of a door may be lower."""
    needed = 12 * TEXT_CHARS_MAX + 4 * PARTS_BYTES_MAX // 3
    doors = {
        "an answer": Limits().body_bytes_max,
        "an answer to the client": ClientLimits().body_bytes_max,
        "a line of a stream": StreamLimits().line_bytes_max,
        "an event of a stream": StreamLimits().event_bytes_max,
        "a stream": StreamLimits().stream_bytes_max // 2,
        "a webhook that comes": ReceiverLimits().body_bytes_max,
        "a webhook that goes": webhook.BODY_BYTES_MAX,
        "a notice of the agent": AgentLimits().notice_bytes_max,
        "a request to the agent": AgentLimits().body_bytes_max,
        "a request to the hub": hub_http.BODY_BYTES_MAX,
        "an answer of the hub": hub_client.REPLY_BYTES_MAX // 2,
        "JSON": json.BODY_BYTES_MAX,
        "a row": ROW_BYTES_MAX // 4,
    }
    assert {name: size for name, size in doors.items() if size < needed} == {}
    for chars in (Rules().text_chars_max, ClientLimits().text_chars_max, AgentLimits().text_chars_max):
        assert chars == TEXT_CHARS_MAX


def test_no_module_has_a_text_limit_of_its_own() -> None:
    """The number that cuts a prompt, an answer or an outcome stands in one place; a shorter one makes an excerpt."""
    own = re.compile(r"\b(?:text|prompt|content)\[:\s*[A-Z\d_]+\]")
    packages = {"agent", "caller", "client", "dashboard", "hub", "model"}
    mine = [
        path for path in sources("fleetsim") if packages & set(path.relative_to(TOP).parts) and path.name != "cron.py"
    ]
    found = {path.name: own.findall(path.read_text()) for path in mine}
    assert {name: cuts for name, cuts in found.items() if cuts} == {}


@pytest.mark.parametrize(
    "limits",
    [AgentLimits, LedgerLimits, Rules, ClientLimits, StreamLimits, Limits],
    ids=lambda c: c.__name__,
)
def test_every_limit_is_read_by_the_code_that_enforces_it(limits: type) -> None:
    code = "\n".join(path.read_text() for path in sources("fleetsim"))
    unread = [name for name in get_type_hints(limits) if not re.search(rf"\.{name}\b", code)]
    assert unread == []
