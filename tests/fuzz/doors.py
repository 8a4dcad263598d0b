"""Fuzz targets at the doors: callback tokens and signatures, webhook addresses, and text on its way to a person."""

from __future__ import annotations

import base64
import ipaddress
import random
import struct
import unicodedata
from collections.abc import Callable
from urllib.parse import urlsplit

import httpx
from starlette.requests import Request

from fleetsim.caller.receiver import given_token
from fleetsim.caller.webhooks import CallbackTokens
from fleetsim.model.errors import BlockedAddress
from fleetsim.model.text import neutralise, one_line
from fleetsim.runtime.address import AddressPolicy, parse_address, parse_webhook_url
from fleetsim.runtime.webhook import sign, verify
from tests.fuzz.target import Target, mutated

_TOKENS = CallbackTokens({1: b"a" * 32, 2: b"b" * 32}, current=2)
_GENUINE = [
    _TOKENS.mint(agent, cid, epoch=epoch, signed=signed)
    for agent, cid in (("scout", "c-1"), ("clerk", "c-2"))
    for epoch in (1, 2)
    for signed in (False, True)
]
_KNOWN = frozenset(_GENUINE)


def auth(data: bytes) -> bool:
    """The headers of a webhook, one a line; what opens the door is a genuine token to the letter."""
    headers = []
    for line in data.split(b"\n")[:8]:
        name, _, value = line.partition(b":")
        headers.append((name.strip().lower(), value.strip()))
    token = given_token(Request({"type": "http", "headers": headers}))
    bearer = None if token is None else _TOKENS.verify(token)
    assert bearer is None or token in _KNOWN, token
    return bearer is not None


_SECRET, _AT, _BODY = bytes(range(32)), 1_767_225_600, b'{"kind":"task"}'
_SIGNED = sign(_SECRET, "msg-1", _AT, _BODY)


def signature(data: bytes) -> bool:
    """Three headers and a body, one a line; what passes says exactly what was signed."""
    lines = [line.decode("latin-1") for line in data.split(b"\n", 3)]
    headers = list(zip(_SIGNED, lines, strict=False))
    body = data.split(b"\n", 3)[3] if len(lines) == 4 else b""
    found = verify(headers, _SECRET, _AT, body)
    if found is not None:
        assert body == _BODY
        assert (lines[0], lines[1]) == (_SIGNED["webhook-id"], _SIGNED["webhook-timestamp"])
        assert _SIGNED["webhook-signature"] in lines[2].split(" ")
    return found is not None


def url(data: bytes) -> bool:
    """A webhook URL; whatever passes has one host and port to everybody."""
    text = data.decode("utf-8", "surrogateescape")
    try:
        ours = parse_webhook_url(text)
    except BlockedAddress:
        return False
    split, theirs = urlsplit(text), httpx.URL(text)
    default = 443 if ours.scheme == "https" else 80
    assert {(split.hostname or "").rstrip("."), theirs.host.lower().rstrip(".")} == {ours.host}, text
    assert {split.port or default, theirs.port or default} == {ours.port}, text
    return True


_V4_DENIED = (
    (0x00000000, 8), (0x0A000000, 8), (0x64400000, 10), (0x7F000000, 8), (0xA9FE0000, 16), (0xAC100000, 12),
    (0xC0000000, 24), (0xC0000200, 24), (0xC01FC400, 24), (0xC034C100, 24), (0xC0586300, 24), (0xC0A80000, 16),
    (0xC0AF3000, 24), (0xC6120000, 15), (0xC6336400, 24), (0xCB007100, 24), (0xE0000000, 4), (0xF0000000, 4),
)  # fmt: skip
_V6_DENIED = (
    (0x2001_0000 << 96, 23), (0x2001_0DB8 << 96, 32), (0x2002_0000 << 96, 16), (0x3FFE_0000 << 96, 16),
    (0x3FFF_0000 << 96, 20), (0x2620_004F_8000 << 80, 48),
)  # fmt: skip


def _denied(value: int, width: int) -> bool:
    """The rule of the threat model in numbers alone: no address library has a say in it."""
    if width == 128 and value >> 32 == 0xFFFF:
        return _denied(value & 0xFFFFFFFF, 32)
    if width == 128 and value >> 125 != 1:
        return True
    table = _V4_DENIED if width == 32 else _V6_DENIED
    return any(value >> (width - bits) == base >> (width - bits) for base, bits in table)


_POLICY = AddressPolicy()


