"""A limit that is written down is one that holds."""

from __future__ import annotations

import dataclasses
import re

import pytest

from fleetsim.agent.limits import AgentLimits
from fleetsim.caller.gate import GateLimits
from fleetsim.caller.ledger.sqlite import LedgerLimits
from fleetsim.caller.track import Rules
from fleetsim.client.core import ClientLimits
from fleetsim.runtime.http_sse import StreamLimits
from fleetsim.runtime.ports import Limits
from tests.house.tree import sources


@pytest.mark.parametrize(
    "limits",
    [AgentLimits, GateLimits, LedgerLimits, Rules, ClientLimits, StreamLimits, Limits],
    ids=lambda c: c.__name__,
)
def test_every_limit_is_read_by_the_code_that_keeps_it(limits: type) -> None:
    code = "\n".join(path.read_text() for path in sources("fleetsim"))
    unread = [f.name for f in dataclasses.fields(limits) if not re.search(rf"\.{f.name}\b", code)]
    assert unread == []
