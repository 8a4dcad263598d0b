"""What the official conformance kits expect an agent to do, by the prefix of the message's id.

The kits' published requirements (docs/reference/interop.md): fixed texts and files for the 1.0 kit, and
for the 0.3 kit a task that is still open a second later and then waits for input.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable

from fleetsim.agent.skills import Skill, SkillContext, SkillRejected, skill
from fleetsim.model.task import DataPart, FilePart, Message, Part, TextPart

PLAIN = "text/plain"
OPEN_S = 3.0
RESUBSCRIBE_S = 5.0

_FILE = FilePart(raw=base64.b64encode(b"tck").decode(), filename="output.txt", media_type=PLAIN)
_LINK = FilePart(uri="https://example.com/output.txt", filename="output.txt", media_type=PLAIN)
_DATA = DataPart(data={"key": "value", "count": 42})

ARTIFACTS: dict[str, Part] = {
    "tck-artifact-text": TextPart(text="Generated text content"),
    "tck-artifact-file-url": _LINK,
    "tck-artifact-file": _FILE,
    "tck-artifact-data": _DATA,
    "tck-stream-artifact-text": TextPart(text="Streamed text content"),
    "tck-stream-artifact-file": _FILE,
    "tck-stream-ordering-001": TextPart(text="Ordered output"),
    "tck-stream-001": TextPart(text="Stream hello from TCK"),
    "tck-stream-003": TextPart(text="Stream task lifecycle"),
}
"""Prefix to the one artifact it stands for."""

DIRECT = "tck-message-response"
DONE = "tck-complete-task"


def direct_reply(message: Message) -> str | None:
    """The answer to a message that wants none but a message."""
    return "Direct message response" if message.message_id.startswith(DIRECT) else None


async def _complete(task: SkillContext) -> str:
    return "Hello from TCK"


async def _quiet(task: SkillContext) -> None:
    return None


async def _ask(task: SkillContext, question: str = "Please provide additional input", open_s: float = 0.0) -> str:
    """As the kits' own agents: every message is answered by the question again, until one's id says otherwise."""
    while True:
        await asyncio.sleep(open_s)
        answer = await task.ask_message(question)
        if answer.message_id.startswith(DONE):
            return await _complete(task)


async def _reject(task: SkillContext) -> str:
    raise SkillRejected("rejected")


async def _chunked(task: SkillContext) -> None:
    for text, last in (("chunk-1 ", False), ("chunk-2", True)):
        part = TextPart(text=text)
        await task.attach(part, artifact_id="chunked", append=not text.startswith("chunk-1"), last_chunk=last)


async def _long(task: SkillContext) -> str:
    await asyncio.sleep(RESUBSCRIBE_S)
    return "still here"


async def _otherwise(task: SkillContext) -> str:
    """For the 0.3 kit: open for a while, then waiting, so that it can be continued and cancelled."""
    return await _ask(task, "Anything else?", OPEN_S)


PLAYS: dict[str, Callable[[SkillContext], Awaitable[str | None]]] = {
    DONE: _complete,
    "tck-input-required": _ask,
    "tck-reject-task": _reject,
    "tck-stream-002": _quiet,
    "tck-stream-artifact-chunked": _chunked,
    "test-resubscribe-message-id": _long,
}
"""Prefix to what is done."""


@skill("tck", description="Does what the conformance kit's message id asks for", tags=("conformance",))
async def tck(task: SkillContext) -> str | None:
    """The longest fitting prefix decides."""
    message_id = task.message.message_id
    fitting = [prefix for prefix in (*ARTIFACTS, *PLAYS) if message_id.startswith(prefix)]
    prefix = max(fitting, key=len, default="")
    if part := ARTIFACTS.get(prefix):
        await task.attach(part, artifact_id="result")
        return None
    return await PLAYS.get(prefix, _otherwise)(task)


def kit_skills() -> tuple[Skill, ...]:
    """The one skill of the profile."""
    return (tck,)
