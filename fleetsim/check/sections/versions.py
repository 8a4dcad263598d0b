"""What is asked of the version header."""

from __future__ import annotations

from fleetsim.check.exchange import written
from fleetsim.check.requirement import MUST, SHOULD, V03, V10, requirement
from fleetsim.check.session import Session
from fleetsim.check.verdict import fail_unless_error

NOWHERE = "fleetsim-no-such-task"


@requirement(
    "V-01",
    "A 1.0 method without A2A-Version is -32009",
    MUST,
    dialects=V10,
    source="A2A 1.0 §3.6.2 (a missing header means 0.3)",
    remedy="Take a missing version for 0.3, and refuse 1.0 method names under it with -32009.",
)
async def no_version(session: Session) -> None:
    """Call GetTask without the header, and with an empty one."""
    for headers in ({"a2a-version": ""}, None):
        body = written(session.envelope("GetTask", {"id": NOWHERE}))
        exchange = await session.agent.exchange("POST", session.endpoint, body=body, headers=headers)
        fail_unless_error(exchange, f"a 1.0 method with {'an empty' if headers else 'no'} A2A-Version", -32009)


@requirement(
    "V-02",
    "An unknown version is -32009",
    MUST,
    dialects=V10,
    source="A2A 1.0 §3.6.2",
    remedy="Check the header before the method and answer -32009.",
)
async def unknown_version(session: Session) -> None:
    """Call GetTask with A2A-Version: 99.0."""
    exchange = await session.rpc("GetTask", {"id": NOWHERE}, headers={"a2a-version": "99.0"})
    fail_unless_error(exchange, "A2A-Version: 99.0", -32009)


@requirement(
    "V-03",
    "0.3 methods do not mind a version header",
    SHOULD,
    dialects=V03,
    source="Reference interop, section 8",
    remedy="Check the version for 1.0 method names only.",
)
async def old_methods_do_not_mind(session: Session) -> None:
    """Call tasks/get with A2A-Version: 0.3."""
    exchange = await session.rpc("tasks/get", {"id": NOWHERE}, headers={"a2a-version": "0.3"})
    fail_unless_error(exchange, "tasks/get of an unknown task with A2A-Version: 0.3", -32001)
