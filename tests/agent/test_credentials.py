"""Authentication: every way to send a key or a token, and the secrets that an agent accepts."""

from __future__ import annotations

from typing import Any

import pytest

from fleetsim.agent import Agent
from fleetsim.agent.guard import CREDENTIAL_BYTES_MAX, Authenticator
from fleetsim.agent.tasks import ANYONE
from fleetsim.model.errors import ConfigError

BOTH = Authenticator(api_keys={"ada": "k1", "bob": "k2"}, bearers={"cy": "t1", "ada": "t2"})
KEYS = Authenticator(api_keys={"ada": "k1"}, bearers={})
TOKENS = Authenticator(api_keys={}, bearers={"cy": "t1"})


def key(secret: bytes) -> tuple[bytes, bytes]:
    return b"x-api-key", secret


def auth(value: bytes) -> tuple[bytes, bytes]:
    return b"authorization", value


@pytest.mark.parametrize(
    ("gate", "headers", "who"),
    [
        (BOTH, [], None),
        (BOTH, [(b"cookie", b"k1")], None),
        (BOTH, [key(b"k1")], "ada"),
        (BOTH, [(b"cookie", b"k2"), key(b"k2")], "bob"),
        (BOTH, [key(b"k3")], None),
        (BOTH, [key(b"t1")], None),
        (BOTH, [key(b"")], None),
        (BOTH, [auth(b"Bearer t1")], "cy"),
        (BOTH, [auth(b"bearer  t2 ")], "ada"),
        (BOTH, [auth(b"Bearer k1")], None),
        (BOTH, [auth(b"Bearer ")], None),
        (BOTH, [auth(b"Basic t1")], None),
        (BOTH, [auth(b"t1")], None),
        (BOTH, [key(b"k1"), auth(b"Bearer t2")], "ada"),
        (BOTH, [key(b"k1"), auth(b"Bearer t1")], None),
        (BOTH, [key(b"k1"), auth(b"Bearer wrong")], None),
        (BOTH, [key(b"wrong"), auth(b"Bearer t1")], None),
        (BOTH, [key(b"k1"), auth(b"Basic x")], None),
        (BOTH, [key(b"k1"), key(b"k1")], None),
        (BOTH, [auth(b"Bearer t1"), auth(b"Bearer t1")], None),
        (BOTH, [key(b"k1"), auth(b"Bearer t2"), auth(b"Bearer t2")], None),
        (KEYS, [key(b"k1"), auth(b"Basic for-somebody-else")], "ada"),
        (KEYS, [auth(b"Bearer k1")], None),
        (TOKENS, [key(b"for-somebody-else"), auth(b"Bearer t1")], "cy"),
        (TOKENS, [key(b"t1")], None),
    ],
)
def test_the_caller_is_determined_by_all_its_credentials(gate: Authenticator, headers: Any, who: str | None) -> None:
    assert gate.admit(headers) == who


def test_without_secrets_every_caller_is_the_same() -> None:
    gate = Authenticator(api_keys={}, bearers={})
    assert gate.open
    assert gate.admit([key(b"any"), key(b"any")]) == ANYONE
    assert not any(closed.open for closed in (BOTH, KEYS, TOKENS))


@pytest.mark.parametrize("secret", ["", " ", " k", "k ", "k" * (CREDENTIAL_BYTES_MAX + 1), "é" * 2_049])
@pytest.mark.parametrize("kind", ["api_keys", "bearers"])
def test_a_secret_that_cannot_be_sent_is_refused(kind: str, secret: str) -> None:
    with pytest.raises(ConfigError):
        Authenticator(**{"api_keys": {}, "bearers": {}, kind: {"ada": "fine", "bob": secret}})


@pytest.mark.parametrize(
    ("gate", "schemes", "challenge"),
    [
        (KEYS, {"apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"}}, 'ApiKey header="X-API-Key"'),
        (TOKENS, {"bearer": {"type": "http", "scheme": "bearer"}}, "Bearer"),
        (
            BOTH,
            {
                "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
            "Bearer",
        ),
    ],
)
def test_the_required_credentials_are_on_the_card_and_in_the_refusal(
    gate: Authenticator, schemes: dict[str, Any], challenge: str
) -> None:
    assert gate.schemes() == schemes
    assert gate.challenge() == challenge


def test_the_repr_of_an_agents_settings_contains_no_secret() -> None:
    agent = Agent("guarded", api_keys={"hub": "k-secret"}, bearers={"hub": "b-secret"})
    assert "guarded" in repr(agent.settings)
    assert "secret" not in repr(agent.settings)
