"""A webhook token names its agent and request; any other text is refused."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from fleetsim.caller.webhooks import CallbackTokens, TokenClaims

OLD, NEW = b"a" * 32, b"b" * 32
TOKENS = CallbackTokens({1: OLD, 2: NEW}, current=2)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(("asked", "said"), [(None, 2), (2, 2), (1, 1), (7, 2)])
def test_a_token_names_its_agent_and_request(asked: int | None, said: int, signed: bool) -> None:
    token = TOKENS.mint("scoût", "c-1", epoch=asked, signed=signed)
    assert TOKENS.verify(token) == TokenClaims(epoch=said, agent="scoût", correlation_id="c-1", signed=signed)


def test_the_secret_of_signatures_belongs_to_one_request_one_agent_and_one_key() -> None:
    secrets = [
        TOKENS.signing_secret("scout", "c-1"),
        TOKENS.signing_secret("scout", "c-2"),
        TOKENS.signing_secret("clerk", "c-1"),
        TOKENS.signing_secret("scout", "c-1", epoch=1),
        base64.urlsafe_b64decode(TOKENS.mint("scout", "c-1", signed=True).partition(".")[2] + "="),
    ]
    assert len({*secrets}) == 5
    assert {len(secret) for secret in secrets} == {32}
    assert TOKENS.signing_secret("scout", "c-1", epoch=2) == secrets[0]
    assert TOKENS.signing_secret("scout", "c-1", epoch=9) == secrets[0], "as a token is minted then"
    assert CallbackTokens({2: NEW}, current=2).signing_secret("scout", "c-1") == secrets[0], "the next start knows it"


def test_a_token_of_an_earlier_release_is_valid() -> None:
    assert TOKENS.mint("scout", "c-1") == "MgBzY291dABjLTE.ucumHziq5wqUreQBmTvoAlFj99TzYZibAhjOFaV2iYc"
    assert TOKENS.signing_secret("scout", "c-1").hex() == (
        "8f1f65fc91777e9413389bced19b9a75bb9d158cfa514f49c20d39d856d9246a"
    )


def _spelled(said: bytes, key: bytes = NEW) -> str:
    """A token with this text and the MAC of that key."""
    mac = hmac.new(key, b"fleetsim callback v1\0" + said, hashlib.sha256).digest()
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in (said, mac))


@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "a",
        "a.a",
        "\u00e9.\u00e9",
        _spelled(b""),
        _spelled(b"2"),
        _spelled(b"2\0scout"),
        _spelled(b"x\0scout\0c-1"),
        _spelled(b"3\0scout\0c-1"),
        _spelled(b"2\0sco\xffut\0c-1"),
        _spelled(b"2\0scout\0c-1", OLD),
        _spelled(b"2\0scout\0c-1") + "=",
        _spelled(b"2\0scout\0c-1") + "\n",
        _spelled(b"2\0scout\0c-1").replace(".", ".!"),
        _spelled(b"2\0scout\0c-1").partition(".")[0],
    ],
)
def test_a_text_that_no_caller_minted_is_refused_without_an_error(token: str) -> None:
    assert TOKENS.verify(_spelled(b"2\0scout\0c-1")) is not None
    assert TOKENS.verify(token) is None
