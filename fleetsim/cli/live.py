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
    """As ``LiveText``, from the pieces of each artifact: the first of a stream does not say ``append``.

    ``hold`` stops the showing where pieces are missing or do not go on from what was shown; ``rest`` then shows
    what is missing, so that nothing is left out and nothing stands in the wrong place.
    """

    _texts: dict[str, list[str]] = field(default_factory=dict)
    _shown: list[str] = field(default_factory=list)
    _held: bool = False

    def more(self, artifact_id: str, piece: str, *, append: bool, cut: bool = False) -> str:
        """What to print for one piece; ``cut`` says that it is only a beginning."""
        if self._held:
            return ""
        if append and artifact_id in self._texts and artifact_id == next(reversed(self._texts)):
            self._texts[artifact_id].append(piece)
            new = piece
        else:
            before = self._texts.get(artifact_id, []) if append else []
            self._texts[artifact_id] = [*before, piece]
            whole, shown = "\n".join(filter(None, map("".join, self._texts.values()))), self.shown
            if not whole.startswith(shown):
                self.hold()
                return ""
            new = whole[len(shown) :]
        self._held = cut
        self._shown.append(new)
        return new

    def hold(self) -> None:
        """Pieces are missing: show no more of them."""
        self._held = True

    @property
    def shown(self) -> str:
        """All that was shown."""
        return "".join(self._shown)

    def rest(self, whole: str) -> str:
        """What to print so that the finished answer has been seen."""
        return LiveText(self.shown).more(whole)
