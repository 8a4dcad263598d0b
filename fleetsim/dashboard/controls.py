"""The actions of a person at the screens; the hub carries them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleetsim.api.answers import AccessRole, FoundSkill, WireExchange
from fleetsim.model.errors import FleetsimError
from fleetsim.model.parts import ListedPart


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeText:
    """The text and parts of a request's agent, as far as the hub keeps them; ``chars`` is the text's whole length."""

    text: str
    chars: int
    parts: tuple[ListedPart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedRequest:
    """A request as a person typed it. ``files`` has paths as a shell reads them, ``data`` one JSON value."""

    agent: str
    skill: str = ""
    text: str = ""
    files: str = ""
    data: str = ""

    @property
    def blank(self) -> bool:
        return not (self.text.strip() or self.files.strip() or self.data.strip())


class Controls:
    """The actions of the screens, which show a FleetsimError with its hint. Those of a picture refuse all."""

    async def attach(self, url: str) -> tuple[str, str, AccessRole]:
        """Change to the hub at another address; returns its name, a note about its version, and the role of the key."""
        raise FleetsimError("this dashboard is part of its hub, or of a recording", hint="fleetsim dashboard URL")

    async def send(self, draft: TypedRequest) -> str:
        """Send a request to an agent; returns its correlation id."""
        raise FleetsimError("a picture has no actions")

    async def answer(self, question_id: str, text: str) -> str:
        """Answer an open question once; returns a short description of the result."""
        raise FleetsimError("a picture has no actions")

    async def reject(self, question_id: str) -> None:
        """Reject the question and cancel its task."""
        raise FleetsimError("a picture has no actions")

    async def veto(self, correlation_id: str) -> None:
        """Stop a request whose veto window is open."""
        raise FleetsimError("a picture has no actions")

    async def cancel(self, correlation_id: str) -> None:
        """Ask the agent to stop a task."""
        raise FleetsimError("a picture has no actions")

    async def retry(self, correlation_id: str, *, may_repeat: bool) -> None:
        """Send a request again; ``may_repeat``: also if the agent may have done the work."""
        raise FleetsimError("a picture has no actions")

    async def fire(self, ceremony_id: str) -> None:
        """Run a ceremony now."""
        raise FleetsimError("a picture has no actions")

    async def refresh(self, agent: str) -> None:
        """Fetch an agent's card again."""
        raise FleetsimError("a picture has no actions")

    async def skills(self, agent: str) -> Sequence[FoundSkill]:
        """The skills of an agent's card, with descriptions and examples."""
        raise FleetsimError("a recording has no descriptions of skills")

    async def text(self, correlation_id: str) -> WholeText:
        """The whole text of the agent's question or answer; events hold excerpts."""
        raise FleetsimError("a recording holds only excerpts")

    async def wire(self, *, agent: str = "", task: str = "", after: int = 0) -> Sequence[WireExchange]:
        """The exchanges with an agent or about a request after a number, oldest first, as the API has them."""
        raise FleetsimError("a recording has no wire log")

    async def save(self, correlation_id: str, indexes: Sequence[int], folder: str) -> Mapping[int, str]:
        """Save these files and data of the answer in the folder; returns the path of each."""
        raise FleetsimError("a recording has no content of files")
