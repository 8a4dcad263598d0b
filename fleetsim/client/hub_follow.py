"""One agent of a hub's fleet, and following a request to it: live from the hub's events, else by polls of its row."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Protocol, TypeVar

from msgspec import UNSET

from fleetsim.api.answer import iso
from fleetsim.api.answers import Accepted, EndedRequest, KeyIdentity, KnownId, OpenRequest, QuestionFacts
from fleetsim.api.part_rows import body_part
from fleetsim.client.follow import FellBack, FollowedRequest, Retrying
from fleetsim.client.results import FollowResult
from fleetsim.model.errors import ConnectionLost, FleetsimError, TimedOut, TransportError, UnknownTarget, Unreachable
from fleetsim.model.event import ArtifactUpdate, DirectReply, Snapshot, StatusUpdate, TaskEvent, fold, plain
from fleetsim.model.limits import PREFIX_CHARS_MIN, TEXT_CHARS_MAX
from fleetsim.model.task import Artifact, Message, Part, Role, Task, TaskState, TaskStatus, TextPart
from fleetsim.model.text import one_line

WAIT_S = 20
"""Seconds that the hub may hold one poll open."""

_SETTLED = ("autonomous.outcome.", "hitl.request.")
"""The topics that end a live view: the outcome, or a question."""

_STREAMED = "agent.chat.inbound"


TASK_WAIT_S = 300.0
"""Seconds until a client gives up waiting for a request, by default."""


T = TypeVar("T")


class HubCalls(Protocol):
    """The part of ``HubClient`` that requests to one agent need."""

    async def read(self, kind: type[T], path: str, /, body: Mapping[str, Any] | None = None, **query: Any) -> T: ...
    async def task(self, correlation_id: str, *, wait_s: int = 0) -> OpenRequest | EndedRequest: ...
    async def answer(self, *question: Any, **options: Any) -> QuestionFacts: ...
    def events(self, *, after: int | None = None) -> AsyncGenerator[dict[str, Any], None]: ...


class AgentAtHub:
    """One agent of a hub's fleet, asked as ``AgentClient`` asks one (``client.follow.AskedAgent``)."""

    def __init__(self, hub: HubCalls, name: str, *, interface: str = "api") -> None:
        self._hub = hub
        self._name = name
        self._interface = interface

    def follow(
        self,
        text: str,
        *,
        skill: str | None = None,
        task_id: str | None = None,
        context_id: str | None = None,
        parent_id: str | None = None,
        parts: Sequence[Part | Mapping[str, Any]] = (),
        metadata: Mapping[str, Any] | None = None,
        stream: bool = True,
        answers: str | None = None,
        fell_back: FellBack = lambda _: None,
        retrying: Retrying = lambda *_: None,
        timeout_s: float | None = TASK_WAIT_S,
    ) -> HubFollowing:
        """Have the hub ask the agent, and follow the request.

        With ``stream`` the agent's events are shown as they happen. ``answers`` is the id of a question that ``text``
        and ``parts`` answer; the request that asked goes on. ``context_id`` continues a conversation; "" lets the agent
        make one. The hub itself repeats calls and replaces streams, so that nothing calls ``retrying`` and
        ``fell_back``. ``timeout_s`` is for all of it.
        """

        async def submit() -> Accepted:
            if answers is not None:
                question = await self._hub.answer(answers, text, parts=parts, by="user")
                return Accepted(correlation_ids=(question.correlation_id,))
            options = {
                "metadata": dict(metadata or {}),
                "skill": skill,
                "contextId": context_id,
                "conversation": context_id == "",
                "taskId": task_id,
                "parentId": parent_id,
            }
            body = {"text": text, "targets": [self._name], "interface": self._interface, **with_parts(parts)}
            body |= {key: value for key, value in options.items() if value}
            return await self._hub.read(Accepted, "/requests", body)

        return HubFollowing(self._hub, submit, streamed=stream, timeout_s=timeout_s)

    def follow_task(
        self,
        task_id: str,
        *,
        stream: bool = False,
        fell_back: FellBack = lambda _: None,
        timeout_s: float | None = TASK_WAIT_S,
    ) -> HubFollowing:
        """Follow a request that the hub has. Its first update is its row. Raises UnknownTarget (``request_id``).

        With ``stream`` the agent's events are shown from now on; ``fell_back`` is never called, as in ``follow``."""

        async def submit() -> Accepted:
            known = await request_id(self._hub, task_id)
            seq = (await self._hub.read(KeyIdentity, "/whoami")).last_seq if stream else UNSET
            return Accepted(correlation_ids=(known,), seq=seq)

        return HubFollowing(self._hub, submit, streamed=stream, known=True, timeout_s=timeout_s)


def with_parts(parts: Sequence[Part | Mapping[str, Any]]) -> dict[str, Any]:
    """The ``parts`` of a body, if there are any."""
    rows = [part if isinstance(part, Mapping) else body_part(part) for part in parts]
    return {"parts": rows} if rows else {}


async def request_id(hub: HubCalls, text: str) -> str:
    """The whole id of the request that ``text`` names: its id, a beginning of it that no other id has, the id of the
    ceremony's run it belongs to, or the agent's whole task id (the newest request of that task). Raises UnknownTarget.
    """
    known = [row for row in await hub.read(list[KnownId], "/ids", prefix=text) if row.kind != "question"]
    if known and known[0].kind == "task" and len({row.agent for row in known}) == 1:
        return known[0].correlation_id
    return _only(text, {row.correlation_id: row for row in known}, "request", "fleetsim task list")


