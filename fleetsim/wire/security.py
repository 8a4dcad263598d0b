"""A card's security, in the OpenAPI shape of 0.3 and the wrapped shape of 1.0.

The two shapes share one member, ``securitySchemes``. In a hybrid card each scheme carries both: readers of
either version take the members they know and pass over the rest, which is how SDK servers of 1.x that
also speak 0.3 write it, and which SDK clients of both versions were seen to accept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleetsim.model.task import JsonObject

SCHEMES_MAX = 100
"""Most schemes or requirements taken from one card."""

_WRAPPED = {
    "apiKey": "apiKeySecurityScheme",
    "http": "httpAuthSecurityScheme",
    "oauth2": "oauth2SecurityScheme",
    "openIdConnect": "openIdConnectSecurityScheme",
    "mutualTLS": "mtlsSecurityScheme",
}


def read_schemes(value: Any) -> dict[str, Any]:
    """Schemes by name, in the 0.3 shape whatever shape they came in; unreadable ones are left out."""
    if not isinstance(value, Mapping):
        return {}
    found = {str(name): _read_scheme(scheme) for name, scheme in list(value.items())[:SCHEMES_MAX]}
    return {name: scheme for name, scheme in found.items() if scheme}


def _read_scheme(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {}
    if isinstance(value.get("type"), str):
        return {name: item for name, item in value.items() if name not in _WRAPPED.values()}
    for kind, wrapper in _WRAPPED.items():
        inner = value.get(wrapper)
        if isinstance(inner, Mapping):
            renamed = {("in" if kind == "apiKey" and name == "location" else name): inner[name] for name in inner}
            return {"type": kind, **renamed}
    return {}


def read_requirements(card: JsonObject) -> tuple[JsonObject, ...]:
    """What a caller must show, as 0.3 writes it: alternatives, each a map of scheme name to scopes."""
    value = card.get("security") or card.get("securityRequirements")
    found = []
    for item in value[:SCHEMES_MAX] if isinstance(value, list) else ():
        if not isinstance(item, Mapping):
            continue
        schemes = item.get("schemes")
        named = schemes if isinstance(schemes, Mapping) else item
        found.append({str(name): _scopes(scopes) for name, scopes in list(named.items())[:SCHEMES_MAX]})
    return tuple(found)


def _scopes(value: Any) -> list[str]:
    listed = value.get("list") if isinstance(value, Mapping) else value
    return [item for item in listed[:SCHEMES_MAX] if isinstance(item, str)] if isinstance(listed, list) else []


def write_schemes(schemes: JsonObject, *, older: bool, current: bool) -> dict[str, Any]:
    """The ``securitySchemes`` member for a card of 0.x (``older``), of 1.0 (``current``) or of both."""
    written = {
        name: {**(scheme if older else {}), **(_wrap(scheme) if current else {})}
        for name, scheme in schemes.items()
        if isinstance(scheme, Mapping)
    }
    return {"securitySchemes": written} if written else {}


def _wrap(scheme: JsonObject) -> dict[str, Any]:
    wrapper = _WRAPPED.get(str(scheme.get("type")))
    if wrapper is None:
        return {}
    inner = {("location" if name == "in" else name): item for name, item in scheme.items() if name != "type"}
    return {wrapper: inner}


def write_requirements(security: tuple[JsonObject, ...], *, older: bool, current: bool) -> dict[str, Any]:
    """The ``security`` (0.x) and ``securityRequirements`` (1.0) members."""
    written: dict[str, Any] = {}
    if security and older:
        written["security"] = [{name: list(scopes) for name, scopes in item.items()} for item in security]
    if security and current:
        written["securityRequirements"] = [
            {"schemes": {name: {"list": list(scopes)} for name, scopes in item.items()}} for item in security
        ]
    return written
