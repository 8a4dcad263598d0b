"""Text that arrives in pieces, and the tokens it cost. Pure."""

from __future__ import annotations

from fleetsim.dashboard import read

LIVE_CHARS_MAX = 32_768
"""How much of a task's live text is kept: its newest part."""
PIECES_MAX = 4_096
PARTS_MAX = 64
_WHOLE = ""
"""The artifact of a text that came whole; a chunk that follows continues it."""


class LiveText:
    """Text arriving in pieces, per artifact, bounded to its newest part."""

    __slots__ = ("chars", "chunks", "parts", "size")

    def __init__(self) -> None:
        self.parts: dict[str, list[str]] = {}
        self.size = 0
        self.chars = 0
        self.chunks = 0

    def add(self, artifact: str, text: str, append: bool) -> None:
        """One chunk of an artifact; without ``append`` it is all of that artifact."""
        if append and artifact not in self.parts and _WHOLE in self.parts:
            self.parts[artifact] = self.parts.pop(_WHOLE)
        pieces = self.parts.setdefault(artifact, [])
        if not append:
            self.size -= sum(map(len, pieces))
            pieces.clear()
        pieces.append(text[-LIVE_CHARS_MAX:])
        self.size += len(pieces[-1])
        self.chars += len(text)
        self.chunks += 1
        if self.size > 2 * LIVE_CHARS_MAX or len(pieces) > PIECES_MAX or len(self.parts) > PARTS_MAX:
            kept = self.text()
            self.parts = {artifact: [kept]}
            self.size = len(kept)

    def replace_all(self, text: str) -> None:
        """Everything there is, as a poll or a snapshot gives it."""
        self.parts = {_WHOLE: [text[-LIVE_CHARS_MAX:]]}
        self.size = len(self.parts[_WHOLE][0])
        self.chars = len(text)
        self.chunks += 1

    def text(self) -> str:
        """The newest part of it, as it came: not yet neutralised."""
        return "\n".join("".join(pieces) for pieces in self.parts.values() if pieces)[-LIVE_CHARS_MAX:]


def tokens(usage: object) -> tuple[int, int] | None:
    """(input, output) tokens from an outcome's usage, as an object of either spelling or as a value."""
    if usage is None:
        return None
    fields = usage if isinstance(usage, dict) else {}
    found: list[int] = []
    for snake, camel in (("input_tokens", "inputTokens"), ("output_tokens", "outputTokens")):
        value = getattr(usage, snake, fields.get(snake, fields.get(camel)))
        found.append(read.count({"n": value}, "n") or 0)
    return (found[0], found[1]) if any(found) else None
