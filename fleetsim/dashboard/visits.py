"""The views that a person opened, as a browser keeps its pages. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

VISITS_MAX = 50


@dataclass(frozen=True, slots=True)
class Visit:
    """An opened view: its screen, the agent of the agent's screen, and the filter."""

    screen: str
    agent: str
    filter_text: str


@dataclass(slots=True)
class Visits:
    """The newest visits; ``at`` is the index of the open one, ``before`` the one that was left for it."""

    all: list[Visit] = field(default_factory=list)
    at: int = 0
    before: Visit | None = None

    def add(self, here: Visit) -> None:
        """Note the open view; it replaces those that a person went back from."""
        if not self.all or here != self.all[self.at]:
            self.before = self.all[self.at] if self.all else None
            self.all = [*self.all[: self.at + 1], here][-VISITS_MAX:]
            self.at = len(self.all) - 1

    def go(self, by: int) -> Visit | None:
        """The view before (-1) or after (1) the open one; None at the ends."""
        if not 0 <= self.at + by < len(self.all):
            return None
        self.before, self.at = self.all[self.at], self.at + by
        return self.all[self.at]
