"""Which dialect to speak to an agent and at which address, decided once from its card.

A card may choose the dialect and, below a base (decision 0012), the path, but never another scheme, host or port.
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
    InternalError,
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    ParseError,
    PushNotSupported,
    RpcError,
    UnsupportedOperation,
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
    ``doubt`` is a sentence for each failure of a call, if the card's address may be to blame. ``others`` are the ways
    that follow if the agent refuses this one (decision 13): the card's next interfaces, or another dialect; none if the
    operator named the dialect. ``instead_of`` is the dialect of the refused way.
    """

    dialect_name: str
    url: str
    warnings: tuple[str, ...] = ()
    tenant: str | None = None
    others: tuple[Choice, ...] = ()
    instead_of: str = ""
    no_way: str = ""
    doubt: str = ""

    @property
    def spoken(self) -> str | None:
        """The dialect to show; None if the agent cannot be called."""
        return None if self.no_way else self.dialect_name

    def speaking(self, dialect_name: str) -> Choice:
        """The first way in this dialect, with a warning and the other ways behind it; this choice if there is none."""
        found = next((way for way in (self, *self.others) if way.dialect_name == dialect_name), self)
        if found is self:
            return self
        others = (replace(self, others=()), *(way for way in self.others if way is not found))
        warnings = (*found.warnings, disagreement(dialect_name))
        return replace(found, warnings=warnings, instead_of=self.dialect_name, others=others)


def refuses_dialect(error: Exception) -> bool:
    """Whether an agent refused a request because it does not know the dialect, and so did nothing (decision 0013).

    Agents that are older than -32009 call the request invalid, or answer 400 with a text about the version.
    """
    if isinstance(error, HttpRefused):
        return error.status == 400 and "version" in error.said.lower()
    return isinstance(error, MethodNotFound | VersionNotSupported | InvalidRequest)


def refuses_stream(error: Exception) -> bool:
    """Whether an agent refused the streaming form of a request, and so did nothing: a plain send may follow."""
    return isinstance(error, MethodNotFound | UnsupportedOperation)


def refuses_way(error: Exception, *, elsewhere: bool) -> bool:
    """Whether the next way follows this refusal (0.3 section 5.6.3): no request had an effect.

    ``elsewhere``: the next way has another address. Only then may 404, 405 or 501 mean that the address is wrong.
    """
    gone = elsewhere and isinstance(error, HttpRefused) and error.status in {404, 405, 501}
    return gone or refuses_dialect(error)


def refuses_spelling(error: Exception) -> bool:
    """Whether an agent refused a request because it could not read its objects, or may have done so."""
    if isinstance(error, HttpRefused):
        return error.status in {400, 422}
    return isinstance(error, InvalidParams | InvalidRequest | ParseError)


def may_mean_the_webhook(error: Exception, *, stream: bool = False) -> bool:
    """Whether an agent refused a send without effect, possibly because of its webhook (decision 6).

    Words that name the webhook mean it, whatever the code or status: they are the agent's answer. Of the codes that
    can mean it, -32004 to a stream first means the stream. 0.1 has codes of its own; there -32004 means the webhook.
    """
    internal = isinstance(error, InternalError) or (isinstance(error, HttpRefused) and error.status in {500, 501})
    words = error.said if isinstance(error, HttpRefused) else str(error)
    named = bool((_ITS_ADDRESS if internal else _WEBHOOK).search(words))
    if isinstance(error, HttpRefused):
        return named and (internal or (400 <= error.status < 500 and not error.retryable))
    if named or internal or not isinstance(error, RpcError):
        return named and isinstance(error, RpcError)
    if isinstance(error, InvalidParams | PushNotSupported):
        return True
    return error.wire_code == UnsupportedOperation.code and not (stream and isinstance(error, UnsupportedOperation))


_ITS_ADDRESS = re.compile(r"web.?hook|push.?(notif|config)|call.?back.?(ur[il]|address|host)", re.IGNORECASE)
"""The words of an internal error: there "callback" alone may mean a function of the agent's own."""
_WEBHOOK = re.compile(rf"{_ITS_ADDRESS.pattern}|call.?back", re.IGNORECASE)


def respelled(choice: Choice) -> Choice | None:
    """The same way with 0.3's other objects over HTTP+JSON (decision 50); None if there are no others."""
    known = DIALECTS[choice.dialect_name]
    if known.at("/v1") is known.at(choice.url):
        return None
    parts = urlsplit(choice.url)
    return replace(choice, url=parts._replace(path=f"{parts.path.rstrip('/')}/v1").geturl())


def disagreement(spoken: str) -> str:
    """The warning about an agent that refused the dialect or the address that its card names first."""
    return f"the agent refused what its card names first: called in {spoken}; the card should say so"


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
    ways = _choose(card, configured_url, found_at, rpc_url, dialect_name)
    chosen = ways[0]
    if dialect_name is not None:
        return chosen
    if not rpc_url and (why := no_way(card)):
        return Choice(dialect_name=chosen.dialect_name, url="", warnings=(why,), no_way=why)
    first = DIALECTS[chosen.dialect_name]
    if first.guessed and (len(ways) == 1 or not first.paths):
        (guess, *_) = _choose(card, configured_url, found_at, rpc_url, other_dialect(chosen.dialect_name))
        if all((way.dialect_name, way.url) != (guess.dialect_name, guess.url) for way in ways):
            ways.append(guess)
    return replace(chosen, others=tuple(ways[1:]))


