"""Which dialect to speak to an agent and at which address, decided once from its card.

The operator configured an address and a key for it. A card may choose the dialect and, when the configured
address is only a base (decision 0012), the path; it can never move the call to another scheme, host or port.
"""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from msgspec import Struct
from msgspec.structs import replace

from fleetsim.model.card import AgentCard, AgentInterface
from fleetsim.model.errors import (
    ConfigError,
    HttpRefused,
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    ParseError,
    VersionNotSupported,
)
from fleetsim.model.text import one_line
from fleetsim.wire.cards import is_current, major_minor
from fleetsim.wire.dialect import DIALECTS, UNSAID, dialect_of_version, other_dialect

DEFAULT_PATH = "/a2a"
"""Where an agent is called whose card names no address (interop.md section 6)."""

_PORTS = {"http": 80, "https": 443}
_PLACEHOLDER = re.compile(r"^\$?\{\{?[A-Za-z_][A-Za-z0-9_]*\}?\}")
_PATH_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~!$&'()*+,;=:@/%")


class Choice(Struct, frozen=True, kw_only=True):
    """How to call an agent. ``warnings`` are lines for the operator; ``tenant`` goes into 1.0 parameters.

    ``no_way`` is a sentence if the agent cannot be called at all: fleetsim sends nothing, and ``url`` is empty.
    ``elsewhere`` is the card's address if that is of another origin, where fleetsim does not call it.
    ``other`` is how it is called should this be refused as no dialect of its (decision 0013), None where the dialect
    is the operator's word; ``instead_of`` the dialect of the card, where it was refused.
    """

    dialect_name: str
    url: str
    warnings: tuple[str, ...] = ()
    tenant: str | None = None
    other: Choice | None = None
    instead_of: str = ""
    no_way: str = ""
    elsewhere: str = ""

    @property
    def spoken(self) -> str | None:
        """The dialect to show; None if the agent cannot be called."""
        return None if self.no_way else self.dialect_name

    def otherwise(self) -> Choice:
        """The choice with the other dialect and a warning; this choice if no other dialect fits."""
        if self.other is None:
            return self
        warning = disagreement(self.other.dialect_name)
        return replace(
            self.other,
            warnings=(*self.other.warnings, warning),
            other=replace(self, other=None),
            instead_of=self.dialect_name,
        )


def refuses_dialect(error: Exception) -> bool:
    """Whether an agent refused a request because it does not know the dialect, and so did nothing (decision 0013).

    Agents that are older than -32009 call the request invalid, or answer 400 with a text about the version.
    """
    if isinstance(error, HttpRefused):
        return error.status == 400 and "version" in error.said.lower()
    return isinstance(error, MethodNotFound | VersionNotSupported | InvalidRequest)


def refuses_spelling(error: Exception) -> bool:
    """Whether an agent refused a request because it could not read its objects, or may have done so."""
    if isinstance(error, HttpRefused):
        return error.status in {400, 422}
    return isinstance(error, InvalidParams | InvalidRequest | ParseError)


def respelled(choice: Choice) -> Choice | None:
    """The same way with 0.3's other objects over HTTP+JSON (decision 50); None if there are no others."""
    known = DIALECTS[choice.dialect_name]
    if known.at("/v1") is known.at(choice.url):
        return None
    parts = urlsplit(choice.url)
    return replace(choice, url=parts._replace(path=f"{parts.path.rstrip('/')}/v1").geturl())


def disagreement(spoken: str) -> str:
    """The warning about an agent that speaks another dialect than its card says."""
    other = other_dialect(spoken)
    return f"its card reads as A2A {other}, which the agent does not know: called in {spoken}; the card should say so"


def no_way(card: AgentCard) -> str:
    """A sentence with the card's offers and fleetsim's dialects if they have nothing in common; else ""."""
    if not card.interfaces or any(_dialect_of(item) for item in card.interfaces):
        return ""
    offered = dict.fromkeys(f"{item.binding} {major_minor(item.protocol_version)}" for item in card.interfaces)
    versions: dict[str, list[str]] = {}
    for known in DIALECTS.values():
        versions.setdefault(known.binding.replace("JSONRPC", "JSON-RPC"), []).append(major_minor(known.card_version))
    spoken = [f"{binding} {', '.join(known[:-1])} and {known[-1]}" for binding, known in versions.items()]
    return f"it offers only {one_line(', '.join(offered), 80)}; fleetsim speaks {', and '.join(spoken)}"


def choose(
    card: AgentCard, configured_url: str, *, found_at: str = "", rpc_url: str = "", dialect_name: str | None = None
) -> Choice:
    """The first interface in the card's order that fleetsim speaks, at the configured address (A2A 1.0 section 8.3.2,
    0.3.0 section 5.6.3, decision 0012).

    ``found_at`` is the card's address: a relative address in the card is resolved against it. If it is below the
    configured path, that path is a mounted agent's base, and the card's own path is taken if it lies below it too; else
    a configured path is the endpoint. ``rpc_url`` is the endpoint whatever the card says; the caller makes sure that it
    is of the configured origin. A card without an interface that fleetsim speaks leaves no way (``no_way``) unless
    ``rpc_url`` or ``dialect_name`` names one.

    Versions below 1 and absent ones count as 0.3; 0.1 is spoken if the card or ``dialect_name`` says so. The latter
    overrules the card. Raises ConfigError if ``configured_url`` is not a plain http(s) address.
    """
    chosen = _choose(card, configured_url, found_at, rpc_url, dialect_name)
    if dialect_name is not None:
        return chosen
    if not rpc_url and (why := no_way(card)):
        return Choice(dialect_name=chosen.dialect_name, url="", warnings=(why,), no_way=why)
    if not DIALECTS[chosen.dialect_name].guessed:
        return chosen
    other = _choose(card, configured_url, found_at, rpc_url, other_dialect(chosen.dialect_name))
    return replace(chosen, other=other)


