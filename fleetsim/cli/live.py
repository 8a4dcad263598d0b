"""Which part of a growing answer is new: what is shown once is not shown again, and nothing is left out."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class LiveText:
    """The text shown so far. An answer that takes back what was shown begins on a line of its own."""

    shown: str = ""

    def more(self, whole: str) -> str:
        """What to print so that all of ``whole`` has been seen."""
        before, self.shown = self.shown, whole
        if whole.startswith(before):
            return whole[len(before) :]
        return f"\n{whole}"


@dataclass(slots=True)
class LivePieces:
    """As ``LiveText``, from the pieces of each artifact: the first of a stream does not say ``append``."""

    _texts: dict[str, LiveText] = field(default_factory=dict)

    def more(self, artifact_id: str, piece: str, *, append: bool) -> str:
        """What to print for one piece."""
        text = self._texts.setdefault(artifact_id, LiveText())
        return text.more(text.shown + piece if append else piece)

    @property
    def shown(self) -> str:
        """All that was shown, one artifact a line."""
        return "\n".join(text.shown for text in self._texts.values())

    def rest(self, whole: str) -> str:
        """What to print so that the finished answer has been seen."""
        return LiveText(self.shown).more(whole)
