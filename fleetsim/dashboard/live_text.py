"""Text that arrives in pieces, and the tokens it cost. Pure."""

from __future__ import annotations

from fleetsim.model.extensions import Usage

LIVE_CHARS_MAX = 32_768
"""How much of a task's live text is kept: its newest part."""
PIECES_MAX = 4_096
PARTS_MAX = 64
MISSING = " […] "
"""Stands where characters of an excerpt are missing."""
_WHOLE = ""
"""The artifact of a text that came whole; a chunk that follows continues it."""


class LiveText:
    """Text arriving in pieces, per artifact, bounded to its newest part.

    ``chars`` is how long it is in all. ``gaps`` says that something in the middle is missing: a piece that came as
    an excerpt, or events that were lost.
    """

    __slots__ = ("_lengths", "chunks", "gaps", "parts", "size")

    def __init__(self) -> None:
        self.parts: dict[str, list[str]] = {}
        self._lengths: dict[str, int] = {}
        self.size = 0
        self.chunks = 0
        self.gaps = False

    def add(self, artifact: str, text: str, append: bool, chars: int = 0) -> None:
        """One chunk of an artifact; without ``append`` it is all of that artifact. ``chars``: if that is a part."""
        if append and artifact not in self.parts and _WHOLE in self.parts:
            self.parts[artifact] = self.parts.pop(_WHOLE)
            self._lengths[artifact] = self._lengths.pop(_WHOLE)
        pieces = self.parts.setdefault(artifact, [])
        if not append:
            self.size -= sum(map(len, pieces))
            pieces.clear()
            self._lengths[artifact] = 0
        if chars > len(text):
            self.gaps = True
            text += MISSING
        pieces.append(text[-LIVE_CHARS_MAX:])
        self.size += len(pieces[-1])
        self._lengths[artifact] = self._lengths.get(artifact, 0) + max(chars, len(text))
        self.chunks += 1
        if self.size > 2 * LIVE_CHARS_MAX or len(pieces) > PIECES_MAX or len(self.parts) > PARTS_MAX:
            kept = self.text()
            self.parts = {artifact: [kept]}
            self.size = len(kept)

    def replace_all(self, text: str, chars: int = 0) -> None:
        """Everything there is, as a poll or a snapshot gives it; ``chars`` if ``text`` is but its beginning."""
        self.gaps = chars > len(text)
        text += MISSING if self.gaps else ""
        self.parts = {_WHOLE: [text[-LIVE_CHARS_MAX:]]}
        self.size = len(self.parts[_WHOLE][0])
        self._lengths = {_WHOLE: max(chars, len(text))}
        self.chunks += 1

    @property
    def chars(self) -> int:
        """How long all of it is, with the lines between artifacts."""
        return sum(self._lengths.values()) + max(0, sum(map(bool, self._lengths.values())) - 1)

    @property
    def whole(self) -> bool:
        """Whether ``text`` is all of it."""
        return not self.gaps and len(self.text()) == self.chars

    def text(self) -> str:
        """The newest part of it, as it came: not yet neutralised."""
        joined = map("".join, self.parts.values())
        return "\n".join(text for text in joined if text)[-LIVE_CHARS_MAX:]


def tokens(usage: Usage | None) -> tuple[int, int] | None:
    """(input, output) tokens; None if nothing is said of them."""
    if usage is None or not (usage.input_tokens or usage.output_tokens):
        return None
    return usage.input_tokens, usage.output_tokens
