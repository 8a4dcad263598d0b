"""Which dialect to speak to an agent and at which address, decided once from its card.

The operator configured an address and a key for it. A card may choose the dialect and, when the configured
address is only a base (decision 0012), the path; it can never move the call to another scheme, host or port.
"""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import SplitResult, unquote, urlsplit

from msgspec import Struct
from msgspec.structs import replace

from fleetsim.model.card import AgentCard, AgentInterface
from fleetsim.model.errors import ConfigError
from fleetsim.model.text import one_line
from fleetsim.wire.cards import is_current, major_minor
from fleetsim.wire.dialect import DIALECTS, UNSAID, dialect_of_version, other_dialect

DEFAULT_PATH = "/a2a"
"""Where an agent is called whose card names no address (interop.md section 6)."""

_PORTS = {"http": 80, "https": 443}
_PATH_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~!$&'()*+,;=:@/%")


class Choice(Struct, frozen=True, kw_only=True):
    """How to call an agent. ``warnings`` are lines for the operator; ``tenant`` goes into 1.0 parameters.

    ``no_way`` is a sentence if the agent cannot be called at all: fleetsim sends nothing, and ``url`` is empty.
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

    @property
    def spoken(self) -> str | None:
        """The dialect to show; None if the agent cannot be called."""
        return None if self.no_way else self.dialect_name

    def otherwise(self) -> Choice:
        """The choice with the other dialect and a warning; this choice if there is no other."""
        if self.other is None:
            return self
        warning = disagreement(self.other.dialect_name)
        return replace(
            self.other,
            warnings=(*self.other.warnings, warning),
            other=replace(self, other=None),
            instead_of=self.dialect_name,
        )


def disagreement(spoken: str) -> str:
    """The warning about an agent that speaks another dialect than its card says."""
    other = other_dialect(spoken)
    return f"its card reads as A2A {other}, which the agent does not know: called in {spoken}; the card should say so"


def no_way(card: AgentCard) -> str:
    """A sentence with the card's offers and fleetsim's dialects if they have nothing in common; else ""."""
    if not card.interfaces or any(_is_spoken(item) for item in card.interfaces):
        return ""
    offered = dict.fromkeys(f"{item.binding} {major_minor(item.protocol_version)}" for item in card.interfaces)
    *others, last = DIALECTS
    return f"it offers only {one_line(', '.join(offered), 80)}; fleetsim speaks JSON-RPC {', '.join(others)} and {last}"


def choose(
    card: AgentCard, configured_url: str, *, found_at: str = "", rpc_url: str = "", dialect_name: str | None = None
) -> Choice:
    """The newest JSON-RPC interface that both sides know, at the configured address.

    ``found_at`` is where the card was: below the configured path that path is a mounted agent's base, and the card's
    own path is taken if it lies below it too; else a configured path is the endpoint. ``rpc_url`` is the endpoint
    whatever the card says; that it is of the configured origin is the caller's to see to. A card without an interface
    that fleetsim speaks leaves no way (``no_way``) unless ``rpc_url`` or ``dialect_name`` names one.

    Versions below 1 and absent ones count as 0.3, but 0.1 is spoken where the card or ``dialect_name`` says so, which
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
    usable = _usable(card, warnings)
    mounted = not rpc_url and is_mounted(configured_url, found_at)
    inside = [item for item in usable if lies_below(item.url, base.path)] if mounted else []
    endpoint = urlsplit(rpc_url).path if rpc_url else base.path
    if inside:
        usable = inside
    elif endpoint not in {"", "/"}:
        paths = {item.url: parts.path.rstrip("/") for item in usable if (parts := _split(item.url)) is not None}
        usable = [item for item in usable if paths.get(item.url) == endpoint.rstrip("/")] or usable
    picked = next(
        (item for item in usable if dialect_name is None or _dialect_of(item) == dialect_name), next(iter(usable), None)
    )
    name = dialect_name or (_dialect_of(picked) if picked else UNSAID)
    url = _address(base, picked, warnings, inside=bool(inside), rpc_url=rpc_url)
    if mounted and usable and not inside and not warnings:
        shown = one_line(base.path, 120)
        warnings.append(f"the card found below {shown} names no address below it; using {shown} (rpcUrl pins another)")
    tenant = picked.tenant if picked and DIALECTS[name].takes_tenant else None
    return Choice(dialect_name=name, url=url, warnings=tuple(warnings), tenant=tenant)


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


def _usable(card: AgentCard, warnings: list[str]) -> list[AgentInterface]:
    """JSON-RPC interfaces of a version we speak, newer before older ones, else in the card's order."""
    known = [item for item in card.interfaces if _is_spoken(item)]
    if card.interfaces and not known:
        warnings.append("the card offers no JSON-RPC interface of a version spoken here; it is called as configured")
    newest_first = [*DIALECTS]
    return sorted(known, key=lambda item: newest_first.index(_dialect_of(item)))


def _is_spoken(interface: AgentInterface) -> bool:
    return interface.binding.upper() == "JSONRPC" and _dialect_of(interface) != ""


def _dialect_of(interface: AgentInterface) -> str:
    """The dialect of an interface; "" if it is newer than all known ones."""
    name = dialect_of_version(interface.protocol_version)
    return "" if is_current(interface) and not DIALECTS[name].says_version else name


def _split(url: str) -> SplitResult | None:
    """The parts of an address, or None if it is not a plain http(s) address."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in _PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if usable else None


@lru_cache(maxsize=1024)  # asked several times for each call
@lru_cache(1_024)
def origin_of(url: str) -> tuple[str, str, int] | None:
    """Scheme, host and port of an http(s) address; None for anything else."""
    parts = _split(url)
    if parts is None:
        return None
    return parts.scheme, (parts.hostname or "").removesuffix("."), parts.port or _PORTS[parts.scheme]


def _address(
    base: SplitResult, picked: AgentInterface | None, warnings: list[str], *, inside: bool, rpc_url: str
) -> str:
    origin = f"{base.scheme}://{base.netloc}"
    parts = _split(picked.url) if picked else None
    if picked is not None and origin_of(picked.url) != origin_of(base.geturl()):
        shown = (
            f" {parts.scheme}://{one_line(parts.netloc.rpartition('@')[2], 120)}" if parts else " something unreadable"
        )
        warnings.append(f"the card advertises{shown}, which is not the configured address; using {base.netloc}")
    if rpc_url:
        return rpc_url
    query = f"?{base.query}" if base.query else ""
    if inside and parts is not None:
        return origin + parts.path + query
    if base.path not in {"", "/"}:
        return origin + base.path + query
    if parts is None:
        return origin + DEFAULT_PATH
    if not _PATH_CHARS.issuperset(parts.path):
        warnings.append(f"the card's path is not a plain one; using {DEFAULT_PATH}")
        return origin + DEFAULT_PATH
    return origin + (parts.path or "/")
