"""Webhook signatures: the published form is accepted, and similar forms are refused (T-13)."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetsim.model.errors import BlockedAddress
from fleetsim.runtime.webhook import TOLERANCE_S, is_signing, read_secret, sign, verify, write_secret

SECRET = bytes(range(32))
BODY = '{"kind":"task","text":"caf\u00e9"}'.encode()
AT = 1_767_225_600
GOOD = sign(SECRET, "msg_2f-1", AT, BODY)


def check(headers: dict[str, str] | list[tuple[str, str]], *, at: float = AT, body: bytes = BODY) -> str | None:
    return verify(headers.items() if isinstance(headers, dict) else headers, SECRET, at, body)


def test_the_signature_equals_that_of_the_published_package() -> None:
    """Written by standardwebhooks 1.1.0 for the same secret, id, time and body."""
    assert write_secret(SECRET) == "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
    assert GOOD["webhook-signature"] == "v1,uWghCvUlayKzR7UdGFLJ8Yw+9XKtpdfc7RrEkacTzjQ="
    assert check(GOOD) == "msg_2f-1"


@pytest.mark.parametrize(("late", "taken"), [(-301, False), (-300, True), (300, True), (301, False)])
def test_a_webhook_is_accepted_five_minutes_before_and_after_its_time(late: int, taken: bool) -> None:
    assert TOLERANCE_S == 300
    assert (check(GOOD, at=AT + late) is not None) is taken


def test_one_valid_signature_among_others_is_enough() -> None:
    listed = f"v2,abc v1,AAAA {GOOD['webhook-signature']}"
    assert check({**GOOD, "webhook-signature": listed}) == "msg_2f-1"


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("webhook-id", "msg_2f-2"),
        ("webhook-id", ""),
        ("webhook-id", "msg.2f"),
        ("webhook-id", "m" * 129),
        ("webhook-id", "caf\u00e9"),
        ("webhook-timestamp", f"{AT}.0"),
        ("webhook-timestamp", f" {AT}"),
        ("webhook-timestamp", f"+{AT}"),
        ("webhook-timestamp", "\u0661" * 10),
        ("webhook-timestamp", "9" * 5000),
        ("webhook-timestamp", "nan"),
        ("webhook-timestamp", ""),
        ("webhook-signature", ""),
        ("webhook-signature", "v1,"),
        ("webhook-signature", "v1,!!!!"),
        ("webhook-signature", "v1,caf\u00e9"),
        ("webhook-signature", GOOD["webhook-signature"].removeprefix("v1,")),
        ("webhook-signature", GOOD["webhook-signature"].replace("v1,", "v1a,")),
        ("webhook-signature", "v1,AAAA " * 10 + GOOD["webhook-signature"]),
    ],
)
def test_a_malformed_or_wrong_signature_is_refused(header: str, value: str) -> None:
    assert check({**GOOD, header: value}) is None


def test_every_header_is_needed_exactly_once() -> None:
    for name, value in GOOD.items():
        assert check([pair for pair in GOOD.items() if pair[0] != name]) is None
        assert check([*GOOD.items(), (name, value)]) is None


def test_a_change_of_one_bit_of_the_body_is_refused() -> None:
    for at in range(len(BODY)):
        assert check(GOOD, body=BODY[:at] + bytes([BODY[at] ^ 1]) + BODY[at + 1 :]) is None


@given(st.lists(st.tuples(st.sampled_from([*GOOD, "Webhook-Id"]), st.text(max_size=80)), max_size=5), st.binary())
def test_no_headers_make_the_check_raise_or_pass(headers: list[tuple[str, str]], body: bytes) -> None:
    assert check(headers, body=body) is None


@pytest.mark.parametrize(
    "text",
    [None, "", "whsec_", "whsec_!!", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "whsec_caf\u00e9"]
    + [write_secret(bytes(size)) for size in (23, 65)],
)
def test_a_malformed_secret_is_refused_without_being_repeated(text: str | None) -> None:
    with pytest.raises(BlockedAddress) as refused:
        read_secret(text)
    assert not text or text == "whsec_" or text not in str(refused.value)


def test_a_secret_round_trips_and_its_scheme_is_known_in_any_case() -> None:
    assert read_secret(write_secret(SECRET)) == SECRET
    assert [is_signing(s) for s in ("standard-webhooks", "Standard-Webhooks", "Bearer", None)] == [
        True,
        True,
        False,
        False,
    ]
    assert base64.b64decode(write_secret(SECRET)[6:]) == SECRET


@pytest.mark.parametrize("size", [24, 64])
def test_a_secret_of_the_shortest_and_longest_size_is_accepted(size: int) -> None:
    assert read_secret(write_secret(bytes(size))) == bytes(size)


def test_only_the_first_ten_signatures_are_checked() -> None:
    mine = GOOD["webhook-signature"]
    assert check({**GOOD, "webhook-signature": "v1,AAAA " * 9 + mine}) == "msg_2f-1"
    assert check({**GOOD, "webhook-signature": "v1,AAAA " * 9 + mine + " v1,AAAA" * 5}) == "msg_2f-1"
    assert check({**GOOD, "webhook-signature": "v1,AAAA " * 10 + mine}) is None
    assert check({**GOOD, "webhook-id": "m" * 128, **sign(SECRET, "m" * 128, AT, BODY)}) == "m" * 128
    padded = base64.b64encode(bytes(33) + b"x" * 16).decode()
    assert check({**GOOD, "webhook-signature": f"v1,{padded} {mine}"}) == "msg_2f-1"
