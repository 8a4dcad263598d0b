"""The ways in which a call may go out to an agent: a refusal without effect leads to the next (decisions 13, 50)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple, TypeVar

from fleetsim.model.call import Call, GetTask, Operation, SendMessage, SetPush
from fleetsim.model.errors import FleetsimError, MethodNotFound
from fleetsim.wire.choice import Choice, refuses_spelling, refuses_way, respelled
from fleetsim.wire.dialect import dialect

T = TypeVar("T")


class Way(NamedTuple):
    """``method`` is an alias of the call's method, "" for its name; ``after`` knows the refusals that lead here."""

    choice: Choice
    method: str
    after: Callable[[Exception], bool]


class Ways:
    """The ways to one agent, and what it turned out to know: an alias, a spelling."""

    def __init__(self) -> None:
        self._stream_method = ""
        self._respelled: bool | None = None

    def forget(self) -> None:
        """Begin again: the agent may be another one."""
        self._respelled = None

    async def first_known(
        self, call: Call, out: Choice, others: tuple[Choice, ...], make: Callable[[Choice, str], Awaitable[T]]
    ) -> tuple[T, Choice]:
        """The result in the first way that the agent knows, and that way. Raises the first refusal if it knows none.

        ``others`` follow if the agent refuses the ways of ``out``.
        """
        refused: FleetsimError | None = None
        ways = self._of(call, out, others)
        for way in ways:
            if refused is not None and not way.after(refused):
                continue
            try:
                result = await make(way.choice, way.method)
            except FleetsimError as error:
                refused = refused or error
                if refuses_spelling(error):
                    self._respelled = None  # the agent at this address may be another one by now
                if way.after is refuses_spelling and refuses_spelling(error) and str(error) != str(refused):
                    refused.args = (f"{refused}; with the objects of JSON-RPC: {error}",)
                if not any(later.after(error) for later in ways[1:]):
                    raise
            else:
                self._stream_method = way.method or self._stream_method
                if self._respelled is None and isinstance(call, SendMessage | SetPush):
                    self._respelled = way.after is refuses_spelling
                return result, way.choice
        assert refused is not None  # there is always a first way
        raise refused

    def _of(self, call: Call, out: Choice, others: tuple[Choice, ...]) -> list[Way]:
        """A stream goes out by its method's alias too, a message and a look at a task also in the other ways: an agent
        that speaks the dialect may lack other methods. Over HTTP+JSON 0.3 has two spellings of a body."""
        spoken = dialect(out.dialect_name)
        spelled = respelled(out) if spoken.paths else None
        out = spelled if spelled is not None and self._respelled else out
        streams = call.operation is Operation.STREAM and not spoken.paths
        names = spoken.methods[Operation.STREAM] if streams else ("",)
        ways = [
            Way(out, name, lambda error: isinstance(error, MethodNotFound))
            for name in sorted(names, key=lambda name: name != self._stream_method)
        ]
        if spelled is not None and self._respelled is None and isinstance(call, SendMessage | SetPush):
            ways.append(Way(spelled, "", refuses_spelling))
        if isinstance(call, SendMessage | GetTask):
            ways += [Way(choice, "", partial(refuses_way, elsewhere=choice.url != out.url)) for choice in others]
        return ways
