"""What is asked of ListTasks."""

from __future__ import annotations

from typing import Any

from fleetsim.check.exchange import Exchange
from fleetsim.check.raw_dialect import listed, mapping
from fleetsim.check.requirement import MUST, V10, requirement
from fleetsim.check.session import Session
from fleetsim.check.verdict import fail_unless, fail_unless_error, not_tested_unless
from fleetsim.model.call import Operation


async def three_tasks(session: Session) -> tuple[str, list[str]]:
    """Three tasks of one context that have ended: the context, and their ids."""
    context = session.new()
    return context, [(await session.finished(contextId=context))[0] for _ in range(3)]


async def _list(session: Session, **params: Any) -> Exchange:
    exchange = await session.rpc(session.dialect.method(Operation.LIST), params)
    fail_unless(exchange.error is None, f"ListTasks gave {exchange.says()}", exchange)
    fail_unless(isinstance(mapping(exchange.result).get("tasks"), list), "ListTasks returned no tasks array", exchange)
    return exchange


def _ids(exchange: Exchange) -> list[Any]:
    return [mapping(task).get("id") for task in listed(mapping(exchange.result).get("tasks"))]


@requirement(
    "T-22",
    "ListTasks pages through all tasks once",
    MUST,
    dialects=V10,
    source="A2A 1.0 §3.1.4",
    remedy="Return nextPageToken ('' at the end), pageSize and totalSize; use stable cursors.",
)
async def list_pages(session: Session) -> None:
    """Make three tasks in one context and list them with pageSize 1 to the end."""
    context, ids = await session.fixture(three_tasks)
    seen: list[Any] = []
    token = ""
    for _ in range(6):
        exchange = await _list(session, contextId=context, pageSize=1, **({"pageToken": token} if token else {}))
        page = mapping(exchange.result)
        fail_unless(len(_ids(exchange)) <= 1, f"a page of 1 holds {len(_ids(exchange))} tasks", exchange)
        seen += _ids(exchange)
        token = page.get("nextPageToken", "")
        if not token:
            break
    fail_unless(not token, "the pages do not end", exchange)
    fail_unless(sorted(map(str, seen)) == sorted(ids), f"{len(ids)} tasks were listed as {len(seen)}", exchange)
    total = page.get("totalSize")
    fail_unless(total is None or total == len(ids), f"totalSize is {total!r} of {len(ids)}", exchange)


@requirement(
    "T-23",
    "ListTasks filters by context and state",
    MUST,
    dialects=V10,
    source="A2A 1.0 §3.1.4",
    remedy="Apply every filter of the request.",
)
async def list_filters(session: Session) -> None:
    """List with contextId, and with a state the tasks are not in."""
    context, ids = await session.fixture(three_tasks)
    exchange = await _list(session, contextId=context)
    fail_unless(sorted(map(str, _ids(exchange))) == sorted(ids), "a list by contextId holds other tasks", exchange)
    none = await _list(session, contextId=context, status="TASK_STATE_WORKING")
    fail_unless(not _ids(none), "a list of working tasks holds finished ones", none)


@requirement(
    "T-24",
    "ListTasks refuses a pageSize out of 1 to 100",
    MUST,
    dialects=V10,
    source="A2A 1.0 §3.1.4",
    remedy="Answer -32602.",
)
async def list_bounds(session: Session) -> None:
    """List with pageSize 0 and 101."""
    for size in (0, 101):
        exchange = await session.rpc(session.dialect.method(Operation.LIST), {"pageSize": size})
        fail_unless_error(exchange, f"pageSize {size}", -32602)


@requirement(
    "T-25",
    "ListTasks leaves artifacts out unless asked",
    MUST,
    dialects=V10,
    source="A2A 1.0 §3.1.4",
    remedy="Omit artifacts unless includeArtifacts is true.",
)
async def list_artifacts(session: Session) -> None:
    """List with and without includeArtifacts."""
    context, _ = await session.fixture(three_tasks)
    bare = await _list(session, contextId=context)
    fail_unless(not any(mapping(t).get("artifacts") for t in mapping(bare.result)["tasks"]), "artifacts unasked", bare)
    whole = await _list(session, contextId=context, includeArtifacts=True)
    completed = [t for t in mapping(whole.result)["tasks"] if session.dialect.state(t) == "completed"]
    not_tested_unless(completed, "no task completed", whole)
    read = await session.get(mapping(completed[0]).get("id"))
    if session.dialect.task(read.result).get("artifacts"):
        fail_unless(
            any(mapping(t).get("artifacts") for t in completed), "includeArtifacts: true shows none", whole, read
        )
