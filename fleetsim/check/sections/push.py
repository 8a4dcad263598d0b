"""What is asked of registering webhooks: set, get, list, delete, and what bounds them."""

from __future__ import annotations

from typing import Any

from fleetsim.check.exchange import Exchange
from fleetsim.check.fixtures import finished_task, register
from fleetsim.check.listener import Hook, state_of
from fleetsim.check.raw_dialect import TERMINAL, listed, mapping
from fleetsim.check.requirement import BOTH, BUILD_GUIDE, MUST, SHOULD, V03, V10, requirement
from fleetsim.check.session import Session
from fleetsim.check.verdict import fail_unless, fail_unless_error, not_tested_unless
from fleetsim.model.call import Operation

MANY = 30


def webhook_config(session: Session, result: Any) -> dict[str, Any]:
    """The config in an answer, nested or flat."""
    found = mapping(result)
    return dict(mapping(found.get("pushNotificationConfig")) or found)


@requirement(
    "P-01",
    "Registering a webhook returns it",
    MUST,
    dialects=BOTH,
    source=f"{BUILD_GUIDE}, 'The endpoint surface'; A2A 0.3 §7.5, 1.0 §3.1.7",
    remedy="Return the stored config.",
    needs=("push", "listener"),
)
async def set_returns_it(session: Session) -> None:
    """Register and read url and task of the answer."""
    hook = session.hook()
    task_id, _ = await session.fixture(finished_task)
    exchange = await register(session, task_id, hook, id="fleetsim-1", token=session.new())
    fail_unless(
        exchange.error is None and exchange.status == 200, f"registering a webhook gave {exchange.says()}", exchange
    )
    got = webhook_config(session, exchange.result).get("url")
    fail_unless(got == hook.url, f"the registered url came back as {got!r}", exchange)
    named = mapping(exchange.result).get("taskId")
    fail_unless(named == task_id, f"the answer names the task {named!r}", exchange)


async def _registered_webhook(session: Session, **config: Any) -> tuple[str, Hook, Exchange]:
    """A registered webhook on a finished task of its own. Raises NotPassed (not tested) if it is refused."""
    hook = session.hook()
    task_id, _ = await session.finished()
    exchange = await register(session, task_id, hook, **config)
    not_tested_unless(
        exchange.error is None and exchange.status == 200, f"registering a webhook gave {exchange.says()}", exchange
    )
    return task_id, hook, exchange


async def _call(session: Session, operation: Operation, task_id: str, config_id: str | None = None) -> Exchange:
    return await session.rpc(session.dialect.method(operation), session.dialect.of_hook(task_id, config_id))


@requirement(
    "P-02",
    "A registered webhook can be read",
    MUST,
    dialects=BOTH,
    source=f"{BUILD_GUIDE}, 'The endpoint surface'",
    remedy="Serve get from the live record.",
    incident="The original wanted params.taskId; every SDK sends params.id",
    needs=("push", "listener"),
)
async def get_reads_it(session: Session) -> None:
    """Get it by task and config id."""
    task_id, hook, exchange = await _registered_webhook(session, id="fleetsim-2")
    read = await _call(session, Operation.PUSH_GET, task_id, "fleetsim-2")
    fail_unless(read.error is None, f"reading a registered webhook gave {read.says()}", exchange, read)
    got = webhook_config(session, read.result).get("url")
    fail_unless(got == hook.url, f"get shows the url {got!r}", exchange, read)


def webhook_configs(session: Session, result: Any) -> list[dict[str, Any]] | None:
    """The configs in the answer to a list; None if it has another shape than the dialect's."""
    found = mapping(result).get("configs") if session.dialect.current else result
    return [webhook_config(session, entry) for entry in found] if isinstance(found, list) else None


@requirement(
    "P-03",
    "Registered webhooks can be listed",
    MUST,
    dialects=BOTH,
    source=f"{BUILD_GUIDE}, 'The endpoint surface'; A2A 0.3 §7.7, 1.0 §3.1.9",
    remedy="Return all configs of the task.",
    needs=("push", "listener"),
)
async def list_shows_it(session: Session) -> None:
    """List: an array in 0.3, {configs: [...]} in 1.0, with the registered url."""
    task_id, hook, exchange = await _registered_webhook(session, id="fleetsim-3")
    read = await _call(session, Operation.PUSH_LIST, task_id)
    fail_unless(read.error is None, f"listing webhooks gave {read.says()}", read)
    configs = webhook_configs(session, read.result)
    fail_unless(configs is not None, "the list has another shape than the dialect's", read)
    urls = [config.get("url") for config in configs or []]
    fail_unless(hook.url in urls, "the registered webhook is not in the list", exchange, read)


