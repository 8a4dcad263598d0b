"""A conversation with one agent: it keeps the ids from turn to turn.

The rules are Workstacean's ``chat_with_agent`` (seed "Multi-turn conversations", A2A 1.0 section 3.4): the
first turn omits both ids and the agent makes them; later turns carry its contextId, and its taskId while
that task still waits for us. A closed conversation hands out neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetsim.client.follow import WAIT_S, AskedAgent, FollowedRequest
from fleetsim.client.results import FollowResult
from fleetsim.model.errors import FleetsimError, UnknownTarget
from fleetsim.model.parts import ListedPart
from fleetsim.model.task import Part, TaskState


class ConversationClosed(FleetsimError):
    """There was a further turn after the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The result of one turn, ``parts`` its files and data; ``result`` has everything that is known of its request.

    ``state`` is that of ``FollowResult``. The ids are None after the last turn, so that nobody continues by mistake.
    ``warnings`` say that the agent went on in another task or context than it was asked to, or that it speaks another
    dialect than its card says; a conversation gives each of them once.
    """

    text: str
    state: str
    error: str | None
    context_id: str | None
    task_id: str | None
    warnings: tuple[str, ...] = ()
    parts: tuple[ListedPart, ...] = ()
    parts_total: int = 0
    result: FollowResult = field(repr=False)

    @property
    def asks(self) -> bool:
        """Whether the agent waits for our next turn to finish this one."""
        return self.result.question is not None


class Conversation:
    """Turns with one agent, called directly or through a hub. ``context_id`` and ``task_id`` resume an earlier one.

    ``skill`` names the skill to talk with; without it the agent's card decides (``model.work.skill_hint``).
    ``following`` is the request of the last turn, also while it is at work.

    ::

        chat = Conversation(client)  # or hub.agent("ava")
        first = await chat.say("Which issues are open?")
        last = await chat.say("Close the oldest.", done=True)
    """

    def __init__(
        self,
        client: AskedAgent,
        *,
        context_id: str | None = None,
        task_id: str | None = None,
        skill: str | None = None,
    ) -> None:
        self._client = client
        self._skill = skill
        self.context_id = context_id
        self.task_id = task_id
        self.closed = False
        self.following: FollowedRequest | None = None
        self._last: FollowResult | None = None
        self._warned: frozenset[str] = frozenset()

    async def say(
        self,
        text: str,
        *,
        parts: tuple[Part, ...] = (),
        done: bool = False,
        metadata: Mapping[str, Any] | None = None,
        timeout_s: float = WAIT_S,
    ) -> Turn:
        """Say ``text`` and wait for the answer or the agent's next question; ``done`` makes it the last turn.

        ``parts`` are files and data to go with it. An answer to a question goes out in the form that it asks for.

        Raises:
            ConversationClosed: an earlier turn was the last one.
            UnfitAnswer: the data is not what the question's schema asks for; nothing was sent.
            UnknownTarget: the question at the hub is not open any more; nothing was sent.
            FleetsimError: as ``AgentClient.send_task`` or ``HubClient``; the conversation can go on. If an answer was
                refused, the next turn opens a new task.
        """
        if self.closed:
            raise ConversationClosed("the conversation is closed", hint="start a new Conversation")
        skill = (metadata or {}).get("skillHint")
        following = self.following = self._client.follow(
            text,
            skill=skill if isinstance(skill, str) else self._skill,
            task_id=self.task_id,
            context_id=self.context_id or "",
            parts=parts,
            metadata=metadata or {},
            stream=False,
            answers=self._last.question if self._last is not None else None,
            timeout_s=timeout_s,
        )
        try:
            await following.finish()
        except UnknownTarget:
            self.task_id = self._last = None
            raise
        finally:
            if following.sent:  # whatever comes of it, that was the answer
                self.task_id = self._last = None
        result = self._last = following.report()
        self.context_id = result.context_id or self.context_id
        self.task_id = result.task_id if result.question is not None else None
        self.closed = done
        warnings = tuple(warning for warning in result.warnings if warning not in self._warned)
        self._warned |= {*warnings}
        failed = not result.open and result.state != TaskState.COMPLETED
        return Turn(
            text=result.text,
            state=result.state,
            error=result.text or result.reason or f"the agent gave no reason for {result.state}" if failed else None,
            context_id=None if done else self.context_id,
            task_id=None if done else self.task_id,
            warnings=warnings,
            parts=result.parts,
            parts_total=result.parts_total,
            result=result,
        )
