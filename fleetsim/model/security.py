"""The credentials that a card requests, as values (A2A 0.3 section 5.5.3, 1.0 section 4.5). Their texts are hostile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from fleetsim.model.card import AgentCard
from fleetsim.model.text import one_line

SCHEMES_MAX = 8
"""Most schemes of one alternative, and most alternatives, that are read."""


class RequestedCredential(Struct, frozen=True, kw_only=True):
    """One credential that an agent requests.

    ``kind`` is apiKey, bearer, basic, oauth2, openIdConnect or mutualTLS; any other is shown, and fleetsim cannot send
    it. ``place`` and ``key`` say where an API key goes. ``token_url`` is that of the client credentials flow.
    """

    kind: str
    place: str = ""
    key: str = ""
    token_url: str = ""
    discovery_url: str = ""
    scopes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The scheme in a few harmless words."""
        match self.kind:
            case "apiKey":
                return f"an API key in the {one_line(self.place, 20)} “{one_line(self.key, 64)}”"
            case "bearer":
                return "a bearer token"
            case "basic":
                return "a user and password (Basic)"
            case "oauth2" if self.token_url or self.discovery_url:
                return f"an OAuth2 token of {one_line(self.token_url or self.discovery_url, 120)}"
            case "oauth2":
                return "an OAuth2 token that a person consents to"
            case "openIdConnect":
                return f"an OpenID Connect token, see {one_line(self.discovery_url, 120)}"
            case "mutualTLS":
                return "a client certificate (mutual TLS)"
            case other:
                return f"“{one_line(other, 40)}”"


def requested_schemes(card: AgentCard) -> tuple[tuple[RequestedCredential, ...], ...]:
    """The alternatives of a card: each is the credentials that go together. Empty if it requests none.

    A card that declares schemes and requires none offers each of them.
    """
    required = [tuple(item.items()) for item in card.security] or [((name, ()),) for name in card.security_schemes]
    alternatives = [
        tuple(_scheme(str(name), card.security_schemes.get(name), scopes) for name, scopes in item[:SCHEMES_MAX])
        for item in required[:SCHEMES_MAX]
    ]
    return tuple(dict.fromkeys(item for item in alternatives if item))


def in_words(alternatives: tuple[tuple[RequestedCredential, ...], ...]) -> str:
    """The alternatives in one line; empty if there is none."""
    return ", or ".join(" and ".join(map(str, schemes)) for schemes in alternatives)


def _scheme(name: str, value: Any, required: Any) -> RequestedCredential:
    scheme = value if isinstance(value, Mapping) else {}
    kind = str(scheme.get("type", "")) or name
    scopes = tuple(str(scope)[:200] for scope in required[:50]) if isinstance(required, list | tuple) else ()
    if kind == "apiKey":
        return RequestedCredential(kind=kind, place=_text(scheme, "in") or "header", key=_text(scheme, "name"))
    if kind == "http":
        named = _text(scheme, "scheme").lower() or "bearer"
        return RequestedCredential(kind=named if named in {"bearer", "basic"} else f"HTTP {named}")
    if kind == "openIdConnect":
        return RequestedCredential(kind=kind, discovery_url=_text(scheme, "openIdConnectUrl"), scopes=scopes)
    if kind == "oauth2":
        flow = next(_mappings(scheme.get("flows"), "clientCredentials"), {})
        offered = tuple(str(scope)[:200] for scope in next(_mappings(flow, "scopes"), {}))[:50]
        return RequestedCredential(
            kind=kind,
            token_url=_text(flow, "tokenUrl"),
            discovery_url=_text(scheme, "oauth2MetadataUrl"),
            scopes=scopes or offered,
        )
    return RequestedCredential(kind=kind)


def _text(value: Mapping[str, Any], name: str) -> str:
    word = value.get(name)
    return word[:500] if isinstance(word, str) else ""


def _mappings(value: Any, name: str) -> Iterator[Mapping[str, Any]]:
    inner = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(inner, Mapping):
        yield inner
