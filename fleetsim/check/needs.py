"""The preconditions of a row, each learned once for a session. Without one of them the row is not tested.

Some are looked at before the probe: an option, a promise of the card, a webhook that can be registered. Others show
in the answers to it: a method that the agent does not know, a task that it cannot read back. The row would then fail
or pass for another reason; the row of that method, or of that task, reports it once.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cache

from fleetsim.check.agent_under_test import AgentUnderTest, Options
from fleetsim.check.evidence import Exchange, NotPassed, Verdict, not_tested_unless
from fleetsim.check.raw_dialect import RawDialect, mapping
from fleetsim.check.requirement import SECTIONS, Requirement
from fleetsim.check.session import OLD_STREAM, Session, finished_task, registration, slow_task_is_too_long
from fleetsim.model.call import Operation

NOWHERE = "fleetsim-no-such-task"
NO_METHOD = "fleetsim/noSuchMethod"

METHOD_ROWS: Mapping[Operation, str] = {
    Operation.SEND: "M-01",
    Operation.STREAM: "M-02",
    Operation.GET: "M-04",
    Operation.CANCEL: "M-05",
    Operation.SUBSCRIBE: "M-06",
    Operation.PUSH_SET: "M-07",
    Operation.PUSH_GET: "M-08",
    Operation.PUSH_LIST: "M-09",
    Operation.PUSH_DELETE: "M-10",
    Operation.LIST: "M-11",
}
"""The row that says whether the agent knows a method."""

READ_ROW = "T-06"
"""The row that says whether the agent can read its tasks back."""

_INSIDE = "fleetsim runs the agent itself (fleetsim check --app MODULE:ATTR)"
NEEDS_HOURS = f"needs hours: seen where {_INSIDE}"
_AT_FIRST: Mapping[str, tuple[Callable[[AgentUnderTest, Options], bool], Verdict, str]] = {
    "streaming": (lambda s, _: s.streaming, Verdict.NOT_APPLICABLE, "the card offers no streams"),
    "push": (lambda s, _: s.push, Verdict.NOT_APPLICABLE, "the card offers no webhooks"),
    "aliases": (lambda s, _: s.has_aliases, Verdict.NOT_APPLICABLE, "the card offers HTTP+JSON of 1.0 alone"),
    "auth": (lambda s, _: s.demands_auth, Verdict.NOT_APPLICABLE, "the agent demands no credentials"),
    "second-key": (
        lambda s, _: s.target.other_headers is not None,
        Verdict.NOT_TESTED,
        "needs a second caller's credentials: add --other-key-env VAR",
    ),
    "side-effects": (
        lambda _, k: k.side_effects,
        Verdict.NOT_TESTED,
        "costs or leaves traces: add --allow-side-effects",
    ),
    "time": (lambda _, k: k.virtual, Verdict.NOT_TESTED, NEEDS_HOURS),
    "in-process": (lambda _, k: k.inside is not None, Verdict.NOT_TESTED, f"seen only from inside: where {_INSIDE}"),
}
"""For each need whether it is met, and the verdict and reason if it is not."""


async def check_needs(requirement: Requirement, session: Session) -> None:
    """Raise NotPassed for the first need of a row that is not met before its probe."""
    agent, options = session.agent, session.options
    over_rpc = "json-rpc" not in requirement.needs or not session.dialect.over_http
    not_tested_unless(over_rpc, "needs JSON-RPC: this check runs over HTTP+JSON")
    for need, (met, verdict, reason) in _AT_FIRST.items():
        if need in requirement.needs and not met(agent, options):
            raise NotPassed(verdict, reason)
    for kind in ("slow", "ask", "fail", "stream"):
        if kind in requirement.needs:
            session.hint(kind)
    if "end" in requirement.needs and session.has(slow_task_is_too_long):
        not_tested_unless(not (reason := await too_long(session)), reason)
    if "listener" in requirement.needs:
        place = session.listener.place
    if "push" not in requirement.needs and "listener" not in requirement.needs:
        return
    taken = await session.fixture(registration)
    needs = f"needs a webhook that can be registered: {taken} (C-07)"
    not_tested_unless(taken.code not in {-32003, -32004}, needs, taken)
    if "listener" in requirement.needs:
        not_tested_unless(
            not taken.refuses_webhook,
            f"needs a webhook to the listener ({place}), which gave {taken}: add it to the agent's allow-list "
            f"(fleetsim's: Agent(allow_webhook=[{place!r}]), or fleetsim agent --allow-webhook {place})",
            taken,
        )
        not_tested_unless(taken.granted, f"registering a webhook gave {taken}", taken)


async def too_long(session: Session) -> str:
    """Why rows that wait for the end of a slow task are not tested, timed once; empty if such tasks end in time."""
    try:
        goes_on = await session.fixture(slow_task_is_too_long)
    except NotPassed:  # the rows say why there is no such task
        return ""
    limit = f"{session.options.limit_s:g} s"
    return f"the task takes longer than {limit}; name a shorter one with --skill-slow" if goes_on else ""


async def unmet(requirement: Requirement, session: Session, asked: Iterable[Exchange]) -> str:
    """The need that the answers to a probe show to be missing, as a reason; empty if there is none.

    Rows about methods and about the card are different: they may fail because a promised method is missing.
    """
    asked = list(asked)
    for exchange in asked:
        if exchange.status == 401 and exchange.operation and requirement.section != SECTIONS["A"]:
            method = session.dialect.standard_method(exchange.operation)
            return f"needs a credential: {method} gave HTTP 401; 'fleetsim card' shows which one"
    if requirement.section in {SECTIONS["M"], SECTIONS["C"]}:
        return ""
    for exchange in asked:
        operation = exchange.operation
        if exchange.code == -32601 and operation is None:
            operation = session.dialect.operation(mapping(exchange.asked).get("method"))
        if operation is None or operation not in METHOD_ROWS:
            continue
        method = session.dialect.method(operation)
        if mapping(exchange.asked).get("method", method) not in {method, OLD_STREAM}:
            continue  # the agent knows it by another name
        if exchange.code == -32601 or (_is_odd(exchange) and not await knows(session, operation)):
            return f"needs {method}, which the agent does not know ({METHOD_ROWS[operation]})"
        named = mapping(exchange.params).get("id")
        lost = exchange.code == -32001 and isinstance(named, str) and named in session.task_ids()
        if lost and requirement.id != READ_ROW and not await session.fixture(can_read):
            return f"needs a task that can be read: the agent does not know those it made ({READ_ROW})"
    return ""


def _is_odd(exchange: Exchange) -> bool:
    """Whether an answer may come from an agent that does not know the method, and says so in words of its own."""
    refused = exchange.status is not None and exchange.status >= 400 and exchange.status not in {401, 403}
    return exchange.code in {-32600, -32603} or (refused and exchange.code is None)


async def unknown_method(session: Session) -> Exchange:
    """The agent's answer to a method that does not exist."""
    return await session.rpc(NO_METHOD, {})


