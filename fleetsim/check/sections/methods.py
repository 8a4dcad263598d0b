"""Which methods there must be: anything but -32601 is an answer."""

from __future__ import annotations

from fleetsim.check.exchange import Exchange
from fleetsim.check.raw_dialect import RawDialect
from fleetsim.check.requirement import BOTH, BUILD_GUIDE, MUST, SHOULD, V03, V10, requirement
from fleetsim.check.session import Session
from fleetsim.check.verdict import fail_unless, not_applicable_unless
from fleetsim.model.call import Operation

SURFACE = f"{BUILD_GUIDE}, 'The endpoint surface'"
NOBODY = "fleetsim-no-such-task"

METHOD_REQUIREMENTS: dict[Operation, str] = {}
"""Which requirement says that a method is there: what leans on a missing one is not tested because of that one."""


def _exists(exchange: Exchange, method: str) -> None:
    fail_unless(exchange.code != -32601, f"{method} does not exist: {exchange.says()}", exchange)
    fail_unless(exchange.status not in {404, 405}, f"{method} gave {exchange.says()}", exchange)
    fail_unless(exchange.answer.get("jsonrpc") == "2.0", f"{method} gave {exchange.says()}", exchange)


def _params_for_nobody(dialect: RawDialect, operation: Operation) -> dict[str, object]:
    match operation:
        case Operation.LIST:
            return {"pageSize": 1, "historyLength": 0}  # whatever else is in the store, the answer is small
        case Operation.PUSH_SET:
            return dialect.set_hook(NOBODY, dialect.hook("https://example.com/hook"))
        case Operation.PUSH_GET | Operation.PUSH_LIST | Operation.PUSH_DELETE:
            return dialect.of_hook(NOBODY, NOBODY if operation is not Operation.PUSH_LIST else None)
        case _:
            return dialect.by_id(NOBODY)


async def _call(session: Session, operation: Operation) -> None:
    method = session.dialect.standard_method(operation)
    whole = operation in {Operation.SEND, Operation.STREAM}
    params = session.params(session.quick()) if whole else _params_for_nobody(session.dialect, operation)
    async with session.stream(method, params) as stream:
        await stream.next(10)
    _exists(stream.exchange, method)


def _method(requirement_id: str, operation: Operation, names: str, incident: str = "") -> None:
    METHOD_REQUIREMENTS[operation] = requirement_id

    @requirement(
        requirement_id,
        f"There is a method {names}",
        MUST,
        dialects=BOTH,
        source=SURFACE,
        remedy="Route the method; what is not supported is -32003 or -32004, never -32601.",
        incident=incident,
    )
    async def exists(session: Session) -> None:
        """Call it (with a text, or for an unknown task): anything but -32601 is an answer."""
        await _call(session, operation)


_method("M-01", Operation.SEND, "message/send, SendMessage")
_method("M-02", Operation.STREAM, "message/stream, SendStreamingMessage")
_method("M-04", Operation.GET, "tasks/get, GetTask")
_method("M-05", Operation.CANCEL, "tasks/cancel, CancelTask")
_method(
    "M-06",
    Operation.SUBSCRIBE,
    "tasks/resubscribe, SubscribeToTask",
    incident="selectools answers -32601 on resubscribe",
)
_PUSH = "tasks/pushNotificationConfig"
_method("M-07", Operation.PUSH_SET, f"{_PUSH}/set, CreateTaskPushNotificationConfig", "Quinn PR #25")
_method("M-08", Operation.PUSH_GET, f"{_PUSH}/get, GetTaskPushNotificationConfig", "Quinn PR #25")
_method("M-09", Operation.PUSH_LIST, f"{_PUSH}/list, ListTaskPushNotificationConfigs", "Quinn PR #25")
_method("M-10", Operation.PUSH_DELETE, f"{_PUSH}/delete, DeleteTaskPushNotificationConfig", "Quinn PR #25")


@requirement(
    "M-03",
    "message/sendStream is taken for message/stream",
    SHOULD,
    dialects=V03,
    source=SURFACE,
    remedy="Accept the alias: protoPen-era clients still use it.",
    after="M-10",
)
async def old_name_of_stream(session: Session) -> None:
    """Call the old name with the params of a stream."""
    not_applicable_unless(session.agent.streaming, "the card offers no streams")
    async with session.stream("message/sendStream", session.params(session.quick())) as stream:
        await stream.next(10)
    exchange = stream.exchange
    _exists(exchange, "message/sendStream")
    fail_unless(exchange.frames, f"message/sendStream gave {exchange.says()}, no stream", exchange)


METHOD_REQUIREMENTS[Operation.LIST] = "M-11"


@requirement(
    "M-11",
    "There is a method ListTasks",
    MUST,
    dialects=V10,
    source="A2A 1.0 §3.1.4",
    remedy="Route ListTasks.",
)
async def list_tasks(session: Session) -> None:
    """Call it with empty params."""
    await _call(session, Operation.LIST)
