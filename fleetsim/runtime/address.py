"""Which addresses may be dialled for somebody else, and which webhook URLs may be written at all.

Pure: a policy judges resolved addresses, by a table of its own, since the answers of ``ipaddress`` (``is_global``)
differ between Python releases (reference "Address policy").
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias
from urllib.parse import urlsplit

from fleetsim.model.errors import BlockedAddress, ConfigError
from fleetsim.model.text import one_line

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

PORTS = frozenset({80, 443, 8080, 8443})
"""Ports a webhook may use without an allow-list entry."""

URL_CHARACTERS_MAX = 2_048

_DENY_V4 = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT, where one cloud keeps its metadata service
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
_PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")
_DENY_V6 = tuple(
    ipaddress.IPv6Network(text)
    for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3ffe::/16", "3fff::/20", "2620:4f:8000::/48")
)
LOOPBACK_NAMES = ("127.0.0.1", "::1", "localhost")
"""The names of this machine on the machine itself, as the host of a URL."""
_LOOPBACK: tuple[Network, ...] = (ipaddress.IPv4Network("127.0.0.0/8"), ipaddress.IPv6Network("::1/128"))
_PRIVATE: tuple[Network, ...] = (
    *_LOOPBACK,
    ipaddress.IPv4Network("10.0.0.0/8"),
    ipaddress.IPv4Network("172.16.0.0/12"),
    ipaddress.IPv4Network("192.168.0.0/16"),
    ipaddress.IPv6Network("fc00::/7"),
)


@lru_cache(1_024)
def parse_address(text: str) -> Address | None:
    """The address, with an IPv4-mapped one unwrapped; None for anything else, zone ids included."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            return None
        return address.ipv4_mapped or address
    return address


def on_this_machine(url: str) -> bool:
    """Whether the address is on the loopback interface."""
    host = (urlsplit(url).hostname or "").lower()
    address = parse_address(host)
    return host in LOOPBACK_NAMES or (address is not None and any(address in network for network in _LOOPBACK))


_LOCAL_NAMES = (".localhost", ".local", ".internal", ".lan", ".home.arpa", ".test", ".invalid")


def private_reason(url: str) -> str:
    """Why people elsewhere cannot open this address of ours, or only in the clear; "" if they can. Looks no name up."""
    if not url:
        return "is not set"
    parts = urlsplit(url)
    host = fold_host(parts.hostname or "")
    if parts.scheme != "https":
        return "is not https"
    if (address := parse_address(host)) is not None:
        return "" if is_public(address) else "is not a public address"
    return "names a host of this network alone" if "." not in host or host.endswith(_LOCAL_NAMES) else ""


@lru_cache(1_024)
def is_public(address: Address) -> bool:
    """Whether our own table holds the address to be on the open internet."""
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _DENY_V4)
    return address in _PUBLIC_V6 and not any(address in network for network in _DENY_V6)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowEntry:
    """An operator's exception: some ports at some addresses, for one host name or for any.

    Written ``HOST:PORT``, ``CIDR:PORT`` or ``HOST=CIDR:PORT``; IPv6 in brackets. PORT is one port, a range
    (``8000-8100``, both ends included) or ``*`` for all. A name without a CIDR may resolve to public, private or
    loopback addresses (``localhost`` to loopback alone), never to link-local ones, which serve cloud metadata.
    """

    ports: range
    networks: tuple[Network, ...]
    host: str | None = None
    public: bool = False

    @classmethod
    def parse(cls, text: str) -> AllowEntry:
        """Read one entry. Raises ConfigError."""
        where, _, port_text = text.strip().rpartition(":")
        ports = _entry_ports(text, port_text)
        host, equals, cidr = where.partition("=")
        network = network_of(cidr if equals else where)
        if equals:
            name = _entry_host(text, host)
            if network is None:
                raise _bad_entry(text, "the text after = is not a network")
            return cls(ports=ports, host=name, networks=(network,))
        if network is not None:
            return cls(ports=ports, networks=(network,))
        name = _entry_host(text, where)
        local = name == "localhost"
        return cls(ports=ports, host=name, networks=_LOOPBACK if local else _PRIVATE, public=not local)

    def covers(self, host: str, port: int, address: Address) -> bool:
        """Whether the entry makes an exception for this destination."""
        if port not in self.ports or (self.host is not None and self.host != fold_host(host)):
            return False
        return any(address in network for network in self.networks) or (self.public and is_public(address))


def _bad_entry(text: str, why: str) -> ConfigError:
    return ConfigError(
        f"allow entry {one_line(text, 80)!r}: {why}",
        hint="write HOST:PORT, CIDR:PORT or HOST=CIDR:PORT, IPv6 in brackets; PORT may be 8000-8100 or *",
    )


def _entry_ports(text: str, ports: str) -> range:
    if ports == "*":
        return range(1, 65536)
    match = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", ports, re.ASCII)
    if match is None:
        raise _bad_entry(text, "it must end in :PORT, :FIRST-LAST or :*")
    first, last = int(match[1]), int(match[2] or match[1])
    if not 0 < first <= last < 65536:
        raise _bad_entry(text, "ports are from 1 to 65535, the lower one first")
    return range(first, last + 1)


