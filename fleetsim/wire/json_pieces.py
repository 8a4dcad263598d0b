"""JSON from outside that is large, read piece by piece: nobody waits for the whole of it.

The standard library reads a document in one go, and 20 MB hold everything else up for a quarter of a second. What
passes here is what passes ``parse_untrusted``, at a few times the cost of each value, in steps as short as the pieces.
"""

from __future__ import annotations

import codecs
import json
import re
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from fleetsim.model.errors import WireError
from fleetsim.model.limits import CONTAINERS_MAX, DEPTH_MAX, VALUES_MAX
from fleetsim.wire.json import NUMBER_CHARS_MAX, finite, mended

_FED_BYTES = 8 * 1024

_BLANKS = re.compile(r"[ \t\n\r]*")
_NUMBER_CHARACTERS = re.compile(r"[-+.0-9eE]+")
_NUMBER = re.compile(r"(-?(?:0|[1-9][0-9]*))(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_IN_STRING = re.compile(r'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+')
_HIGH_HALF = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}")
_LITERALS = (("true", True), ("false", False), ("null", None))
_scan_string = json.decoder.scanstring  # type: ignore[attr-defined]  # what the decoder itself is made of
_PAIR_CHARS = 12
"""Characters of the longest thing in a string that is one only as a whole: two halves of a character, escaped."""

_DENSE_BYTES = 1024
"""So much is read at a time where there is little text and much around it."""

_FIRST, _NEXT, _COLON, _AFTER = range(4)
"""What may come: a member or an end, a member, a colon, a comma or an end."""


async def read_in_turns(data: bytes, turn: Callable[[], Awaitable[object]]) -> JsonReader:
    """A reader that has read all of a document, at most ``WIRE_BYTES_MAX`` of UTF-8; others had turns meanwhile."""
    reader, whole = JsonReader(strict=True), memoryview(data)  # which makes no second one of its pieces
    for at in range(0, len(data), _FED_BYTES):
        reader.feed(whole[at : at + _FED_BYTES])
        await turn()
    while reader.work():
        await turn()
    return reader


class JsonReader:
    """One document of at most ``WIRE_BYTES_MAX``, which its sender's limits see to. What is too much is refused as it
    arrives, as ``parse_untrusted`` does; bytes that are no UTF-8 are too if ``strict``, and become U+FFFD otherwise, as
    in an event of a stream."""

    def __init__(self, *, strict: bool = False) -> None:
        self._pieces: deque[bytes | memoryview] = deque()
        self._weight = _Weight()
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict" if strict else "replace")
        self._reading: Generator[None, str, Any] | None = _document()
        self._error = ""  # and no exception, whose traceback would keep all that was read
        self._value: Any = None
        next(self._reading)

    def feed(self, piece: bytes | memoryview) -> None:
        """What comes next, to be read by ``work``. Once it is too much, nothing more of it is kept."""
        if self._error:
            return
        try:
            dense = self._weight.add(piece)
        except WireError as error:
            self._refuse(str(error))
            return
        size = _DENSE_BYTES if dense else len(piece) or 1
        self._pieces.extend(piece[at : at + size] for at in range(0, len(piece), size))

    def work(self) -> bool:
        """Read on for a little; whether there is more to be read."""
        if self._pieces:
            self._read(self._pieces.popleft())
        return bool(self._pieces)

    def value(self) -> Any:
        """Nothing more comes. Raises WireError where ``parse_untrusted`` does."""
        while self.work():
            pass
        self._read(b"", final=True)
        self._send("")
        if self._error:
            raise WireError(self._error)
        return self._value

    def _read(self, piece: bytes | memoryview, *, final: bool = False) -> None:
        try:
            text = self._decoder.decode(piece, final)
        except UnicodeDecodeError:
            self._refuse("JSON is not UTF-8")
            return
        if text:
            self._send(text)

    def _send(self, text: str) -> None:
        if self._reading is None:
            return
        try:
            self._reading.send(text)
        except StopIteration as whole:
            self._value, self._reading = whole.value, None
        except WireError as error:
            self._refuse(str(error))
        except ValueError:
            self._refuse("not JSON")

    def _refuse(self, why: str) -> None:
        self._reading, self._error = None, why
        self._pieces.clear()


