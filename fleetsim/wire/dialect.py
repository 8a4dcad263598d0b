"""The dialects, and the choice of one. No other module imports them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fleetsim.model.card import AgentCard
from fleetsim.model.errors import ConfigError, MethodNotFound, VersionNotSupported
from fleetsim.model.task import JsonObject
from fleetsim.wire.base import Dialect, Reply
from fleetsim.wire.cards import is_current, read_card, write_card
from fleetsim.wire.v0_1 import V01
from fleetsim.wire.v0_3 import V03, V03Http
from fleetsim.wire.v1_0 import V10, V10Http

__all__ = [
    "CARD_HEADERS",
    "DIALECTS",
    "OVER_HTTP",
    "OVER_JSON_RPC",
    "UNSAID",
    "VERSION_HEADER",
    "Dialect",
    "Reply",
    "advertised",
    "dialect",
    "dialect_of_version",
    "error_dialect",
    "for_path",
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


DIALECTS: Mapping[str, Dialect] = {known.name: known for known in (V10(), V03(), V01(), V10Http(), V03Http())}
"""Every dialect by name: the one list of them, from which all others are taken. Those over JSON-RPC come first, and of
each binding the newest."""

OVER_JSON_RPC = tuple(name for name, known in DIALECTS.items() if not known.paths)
"""The names of the dialects over JSON-RPC, newest first."""


OVER_HTTP: Mapping[str, Dialect] = {
    name: known
    for name in OVER_JSON_RPC
    for known in DIALECTS.values()
    if known.paths and known.card_version == DIALECTS[name].card_version
}
"""The same versions over HTTP+JSON, by the name of the dialect over JSON-RPC; 0.1 has no other binding."""


def _method_names(dialect: Dialect) -> list[str]:
    return [name for names in dialect.methods.values() for name in names]


_BY_METHOD: Mapping[str, tuple[Dialect, ...]] = {
    method: tuple(DIALECTS[name] for name in OVER_JSON_RPC if method in _method_names(DIALECTS[name]))
    for name in OVER_JSON_RPC
    for method in _method_names(DIALECTS[name])
}
"""The dialects over JSON-RPC that have a method of that name, newest first."""

UNSAID = next(known.name for known in DIALECTS.values() if known.guessed and not known.says_version)
"""The dialect of a peer that states no version."""


def dialect(name: str) -> Dialect:
    """The dialect of that name. Raises ConfigError if there is none."""
    known = DIALECTS.get(name)
    if known is None:
        raise ConfigError(f"no such A2A dialect; there are {', '.join(DIALECTS)}")
    return known


def dialect_of_version(version: str, binding: str = "JSONRPC") -> str:
    """The dialect that a protocol version and a binding on a card name; "" if none has that binding."""
    bound = [known for known in DIALECTS.values() if known.binding == binding.upper()]
    spoken = (known.name for known in bound if known.speaks(version))
    return next(spoken, next((known.name for known in bound if known.guessed and not known.says_version), ""))


def other_dialect(dialect_name: str) -> str:
    """The one to try where an agent does not know the one its card reads as (decision 0013), in the same binding."""
    binding = DIALECTS[dialect_name].binding
    others = (known for known in DIALECTS.values() if known.guessed and known.binding == binding)
    return next(known.name for known in others if known.name != dialect_name)


def for_request(method: str, params: JsonObject, version_header: str | None) -> Dialect:
    """The dialect a request is written in; the method name decides.

    Names of 1.0 need an ``A2A-Version`` of 1.x; for all others the header is ignored. Raises MethodNotFound for an
    unknown method, and VersionNotSupported for a 1.0 name with another version, or with none, which means 0.3.
    """
    if method not in _BY_METHOD:
        raise MethodNotFound
    newest, *older = named = _BY_METHOD[method]
    if newest.says_version:
        for known in named:
            if known.asked_by(version_header):
                return known
        raise VersionNotSupported(f"{method} needs the header {VERSION_HEADER}: {newest.name}")
    return next((known for known in reversed(older) if known.claims(method, params)), newest)


def for_path(path: str, version_header: str | None) -> Dialect:
    """The dialect of a request over HTTP+JSON whose path is ``path`` below the agent's address.

    The header decides for 1.0. Without it, or with one of 0.3, a path below ``/v1`` is 0.3 as the SDKs write it, and
    any other path 0.3 with the objects of JSON-RPC. Raises VersionNotSupported for all other versions.
    """
    current, older = (DIALECTS[name] for name in DIALECTS if name not in OVER_JSON_RPC)
    if current.asked_by(version_header):
        return current
    if version_header and not older.speaks(version_header):
        raise VersionNotSupported(f"this agent speaks A2A {current.card_version} and {older.card_version}")
    return older if path.startswith("/v1/") else older.at("/v1")


def served(method: str, params: JsonObject, version_header: str | None, offered: Collection[str]) -> Dialect:
    """The dialect in which an agent answers a request that speaks those of ``offered`` alone.

    Raises MethodNotFound if none of them has that method, and VersionNotSupported as ``for_request``, or if the method
    is older than all that is offered.
    """
    spoken = for_request(method, params, version_header)
    if spoken.name in offered:
        return spoken
    older = older_namesake(spoken, method, offered)
    if older is not None:
        return older
    if all(DIALECTS[name].says_version for name in offered):
        raise VersionNotSupported(f"this agent speaks A2A {', '.join(offered)} only; {method} is older")
    raise MethodNotFound


def older_namesake(dialect: Dialect, method: str, offered: Collection[str]) -> Dialect | None:
    """An older dialect of ``offered`` with a method of that name too: 0.1 has some of 0.3's."""
    names = [*DIALECTS]
    older = (DIALECTS[name] for name in names[names.index(dialect.name) + 1 :] if name in offered)
    return next((other for other in older if other in _BY_METHOD.get(method, ())), None)


def advertised(offered: Collection[str], *, http: bool = False) -> list[Dialect]:
    """The dialects of a card: those offered over JSON-RPC, newest first, each also over HTTP+JSON if ``http``.

    Of those that no request names by its version the newest stands for all: they share endpoint and binding.
    """
    names = [name for name in OVER_JSON_RPC if name in offered]
    unversioned = [name for name in names if not DIALECTS[name].says_version]
    named = [name for name in names if name not in unversioned[1:]]
    return [
        spoken
        for name in named
        for spoken in (DIALECTS[name], OVER_HTTP.get(name))
        if spoken and (http or not spoken.paths)
    ]


def write_card_for(card: AgentCard, version_header: str | None) -> dict[str, Any]:
    """The card for a client: only 1.0's members if the client states 1.x and 1.0 is offered, else the hybrid."""
    asked = any(known.asked_by(version_header) for known in DIALECTS.values())
    current = asked and any(is_current(item) for item in card.interfaces)
    return write_card(card, older=False) if current else write_card(card)


def error_dialect(method: str | None, version_header: str | None) -> str:
    """The dialect to word an error in when the request itself could not be read."""
    named = _BY_METHOD.get(method or "", ())
    for known in DIALECTS.values():
        if known.says_version and (known in named or known.asked_by(version_header)):
            return known.name
    return UNSAID
