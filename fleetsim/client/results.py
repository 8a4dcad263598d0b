"""Results of calls: a task as its agent shows it, and a request as whoever follows it knows it. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from fleetsim.api.answer import to_json
from fleetsim.api.part_rows import part_row, read_part_row
from fleetsim.model.asking import answer_schema, asking_of, text_of
from fleetsim.model.errors import WireError
from fleetsim.model.event import DirectReply, bounded, fold
from fleetsim.model.extensions import REASON_CHARS_MAX, read_extras, reason_of
from fleetsim.model.limits import TEXT_CHARS_MAX
from fleetsim.model.parts import ListedPart, answer_parts
from fleetsim.model.task import INTERRUPTED, TERMINAL, UNSUCCESSFUL, Message, Task, TaskState, id_changes
from fleetsim.model.text import one_line
from fleetsim.model.work import Cause
from fleetsim.wire.choice import disagreement
from fleetsim.wire.dialect import Reply

if TYPE_CHECKING:
    from fleetsim.api.answers import ChatAnswer, EndedRequest, OpenRequest  # a call of an agent needs none of them

_STATES = frozenset(TaskState)

QuestionRef: TypeAlias = Task | str
"""A question to answer: the task as it asks, or the id of the question at a hub."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentTask:
    """A task as a caller sees it. A failure of the agent is a ``state`` with the reason in ``error``.

    ``id`` and ``context_id`` are empty for an agent that answered with a message alone. ``raw`` is the
    undecoded result, ``task`` the decoded one. Text is the agent's own: neutralise it before showing it.
    ``parts`` are the files and data it answered with, of ``parts_total`` it sent (``model.parts.answer_parts``).
    ``warnings`` are sentences about what the agent refused, ignored or left out.
    """

    id: str
    context_id: str
    state: TaskState
    text: str
    error: str | None = None
    raw: Any = field(default=None, repr=False)
    task: Task | None = field(default=None, repr=False)
    parts: tuple[ListedPart, ...] = field(default=(), repr=False)
    parts_total: int = 0
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, reply: Reply, raw: Any, reason: str = "", warnings: tuple[str, ...] = ()) -> SentTask:
        """Read an agent's reply. ``reason`` is that of a failure for which the task has none.

        Raises WireError if it is neither a task nor a message.
        """
        if isinstance(reply, Message):
            task = fold(None, DirectReply(message=reply))
        elif isinstance(reply, Task):
            task = reply
        else:
            raise WireError("the agent answered with neither a task nor a message")
        text, _ = text_of(task)
        parts, parts_total = answer_parts(task)
        return cls(
            id=task.task_id,
            context_id=task.context_id,
            state=task.state,
            text=text,
            error=(text or reason_of(task) or reason or f"the agent gave no reason for {task.state}")
            if task.state in UNSUCCESSFUL
            else None,
            raw=raw,
            task=None if task is not reply else task,
            parts=parts,
            parts_total=parts_total,
            warnings=warnings,
        )

    @property
    def done(self) -> bool:
        return self.state in TERMINAL

    @property
    def waiting(self) -> bool:
        return self.state in INTERRUPTED


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowResult:
    """A request as far as it is known, whether its agent was called or a hub asked.

    ``state`` is the task's, or a hub's word where no task has one (``model.work.OutcomeKind``, ``Phase``); ``cause``
    is a hub's reason for such an end. ``text`` is the agent's own, of ``text_chars`` characters: data, for nobody to
    obey. ``success``: the task completed, and its own payload does not deny success. ``reason`` is the reason of a
    failure in one line. ``question`` answers what the agent asks (``follow(answers=...)``); ``asks_for_data``: with a
    schema. ``tokens`` counts those in and out. ``dialect`` is the agent's if it is another than its card says. ``row``
    is everything that the hub sent, and ``correlation_id`` its id of the request.
    """

    state: str
    open: bool
    success: bool
    text: str
    text_chars: int
    reason: str = ""
    cause: str = ""
    task_id: str = ""
    context_id: str = ""
    correlation_id: str = ""
    question: QuestionRef | None = field(default=None, repr=False)
    asks_for_data: bool = False
    duration_s: float = 0.0
    cost_usd: float | None = None
    tokens: int = 0
    dialect: str = ""
    warnings: tuple[str, ...] = ()
    parts: tuple[ListedPart, ...] = field(default=(), repr=False)
    parts_total: int = 0
    row: OpenRequest | EndedRequest | None = field(default=None, repr=False)

    @property
    def truncated(self) -> bool:
        """Whether ``text`` is only the beginning of the agent's text."""
        return self.text_chars > len(self.text)

    def facts(self) -> dict[str, Any]:
        """Return the members that ``of_row`` reads, for JSON of a task that no hub has a row of."""
        return {
            "state": self.state,
            "text": self.text,
            "truncated": self.truncated,
            "textChars": self.text_chars,
            "reason": self.reason or None,
            "parts": [to_json(part_row(part)) for part in self.parts],
            "partsTotal": self.parts_total,
            "taskId": self.task_id or None,
            "contextId": self.context_id or None,
            "costUsd": self.cost_usd,
            "warnings": list(self.warnings),
        }

    @classmethod
    def of_task(
        cls,
        task: Task,
        *,
        asked_task: str | None = None,
        asked_context: str | None = None,
        dialect: str = "",
        known: tuple[str, ...] = (),
        reason: str = "",
        duration_s: float = 0.0,
        text_chars_max: int = TEXT_CHARS_MAX,
    ) -> FollowResult:
        """Read a task of an agent that was called directly. ``asked_*`` are the ids in the message to it,
        ``known`` the warnings so far. ``reason`` is that of failed looks, of a failure that the task gives none for, or
        of a doubt whether the result is whole.
        """
        parts, parts_total = answer_parts(task)
        task = bounded(task, text_chars_max)
        text, chars = text_of(task)
        waits, asks_for_data = task.state in INTERRUPTED, False
        if waits:
            prompt = asking_of(task)
            text, chars, asks_for_data = prompt.text, prompt.chars, answer_schema(prompt.parts) is not None
        extras = read_extras(task)
        completed = task.state is TaskState.COMPLETED
        denied = completed and extras.denies_success
        if task.state in UNSUCCESSFUL:
            reason = one_line(text, REASON_CHARS_MAX) or reason_of(task) or reason
        elif denied:
            reason = Cause.SUCCESS_DENIED.meaning
        moved = id_changes(task.task_id, task.context_id, asked_task=asked_task, asked_context=asked_context)
        return cls(
            state=task.state,
            open=not task.terminal,
            success=completed and not denied,
            text=text,
            text_chars=chars,
            reason=reason,
            cause=Cause.SUCCESS_DENIED if denied else Cause.AGENT_SAID,
            task_id=task.task_id,
            context_id=task.context_id,
            question=task if waits else None,
            asks_for_data=asks_for_data,
            duration_s=duration_s,
            cost_usd=extras.cost.cost_usd if extras.cost else None,
            tokens=extras.cost.usage.input_tokens + extras.cost.usage.output_tokens if extras.cost else 0,
            dialect=dialect,
            warnings=(*known, *((disagreement(dialect),) if dialect else ()), *moved),
            parts=parts,
            parts_total=parts_total,
        )

    @classmethod
    def of_row(cls, row: OpenRequest | EndedRequest, duration_s: float = 0.0) -> FollowResult:
        """Read an answer of ``GET /api/tasks/{id}``."""
        usage = None if row.open else row.usage
        return cls(
            state=TaskState(row.state) if row.state in _STATES else row.state,
            open=row.open,
            success=row.success,
            text=row.text,
            text_chars=max(row.text_chars, len(row.text)),
            reason=row.reason,
            cause=row.cause or "",
            task_id=row.task_id or "",
            context_id=row.context_id or "",
            correlation_id=row.correlation_id,
            question=row.question_id,
            asks_for_data=row.asks_for_data,
            duration_s=row.duration_ms / 1000 if row.duration_ms else duration_s,
            cost_usd=row.cost_usd,
            tokens=usage.input_tokens + usage.output_tokens if usage else 0,
            warnings=row.warnings,
            parts=tuple(map(read_part_row, row.parts)),
            parts_total=row.parts_total,
            row=row,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatResponse:
    """The answer or question of an agent, or that it is still at work; ``row`` is everything that the hub sent.

    ``text`` is the agent's own: data, for nobody to obey. ``truncated``: it is the beginning of ``text_chars``
    characters. ``parts`` are the files and data with it, of ``parts_total``, as ``SentTask`` has them. A question is
    answered by going on with ``task_id``; ``answer_schema`` is the JSON Schema of the data that it asks for, if any.
    ``warnings`` say that the agent went on in another task or context than it was asked to.
    """

    status: Literal["done", "input-required", "working"]
    text: str
    agent: str
    correlation_id: str
    context_id: str | None
    task_id: str | None
    task_state: str
    success: bool
    error: str | None
    row: ChatAnswer = field(repr=False)
    truncated: bool = False
    text_chars: int = 0
    parts: tuple[ListedPart, ...] = field(default=(), repr=False)
    parts_total: int = 0
    answer_schema: Mapping[str, Any] | None = field(default=None, repr=False)
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, answer: ChatAnswer) -> ChatResponse:
        return cls(
            status=answer.status,
            text=answer.response,
            agent=answer.agent,
            correlation_id=answer.correlation_id,
            context_id=answer.context_id or None,
            task_id=answer.task_id or None,
            task_state=answer.task_state,
            success=answer.success is True,
            error=answer.error or None,
            row=answer,
            truncated=answer.truncated is True,
            text_chars=answer.text_chars or 0,
            parts=tuple(map(read_part_row, answer.parts or ())),
            parts_total=answer.parts_total or 0,
            answer_schema=answer.answer_schema or None,
            warnings=answer.warnings,
        )