class _Weight:
    """Arrays, objects and values of a document, counted as ``parse_untrusted`` counts them, across its pieces."""

    def __init__(self) -> None:
        self._opened = self._values = 0
        self._in_string = False
        self._cut = b""

    def add(self, piece: bytes | memoryview) -> bool:
        """Count those of one more piece; whether it has many. Raises WireError."""
        data = self._cut + piece
        if b"\\" in data:
            odd = (len(data) - len(data.rstrip(b"\\"))) % 2
            data, self._cut = data[: len(data) - odd], data[len(data) - odd :]
            data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
        else:
            self._cut = b""
        spans = data.split(b'"')
        bare = b"".join(spans[self._in_string :: 2])
        self._in_string ^= len(spans) % 2 == 0
        opened = bare.count(b"[") + bare.count(b"{")
        self._opened += opened
        self._values += opened + bare.count(b",")
        if self._opened > CONTAINERS_MAX:
            raise WireError(f"JSON holds more than {CONTAINERS_MAX} arrays and objects")
        if self._values > VALUES_MAX:
            raise WireError(f"JSON holds more than {VALUES_MAX} values")
        return len(bare) > _DENSE_BYTES


def _document() -> Generator[None, str, Any]:
    """The value of what is sent, of which the last is empty."""
    text = yield
    last, text, at = not text, text.removeprefix("\ufeff"), 0
    root: list[Any] = []
    around: list[tuple[list[Any] | dict[str, Any], str | None]] = []
    inside: list[Any] | dict[str, Any] = root
    key: str | None = None  # of the member whose value is to come
    state = _NEXT
    while True:
        character = text[at : at + 1]
        if not character or character in " \t\n\r":
            at = _BLANKS.match(text, at).end()  # type: ignore[union-attr]  # it matches anything
            if at < len(text):
                continue
            if last:
                break
            text, at = (yield), 0
            last = not text
            continue
        if state == _AFTER:
            if inside is root:
                raise WireError("not JSON")
            if character == ",":
                at, state = at + 1, _NEXT
                continue
            if character != ("]" if isinstance(inside, list) else "}"):
                raise WireError("not JSON")
            value: Any = inside
            inside, key = around.pop()
            at += 1
        elif state == _COLON:
            if character != ":":
                raise WireError("not JSON")
            at, state = at + 1, _NEXT
            continue
        elif character == '"':
            try:
                value, at = _scan_string(text, at + 1, True)
                value = mended(value)
            except ValueError:  # it is not whole, or it is wrong
                value, text, at = yield from _string(text, at + 1)
            if key is None and isinstance(inside, dict):
                if value in inside:
                    raise WireError("JSON names a member twice")
                key, state = value, _COLON
                continue
        elif state == _FIRST and character == ("]" if isinstance(inside, list) else "}"):
            value = inside
            inside, key = around.pop()
            at += 1
        elif key is None and isinstance(inside, dict):
            raise WireError("not JSON")
        elif character in "[{":
            if len(around) == DEPTH_MAX:
                raise WireError(f"JSON is nested deeper than {DEPTH_MAX}")
            around.append((inside, key))
            inside, key = ([] if character == "[" else {}), None
            at, state = at + 1, _FIRST
            continue
        else:
            number = _NUMBER_CHARACTERS.match(text, at)
            end = number.end() if number else at + len("false")
            if not last and end >= len(text):
                if end - at > NUMBER_CHARS_MAX:
                    raise WireError("not JSON")
                more = yield
                text, at, last = text[at:] + more, 0, not more
                continue
            value, at = _scalar(text, at, end)
        if isinstance(inside, list):
            inside.append(value)
        else:
            assert key is not None
            inside[key] = value
            key = None
        state = _AFTER
    if state != _AFTER or inside is not root:
        raise WireError("not JSON")
    return root[0]


def _scalar(text: str, at: int, end: int) -> tuple[Any, int]:
    """A number that goes from ``at`` to ``end``, or one of the three words."""
    if (number := _NUMBER.fullmatch(text, at, end)) is not None:
        whole, fraction, exponent = number.groups()
        return (finite(number[0]) if fraction or exponent else int(whole)), end
    for word, value in _LITERALS:
        if text.startswith(word, at):
            return value, at + len(word)
    raise WireError("not JSON")


def _string(text: str, at: int) -> Generator[None, str, tuple[str, str, int]]:
    """The string that goes on at ``at`` and beyond ``text``; with the text that it ends in, and where."""
    parts = []
    while True:
        end = _IN_STRING.match(text, at).end()  # type: ignore[union-attr]  # it matches anything
        ends = text[end : end + 1] == '"'
        if not ends and end - at >= 6 and _HIGH_HALF.match(text, end - 6) and _is_escape(text, at, end - 6):
            end -= 6  # the other half may be still to come
        parts.append(mended(_scan_string(text[at:end] + '"', 0, True)[0]))
        if ends:
            return "".join(parts), text, end + 1
        rest = text[end:]
        if len(rest) >= _PAIR_CHARS:
            raise WireError("not JSON")
        more = yield
        if not more:
            raise WireError("not JSON")
        text, at = rest + more, 0


def _is_escape(text: str, begin: int, at: int) -> bool:
    """Whether the backslash at ``at`` is not itself escaped, in a string of which ``begin`` is a character."""
    return (at - len(text[begin:at].rstrip("\\")) - begin) % 2 == 0
