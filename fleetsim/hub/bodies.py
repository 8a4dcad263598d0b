"""What the hub's API takes: one strict model per body."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic.alias_generators import to_camel

from fleetsim.model.parts import PARTS_MAX
from fleetsim.model.task import DataPart, FilePart, Part, TextPart
from fleetsim.model.work import Answer, Decision, SkillRequest, Source, plain_id

WEEK_MS = 7 * 86_400_000


def _written(pattern: str, says: str) -> AfterValidator:
    """A check of the whole text, told in words: nobody reads a pattern in an error."""
    form = re.compile(pattern)

    def check(text: str) -> str:
        if not form.fullmatch(text):
            raise ValueError(f"must be {says}")
        return text

    return AfterValidator(check)


_Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=200)]
_Id: TypeAlias = Annotated[str, AfterValidator(plain_id)]
_Person: TypeAlias = Annotated[
    str, _written(r"[A-Za-z0-9][A-Za-z0-9_.:@\-]{0,63}", "1 to 64 letters, digits or _.:@-, the first no mark")
]
_Actor: TypeAlias = Annotated[
    str, _written(r"[A-Za-z0-9][A-Za-z0-9_.:@\-]{0,127}", "1 to 128 letters, digits or _.:@-, the first no mark")
]
_Interface: TypeAlias = Annotated[
    str, _written(r"[a-z][a-z0-9\-]{0,31}", "1 to 32 small letters, digits or dashes, the first a letter")
]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel)


class VetoBody(_Body):
    """Stop work within its window."""

    by: _Person = "operator"


class Empty(_Body):
    """Nothing."""


class TextPartBody(_Body):
    """More text."""

    kind: Literal["text"]
    text: str

    def part(self) -> Part:
        """The part."""
        return TextPart(text=self.text)


class FilePartBody(_Body):
    """A file: its content in ``bytes`` (base64), or its address in ``uri``, which the agent may fetch."""

    kind: Literal["file"]
    content: Annotated[str | None, Field(alias="bytes")] = None
    uri: Annotated[str, Field(min_length=1, max_length=8_192)] | None = None
    name: Annotated[str, Field(max_length=1_024)] | None = None
    mime_type: _Name | None = None
    metadata: dict[str, Any] = {}

    @field_validator("content")
    @classmethod
    def _decodes(cls, value: str | None) -> str | None:
        try:
            b64decode(value or "", validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("not base64 (the standard alphabet, padded, on one line)") from None
        return value

    @model_validator(mode="after")
    def _has_one_content(self) -> Self:
        if (self.content is None) is (self.uri is None):
            raise ValueError("a file has bytes or a uri, and not both")
        return self

    def part(self) -> Part:
        """The part."""
        return FilePart(
            raw=self.content, uri=self.uri, filename=self.name, media_type=self.mime_type, metadata=self.metadata
        )


class DataPartBody(_Body):
    """Any JSON value."""

    kind: Literal["data"]
    data: Any
    mime_type: _Name | None = None
    metadata: dict[str, Any] = {}

    def part(self) -> Part:
        """The part."""
        return DataPart(data=self.data, media_type=self.mime_type, metadata=self.metadata)


_Part: TypeAlias = Annotated[TextPartBody | FilePartBody | DataPartBody, Field(discriminator="kind")]
_Parts: TypeAlias = Annotated[list[_Part], Field(max_length=PARTS_MAX)]


class RequestBody(_Body):
    """Ask for work. ``targets`` are agent names or ``all``; empty means any agent with the skill.

    ``taskId`` is one more message on a task of the one target's; ``conversation`` lets the agent make the context,
    as for the first turn of a conversation. ``parentId`` is the id of what this request is a step of, told to the
    agent; with several targets it is the request's own for each of theirs. ``parts`` are files and data to go with
    ``text``, or instead of it. ``metadata`` goes with the message; what the hub says there itself (``skillHint``,
    ``correlationId``, ``parentId``, ``a2a.trace``) wins.
    """

    text: str = ""
    parts: _Parts = []
    metadata: dict[str, Any] = {}
    skill: _Name | None = None
    targets: Annotated[list[_Name], Field(max_length=64)] = []
    correlation_id: _Id | None = None
    parent_id: _Id | None = None
    context_id: _Name | None = None
    task_id: _Name | None = None
    conversation: bool = False
    system_actor: _Actor = "user"
    dispatcher_agent: _Name | None = None
    interface: _Interface = "api"
    timeout_ms: Annotated[int, Field(gt=0, le=WEEK_MS)] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.text.strip() and not self.parts:
            raise ValueError("text: must not be blank, unless there are parts")
        return self

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.task_id is not None and (len(self.targets) != 1 or self.targets == ["all"]):
            raise ValueError("taskId: a task is one agent's; name that agent as the one target")
        return self

    def request(self, fresh_id: str) -> SkillRequest:
        """The request, under the id it came with or ``fresh_id``."""
        return SkillRequest(
            correlation_id=self.correlation_id or fresh_id,
            text=self.text,
            parts=tuple(part.part() for part in self.parts),
            metadata=self.metadata,
            parent_id=self.parent_id,
            skill=self.skill,
            targets=tuple(self.targets),
            context_id=self.context_id,
            task_id=self.task_id,
            first_turn=self.conversation,
            system_actor=self.system_actor,
            dispatcher_agent=self.dispatcher_agent,
            source=Source(interface=self.interface),
            timeout_s=self.timeout_ms / 1000 if self.timeout_ms else None,
        )


class AnswerBody(_Body):
    """Answer a question, or reject it, which cancels the task."""

    text: str = ""
    parts: _Parts = []
    decision: Literal["answer", "reject"] = "answer"
    by: _Person = "operator"

    def answer(self, question_id: str) -> Answer:
        """The answer to that question."""
        return Answer(
            question_id=question_id,
            text=self.text,
            by=self.by,
            decision=Decision(self.decision),
            parts=tuple(part.part() for part in self.parts),
        )