async def question_id(hub: HubCalls, text: str) -> str:
    """The whole id of the question that ``text`` names: its id, or a beginning no other has. Raises UnknownTarget."""
    known = [row for row in await hub.read(list[KnownId], "/ids", prefix=text) if row.kind == "question"]
    return _only(text, {row.id: row for row in known}, "question", "fleetsim inbox list")


def _only(text: str, known: Mapping[str, KnownId], what: str, listing: str) -> str:
    if text in known or len(known) == 1:
        return text if text in known else next(iter(known))
    shown = one_line(text, 64)
    if not known:
        least = f" (at least {PREFIX_CHARS_MIN} characters of it)" if len(text) < PREFIX_CHARS_MIN else ""
        raise UnknownTarget(f"no {what} “{shown}” is known{least}", hint=f"`{listing}` shows them")
    which = "".join(f"\n  {key}  {one.agent}  {iso(one.at)}" for key, one in known.items())
    raise UnknownTarget(f"“{shown}” may be any of {len(known)} {what}s:{which}", hint="give more of the id")


class HubFollowing(FollowedRequest):
    """A request at a hub. If the connection to the hub breaks off, the request goes on; ConnectionLost names it.

    The first iteration yields a task that is submitted. Then, with ``streamed``, come the events of the agent's stream
    as the hub shows them.
    """

    def __init__(
        self,
        hub: HubCalls,
        submit: Callable[[], Awaitable[Accepted]],
        *,
        streamed: bool = False,
        known: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """``submit`` makes the request, or names one that is ``known`` to the hub: the first update is its row then."""
        self._timeout_s = timeout_s
        self._updates = self._follow()
        self._hub = hub
        self._submit = submit
        self._streamed = streamed
        self._known = known
        self._row: OpenRequest | EndedRequest | None = None
        self._accepted: Accepted | None = None

    @property
    def lookup_id(self) -> str:
        return self._accepted.correlation_ids[0] if self._accepted is not None else ""

    def report(self, text_chars_max: int = TEXT_CHARS_MAX) -> FollowResult:
        """As ``FollowedRequest.report``. The text has at most the characters that the hub keeps."""
        if self._row:
            return FollowResult.of_row(self._row, self.duration_s)
        return FollowResult(
            state=TaskState.SUBMITTED, open=True, success=False, text="", text_chars=0, correlation_id=self.lookup_id
        )

    async def end(self) -> FollowResult:
        """The request as it ended, or as it waits for somebody."""
        await self.finish()
        return self.report()

    def _late(self, after: str) -> FleetsimError:
        if self._accepted is None:
            return TimedOut(
                f"the hub did not say within {after} that it took the request; it may have",
                hint="look at the hub's requests before you send it again",
            )
        return TimedOut(f"request {self.lookup_id} is still {self.report().state} after {after}")

    async def _follow(self) -> AsyncGenerator[Task, None]:
        self.sent = True
        try:
            self._accepted = await self._submit()
        except TransportError as error:
            self.sent = error.sent
            raise
        except FleetsimError:
            self.sent = False
            raise
        self.task = Task(task_id="", context_id="", status=TaskStatus(state=TaskState.SUBMITTED))
        try:
            if self._known:
                self._row = await self._hub.task(self.lookup_id)
            yield self.task
            if self._streamed and self._goes_on:
                with suppress(FleetsimError):  # the row has the whole text
                    async for task in self._live(self._accepted):
                        yield task
            self.event = None
            while self._goes_on:
                # The last polls before the deadline are short, so that the row is fresh then.
                left_s = math.inf if self._timeout_s is None else self._timeout_s - self.duration_s
                wait_s = int(max(1, min(WAIT_S, left_s))) if self._row else 0
                self._row = await self._hub.task(self.lookup_id, wait_s=wait_s)
        except (Unreachable, ConnectionLost) as error:
            hint = f"start it again with `fleetsim up`, then `fleetsim task get {self.lookup_id}`"
            raise ConnectionLost(f"the hub went away; it has the request {self.lookup_id}", hint=hint) from error

    @property
    def _goes_on(self) -> bool:
        return self._row is None or (self._row.open and not self._row.question_id)

    async def _live(self, accepted: Accepted) -> AsyncGenerator[Task, None]:
        """The task after each event of the agent's stream, until the hub lost some of them or shows news of the row."""
        folded = self.task
        async with aclosing(self._hub.events(after=None if accepted.seq is UNSET else accepted.seq)) as events:
            async for event in events:
                topic = event["topic"]
                if topic == "events.dropped":
                    return
                if event["correlationId"] != self.lookup_id:
                    continue
                if topic == _STREAMED:
                    self.event = _read_event(event["payload"])
                    folded = fold(folded, self.event)
                    self.task = plain(folded)
                    yield self.task
                elif topic.startswith(_SETTLED):
                    return


def _read_event(payload: Mapping[str, Any]) -> TaskEvent:
    """An event of the agent's stream, from the hub's excerpt of it. The text may be only a beginning."""
    text = payload["text"]
    part = TextPart(text=text, left_out=max((payload.get("textChars") or 0) - len(text), 0))
    artifact = Artifact(artifact_id=payload.get("artifactId") or "", parts=(part,))
    message = Message(message_id="", role=Role.AGENT, parts=(part,))
    if payload["type"] == "artifact":
        append, last = payload.get("append") is True, payload.get("lastChunk") is True
        return ArtifactUpdate(task_id="", context_id="", artifact=artifact, append=append, last_chunk=last)
    if payload["type"] == "message":
        return DirectReply(message=message)
    state = TaskState(payload["state"])
    if payload["type"] == "status":
        status = TaskStatus(state=state, message=message if text else None)
        return StatusUpdate(task_id="", context_id="", status=status)
    status = TaskStatus(state=state)
    return Snapshot(task=Task(task_id="", context_id="", status=status, artifacts=(artifact,) if text else ()))
