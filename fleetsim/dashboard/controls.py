"""What a person can do from the screens; the hub does it."""

from __future__ import annotations

from dataclasses import dataclass

from fleetsim.model.errors import FleetsimError


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeText:
    """What a request's agent said or asks, as far as the hub keeps it; ``chars`` is how long it was in all."""

    text: str
    chars: int


class Controls:
    """The intents of the screens. Each may raise a FleetsimError, whose message and hint are shown.

    These are the controls of a picture: they refuse everything.
    """

    async def answer(self, question_id: str, text: str) -> str:
        """Answer an open question, once; returns what happened, in a few words."""
        raise FleetsimError("this is a picture")

    async def reject(self, question_id: str) -> None:
        """Refuse to answer: the task is cancelled."""
        raise FleetsimError("this is a picture")

    async def veto(self, correlation_id: str) -> None:
        """Stop work whose window for a veto is open."""
        raise FleetsimError("this is a picture")

    async def cancel(self, correlation_id: str) -> None:
        """Ask the agent to stop a task."""
        raise FleetsimError("this is a picture")

    async def fire(self, ceremony_id: str) -> None:
        """Run a ceremony now."""
        raise FleetsimError("this is a picture")

    async def refresh(self, agent: str) -> None:
        """Fetch an agent's card again."""
        raise FleetsimError("this is a picture")

    async def text(self, correlation_id: str) -> WholeText:
        """All that is kept of what a request's agent asks now, or else said: events have excerpts."""
        raise FleetsimError("a recording has excerpts")
