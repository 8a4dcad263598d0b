"""Signatures of cards: the canonical form of A2A 1.0 section 8.4, keys, and cards that released SDKs signed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st

from fleetsim.agent.card_signer import CardSigner
from fleetsim.model.card import AgentCard, AgentInterface, AgentSkill
from fleetsim.model.errors import ConfigError
from fleetsim.wire.card_signing import canonical, forms_of, read_keys, signatures_of, verify
from fleetsim.wire.cards import read_card, write_card

BY_SDKS: dict[str, Any] = json.loads((Path(__file__).parent / "signed_by_sdks.json").read_text(encoding="utf-8"))
CARD = AgentCard(
    name="Zürich",
    version="1",
    interfaces=(
        AgentInterface(url="http://quinn.example/a2a", protocol_version="1.0"),
        AgentInterface(url="http://quinn.example/a2a"),
    ),
    skills=(AgentSkill(skill_id="echo", name="Echo"),),
    security_schemes={"key": {"type": "apiKey", "in": "header", "name": "x-api-key"}},
    security=({"key": []},),
)


def pem_of(key: Any) -> bytes:
    form, bare = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    written: bytes = key.private_bytes(serialization.Encoding.PEM, form, bare)
    return written


SIGNER = CardSigner(pem_of(ec.generate_private_key(ec.SECP256R1())), "key.pem")


def covered(card: Any, keys: bytes) -> list[Any]:
    """The part of the card that each of its signatures covers."""
    return [verify(forms_of(card), signature, read_keys(keys, "keys")) for signature in signatures_of(card)]


def test_the_canonical_form_is_the_specifications() -> None:
    fragment = {
        "name": "Example Agent",
        "description": "",
        "capabilities": {"streaming": False, "pushNotifications": False, "extensions": []},
        "skills": [],
        "signatures": [{}],
    }
    assert forms_of(fragment)[0][1] == (
        b'{"capabilities":{"pushNotifications":false,"streaming":false},"description":"","name":"Example Agent",'
        b'"skills":[]}'
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "key",
    [
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP384R1()),
        ed25519.Ed25519PrivateKey.generate(),
        rsa.generate_private_key(65_537, 2_048),
    ],
    ids=["p-256", "p-384", "ed25519", "rsa"],
)
@pytest.mark.parametrize("shape", [{}, {"current": False}, {"older": False}], ids=["both", "0.3", "1.0"])
def test_a_signed_card_is_verified_until_it_changes(key: Any, shape: dict[str, bool]) -> None:
    signer = CardSigner(pem_of(key), "key.pem")
    signed, keys = signer.sign(write_card(CARD, **shape)), json.dumps(signer.key_set).encode()
    for part in covered(signed, keys):
        assert part is not None
        assert read_card(part).skills == CARD.skills
    assert covered(signed, pem_of(key)), "a PEM file will do"
    assert not any(covered({**signed, "name": "Evil"}, keys))
    assert not any(covered({**signed, "skills": []}, keys))


def test_a_default_value_in_the_card_does_not_change_the_signature() -> None:
    signed, keys = SIGNER.sign(write_card(CARD)), json.dumps(SIGNER.key_set).encode()
    assert covered({**signed, "securityRequirements": signed["securityRequirements"], "tenant": ""}, keys)[1]
    capabilities = {**signed["capabilities"], "extensions": []}
    assert all(covered({**signed, "capabilities": capabilities}, keys))


@pytest.mark.parametrize("sdk", BY_SDKS)
def test_a_card_that_a_released_sdk_signed_is_verified(sdk: str) -> None:
    card, key = BY_SDKS[sdk]["card"], BY_SDKS[sdk]["pub"].encode()
    (part,) = covered(card, key)
    assert part is not None
    assert read_card(part).skills == read_card(card).skills
    assert covered({**card, "description": "Evil"}, key) == [None]


def test_a_member_that_the_signature_does_not_cover_is_not_read() -> None:
    card, key = BY_SDKS["a2a-sdk 1.3.0"]["card"], BY_SDKS["a2a-sdk 1.3.0"]["pub"].encode()
    (part,) = covered({**card, "url": "http://evil.example/"}, key)
    assert "evil" not in json.dumps(part)


@pytest.mark.parametrize("algorithm", ["none", "HS256", "", 5])
def test_an_algorithm_without_a_public_key_proves_nothing(algorithm: object) -> None:
    import base64

    header = base64.urlsafe_b64encode(json.dumps({"alg": algorithm, "kid": "k"}).encode()).decode().rstrip("=")
    (signature,) = signatures_of({"signatures": [{"protected": header, "signature": ""}]})
    assert signature.broken


@given(
    st.recursive(st.none() | st.text() | st.binary(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_malformed_signatures_are_read_without_an_error(value: Any) -> None:
    for signatures in (value, [value], [{"protected": value, "signature": value}]):
        for signature in signatures_of({"signatures": signatures}):
            assert signature.broken


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"keys": [{"kty": "oct", "k": "AAAA"}]}', b"-----BEGIN X-----"])
def test_a_file_without_a_public_key_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigError):
        read_keys(data, "keys")


def test_a_public_key_cannot_sign() -> None:
    with pytest.raises(ConfigError):
        CardSigner(json.dumps(SIGNER.key_set).encode(), "keys.json")


def test_the_same_card_gets_the_same_signatures() -> None:
    assert SIGNER.sign(write_card(CARD)) == SIGNER.sign(write_card(CARD))
    assert canonical({"b": 1.0, "a": "é"}) == '{"a":"é","b":1}'.encode()
