"""Probes of registering webhooks: set, get, list, delete, and what bounds them."""

from __future__ import annotations

from typing import Any

from fleetsim.check.exchange import Exchange
from fleetsim.check.fixtures import finished_task, register
from fleetsim.check.listener import Hook, state_of
from fleetsim.check.probe import probe
from fleetsim.check.probes.envelope import refused
from fleetsim.check.raw_dialect import TERMINAL, listed, mapping
from fleetsim.check.session import Session
from fleetsim.check.verdict import fail_unless, not_tested_unless
from fleetsim.model.call import Operation

MANY = 30


def config_of(session: Session, result: Any) -> dict[str, Any]:
    """The config in an answer, nested or flat."""
    found = mapping(result)
    return dict(mapping(found.get("pushNotificationConfig")) or found)


async def fresh(session: Session, **config: Any) -> tuple[str, Hook, Exchange]:
    """A registered webhook on a finished task of its own. Raises NotPassed (not tested) if it is refused."""
    hook = session.hook()
    task_id, _ = await session.finished()
    made = await register(session, task_id, hook, **config)
    not_tested_unless(made.error is None and made.status == 200, f"registering a webhook gave {made.says()}", made)
    return task_id, hook, made


async def _ref(session: Session, operation: Operation, task_id: str, config_id: str | None = None) -> Exchange:
    return await session.rpc(session.dialect.method(operation), session.dialect.of_hook(task_id, config_id))


@probe("P-01")
async def set_returns_it(session: Session) -> None:
    """The answer to a registration."""
    hook = session.hook()
    task_id, _ = await session.fixture(finished_task)
    made = await register(session, task_id, hook, id="fleetsim-1", token=session.new())
    fail_unless(made.error is None and made.status == 200, f"registering a webhook gave {made.says()}", made)
    got = config_of(session, made.result).get("url")
    fail_unless(got == hook.url, f"the registered url came back as {got!r}", made)
    named = mapping(made.result).get("taskId")
    fail_unless(named == task_id, f"the answer names the task {named!r}", made)


@probe("P-02")
async def get_reads_it(session: Session) -> None:
    """Read it by id."""
    task_id, hook, made = await fresh(session, id="fleetsim-2")
    read = await _ref(session, Operation.PUSH_GET, task_id, "fleetsim-2")
    fail_unless(read.error is None, f"reading a registered webhook gave {read.says()}", made, read)
    got = config_of(session, read.result).get("url")
    fail_unless(got == hook.url, f"get shows the url {got!r}", made, read)


def _configs(session: Session, result: Any) -> list[dict[str, Any]] | None:
    found = mapping(result).get("configs") if session.dialect.current else result
    return [config_of(session, entry) for entry in found] if isinstance(found, list) else None


@probe("P-03")
async def list_shows_it(session: Session) -> None:
    """List them."""
    task_id, hook, made = await fresh(session, id="fleetsim-3")
    read = await _ref(session, Operation.PUSH_LIST, task_id)
    fail_unless(read.error is None, f"listing webhooks gave {read.says()}", read)
    configs = _configs(session, read.result)
    fail_unless(configs is not None, "the list has another shape than the dialect's", read)
    urls = [config.get("url") for config in configs or []]
    fail_unless(hook.url in urls, "the registered webhook is not in the list", made, read)


@probe("P-04", lasts_s=6)
async def delete_removes_it(session: Session) -> None:
    """Delete while the task runs."""
    hook = session.hook()
    task_id, _ = await session.begin(session.hint("slow"))
    made = await register(session, task_id, hook, id="fleetsim-4")
    not_tested_unless(made.error is None, f"registering a webhook gave {made.says()}", made)
    gone = await _ref(session, Operation.PUSH_DELETE, task_id, "fleetsim-4")
    fail_unless(gone.error is None, f"deleting a webhook gave {gone.says()}", gone)
    read = await _ref(session, Operation.PUSH_LIST, task_id)
    left = [config.get("url") for config in _configs(session, read.result) or []]
    fail_unless(hook.url not in left, "the deleted webhook is still listed", gone, read)
    await session.until(task_id)
    late = await hook.until(lambda arrival: state_of(arrival) in TERMINAL, 2)
    fail_unless(late is None, "the deleted webhook was still called", gone, *([late] if late else []))


@probe("P-05")
async def get_without_id(session: Session) -> None:
    """Read the only one."""
    task_id, hook, made = await fresh(session)
    read = await _ref(session, Operation.PUSH_GET, task_id)
    fail_unless(read.error is None, f"reading the only webhook gave {read.says()}", made, read)
    fail_unless(config_of(session, read.result).get("url") == hook.url, "another webhook was read", made, read)


@probe("P-06")
async def delete_twice(session: Session) -> None:
    """Delete what is gone."""
    task_id, _, _ = await fresh(session, id="fleetsim-6")
    first = await _ref(session, Operation.PUSH_DELETE, task_id, "fleetsim-6")
    not_tested_unless(first.error is None, f"deleting a webhook gave {first.says()}", first)
    again = await _ref(session, Operation.PUSH_DELETE, task_id, "fleetsim-6")
    fail_unless(again.error is None, f"deleting it again gave {again.says()}", again)


@probe("P-07")
async def unknown_task(session: Session) -> None:
    """Register for nobody."""
    url = session.agent.listener.origin + "/nobody" if session.agent.listener else "https://example.com/nobody"
    params = session.dialect.set_hook(session.new(), session.dialect.hook(url))
    made = await session.rpc(session.dialect.method(Operation.PUSH_SET), params)
    refused(made, "a webhook for an unknown task", -32001)


@probe("P-35")
async def bounded(session: Session) -> None:
    """Thirty webhooks."""
    task_id, _ = await session.finished()
    made = None
    for number in range(MANY):
        made = await register(session, task_id, session.hook(), id=f"fleetsim-many-{number}")
        if made.error is not None:
            return
    read = await _ref(session, Operation.PUSH_LIST, task_id)
    kept = len(listed(_configs(session, read.result) or []))
    fail_unless(kept < MANY, f"{MANY} webhooks were registered on one task, and {kept} are kept", read)
