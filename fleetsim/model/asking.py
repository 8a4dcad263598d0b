"""The text of a task: an answer, the reason of a failure, or a question."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import chain
from typing import Any

from msgspec import Struct

from fleetsim.model.errors import UnfitAnswer
from fleetsim.model.extensions import is_payload
from fleetsim.model.parts import ListedPart, answer_parts, listed_part, size_of, without_content
from fleetsim.model.schema import Schema, problems
from fleetsim.model.task import (
    INTERRUPTED,
    TERMINAL,
    UNSUCCESSFUL,
    DataPart,
    FilePart,
    Part,
    Task,
    TaskStatus,
    join_text,
    latest_agent_messages,
    left_out,
)
from fleetsim.model.text import one_line

SILENT = "The agent asks for input without a text."

DATA_BYTES_MAX = 64 * 1024
"""Bytes of data, as JSON, that a question keeps. The task holds the rest of the data, and the files."""

KEY_CHARS = 24

_SCHEMA_CHARS = 500
"""Characters of a schema that an error shows."""


class Prompt(Struct, frozen=True, kw_only=True):
    """The content of a question.

    ``text`` is for a person to read; ``chars`` is its length before it was cut. ``parts`` are the data and files of
    the question: data up to ``DATA_BYTES_MAX`` with its content, files without.
    """

    text: str
    chars: int
    parts: tuple[ListedPart, ...] = ()
    parts_total: int = 0


def text_of(task: Task) -> tuple[str, int]:
    """Return the agent's text for the current state, and its length before it was cut.

    The first source with a text wins. A question: the status message, then the artifacts, then the agent's newest
    message in the history; a source without text is described by its data and files. A failure: the message, then
    the history, then the artifacts, so that partial output never hides the reason. Any other state: the artifacts,
    then the message (seed "A2A Runtime"), then, once the task has ended, the history. Empty if the agent sent no text.
    """
    waits = (state := task.status.state) in INTERRUPTED
    message = (task.status.message.parts,) if task.status.message is not None else ()
    artifacts = tuple(artifact.parts for artifact in task.artifacts)
    history: tuple[tuple[Part, ...], ...] = ()
    if task.history and (waits or state in TERMINAL):
        history = next(((turn.parts,) for turn in latest_agent_messages(task.history) if turn.text), ())
    order: tuple[tuple[tuple[Part, ...], ...], ...] = (artifacts, message, history)
    if waits:
        order = (message, artifacts, history)
    elif state in UNSUCCESSFUL:
        order = (message, history, artifacts)
    for source in order:
        text = "\n".join([text for parts in source if (text := join_text(parts))])
        if text:
            return text, len(text) + sum(map(left_out, source))
        if waits and (text := _described(chain.from_iterable(source))):
            return text, len(text)
    return "", 0


def asking_of(task: Task) -> Prompt:
    """Return the question of a waiting task: its ``text_of``, and its data and files."""
    text, chars = text_of(task)
    parts, total = answer_parts(task)
    # Drop the content of files, and of data past the limit; the task still holds it.
    limited, left = [], DATA_BYTES_MAX
    for part in parts:
        size = part.size_bytes or 0
        if part.kind == "data" and not part.truncated and size <= left:
            left -= size
            limited.append(part)
        else:
            limited.append(without_content(part, truncated=part.truncated or part.kind == "data"))
    return Prompt(text=text or SILENT, chars=chars if text else len(SILENT), parts=tuple(limited), parts_total=total)


def answer_schema(parts: Iterable[ListedPart]) -> Schema | None:
    """Return the JSON Schema for the data of an answer: ``schema`` of the first data part that has one."""
    for part in parts:
        if part.kind == "data" and isinstance(part.data, Mapping):
            schema = part.data.get("schema")
            if isinstance(schema, Mapping):
                return schema
    return None


def check_answer(asked: Iterable[ListedPart], given: Iterable[Part]) -> None:
    """Check the data of an answer against the question's schema. The agent judges an answer that is only text.

    Raises UnfitAnswer.
    """
    schema = answer_schema(asked)
    if schema is None:
        return
    for part in given:
        if isinstance(part, DataPart) and (wrong := problems(part.data, schema)):
            wanted = one_line(json.dumps(schema, ensure_ascii=False, default=_plain), _SCHEMA_CHARS)
            raise UnfitAnswer(
                f"the data does not fit the question's schema: {'; '.join(wrong)}", hint=f"give data that fits {wanted}"
            )


def answer_to(task: Task | None, text: str, parts: tuple[Part, ...]) -> tuple[str, tuple[Part, ...]]:
    """Check the answer ``text`` and ``parts`` to the question of a task, and return it in the form that the task wants.

    Both are returned unchanged if the task is unknown or does not wait. Raises UnfitAnswer.
    """
    if task is None or task.state not in INTERRUPTED:
        return text, parts
    check_answer(asking_of(task).parts, parts)
    return in_form(question_parts(task), text, parts)


def key_of(task: Task) -> str:
    """Identify a question by its task, its text, and its data and files.

    Message id and timestamp do not count, because some agents change both at each read.
    """
    named = f"{task.task_id}\0{text_of(task)[0]}\0{parts_digest(task)}"
    return hashlib.sha256(named.encode("utf-8", "replace")).hexdigest()[:KEY_CHARS]


def unchanged(status: TaskStatus, asked_at: datetime | None) -> bool:
    """Whether this is still the status that was answered, which the agent set at ``asked_at``."""
    return status.message is not None and _set_at(status, asked_at)


def message_removed(status: TaskStatus, asked_at: datetime | None) -> bool:
    """Whether this is the status that was answered, set at ``asked_at``, but without its message.

    a2a-sdk 0.3 removes the message when an answer arrives, and keeps the state until the agent sets another one.
    Meanwhile the agent works.
    """
    return status.message is None and _set_at(status, asked_at)


def _set_at(status: TaskStatus, asked_at: datetime | None) -> bool:
    return status.timestamp is not None and status.timestamp == asked_at


def parts_digest(task: Task) -> str:
    """Return a digest of the data and files of a question; empty without any.

    Two questions with equal text and different data are two questions. The data and files are those of the message,
    or those of the artifacts if the message is empty.
    """
    message = task.status.message
    asking = _beside_text(message.parts) if message is not None else []
    if not asking and (message is None or not message.text):
        asking = _beside_text(part for artifact in task.artifacts for part in artifact.parts)
    if not asking:
        return ""
    contents = [
        ["data", part.data]
        if isinstance(part, DataPart)
        else ["file", part.filename, part.media_type, part.uri, part.raw]
        for part in asking
    ]
    return hashlib.sha256(json.dumps(contents, sort_keys=True, default=_plain).encode()).hexdigest()


def _beside_text(parts: Iterable[Part]) -> list[DataPart | FilePart]:
    return [part for part in parts if isinstance(part, DataPart | FilePart) and not is_payload(part)]


def _described(parts: Iterable[Part]) -> str:
    """Describe data as indented JSON, and files by name, type and size."""
    lines = []
    for number, part in enumerate(_beside_text(parts), 1):
        small = isinstance(part, DataPart) and size_of(part) <= DATA_BYTES_MAX
        if small and isinstance(part, DataPart):
            lines.append(json.dumps(part.data, ensure_ascii=False, indent=2, default=_plain))
        else:
            lines.append(str(listed_part(part, number)))
    return "\n".join(lines)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError


# ---------------------------------------------------------------------- answers in a framework's form
# A2A does not define the form of a question. Strands Agents and Google's ADK ask for the result of a function call in
# a data part, and read the answer only from a data part. A person answers with text, so ``in_form`` fills that part.


def question_parts(task: Task | None) -> tuple[Part, ...]:
    """Return the parts of a waiting task's question; none if it does not wait or has no message."""
    if task is None or task.state not in INTERRUPTED or task.status.message is None:
        return ()
    return task.status.message.parts


