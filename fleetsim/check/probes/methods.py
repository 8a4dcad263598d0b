"""Probes of which methods there are: anything but -32601 is an answer."""

from __future__ import annotations

from fleetsim.check.exchange import Exchange
from fleetsim.check.probe import probe
from fleetsim.check.raw_dialect import RawDialect
from fleetsim.check.rows_wire import METHOD_ROWS
from fleetsim.check.session import Session
from fleetsim.check.verdict import fail_unless, not_applicable_unless
from fleetsim.model.call import Operation

NOBODY = "fleetsim-no-such-task"


def _exists(made: Exchange, method: str) -> None:
    fail_unless(made.code != -32601, f"{method} does not exist: {made.says()}", made)
    fail_unless(made.status not in {404, 405}, f"{method} gave {made.says()}", made)
    fail_unless(made.answer.get("jsonrpc") == "2.0", f"{method} gave {made.says()}", made)


def _empty(dialect: RawDialect, operation: Operation) -> dict[str, object]:
    match operation:
        case Operation.LIST:
            return {"pageSize": 1, "historyLength": 0}  # whatever else is in the store, the answer is small
        case Operation.PUSH_SET:
            return dialect.set_hook(NOBODY, dialect.hook("https://example.com/hook"))
        case Operation.PUSH_GET | Operation.PUSH_LIST | Operation.PUSH_DELETE:
            return dialect.of_hook(NOBODY, NOBODY if operation is not Operation.PUSH_LIST else None)
        case _:
            return dialect.by_id(NOBODY)


def _register(row_id: str, operation: Operation) -> None:
    async def exists(session: Session) -> None:
        method = session.dialect.standard_method(operation)
        whole = operation in {Operation.SEND, Operation.STREAM}
        params = session.params(session.quick()) if whole else _empty(session.dialect, operation)
        async with session.stream(method, params) as stream:
            await stream.next(10)
        _exists(stream.exchange, method)

    exists.__doc__ = f"Call {operation.value}."
    probe(row_id)(exists)


for _operation, _row in METHOD_ROWS.items():
    _register(_row, _operation)


@probe("M-03")
async def alias(session: Session) -> None:
    """The old name of message/stream."""
    not_applicable_unless(session.agent.streaming, "the card offers no streams")
    async with session.stream("message/sendStream", session.params(session.quick())) as stream:
        await stream.next(10)
    made = stream.exchange
    _exists(made, "message/sendStream")
    fail_unless(stream.exchange.frames, f"message/sendStream gave {made.says()}, no stream", made)