def address(data: bytes) -> bool:
    """Four or sixteen bytes as an address: the policy says what the numbers say."""
    if len(data) == 4:
        (value,), width = struct.unpack(">I", data), 32
        text = str(ipaddress.IPv4Address(value))
    else:
        value, width = int.from_bytes(data[:16].ljust(16, b"\0")), 128
        text = str(ipaddress.IPv6Address(value))
    assert parse_address(text) is not None
    permitted = _POLICY.permits("x.example", 443, text)
    assert permitted is not _denied(value, width), text
    return permitted


def _addresses(rng: random.Random) -> Callable[[], bytes]:
    """Every edge of every range, first and last and one beyond, then anything near or far."""
    edges: list[bytes] = []
    for table, width in ((_V4_DENIED, 32), (_V6_DENIED, 128)):
        for base, bits in table:
            last = base + (1 << (width - bits)) - 1
            edges += [
                (x % (1 << width)).to_bytes(width // 8) for x in (base - 1, base, base + 1, last - 1, last, last + 1)
            ]
    edges += [b"\0" * 10 + b"\xff\xff" + edge for edge in edges if len(edge) == 4]
    pending = list(edges)

    def draw() -> bytes:
        if pending:
            return pending.pop()
        match rng.randrange(4):
            case 0:
                return rng.randbytes(4)
            case 1:
                return rng.choice((b"\x20", b"\x3f", b"\0" * 10 + b"\xff\xff", b"\x20\x01", b"\x26\x20")).ljust(
                    1
                ) + rng.randbytes(15)
            case 2:
                return rng.randbytes(16)
            case _:
                edge = bytearray(rng.choice(edges))
                edge[rng.randrange(len(edge))] ^= 1 << rng.randrange(8)
                return bytes(edge)

    return draw


_ODD = "".join(map(chr, (*range(32), *range(127, 160), 0xAD, 0x34F, *range(0x200B, 0x2030), *range(0x2060, 0x2070))))


def text(data: bytes) -> bool:
    """Text of an agent: what is left is harmless by its categories, short enough, and stays as it is."""
    said = data.decode("utf-8", "surrogatepass") if data[:1] != b"\xff" else data.decode("latin-1")
    limit = 1 + len(data) % 97
    for lines in (True, False):
        left = neutralise(said, limit=limit, lines=lines)
        assert len(left) <= limit
        assert neutralise(left, limit=limit, lines=lines) == left
        allowed = {"\n", "\t"} if lines else set()
        for socket_ in left:
            assert socket_ in allowed or unicodedata.category(socket_) not in {"Cc", "Cf", "Cs", "Zl", "Zp"}, hex(
                ord(socket_)
            )
    assert "\n" not in one_line(said)
    return left == said


def _texts(rng: random.Random) -> Callable[[], bytes]:
    def draw() -> bytes:
        match rng.randrange(3):
            case 0:
                points = (
                    rng.choice((rng.randrange(0x3000), rng.randrange(0x110000))) for _ in range(rng.randrange(40))
                )
                made = "".join(map(chr, points))
            case 1:
                made = "".join(rng.choice(_ODD + "ab \u0301\u0489\n\t") for _ in range(rng.randrange(60)))
            case _:
                made = f"\x1b{rng.choice('[]P_^X')}{rng.randrange(99)};{rng.choice(_ODD)}{rng.choice('mHJlh')}" * 3
        return made.encode("utf-8", "surrogatepass")

    return draw


def _headers() -> list[bytes]:
    lines = [f"Authorization: Bearer {token}" for token in _GENUINE] + [
        f"X-A2A-Notification-Token: {t}" for t in _GENUINE
    ]
    both = [f"{a}\n{b}" for a, b in zip(lines[:8], lines[8:], strict=True)]
    empty = base64.urlsafe_b64encode(b"2\0scout\0c-1").decode()
    return [line.encode() for line in (*lines, *both, f"authorization: bearer {empty}.")]


TARGETS = (
    Target(name="auth", promise="only a genuine token opens, nothing raises", draw=mutated(*_headers()), judge=auth),
    Target(
        name="signature",
        promise="only what was signed passes, nothing raises",
        draw=mutated("\n".join([*_SIGNED.values(), ""]).encode() + _BODY),
        judge=signature,
    ),
    Target(
        name="url",
        promise="BlockedAddress, else every parser agrees",
        draw=mutated(
            b"http://example.com/a?b=c",
            b"https://[2606:4700::1]:8443/x%20y",
            b"HTTP://127.0.0.1:8080",
            b"http://a_b.c./",
        ),
        judge=url,
    ),
    Target(name="address", promise="the policy agrees with the table in numbers", draw=_addresses, judge=address),
    Target(name="text", promise="nothing harmful is left, twice changes nothing", draw=_texts, judge=text),
)
