"""Signatures of agent cards (A2A 1.0 section 8.4): JWS over the canonical JSON (RFC 8785) of a card.

Pure: its callers read the keys. ``verify`` returns the signed part of a card: read only that.
"""

from __future__ import annotations

import base64
import itertools
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from fleetsim.model.errors import ConfigError, WireError
from fleetsim.model.text import one_line
from fleetsim.wire.json import parse_untrusted

if TYPE_CHECKING:
    from joserfc.jwk import Key

SIGNATURES_MAX, HEADER_BYTES_MAX = 8, 16_384
"""Signatures of one card that are looked at, and the size of the header of each."""

KEYS_MAX, KEYS_BYTES_MAX, KEYS_TRIED_MAX = 100, 256 * 1024, 8
"""Keys that are taken from one file or address, its size, and the keys that one signature is tried with."""

ALGORITHMS = ("ES256", "ES384", "ES512", "EdDSA", "Ed25519", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
"""The algorithms of RFC 7518 and 8037 with a public key: with a shared secret anybody who verifies could sign."""

FORMS = 3
"""The forms of a card that a signer may have used (``forms_of``)."""

Shape: TypeAlias = "Mapping[str, Shape | None]"
"""The members of an object of 1.0; of one with a ``?`` a default value is left out. ``*`` is any member of a map."""


def _members(names: str, **objects: Shape) -> Shape:
    return {**dict.fromkeys(names.split()), **objects}


_REQUIREMENTS: Shape = {"?schemes": {"*": _members("?list")}}
_FLOW = _members("authorizationUrl deviceAuthorizationUrl tokenUrl ?refreshUrl scopes ?pkceRequired")
_OLD_FLOW = _members("?authorizationUrl ?tokenUrl ?refreshUrl ?scopes")
_CARD: Shape = {
    **_members(
        "name description version documentationUrl iconUrl defaultInputModes defaultOutputModes",
        supportedInterfaces=_members("url protocolBinding ?tenant protocolVersion"),
        provider=_members("url organization"),
        capabilities={
            **_members("streaming pushNotifications extendedAgentCard"),
            "?extensions": _members("?uri ?description ?required params"),
        },
        skills={
            **_members("id name description tags ?examples ?inputModes ?outputModes"),
            "?securityRequirements": _REQUIREMENTS,
        },
    ),
    "?securityRequirements": _REQUIREMENTS,
    "?securitySchemes": {
        "*": _members(
            "",
            apiKeySecurityScheme=_members("?description location name"),
            httpAuthSecurityScheme=_members("?description scheme ?bearerFormat"),
            openIdConnectSecurityScheme=_members("?description openIdConnectUrl"),
            mtlsSecurityScheme=_members("?description"),
            oauth2SecurityScheme=_members(
                "?description ?oauth2MetadataUrl",
                flows={
                    **dict.fromkeys(("authorizationCode", "clientCredentials", "deviceCode"), _FLOW),
                    **dict.fromkeys(("implicit", "password"), _OLD_FLOW),
                },
            ),
        ),
    },
}
"""``a2a.proto`` of 1.0: a default value stays in REQUIRED and ``optional`` fields alone (section 8.4.1)."""


class Signature(Struct, frozen=True, kw_only=True):
    """One signature of a card, not verified. ``broken`` says why it can have no key."""

    protected: str = ""
    signature: bytes = b""
    algorithm: str = ""
    key_id: str = ""
    key_url: str = ""
    broken: str = ""


def signatures_of(card: Mapping[str, Any]) -> list[Signature]:
    """The signatures of a card as it was received, at most ``SIGNATURES_MAX``."""
    signatures = card.get("signatures")
    return [_read(item) for item in signatures[:SIGNATURES_MAX]] if isinstance(signatures, list) else []


def _read(item: Any) -> Signature:
    protected, signature = (
        (item.get(name) for name in ("protected", "signature")) if isinstance(item, dict) else ("", "")
    )
    if not isinstance(protected, str) or not isinstance(signature, str) or len(protected) > HEADER_BYTES_MAX:
        return Signature(broken="it has no header and signature of text")
    try:
        header, proof = parse_untrusted(_bytes(protected)), _bytes(signature)
    except (ValueError, WireError):
        header, proof = None, b""
    if not isinstance(header, dict) or "crit" in header:
        return Signature(broken="its protected header is not JSON in base64url, or has an extension (crit)")
    algorithm, key_id, key_url = (
        value if isinstance(value := header.get(name), str) else "" for name in ("alg", "kid", "jku")
    )
    known = algorithm in ALGORITHMS
    return Signature(
        protected=protected,
        signature=proof,
        algorithm=algorithm,
        key_id=key_id,
        key_url=key_url,
        broken="" if known else f"it is of the algorithm “{one_line(algorithm, 40)}”, which does not prove a signer",
    )


def verify(
    forms: Iterable[tuple[Mapping[str, Any], bytes]], signature: Signature, keys: Sequence[Key]
) -> Mapping[str, Any] | None:
    """The part of a card that the signature covers; None if it fits no key and no form of the card."""
    from joserfc.errors import JoseError
    from joserfc.jws import JWSRegistry

    algorithm = JWSRegistry.algorithms[signature.algorithm]
    for form, payload in forms:
        signed = f"{signature.protected}.{base64url(payload)}".encode()
        for key in keys[:KEYS_TRIED_MAX]:
            with suppress(JoseError, ValueError):  # the key is of another kind or use
                algorithm.check_key(key)
                if algorithm.verify(signed, signature.signature, key):
                    return form
    return None


def forms_of(card: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], bytes]]:
    """The forms that a signer may have used, each with its canonical JSON: section 8.4.1's, a2a-sdk's, and as received.

    a2a-sdk leaves out each empty value; 1.x also the members that it adds for readers of 0.3, and 0.3 the values that
    are its defaults. Members that a form leaves out are those of a card without them. A form that has no canonical JSON
    is left out, as one with a number above 2^53 (RFC 8785 section 3.2.2.3).
    """
    bare = {name: value for name, value in card.items() if name != "signatures"}
    older = {"protocolVersion": "0.3.0", "preferredTransport": "JSONRPC"}
    current = "supportedInterfaces" in bare
    kept = {name: value for name, value in bare.items() if current or older.get(name) != value}
    forms: list[tuple[Mapping[str, Any], bytes]] = []
    for form in (_reduced(bare, _CARD), _filled(_reduced(kept, _CARD, rest=not current)) or {}, bare):
        with suppress(WireError):
            forms.append((form, canonical(form)))
    return forms


