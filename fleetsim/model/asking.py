"""The text of a task: an answer, the reason of a failure, or a question. Every door reads it here."""

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
    left_out,
    said_since,
)
from fleetsim.model.text import one_line

SILENT = "The agent asks for input and says no more."

DATA_BYTES_MAX = 64 * 1024
"""Bytes of data, as JSON, that a question keeps; the rest of its data and its files are with its task."""

KEY_CHARS = 24

_SCHEMA_CHARS = 500
"""Characters of a schema that an error shows."""


class Prompt(Struct, frozen=True, kw_only=True):
    """What is asked. ``text`` is for a person to read, of ``chars`` in all; ``parts`` are the data and files with it.

    Data of up to ``DATA_BYTES_MAX`` keeps its content, files are listed.
    """

    text: str
    chars: int
    parts: tuple[ListedPart, ...] = ()
    parts_total: int = 0


def text_of(task: Task) -> tuple[str, int]:
    """The agent's text for the task as it stands, and the number of its characters with those left out.

    The one choice of a text, for every door. A question: the status message, else the artifacts, else the newest
    message of the agent in the history; data and files in words where text is missing. A failure: its message first
    and then the history, so that partial output never hides the reason. Any other state: the artifacts, then the
    message (seed "A2A Runtime"), and once the task has ended the history. Empty if the agent says nothing.
    """
    waits = (state := task.status.state) in INTERRUPTED
    said = (task.status.message.parts,) if task.status.message is not None else ()
    made = tuple(artifact.parts for artifact in task.artifacts)
    told: tuple[tuple[Part, ...], ...] = ()
    if task.history and (waits or state in TERMINAL):
        told = next(((message.parts,) for message in said_since(task.history) if message.text), ())
    order = (said, made, told) if waits else (said, told, made) if state in UNSUCCESSFUL else (made, said, told)
    for source in order:
        text = "\n".join([words for parts in source if (words := join_text(parts))])
        if text:
            return text, len(text) + sum(map(left_out, source))
        if waits and (text := _in_words(chain.from_iterable(source))):
            return text, len(text)
    return "", 0


def asking_of(task: Task) -> Prompt:
    """The question of a waiting task: its ``text_of``, and its data and files."""
    text, chars = text_of(task)
    parts, total = answer_parts(task)
    return Prompt(text=text or SILENT, chars=chars if text else len(SILENT), parts=_kept(parts), parts_total=total)


def answer_schema(parts: Iterable[ListedPart]) -> Schema | None:
    """The JSON Schema an answer's data should fit: ``schema`` of the first data part that has one."""
    for part in parts:
        if part.kind == "data" and isinstance(part.data, Mapping):
            schema = part.data.get("schema")
            if isinstance(schema, Mapping):
                return schema
    return None


def check_answer(asked: Iterable[ListedPart], given: Iterable[Part]) -> None:
    """Refuse data that does not fit what was asked for. An answer in words alone is the agent's to judge.

    Raises UnfitAnswer.
    """
    schema = answer_schema(asked)
    if schema is None:
        return
    for part in given:
        if isinstance(part, DataPart) and (wrong := problems(part.data, schema)):
            wanted = one_line(json.dumps(schema, ensure_ascii=False, default=_plain), _SCHEMA_CHARS)
            raise UnfitAnswer(
                f"the data is not what is asked for: {'; '.join(wrong)}", hint=f"give data that fits {wanted}"
            )


def answer_to(task: Task | None, text: str, parts: tuple[Part, ...]) -> tuple[str, tuple[Part, ...]]:
    """What to send for the answer ``text`` and ``parts`` to what a task asks: checked, and in the form it asks for.

    Both as they are for a task that is not known or does not wait. Raises UnfitAnswer.
    """
    if task is None or task.state not in INTERRUPTED:
        return text, parts
    check_answer(asking_of(task).parts, parts)
    return in_form(asked_by(task), text, parts)


def key_of(task: Task) -> str:
    """Identify a question by what a person reads: its task, its words, and its data and files.

    Message id and timestamp do not count, because some agents make both anew for each read.
    """
    named = f"{task.task_id}\0{text_of(task)[0]}\0{parts_digest(task)}"
    return hashlib.sha256(named.encode("utf-8", "replace")).hexdigest()[:KEY_CHARS]


