"""A conversation with one agent: who carries the ids from turn to turn, so that nobody else has to.

The rules are Workstacean's ``chat_with_agent`` (seed "Multi-turn conversations", A2A 1.0 section 3.4): the
first turn omits both ids and the agent makes them; later turns carry its contextId, and its taskId while
that task still waits for us. A closed conversation hands out neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleetsim.client.agent_client import AgentClient
from fleetsim.client.follow import WAIT_S, SentTask
from fleetsim.model.errors import FleetsimError
from fleetsim.model.parts import ListedPart
from fleetsim.model.task import Part, Task, TaskState, elsewhere
from fleetsim.wire.choice import disagreement


class ConversationClosed(FleetsimError):
    """Something was said after the last word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one turn brought, ``parts`` its files and data.

    The ids are None after the last one, so that nobody goes on by mistake. ``warnings`` say where the agent went
    on elsewhere than in the task or context it was asked to, and once that it speaks another dialect than its card.
    """

    text: str
    state: TaskState
    error: str | None
    context_id: str | None
    task_id: str | None
    warnings: tuple[str, ...] = ()
    parts: tuple[ListedPart, ...] = ()
    parts_total: int = 0

    @property
    def asks(self) -> bool:
        """Whether the agent waits for our next turn to finish this one."""
        return self.state in {TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED}


class Conversation:
    """Turns with one agent. ``context_id`` and ``task_id`` resume an earlier one.

    ``skill`` names the skill to talk with; without it the agent's card decides (``model.skills.skill_hint``).

    ::

        chat = Conversation(client)
        first = await chat.say("Which issues are open?")
        last = await chat.say("Close the oldest.", done=True)
    """

    def __init__(
        self,
        client: AgentClient,
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
        self._question: Task | None = None

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
            FleetsimError: as ``AgentClient.send_task``; the conversation can go on. If the agent refused an answer, the
                next turn opens a new task.
        """
        if self.closed:
            raise ConversationClosed("the conversation is closed", hint="start a new Conversation")
        asked_context, known = self.context_id, self._client.spoken
        asked_task = self.task_id
        sent = await self._send(text, parts, metadata or {}, timeout_s)
        self._question = sent.task if sent.waiting else None
        self.context_id = sent.context_id or self.context_id
        self.task_id = sent.id if sent.waiting else None
        self.closed = done
        spoken = self._client.spoken
        turned = (disagreement(spoken),) if spoken and spoken != known else ()
        return Turn(
            text=sent.text,
            state=sent.state,
            error=sent.error,
            context_id=None if done else self.context_id,
            task_id=None if done else self.task_id,
            warnings=(
                *turned,
                *elsewhere(sent.id, sent.context_id, asked_task=asked_task, asked_context=asked_context),
            ),
            parts=sent.parts,
            parts_total=sent.parts_total,
        )

    async def _send(
        self, text: str, parts: tuple[Part, ...], metadata: Mapping[str, Any], timeout_s: float
    ) -> SentTask:
        """Send it to the task that waits, if one does. Whatever comes of it, that was its answer."""
        own = metadata.get("skillHint")
        following = self._client.follow(
            text,
            skill=own if isinstance(own, str) else self._skill,
            task_id=self.task_id,
            context_id=self.context_id,
            parts=parts,
            metadata=metadata,
            stream=False,
            answers=self._question,
            timeout_s=timeout_s,
        )
        try:
            return await following.end()
        finally:
            if following.sent:
                self.task_id = self._question = None