@requirement(
    "P-04",
    "A deleted webhook is gone",
    MUST,
    dialects=BOTH,
    source=f"{BUILD_GUIDE}, 'The endpoint surface'; A2A 0.3 §7.8, 1.0 §3.1.10",
    remedy="Remove the config from the live record.",
    needs=("push", "listener", "slow"),
    lasts_s=6,
)
async def delete_removes_it(session: Session) -> None:
    """Delete it while the slow task runs, list, and see that nothing is delivered at the end."""
    hook = session.hook()
    task_id, _ = await session.begin(session.hint("slow"))
    exchange = await register(session, task_id, hook, id="fleetsim-4")
    not_tested_unless(exchange.error is None, f"registering a webhook gave {exchange.says()}", exchange)
    gone = await _call(session, Operation.PUSH_DELETE, task_id, "fleetsim-4")
    fail_unless(gone.error is None, f"deleting a webhook gave {gone.says()}", gone)
    read = await _call(session, Operation.PUSH_LIST, task_id)
    left = [config.get("url") for config in webhook_configs(session, read.result) or []]
    fail_unless(hook.url not in left, "the deleted webhook is still listed", gone, read)
    await session.until(task_id)
    late = await hook.until(lambda arrival: state_of(arrival) in TERMINAL, 2)
    fail_unless(late is None, "the deleted webhook was still called", gone, *([late] if late else []))


@requirement(
    "P-05",
    "A webhook without a config id is read without one",
    SHOULD,
    dialects=V03,
    source="Reference interop, 'What the official conformance kit expects'",
    remedy="Fall back to the only config there is.",
    needs=("push", "listener"),
)
async def get_without_id(session: Session) -> None:
    """Register without an id, get with the task alone."""
    task_id, hook, exchange = await _registered_webhook(session)
    read = await _call(session, Operation.PUSH_GET, task_id)
    fail_unless(read.error is None, f"reading the only webhook gave {read.says()}", exchange, read)
    fail_unless(webhook_config(session, read.result).get("url") == hook.url, "another webhook was read", exchange, read)


@requirement(
    "P-06",
    "Deleting a webhook twice is no error",
    SHOULD,
    dialects=V10,
    source="A2A 1.0 §3.1.10",
    remedy="Make delete idempotent.",
    needs=("push", "listener"),
)
async def delete_twice(session: Session) -> None:
    """Delete the same config twice."""
    task_id, _, _ = await _registered_webhook(session, id="fleetsim-6")
    first = await _call(session, Operation.PUSH_DELETE, task_id, "fleetsim-6")
    not_tested_unless(first.error is None, f"deleting a webhook gave {first.says()}", first)
    again = await _call(session, Operation.PUSH_DELETE, task_id, "fleetsim-6")
    fail_unless(again.error is None, f"deleting it again gave {again.says()}", again)


@requirement(
    "P-07",
    "A webhook for an unknown task is -32001",
    MUST,
    dialects=BOTH,
    source=f"{BUILD_GUIDE}, 'Error code conventions'",
    remedy="Look the task up first.",
    needs=("push",),
)
async def unknown_task(session: Session) -> None:
    """Register for a task id nobody made."""
    url = session.agent.listener.origin + "/nobody" if session.agent.listener else "https://example.com/nobody"
    params = session.dialect.set_hook(session.new(), session.dialect.hook(url))
    exchange = await session.rpc(session.dialect.method(Operation.PUSH_SET), params)
    fail_unless_error(exchange, "a webhook for an unknown task", -32001)


@requirement(
    "P-35",
    "Webhooks per task are bounded",
    SHOULD,
    dialects=BOTH,
    source="Reference reliability T-23",
    remedy="Allow five or so: one small send must not make many large POSTs.",
    needs=("push", "listener", "side-effects"),
)
async def bounded(session: Session) -> None:
    """Register 30 configs on one task: at some point it must be refused."""
    task_id, _ = await session.finished()
    exchange = None
    for number in range(MANY):
        exchange = await register(session, task_id, session.hook(), id=f"fleetsim-many-{number}")
        if exchange.error is not None:
            return
    read = await _call(session, Operation.PUSH_LIST, task_id)
    kept = len(listed(webhook_configs(session, read.result) or []))
    fail_unless(kept < MANY, f"{MANY} webhooks were registered on one task, and {kept} are kept", read)