def in_form(asked: Iterable[Part], text: str, parts: tuple[Part, ...]) -> tuple[str, tuple[Part, ...]]:
    """Return the answer ``text`` and ``parts`` in the form that the question wants; unchanged if it wants none.

    Text, or one piece of data without text, becomes the result of the one function call in the question. Data that
    already has the form, files, and answers to several calls are not changed: one result cannot hold them.
    """
    wanted = [form for part in asked if isinstance(part, DataPart) and (form := _form(part)) is not None]
    if len(wanted) != 1:
        return text, parts
    match parts:
        case () if text:
            return "", (_filled(wanted[0], text),)
        case (DataPart(data=data),) if not text and not _is_filled(data):
            return "", (_filled(wanted[0], data),)
    return text, parts


def _form(part: DataPart) -> DataPart | None:
    """Return the answer that a part wants, without a result; None if the part is not of a framework that we know."""
    data = part.data
    if not isinstance(data, Mapping):
        return None
    match data.get("interrupts"):
        case [{"interruptId": str(interrupt)}]:
            return DataPart(data={"interruptResponse": {"interruptId": interrupt}})
    called = data.get("id"), data.get("name")
    if part.metadata.get("adk_type") == "function_call" and all(isinstance(name, str) for name in called):
        return DataPart(data={"id": called[0], "name": called[1]}, metadata={"adk_type": "function_response"})
    return None


def _filled(form: DataPart, result: Any) -> DataPart:
    """ADK takes an object for a result. Text goes into its member ``result``, as ADK's own tools do."""
    if "interruptResponse" in form.data:
        return DataPart(data={"interruptResponse": {**form.data["interruptResponse"], "response": result}})
    response = result if isinstance(result, Mapping) else {"result": result}
    return DataPart(data={**form.data, "response": response}, metadata=form.metadata)


def _is_filled(data: Any) -> bool:
    return isinstance(data, Mapping) and ("interruptResponse" in data or {"id", "name", "response"} <= data.keys())