def network_of(text: str) -> Network | None:
    """The network that ``text`` names, an address being the network of it alone; None for anything else."""
    text = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def _entry_host(text: str, host: str) -> str:
    if not _NAME.fullmatch(host):
        raise _bad_entry(text, "it names neither a host nor a network")
    return fold_host(host)


def fold_host(host: str) -> str:
    """The host as it is compared: lower case, no trailing dot, no brackets."""
    return host.lower().removesuffix(".").removeprefix("[").removesuffix("]")


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressPolicy:
    """Where a guarded transport may connect: public addresses on ``ports``, and what ``allow`` adds.

    ``own`` are (address, port) pairs of this host's own listeners, refused though they may be public.
    """

    allow: tuple[AllowEntry, ...] = ()
    ports: frozenset[int] = PORTS
    own: frozenset[tuple[str, int]] = field(default_factory=frozenset)

    @classmethod
    def allowing(cls, *entries: str) -> AddressPolicy:
        """The default policy with exceptions in their written form. Raises ConfigError."""
        return cls(allow=tuple(AllowEntry.parse(entry) for entry in entries))

    def permits(self, host: str, port: int, address: str) -> bool:
        """Whether ``address``, one that ``host`` resolved to, may be dialled on ``port``."""
        parsed = parse_address(address)
        if parsed is None:
            return False
        if any(entry.covers(host, port, parsed) for entry in self.allow):
            return True
        return port in self.ports and is_public(parsed) and (str(parsed), port) not in self.own

    def names(self, host: str, port: int) -> bool:
        """Whether an entry allows this host by its name; then a refusal may show whether the name resolves."""
        return any(entry.host == fold_host(host) and port in entry.ports for entry in self.allow)

    def require(self, host: str, port: int, addresses: tuple[str, ...]) -> None:
        """Raise BlockedAddress unless there is an address and every one is permitted: one bad answer refuses all. The
        error names host and port, never what the name resolved to."""
        if not addresses or not all(self.permits(host, port, address) for address in addresses):
            raise blocked(host, port)

    def require_name(self, host: str, port: int) -> None:
        """Raise BlockedAddress for a name that resolves only at a proxy, unless its port is permitted."""
        named = (entry for entry in self.allow if entry.host == fold_host(host))
        if port not in self.ports and not any(port in entry.ports for entry in named):
            raise blocked(host, port)


def blocked(host: str, port: int) -> BlockedAddress:
    """The refusal, in words that tell nothing about the network behind the name."""
    shown = one_line(fold_host(host), 100)
    where = f"[{shown}]:{port}" if ":" in shown else f"{shown}:{port}"
    return BlockedAddress(
        f"{where} is not an address that may be called", hint=f"an operator can allow it: --allow-webhook {where}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookUrl:
    """A webhook URL that every URL parser reads alike."""

    url: str
    scheme: str
    host: str
    port: int


_NAME = re.compile(r"(?!.*\.\.)[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?\.?", re.ASCII)
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[(?=[0-9a-f]*:)[0-9a-f:.]{2,45}\]|[a-z0-9_.-]{1,253})(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<rest>(?:[/?][A-Za-z0-9/?:@!$&'()*+,;=._~%-]*)?)",
    re.ASCII | re.IGNORECASE,
)
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII | re.IGNORECASE)
_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


def parse_webhook_url(
    url: str,
    *,
    schemes: tuple[str, ...] = ("http", "https"),
    what: str = "the webhook URL",
    chars_max: int = URL_CHARACTERS_MAX,
) -> WebhookUrl:
    """Read a URL that somebody else named by a grammar so narrow that no two clients can disagree on its host.

    Refused: other schemes, userinfo, fragments, backslashes, control and non-ASCII characters (write international
    names in punycode), percent signs and zone ids in the host, ports out of range. Raises BlockedAddress, which names
    the rule and calls the URL ``what``, without repeating it.
    """
    if len(url) > chars_max:
        raise BlockedAddress(f"{what} is longer than {chars_max} characters")
    match = _URL.fullmatch(url)
    if match is None or _ESCAPE.search(match["rest"]):
        raise BlockedAddress(
            f"{what} is not a plain http(s)://HOST[:PORT]/PATH",
            hint="no userinfo, fragment, backslash, space, percent sign in the host, or non-ASCII character",
        )
    scheme = match["scheme"].lower()
    if scheme not in schemes:
        raise BlockedAddress(f"{what} must begin with {' or '.join(f'{s}://' for s in schemes)}")
    port = int(match["port"]) if match["port"] else (443 if scheme == "https" else 80)
    host = match["host"]
    literal = parse_address(host[1:-1]) if host.startswith("[") else None
    if not 0 < port < 65536 or (host.startswith("[") and literal is None) or not _plausible(host):
        raise BlockedAddress(f"{what} has no valid host and port")
    return WebhookUrl(url=url, scheme=scheme, host=fold_host(host), port=port)


def _plausible(host: str) -> bool:
    """A name, or an address in its plain form: what ends in a number is an address to some clients, if not to all."""
    if host.startswith("["):
        return True
    if _NUMBER.fullmatch(host.removesuffix(".").rpartition(".")[2]):
        return parse_address(host) is not None
    return _NAME.fullmatch(host) is not None