def _choose(
    card: AgentCard, configured_url: str, found_at: str, rpc_url: str, dialect_name: str | None
) -> list[Choice]:
    """The ways to call an agent: its usable interfaces in the card's order, or one; one alone for ``dialect_name``."""
    base = _split(configured_url)
    if base is None or "@" in base.netloc:
        raise ConfigError("the agent's url must be http:// or https:// with a host and without a password")
    warnings: list[str] = []
    usable = [absolute(item, found_at or f"{base.scheme}://{base.netloc}/") for item in card.interfaces]
    usable = [named for item in usable if _dialect_of(named := _without_operation(item, warnings))]
    if card.interfaces and not usable:
        warnings.append("the card offers no interface that fleetsim speaks; the agent is called as configured")
    mounted = not rpc_url and is_mounted(configured_url, found_at)
    inside = [item for item in usable if lies_below(item.url, base.path)] if mounted else []
    endpoint, following = urlsplit(rpc_url).path if rpc_url else base.path, usable
    if inside:
        usable = following = inside
    elif endpoint not in {"", "/"}:
        paths = {item.url: parts.path.rstrip("/") for item in usable if (parts := _split(item.url)) is not None}
        following = [item for item in usable if paths.get(item.url) == endpoint.rstrip("/")]
        usable = following or usable

    def way(picked: AgentInterface | None) -> Choice:
        name = dialect_name or (_dialect_of(picked) if picked else UNSAID)
        told = list(warnings)
        if not told and picked is not None and all(item.url != picked.url for item in card.interfaces):
            told.append(f"the card's url should be absolute; it is read as {one_line(picked.url, 160)}")
        url, doubt = _address(base, picked, told, inside=bool(inside), rpc_url=rpc_url, read=bool(found_at))
        if mounted and usable and not inside and not told:
            shown = one_line(base.path, 120)
            told.append(f"the card found below {shown} names no address below it; using {shown} (rpcUrl pins another)")
        tenant = picked.tenant if picked and DIALECTS[name].takes_tenant else None
        return Choice(dialect_name=name, url=url, warnings=tuple(told), tenant=tenant, doubt=doubt)

    first = next(iter(usable), None)
    if dialect_name is not None:  # it overrules the card: the first interface of it, else of its binding
        binding = DIALECTS[dialect_name].binding
        bound = [item for item in usable if item.binding.upper() == binding]
        first = next((item for item in bound if _dialect_of(item) == dialect_name), next(iter(bound), first))
    ways = {(chosen.dialect_name, chosen.url): chosen for chosen in [way(first)]}
    for item in following if dialect_name is None else ():
        if item is not first and origin_of(item.url) == origin_of(configured_url):
            ways.setdefault(((chosen := way(item)).dialect_name, chosen.url), chosen)
    return list(ways.values())


_OPERATION = re.compile(r"(?P<base>.*?)(?P<v1>/v1)?/(message:(send|stream)|tasks(/.*)?|card|extendedAgentCard)")


def _without_operation(interface: AgentInterface, warnings: list[str]) -> AgentInterface:
    """The interface of an address that ends in an operation of HTTP+JSON, at the address of all operations.

    A card of another kind of server may name the path of one operation as its url (0.3 section 5.6.1).
    """
    parts = _split(interface.url)
    found = parts and _OPERATION.fullmatch(parts.path)
    if parts is None or not found:
        return interface
    url = parts._replace(path=found["base"] or "/").geturl()
    warnings.append(f"the card's url ends in an operation; the agent is called over HTTP+JSON at {one_line(url, 160)}")
    return replace(interface, url=url, binding="HTTP+JSON")


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
    base: SplitResult, picked: AgentInterface | None, warnings: list[str], *, inside: bool, rpc_url: str, read: bool
) -> tuple[str, str]:
    """The address to call, and a sentence for failures if the card's address may be to blame ("" if not).

    ``read``: there is a card, found at an address.
    """
    origin, doubt = f"{base.scheme}://{base.netloc}", ""
    parts = _split(picked.url) if picked else None
    if picked is not None and origin_of(picked.url) != origin_of(base.geturl()):
        shown = "something unreadable"
        if parts is not None:
            shown = one_line(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}", 160)
            doubt = f"the card names another origin, {shown}: configure that as the agent's url"
        warnings.append(f"the card advertises {shown}, which is not the configured address; using {base.netloc}")
    if rpc_url:
        return rpc_url, doubt
    named = parts.query if parts is not None else ""
    if not (_PATH_CHARS - {"@"}).issuperset(named):
        warnings.append("the query of the card's url is not plain, and left out")
        named = ""
    own_path = base.path not in {"", "/"} and not inside
    if own_path and (parts is None or parts.path.rstrip("/") != base.path.rstrip("/")):
        named = ""
    query = "&".join(filter(None, (base.query, named)))
    query = f"?{query}" if query else ""
    if own_path:
        return origin + base.path + query, doubt
    if parts is None:
        if read and picked is None:
            doubt = f"the card names no address, so {DEFAULT_PATH} is a guess: name the endpoint (rpcUrl, --rpc-url)"
            warnings.append(doubt)
        return origin + DEFAULT_PATH, doubt
    if not _PATH_CHARS.issuperset(parts.path):
        warnings.append(f"the card's path is not a plain one; using {DEFAULT_PATH}")
        return origin + DEFAULT_PATH, doubt
    return origin + (parts.path or "/") + query, doubt