async def can_read(session: Session) -> bool:
    """Whether a task can be read that the agent has just made."""
    task_id, _ = await session.begin()
    read = await session.get(task_id)
    return bool(read.code != -32001)


@cache
def answer_of(operation: Operation) -> Callable[[Session], Awaitable[Exchange]]:
    """A fixture: the answer to a method called with a text, or for a task that does not exist."""

    async def answer(session: Session) -> Exchange:
        whole = operation in {Operation.SEND, Operation.STREAM}
        params = session.params(session.quick()) if whole else _params_for_nobody(session.dialect, operation)
        of_a_task = {Operation.GET, Operation.CANCEL, Operation.SUBSCRIBE}
        if session.dialect.over_http and operation in of_a_task:  # a 404 may be meant for the task
            params = session.dialect.by_id((await session.fixture(finished_task))[0])
        async with session.stream(session.dialect.standard_method(operation), params) as stream:
            await stream.next(10)
        return stream.exchange

    return answer


async def knows(session: Session, operation: Operation) -> bool:
    """Whether the agent knows a method: it does not say -32601, nor what it says to a method that does not exist."""
    exchange = await session.fixture(answer_of(operation))
    if exchange.code == -32601 or (session.dialect.over_http and exchange.code is None and exchange.status == 405):
        return False
    return not _is_odd(exchange) or _refusal(exchange) != _refusal(await session.fixture(unknown_method))


_CHANGING = re.compile(
    r"/?\b(?:tasks/|message:)[^\s\"',]*|[0-9][0-9T:.Z+-]{7,}|\b[0-9a-f-]{16,}\b|/?" + re.escape(NO_METHOD)
)
"""The parts of a request that a page about an unknown path repeats: the path, the moment and ids."""


def _refusal(exchange: Exchange) -> tuple[object, ...]:
    """An answer without the name of the method that it may repeat."""
    coded = exchange.code is not None
    said = str((exchange.error or {}).get("message")) if coded else exchange.body.decode("utf-8", "replace")
    method = str(mapping(exchange.asked).get("method"))
    return exchange.status, exchange.code, _CHANGING.sub("", said.replace(method, ""))


def _params_for_nobody(dialect: RawDialect, operation: Operation) -> dict[str, object]:
    match operation:
        case Operation.LIST:
            return {"pageSize": 1, "historyLength": 0}  # whatever else is in the store, the answer is small
        case Operation.PUSH_SET:
            return dialect.set_hook(NOWHERE, dialect.hook("https://example.com/hook"))
        case Operation.PUSH_GET | Operation.PUSH_LIST | Operation.PUSH_DELETE:
            return dialect.of_hook(NOWHERE, NOWHERE if operation is not Operation.PUSH_LIST else None)
        case _:
            return dialect.by_id(NOWHERE)