def _reduced(value: Any, shape: Shape | None, *, rest: bool = True) -> Any:
    """``value`` without default values where ``shape`` says so; with ``rest`` also members that it does not name."""
    if isinstance(value, list) and shape is not None:
        return [_reduced(item, shape, rest=rest) for item in value]
    if not isinstance(value, dict) or shape is None:
        return value
    reduced: dict[str, Any] = {}
    for name, item in value.items():
        if f"?{name}" in shape and not item:
            continue
        known = next((place for place in (name, f"?{name}", "*") if place in shape), None)
        if known is not None:
            reduced[name] = _reduced(item, shape[known], rest=rest)
        elif rest:
            reduced[name] = item
    return reduced


def _filled(value: Any) -> Any:
    """``value`` without empty texts, lists and objects, at any depth; None if nothing is left."""
    if isinstance(value, dict):
        return {name: kept for name, item in value.items() if (kept := _filled(item)) is not None} or None
    if isinstance(value, list):
        return [kept for item in value if (kept := _filled(item)) is not None] or None
    return None if value == "" else value


def canonical(value: Mapping[str, Any]) -> bytes:
    """The JSON of RFC 8785. Raises WireError: a number that it has no form for."""
    import rfc8785

    try:
        return rfc8785.dumps(dict(value))
    except (rfc8785.CanonicalizationError, UnicodeError):
        raise WireError("the card has no canonical form (RFC 8785)") from None


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(f"{text}{'=' * (-len(text) % 4)}", altchars=b"-_", validate=True)


def read_keys(data: bytes, where: str) -> list[Key]:
    """The keys of a JWK Set, a JWK or a PEM file, without the keys that cannot verify a signature.

    Raises ConfigError if none is left.
    """
    from joserfc.errors import JoseError, SecurityWarning
    from joserfc.jwk import import_key

    pem, items = data.lstrip().startswith(b"-----"), list[Any]()
    with suppress(WireError):
        value = data if pem else parse_untrusted(data)
        items = value.get("keys", [value]) if isinstance(value, dict) else [value]
    keys: list[Key] = []
    kinds: tuple[Any, ...] = ("EC", "OKP", "RSA") if pem else (None,)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SecurityWarning)  # about keys that are too short
        for item, kind in itertools.product(items[:KEYS_MAX] if isinstance(items, list) else [], kinds):
            with suppress(JoseError, SecurityWarning, ValueError, TypeError, AttributeError, KeyError):
                key = import_key(item, kind)
                key.check_use("sig")
                if key.key_type != "oct":
                    keys.append(key)
    if not keys:
        raise ConfigError(f"{where}: no public key for signatures in it (JWK Set, JWK or PEM)")
    return keys