def _choose(card: AgentCard, configured_url: str, found_at: str, rpc_url: str, dialect_name: str | None) -> Choice:
    base = _split(configured_url)
    if base is None or "@" in base.netloc:
        raise ConfigError("the agent's url must be http:// or https:// with a host and without a password")
    warnings: list[str] = []
    usable = [absolute(item, found_at or f"{base.scheme}://{base.netloc}/") for item in card.interfaces]
    usable = [item for item in usable if _dialect_of(item)]
    if card.interfaces and not usable:
        warnings.append("the card offers no interface that fleetsim speaks; the agent is called as configured")
    mounted = not rpc_url and is_mounted(configured_url, found_at)
    inside = [item for item in usable if lies_below(item.url, base.path)] if mounted else []
    endpoint = urlsplit(rpc_url).path if rpc_url else base.path
    if inside:
        usable = inside
    elif endpoint not in {"", "/"}:
        paths = {item.url: parts.path.rstrip("/") for item in usable if (parts := _split(item.url)) is not None}
        usable = [item for item in usable if paths.get(item.url) == endpoint.rstrip("/")] or usable
    picked = _picked(usable, dialect_name)
    name = dialect_name or (_dialect_of(picked) if picked else UNSAID)
    if picked is not None and all(item.url != picked.url for item in card.interfaces):
        warnings.append(f"the card's url should be absolute; it is read as {one_line(picked.url, 160)}")
    url, elsewhere = _address(base, picked, warnings, inside=bool(inside), rpc_url=rpc_url)
    if mounted and usable and not inside and not warnings:
        shown = one_line(base.path, 120)
        warnings.append(f"the card found below {shown} names no address below it; using {shown} (rpcUrl pins another)")
    tenant = picked.tenant if picked and DIALECTS[name].takes_tenant else None
    return Choice(dialect_name=name, url=url, warnings=tuple(warnings), tenant=tenant, elsewhere=elsewhere)


def _picked(usable: list[AgentInterface], dialect_name: str | None) -> AgentInterface | None:
    """The first interface; the first of a dialect that overrules the card, else of its binding."""
    if dialect_name is None:
        return next(iter(usable), None)
    binding = DIALECTS[dialect_name].binding
    bound = [item for item in usable if item.binding.upper() == binding]
    return next((item for item in bound if _dialect_of(item) == dialect_name), next(iter(bound or usable), None))


def absolute(interface: AgentInterface, found_at: str) -> AgentInterface:
    """The interface with its address resolved against the card's (RFC 3986 section 5.2).

    A placeholder that nobody filled in (``{BASE_URL}/a2a``) stands for the card's origin.
    """
    url = _PLACEHOLDER.sub("", interface.url)
    try:
        return interface if urlsplit(url).scheme else replace(interface, url=urljoin(found_at, url))
    except ValueError:
        return interface


def is_mounted(configured_url: str, found_at: str) -> bool:
    """Whether a card found at ``found_at`` makes the configured path the base of an agent mounted there."""
    base = _split(configured_url)
    return base is not None and base.path not in {"", "/"} and bool(found_at) and lies_below(found_at, base.path)


def lies_below(url: str, path: str) -> bool:
    """Whether the path of ``url`` is ``path`` or below it, be its origin what it may; no detour by ``..`` counts."""
    parts = _split(url)
    if parts is None or not _PATH_CHARS.issuperset(parts.path) or {".", ".."} & set(unquote(parts.path).split("/")):
        return False
    return f"{parts.path.rstrip('/')}/".startswith(f"{path.rstrip('/')}/")


def _dialect_of(interface: AgentInterface) -> str:
    """The dialect of an interface; "" if fleetsim speaks neither the binding nor a version as new."""
    name = dialect_of_version(interface.protocol_version, interface.binding)
    return "" if name and is_current(interface) and not DIALECTS[name].says_version else name


def _split(url: str) -> SplitResult | None:
    """The parts of an address, or None if it is not a plain http(s) address."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in _PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if usable else None


@lru_cache(maxsize=1024)  # asked several times for each call
def origin_of(url: str) -> tuple[str, str, int] | None:
    """Scheme, host and port of an http(s) address; None for anything else."""
    parts = _split(url)
    if parts is None:
        return None
    return parts.scheme, (parts.hostname or "").removesuffix("."), parts.port or _PORTS[parts.scheme]


def _address(
    base: SplitResult, picked: AgentInterface | None, warnings: list[str], *, inside: bool, rpc_url: str
) -> tuple[str, str]:
    """The address to call, and the card's if it is of another origin ("" if not)."""
    origin, elsewhere = f"{base.scheme}://{base.netloc}", ""
    parts = _split(picked.url) if picked else None
    if picked is not None and origin_of(picked.url) != origin_of(base.geturl()):
        if parts is not None:
            elsewhere = one_line(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}", 160)
        shown = elsewhere or "something unreadable"
        warnings.append(f"the card advertises {shown}, which is not the configured address; using {base.netloc}")
    if rpc_url:
        return rpc_url, elsewhere
    query = f"?{base.query}" if base.query else ""
    if inside and parts is not None:
        return origin + parts.path + query, elsewhere
    if base.path not in {"", "/"}:
        return origin + base.path + query, elsewhere
    if parts is None:
        return origin + DEFAULT_PATH, elsewhere
    if not _PATH_CHARS.issuperset(parts.path):
        warnings.append(f"the card's path is not a plain one; using {DEFAULT_PATH}")
        return origin + DEFAULT_PATH, elsewhere
    return origin + (parts.path or "/"), elsewhere
