"""Probes of registering webhooks: set, get, list, delete, and what bounds them."""

from __future__ import annotations

from typing import Any

from fleetsim.check.exchange import Exchange
from fleetsim.check.found import demand, need
from fleetsim.check.listener import Hook, state_of
from fleetsim.check.probe import probe
from fleetsim.check.probes.envelope import refused
from fleetsim.check.scenes import done, register
from fleetsim.check.session import Session
from fleetsim.check.tongue import TERMINAL, listed, mapping
from fleetsim.model.call import Operation

MANY = 30


def config_of(session: Session, result: Any) -> dict[str, Any]:
    """The config in an answer, nested or flat."""
    found = mapping(result)
    return dict(mapping(found.get("pushNotificationConfig")) or found)


async def fresh(session: Session, **config: Any) -> tuple[str, Hook, Exchange]:
    """A registered webhook on a finished task of its own. Raises Stop (not tested) if it is refused."""
    hook = session.hook()
    task_id, _ = await session.finished()
    made = await register(session, task_id, hook, **config)
    need(made.error is None and made.status == 200, f"registering a webhook gave {made.says()}", made)
    return task_id, hook, made


async def _ref(session: Session, operation: Operation, task_id: str, config_id: str | None = None) -> Exchange:
    return await session.rpc(session.tongue.method(operation), session.tongue.of_hook(task_id, config_id))


@probe("P-01")
async def set_returns_it(session: Session) -> None:
    """The answer to a registration."""
    hook = session.hook()
    task_id, _ = await session.scene(done)
    made = await register(session, task_id, hook, id="fleetsim-1", token=session.new())
    demand(made.error is None and made.status == 200, f"registering a webhook gave {made.says()}", made)
    got = config_of(session, made.result).get("url")
    demand(got == hook.url, f"the registered url came back as {got!r}", made)
    named = mapping(made.result).get("taskId")
    demand(named == task_id, f"the answer names the task {named!r}", made)


@probe("P-02")
async def get_reads_it(session: Session) -> None:
    """Read it by id."""
    task_id, hook, made = await fresh(session, id="fleetsim-2")
    read = await _ref(session, Operation.PUSH_GET, task_id, "fleetsim-2")
    demand(read.error is None, f"reading a registered webhook gave {read.says()}", made, read)
    got = config_of(session, read.result).get("url")
    demand(got == hook.url, f"get shows the url {got!r}", made, read)


def _configs(session: Session, result: Any) -> list[dict[str, Any]] | None:
    found = mapping(result).get("configs") if session.tongue.current else result
    return [config_of(session, entry) for entry in found] if isinstance(found, list) else None


@probe("P-03")
async def list_shows_it(session: Session) -> None:
    """List them."""
    task_id, hook, made = await fresh(session, id="fleetsim-3")
    read = await _ref(session, Operation.PUSH_LIST, task_id)
    demand(read.error is None, f"listing webhooks gave {read.says()}", read)
    configs = _configs(session, read.result)
    demand(configs is not None, "the list has another shape than the dialect's", read)
    urls = [config.get("url") for config in configs or []]
    demand(hook.url in urls, "the registered webhook is not in the list", made, read)


@probe("P-04", lasts_s=6)
async def delete_removes_it(session: Session) -> None:
    """Delete while the task runs."""
    hook = session.hook()
    task_id, _ = await session.begin(session.hint("slow"))
    made = await register(session, task_id, hook, id="fleetsim-4")
    need(made.error is None, f"registering a webhook gave {made.says()}", made)
    gone = await _ref(session, Operation.PUSH_DELETE, task_id, "fleetsim-4")
    demand(gone.error is None, f"deleting a webhook gave {gone.says()}", gone)
    read = await _ref(session, Operation.PUSH_LIST, task_id)
    left = [config.get("url") for config in _configs(session, read.result) or []]
    demand(hook.url not in left, "the deleted webhook is still listed", gone, read)
    await session.until(task_id)
    late = await hook.until(lambda arrival: state_of(arrival) in TERMINAL, 2)
    demand(late is None, "the deleted webhook was still called", gone, *([late] if late else []))


@probe("P-05")
async def get_without_id(session: Session) -> None:
    """Read the only one."""
    task_id, hook, made = await fresh(session)
    read = await _ref(session, Operation.PUSH_GET, task_id)
    demand(read.error is None, f"reading the only webhook gave {read.says()}", made, read)
    demand(config_of(session, read.result).get("url") == hook.url, "another webhook was read", made, read)


@probe("P-06")
async def delete_twice(session: Session) -> None:
    """Delete what is gone."""
    task_id, _, _ = await fresh(session, id="fleetsim-6")
    first = await _ref(session, Operation.PUSH_DELETE, task_id, "fleetsim-6")
    need(first.error is None, f"deleting a webhook gave {first.says()}", first)
    again = await _ref(session, Operation.PUSH_DELETE, task_id, "fleetsim-6")
    demand(again.error is None, f"deleting it again gave {again.says()}", again)


@probe("P-07")
async def unknown_task(session: Session) -> None:
    """Register for nobody."""
    url = session.subject.listener.origin + "/nobody" if session.subject.listener else "https://example.com/nobody"
    params = session.tongue.set_hook(session.new(), session.tongue.hook(url))
    made = await session.rpc(session.tongue.method(Operation.PUSH_SET), params)
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
    demand(kept < MANY, f"{MANY} webhooks were registered on one task, and {kept} are kept", read)
