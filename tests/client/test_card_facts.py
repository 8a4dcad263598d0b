"""Changes between two cards: the detected ones, and those that break callers."""

from __future__ import annotations

from typing import Any

import pytest

from fleetsim.client.card_facts import CardFacts
from fleetsim.model.card import CardProof, ProofState
from fleetsim.wire.cards import read_card

URL = "https://agent.example/base"
CARD: dict[str, Any] = {
    "name": "quinn",
    "version": "1",
    "description": "does",
    "capabilities": {"streaming": True},
    "defaultInputModes": ["text/plain", "application/json"],
    "skills": [{"id": "review", "name": "Review", "description": "reviews"}, {"id": "triage", "name": "Triage"}],
    "supportedInterfaces": [
        {"url": "https://agent.example/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
        {"url": "https://agent.example/rest", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"},
    ],
    "securitySchemes": {"key": {"apiKeySecurityScheme": {"location": "header", "name": "X-API-Key"}}},
    "securityRequirements": [{"schemes": {"key": {"list": []}}}],
}


def promise(url: str = URL, proof: CardProof | None = None, **changed: Any) -> CardFacts:
    from msgspec.structs import replace

    card = read_card({**CARD, **changed})
    return CardFacts.of(card if proof is None else replace(card, proof=proof), url)


FREE: dict[str, Any] = {"securitySchemes": {}, "securityRequirements": []}
ANOTHER = {"capabilities": {"streaming": True, "extensions": [{"uri": "https://x.example/e", "required": True}]}}
ONE, OTHER = CARD["skills"]


@pytest.mark.parametrize(
    ("before", "now", "breaks"),
    [
        ({}, {"skills": [ONE]}, True),
        ({"skills": [ONE]}, {}, False),
        ({}, {"supportedInterfaces": CARD["supportedInterfaces"][:1]}, True),
        ({"supportedInterfaces": CARD["supportedInterfaces"][:1]}, {}, False),
        ({}, {"capabilities": {}}, True),
        ({"capabilities": {}}, {}, False),
        (FREE, {}, True),
        ({}, FREE, False),
        ({}, ANOTHER, True),
        (ANOTHER, {}, False),
        ({}, {"defaultInputModes": ["text/plain"]}, True),
        ({"defaultInputModes": ["text/plain"]}, {}, False),
        ({}, {"version": "2"}, False),
        ({}, {"description": "other"}, False),
        ({}, {"skills": [{**ONE, "description": "other"}, OTHER]}, False),
    ],
)
def test_a_change_is_detected_and_breaks_callers_only_if_they_lose_something(
    before: Any, now: Any, breaks: bool
) -> None:
    changes = promise(**before).changes_to(promise(**now))
    assert changes
    assert any(change.breaking for change in changes) is breaks


VERIFIED = CardProof(state=ProofState.VERIFIED, signer="key a")


@pytest.mark.parametrize(
    ("before", "now", "breaks"),
    [
        (CardProof(), VERIFIED, False),
        (VERIFIED, CardProof(), True),
        (VERIFIED, CardProof(state=ProofState.VERIFIED, signer="key b"), True),
        (CardProof(), CardProof(state=ProofState.FAILED), True),
        (CardProof(state=ProofState.UNVERIFIED), CardProof(), False),
    ],
)
def test_a_signature_that_is_lost_or_broken_breaks_callers(before: CardProof, now: CardProof, breaks: bool) -> None:
    (change,) = promise(proof=before).changes_to(promise(proof=now))
    assert change.breaking is breaks


def test_two_deployments_of_one_agent_are_equal_and_an_interface_elsewhere_is_not() -> None:
    there = [
        {**interface, "url": interface["url"].replace("agent", "staging")} for interface in CARD["supportedInterfaces"]
    ]
    staging = promise("https://staging.example", supportedInterfaces=there)
    assert promise().changes_to(staging) == ()
    assert promise().changes_to(promise(supportedInterfaces=there))


def test_texts_of_a_card_are_short_lines_without_control_characters() -> None:
    evil = "\x1b[2J\nname: forged" + "x" * 100_000
    hostile = promise(
        name=evil,
        version=evil,
        description=evil,
        skills=[{"id": evil, "name": evil, "description": evil, "inputModes": [evil]}],
        supportedInterfaces=[{"url": f"https://x.example/{evil}", "protocolBinding": evil, "protocolVersion": evil}],
        securitySchemes={"key": {"apiKeySecurityScheme": {"location": evil, "name": evil}}},
    )
    changes = [*promise().changes_to(hostile), *hostile.changes_to(promise())]
    assert all(len(str(change)) < 600 and "\x1b" not in str(change) and "\n" not in str(change) for change in changes)
