"""The address an operator configured for an agent: where its card is, and the origin a credential belongs to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from fleetsim.model.errors import BlockedAddress, ConfigError
from fleetsim.model.text import one_line
from fleetsim.wire.choice import origin_of

CARD_PATHS = ("/.well-known/agent-card.json", "/.well-known/agent.json")
"""Where a card may be, newest first (A2A 0.3 section 5.3 and 0.2)."""

_PLAIN = re.compile(r"[\x21-\x7e]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class AgentUrl:
    """A configured address, checked once. ``rpc_url`` and ``card_url`` pin endpoint and card; "" leaves them."""

    text: str
    origin: tuple[str, str, int]
    where: str
    rpc_url: str = ""
    card_url: str = ""

    @classmethod
    def parse(cls, url: str, *, rpc_url: str | None = None, card_url: str | None = None) -> AgentUrl:
        """Check an address: http or https, a host, no userinfo, no fragment; what is pinned is at its origin.

        Raises:
            ConfigError: naming the rule, without repeating what may hold a password.
        """
        url, origin = check_url(url, "the agent's url")
        pinned = []
        for given, name in ((rpc_url, "rpcUrl"), (card_url, "cardUrl")):
            text, its_origin = check_url(given, name) if given is not None else ("", origin)
            if its_origin != origin:
                raise ConfigError(
                    f"{name} must be at the origin of the agent's url: the same scheme, host and port",
                    hint="the credential belongs to one origin; configure the other one as the agent's url",
                )
            pinned.append(text)
        _, host, port = origin
        where = one_line(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", 120)
        return cls(url, origin, where, *pinned)

    def card_urls(self) -> tuple[str, ...]:
        """Where to look for the card, in order: below the configured path, beside it, at the root; or where pinned."""
        if self.card_url:
            return (self.card_url,)
        parts = urlsplit(self.text)
        root, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
        bases = (path, path.removesuffix("/a2a").rstrip("/"), "")
        return tuple(dict.fromkeys(root + base + card for base in bases for card in CARD_PATHS))

    def require(self, url: str) -> None:
        """Refuse an address of another origin: nothing of ours, the credential least of all, goes there.

        Raises:
            BlockedAddress: scheme, host or port differ from the configured ones.
        """
        if origin_of(url) != self.origin:
            raise BlockedAddress(f"{self.where}: a call to another address than the configured one was refused")


def check_url(url: str, name: str) -> tuple[str, tuple[str, str, int]]:
    """An address and its origin; ``name`` is what it is, for the message. Raises ConfigError."""
    url = url.strip()
    if not _PLAIN.fullmatch(url) or "\\" in url or "#" in url:
        raise ConfigError(f"{name} must be plain ASCII without spaces, backslashes or #")
    origin = origin_of(url)
    if origin is None or "@" in urlsplit(url).netloc:
        raise ConfigError(f"{name} must be http:// or https:// with a host and without a password")
    return url, origin
