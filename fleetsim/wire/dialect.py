"""What a dialect can do, and how one is chosen. The only module that imports the dialects themselves."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from fleetsim.model.call import Call, Operation
from fleetsim.model.card import AgentCard
from fleetsim.model.errors import ConfigError, MethodNotFound, VersionNotSupported
from fleetsim.model.event import TaskEvent
from fleetsim.model.task import JsonObject, Task
from fleetsim.wire.base import Reply
from fleetsim.wire.cards import is_current, read_card, write_card
from fleetsim.wire.v0_1 import V01
from fleetsim.wire.v0_3 import V03
from fleetsim.wire.v1_0 import V10

__all__ = [
    "CARD_HEADERS",
    "DIALECTS",
    "UNSAID",
    "VERSION_HEADER",
    "Dialect",
    "Reply",
    "advertised",
    "dialect",
    "dialect_of_version",
    "error_dialect",
    "for_request",
    "older_namesake",
    "other_dialect",
    "read_card",
    "served",
    "write_card",
    "write_card_for",
]

VERSION_HEADER = "A2A-Version"
"""The request header that 1.0 demands (A2A 1.0 section 3.6)."""

CARD_HEADERS: Mapping[str, str] = {"accept": "application/json", VERSION_HEADER.lower(): "1.0"}
"""Go with the request for a card: some agents change theirs by the version (interop.md section 6)."""


class Dialect(Protocol):
    """One version of the wire: operations to method names, values to JSON and back.

    Encoding fails only for an operation the dialect lacks. Decoding what an agent sent raises WireError,
    decoding what a caller sent raises MethodNotFound or InvalidParams, whatever the bytes were.
    ``methods`` names the method to write first and those also read after it; ``loses`` says what a value may
    have that this dialect cannot carry; ``rejoins`` whether a broken stream is joined again by a caller that can also
    poll (docs/decisions/0008). ``guessed`` is a dialect that a card may mean without saying so (docs/decisions/0013);
    ``caller_names_task``: the id of a new task is whoever asks' word; ``question_ends_stream``: a stream is over when
    the task waits for somebody, which older dialects say with ``final``; ``says_version``: each request names it in
    ``A2A-Version``; ``takes_tenant``: parameters may name a tenant; ``details_errors``: errors say more in a list
    (``jsonrpc``); ``own_codes``: error codes that mean something else here than in the specification; ``card_version``:
    what a card calls it.
    """

    name: str
    extensions_header: str
    methods: Mapping[Operation, tuple[str, ...]]
    loses: tuple[str, ...]
    rejoins: bool
    guessed: bool
    caller_names_task: bool
    question_ends_stream: bool
    says_version: bool
    takes_tenant: bool
    details_errors: bool
    own_codes: frozenset[int]
    card_version: str

    def speaks(self, version: str) -> bool:
        """Whether a protocol version on a card means this dialect."""
        ...

    def asked_by(self, version_header: str | None) -> bool:
        """Whether the value of ``A2A-Version`` asks for this dialect."""
        ...

    def claims(self, method: str, params: JsonObject) -> bool:
        """Whether a request is in this dialect whose method newer ones have too. The oldest that claims it has it."""
        ...

    def headers(self, operation: Operation) -> Mapping[str, str]:
        """The HTTP headers of a call, beside its content type and credentials."""
        ...

    def method(self, operation: Operation) -> str:
        """The method name to write. Raises UnsupportedOperation."""
        ...

    def operation(self, method: str) -> Operation:
        """The operation of a method name, aliases included. Raises MethodNotFound."""
        ...

    def encode_call(self, call: Call) -> tuple[str, dict[str, Any]]:
        """Method name and parameters. Raises UnsupportedOperation."""
        ...

    def decode_call(self, method: str, params: JsonObject) -> Call:
        """A call from its method and parameters. Raises MethodNotFound, InvalidParams."""
        ...

    def encode_reply(self, call: Call, reply: Reply) -> Any:
        """The ``result`` of the answer to ``call``."""
        ...

    def decode_reply(self, operation: Operation, result: Any) -> Reply:
        """The answer from its ``result``. Raises WireError."""
        ...

    def encode_event(self, event: TaskEvent) -> dict[str, Any]:
        """The ``result`` of one streamed answer."""
        ...

    def decode_event(self, value: Any) -> TaskEvent:
        """An event from the ``result`` of a streamed answer. Raises WireError."""
        ...

    def encode_push(self, event: TaskEvent, task: Task) -> dict[str, Any]:
        """The webhook body for ``event``, which left the task as ``task``."""
        ...

    def event_name(self, event: TaskEvent) -> str | None: ...


DIALECTS: Mapping[str, Dialect] = {known.name: known for known in (V10(), V03(), V01())}
"""Every dialect by name, newest first: the one list of them, from which all others are taken."""

UNSAID = next(known.name for known in DIALECTS.values() if known.guessed and not known.says_version)
"""What is spoken where nobody says a version."""


def dialect(name: str) -> Dialect:
    """The dialect of that name. Raises ConfigError if there is none."""
    found = DIALECTS.get(name)
    if found is None:
        raise ConfigError(f"no such A2A dialect; there are {', '.join(DIALECTS)}")
    return found


def dialect_of_version(version: str) -> str:
    """The dialect that a protocol version on a card names."""
    return next((known.name for known in DIALECTS.values() if known.speaks(version)), UNSAID)


def other_dialect(dialect_name: str) -> str:
    """The one to try where an agent does not know the one its card reads as (decision 0013)."""
    return next(known.name for known in DIALECTS.values() if known.guessed and known.name != dialect_name)


def for_request(method: str, params: JsonObject, version_header: str | None) -> Dialect:
    """The dialect a request is written in; the method name decides.

    Names of 1.0 need an ``A2A-Version`` of 1.x; for all others the header is ignored.

    Raises:
        MethodNotFound: no dialect has that method.
        VersionNotSupported: a 1.0 name with another version, or with none, which means 0.3.
    """
    named = [known for known in DIALECTS.values() if any(method in names for names in known.methods.values())]
    if not named:
        raise MethodNotFound
    if named[0].says_version:
        for known in named:
            if known.asked_by(version_header):
                return known
        raise VersionNotSupported(f"{method} needs the header {VERSION_HEADER}: {named[0].name}")
    return next((known for known in reversed(named) if known.claims(method, params)), named[0])


def served(method: str, params: JsonObject, version_header: str | None, offered: Collection[str]) -> Dialect:
    """The dialect in which an agent answers a request that speaks those of ``offered`` alone.

    Raises:
        MethodNotFound: none of them has that method.
        VersionNotSupported: as ``for_request``, or the method is older than all that is offered.
    """
    found = for_request(method, params, version_header)
    if found.name in offered:
        return found
    older = older_namesake(found, method, offered)
    if older is not None:
        return older
    if all(DIALECTS[name].says_version for name in offered):
        raise VersionNotSupported(f"this agent speaks A2A {', '.join(offered)} only; {method} is older")
    raise MethodNotFound


def older_namesake(dialect: Dialect, method: str, offered: Collection[str]) -> Dialect | None:
    """An older dialect of ``offered`` with a method of that name too: 0.1 has some of 0.3's."""
    names = [*DIALECTS]
    older = (DIALECTS[name] for name in names[names.index(dialect.name) + 1 :] if name in offered)
    return next((found for found in older if any(method in known for known in found.methods.values())), None)


def advertised(offered: Collection[str]) -> list[str]:
    """What a card names of the dialects that are offered, newest first.

    Of those that no request names by its version the newest stands for all: they share endpoint and binding.
    """
    names = [name for name in DIALECTS if name in offered]
    unversioned = [name for name in names if not DIALECTS[name].says_version]
    return [name for name in names if name not in unversioned[1:]]


def write_card_for(card: AgentCard, version_header: str | None) -> dict[str, Any]:
    """The card as who asks reads it: 1.0's members alone for who says 1.x and can be served so, else the hybrid."""
    asked = any(known.asked_by(version_header) for known in DIALECTS.values())
    current = asked and any(is_current(item) for item in card.interfaces)
    return write_card(card, older=False) if current else write_card(card)


def error_dialect(method: str | None, version_header: str | None) -> str:
    """The dialect to word an error in when the request itself could not be read."""
    for known in DIALECTS.values():
        named = any(method in names for names in known.methods.values())
        if known.says_version and (named or known.asked_by(version_header)):
            return known.name
    return UNSAID