def unmoved(status: TaskStatus, asked_at: datetime | None) -> bool:
    """Whether the agent has not set a status since the answered one, which it set at ``asked_at``."""
    return status.message is not None and _set_at(status, asked_at)


def left_without_words(status: TaskStatus, asked_at: datetime | None) -> bool:
    """Whether this is the status that was answered, set at ``asked_at``, its message taken off.

    a2a-sdk 0.3 does so when an answer comes, and leaves the state until the agent says another. It is at work.
    """
    return status.message is None and _set_at(status, asked_at)


def _set_at(status: TaskStatus, asked_at: datetime | None) -> bool:
    return status.timestamp is not None and status.timestamp == asked_at


def parts_digest(task: Task) -> str:
    """Stands for the data and files that ask: two questions that differ only in these are two. Empty without any.

    They are those of the message; where it says nothing at all, those of the artifacts.
    """
    message = task.status.message
    asking = _beside_text(message.parts) if message is not None else []
    if not asking and (message is None or not message.text):
        asking = _beside_text(part for artifact in task.artifacts for part in artifact.parts)
    if not asking:
        return ""
    told = [_told(part) for part in asking]
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=_plain).encode()).hexdigest()


def _beside_text(parts: Iterable[Part]) -> list[DataPart | FilePart]:
    return [part for part in parts if isinstance(part, DataPart | FilePart) and not is_payload(part)]


def _told(part: DataPart | FilePart) -> list[Any]:
    if isinstance(part, DataPart):
        return ["data", part.data]
    return ["file", part.filename, part.media_type, part.uri, part.raw]


def _in_words(parts: Iterable[Part]) -> str:
    """Data as JSON that a person can read, files by what they are."""
    lines = []
    for number, part in enumerate(_beside_text(parts), 1):
        small = isinstance(part, DataPart) and size_of(part) <= DATA_BYTES_MAX
        if small and isinstance(part, DataPart):
            lines.append(json.dumps(part.data, ensure_ascii=False, indent=2, default=_plain))
        else:
            lines.append(str(listed_part(part, number)))
    return "\n".join(lines)


def _kept(parts: tuple[ListedPart, ...]) -> tuple[ListedPart, ...]:
    """As a question keeps them: its files stay with the task, as does data past the limit."""
    kept, left = [], DATA_BYTES_MAX
    for part in parts:
        size = part.size_bytes or 0
        if part.kind == "data" and not part.truncated and size <= left:
            left -= size
            kept.append(part)
        else:
            kept.append(without_content(part, truncated=part.truncated or part.kind == "data"))
    return tuple(kept)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError


# ---------------------------------------------------------------------- answers in a framework's form
# A2A leaves open how a question is asked. Strands Agents and Google's ADK ask for the result of a function call in a
# data part, and read the answer from a data part alone. A person answers in words, so ``in_form`` fills that part.


def asked_by(task: Task | None) -> tuple[Part, ...]:
    """The parts a waiting task asks with; none if it does not wait or says nothing."""
    if task is None or task.state not in INTERRUPTED or task.status.message is None:
        return ()
    return task.status.message.parts


def in_form(asked: Iterable[Part], text: str, parts: tuple[Part, ...]) -> tuple[str, tuple[Part, ...]]:
    """What to send for the answer ``text`` and ``parts``: both as they are, unless the question wants a form.

    Words, or one piece of data without words, then become the result of the one call that is asked about. Data that
    is in the form already, files, and answers to several calls at once are sent as they are: they say more than one
    result can.
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
    """The answer a part wants, its result left open; None if it is no question of a framework we know."""
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
    """ADK takes an object for a result; words go into its member ``result``, as its own tools put them."""
    if "interruptResponse" in form.data:
        return DataPart(data={"interruptResponse": {**form.data["interruptResponse"], "response": result}})
    response = result if isinstance(result, Mapping) else {"result": result}
    return DataPart(data={**form.data, "response": response}, metadata=form.metadata)


def _is_filled(data: Any) -> bool:
    return isinstance(data, Mapping) and ("interruptResponse" in data or {"id", "name", "response"} <= data.keys())
