"""The bodies that the hub's API accepts: one strict model for each, and the errors of a body that does not fit."""

from __future__ import annotations

import binascii
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeAlias, TypedDict, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from fleetsim.ceremony.file import TARGETS_MAX, CeremonyFile
from fleetsim.model.errors import ConfigError
from fleetsim.model.parts import PARTS_MAX
from fleetsim.model.task import DataPart, FilePart, Part, TextPart
from fleetsim.model.text import one_line
from fleetsim.model.work import ALL, ID, ID_INVALID, ID_RULE, Answer, Decision, SkillRequest, Source
from fleetsim.runtime.explain import Pattern, did_you_mean, in_words, known_keys

M = TypeVar("M", bound=BaseModel)

WEEK_MS = 7 * 86_400_000


_Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=200)]
_Context: TypeAlias = Annotated[Annotated[str, Field(max_length=200)] | None, AfterValidator(lambda text: text or None)]
"""Agents may send an empty text for no conversation."""
_Id: TypeAlias = Annotated[str, Pattern(ID.pattern, ID_RULE)]
Person: TypeAlias = Annotated[
    str, Pattern(r"[A-Za-z0-9][A-Za-z0-9_.:@\-]{0,63}", "1 to 64 letters, digits or _.:@-, the first no mark")
]
_Actor: TypeAlias = Annotated[
    str, Pattern(r"[A-Za-z0-9][A-Za-z0-9_.:@\-]{0,127}", "1 to 128 letters, digits or _.:@-, the first no mark")
]
_Interface: TypeAlias = Annotated[
    str, Pattern(r"[a-z][a-z0-9\-]{0,31}", "1 to 32 small letters, digits or dashes, the first a letter")
]


class BodyInvalid(ConfigError):
    """The hub does not accept a body. The message names the wrong fields and never their values (T-41)."""


class _Unfit(ValueError):
    """The whole body is wrong; the message is Workstacean's."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def read(model: type[M], value: Any, *inside: str) -> M:
    """Read ``value`` as ``model``. ``inside`` is its place, for the message. Raises BodyInvalid."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems, hint = [], None
        for problem in error.errors(include_url=False, include_input=False)[:5]:
            unfit = problem.get("ctx", {}).get("error")
            if isinstance(unfit, _Unfit):
                problems.append(str(unfit))
                hint = unfit.hint
                continue
            where = ".".join(one_line(str(step), 40) for step in (*inside, *problem["loc"])) or "the body"
            unknown, path = problem["type"] == "extra_forbidden", problem["loc"]
            meant = did_you_mean(str(path[-1]), known_keys(model, path[:-1])) if unknown else ""
            problems.append(f"{where}: {in_words(problem)}{meant}")
        raise BodyInvalid("; ".join(problems), hint=hint) from None


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel, use_attribute_docstrings=True)


class VetoBody(_Body):
    """Stop work within its veto window."""

    by: Person = "operator"
    """The name of the person."""


class RaiseBody(_Body):
    """Raise a limit until its period ends."""

    amount: Annotated[float, Field(gt=0, le=1e9)]
    """By how much, in its unit."""
    by: Person = "operator"
    """The name of the person."""


class RetryBody(_Body):
    """Send a request again."""

    may_repeat: bool = False
    """Also if the agent may have done the work already."""


class EmptyBody(_Body):
    """An empty body."""


class RunCeremonyBody(_Body):
    """Fire a ceremony."""

    dry_run: bool = False
    """Only report the requests that would be sent, and their agents."""


class TextPartBody(_Body):
    """More text."""

    kind: Literal["text"]
    """Whether this is text, a file or data."""
    text: str
    """The text, or the content of a text file in place of bytes; it is sent as UTF-8."""

    def part(self) -> Part:
        return TextPart(text=self.text)


class FilePartBody(_Body):
    """A file, with its content or its address."""

    kind: Literal["file"]
    """Whether this is text, a file or data."""
    content: Annotated[str | None, Field(alias="bytes")] = None
    """The content as base64, padded, on one line."""
    text: str | None = None
    """The text, or the content of a text file in place of bytes; it is sent as UTF-8."""
    uri: Annotated[str, Field(min_length=1, max_length=8_192)] | None = None
    """The address of the file in place of its content. The agent may fetch it; the hub never does."""
    name: Annotated[str, Field(max_length=1_024)] | None = None
    """The name of the file."""
    mime_type: _Name | None = None
    """Its media type."""
    metadata: dict[str, Any] = {}
    """The metadata of the part."""

    @field_validator("content")
    @classmethod
    def _decodes(cls, value: str | None) -> str | None:
        try:
            binascii.a2b_base64(value or "", strict_mode=True)  # b64decode matches 8 MB with a pattern first
        except (binascii.Error, ValueError):
            raise ValueError("not base64 (the standard alphabet, padded, on one line)") from None
        return value

    @model_validator(mode="after")
    def _has_one_content(self) -> Self:
        if [self.content, self.text, self.uri].count(None) != 2:
            raise ValueError("a file has exactly one of bytes, text and uri")
        return self

    def part(self) -> Part:
        raw = self.content if self.text is None else b64encode(self.text.encode()).decode("ascii")
        return FilePart(raw=raw, uri=self.uri, filename=self.name, media_type=self.mime_type, metadata=self.metadata)


class DataPartBody(_Body):
    """Any JSON value."""

    kind: Literal["data"]
    """Whether this is text, a file or data."""
    data: Any
    """The value."""
    mime_type: _Name | None = None
    """Its media type."""
    metadata: dict[str, Any] = {}
    """The metadata of the part."""

    def part(self) -> Part:
        return DataPart(data=self.data, media_type=self.mime_type, metadata=self.metadata)


_Part: TypeAlias = Annotated[TextPartBody | FilePartBody | DataPartBody, Field(discriminator="kind")]
Parts: TypeAlias = Annotated[list[_Part], Field(max_length=PARTS_MAX)]


def _content(key: str) -> Any:
    """Return a validator of bodies whose text, under ``key``, may be blank only beside parts."""

    def has_content(body: Any) -> Any:
        if not getattr(body, key).strip() and not body.parts:
            raise ValueError(f"{key}: must not be blank, unless there are parts")
        return body

    return model_validator(mode="after")(has_content)


class RequestBody(_Body):
    """Ask for work."""

    text: str = ""
    """The text for the agent; must not be blank, unless there are parts."""
    parts: Parts = []
    """Files and data beside the text, or in place of it."""
    metadata: dict[str, Any] = {}
    """The metadata of the message. Keys that the hub sets win (skillHint, correlationId, parentId, a2a.trace)."""
    skill: _Name | None = None
    """The skill; without one the hub chooses it from the agents' cards."""
    targets: Annotated[list[_Name], Field(max_length=64)] = []
    """Names of agents, or all; empty means any agent with the skill."""
    correlation_id: _Id | None = None
    """The id of the request; without one the hub makes it."""
    parent_id: _Id | None = None
    """The id of the work that this request is a step of, sent to the agent. With several targets the hub sets it."""
    context_id: _Context = None
    """The conversation of the request."""
    task_id: _Name | None = None
    """Sends another message on this task of the one target."""
    conversation: bool = False
    """Lets the agent choose the context, as in the first turn of a conversation."""
    system_actor: _Actor = "user"
    """The caller."""
    dispatcher_agent: _Name | None = None
    """The agent that dispatches this request; it receives questions before a person does."""
    interface: _Interface = "api"
    """The channel that the request came from."""
    timeout_ms: Annotated[int, Field(gt=0, le=WEEK_MS)] | None = None
    """The time limit from acceptance to outcome, in milliseconds."""

    _has_content = _content("text")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.task_id is not None and (len(self.targets) != 1 or self.targets == ["all"]):
            raise ValueError("taskId: a task belongs to one agent; name that agent as the only target")
        return self

    def request(self, fresh_id: str) -> SkillRequest:
        """Return the request, with the id of the body or else ``fresh_id``."""
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


def _one_agent(name: str) -> str:
    if name == ALL:
        raise ValueError("must be the name of one agent")
    return name


def _require(value: Any, keys: tuple[str, ...], names: str) -> Any:
    """Return the value for a model to read. Raises _Unfit with Workstacean's message if one of the keys is empty.

    Parts may replace the message.
    """
    if isinstance(value, dict):
        present = {**value, "message": value.get("message") or value.get("parts")}
        if not all(present.get(key) for key in keys):
            raise _Unfit(f"{names} are required")
    return value


_Agent: TypeAlias = Annotated[_Name, AfterValidator(_one_agent)]


class ChatBody(_Body):
    """One turn of a conversation with an agent, as Workstacean's chat_with_agent sends it."""

    agent: _Agent
    """The agent's name."""
    message: str = ""
    """The text for the agent; must not be blank, unless there are parts."""
    parts: Parts = []
    """Files and data beside the message, or in place of it."""
    context_id: _Context = None
    """The conversation, from an earlier answer; without one the agent starts a new one."""
    task_id: _Name | None = None
    """The task, from an earlier answer. The message continues it, and answers its question."""
    skill: _Name | None = None
    """The skill; without one the hub chooses it from the agent's card."""
    done: bool = False
    """Whether this is the last turn; then the answer names no context and no task."""
    dispatcher_agent: _Name | None = None
    """The agent that asks for this; it receives questions before a person does."""
    return_immediately: bool = False
    """Return without the answer, which pollUrl has later."""
    wait_ms: Annotated[int, Field(ge=0, le=60_000)] = 25_000
    """The time to wait for the answer before the hub returns pollUrl, in milliseconds. Tools time out after 30 s."""

    @model_validator(mode="before")
    @classmethod
    def _is_whole(cls, value: Any) -> Any:
        return _require(value, ("agent", "message"), "agent and message")

    _has_content = _content("message")

    def request(self, fresh_id: str) -> SkillRequest:
        return SkillRequest(
            correlation_id=fresh_id,
            text=self.message,
            parts=tuple(part.part() for part in self.parts),
            skill=self.skill,
            targets=(self.agent,),
            context_id=self.context_id,
            task_id=self.task_id,
            first_turn=self.context_id is None and self.task_id is None,
            dispatcher_agent=self.dispatcher_agent,
        )


class DelegateBody(_Body):
    """Work for an agent without waiting for its answer, as Workstacean's delegate_task sends it."""

    agent: _Agent
    """The agent's name."""
    skill: _Name
    """The skill."""
    message: str = ""
    """The text for the agent; must not be blank, unless there are parts."""
    parts: Parts = []
    """Files and data beside the message, or in place of it."""
    project_slug: _Name | None = None
    """Sent to the agent as projectSlug."""
    dispatcher_agent: _Name | None = None
    """The agent that asks for this; it receives questions before a person does."""

    @model_validator(mode="before")
    @classmethod
    def _is_whole(cls, value: Any) -> Any:
        return _require(value, ("agent", "skill", "message"), "agent, skill, and message")

    _has_content = _content("message")

    def request(self, fresh_id: str) -> SkillRequest:
        return SkillRequest(
            correlation_id=fresh_id,
            text=self.message,
            parts=tuple(part.part() for part in self.parts),
            skill=self.skill,
            targets=(self.agent,),
            metadata={"projectSlug": self.project_slug} if self.project_slug else {},
            dispatcher_agent=self.dispatcher_agent,
        )


class DecisionBody(_Body):
    """A person's decision about a request that waits, as Workstacean's hitl_response."""

    type: Literal["hitl_response"] = "hitl_response"
    """The type of the message."""
    correlation_id: _Id
    """The request that waits."""
    decision: Literal["approve", "reject", "modify"]
    """The text for the agent, unless there is feedback; reject cancels the task."""
    feedback: str = ""
    """The answer as text; modify needs it, or parts."""
    parts: Parts = []
    """Files and data beside the feedback, or in place of it."""
    decided_by: Person = "operator"
    """The name of the person."""

    @model_validator(mode="after")
    def _has_an_answer(self) -> Self:
        if self.decision == "modify" and not self.feedback.strip() and not self.parts:
            raise ValueError("feedback: modify needs it, or parts")
        return self

    def answer(self, question_id: str) -> Answer:
        rejected = self.decision == "reject"
        return Answer(
            question_id=question_id,
            text=self.feedback if rejected or self.parts else self.feedback.strip() or self.decision,
            by=self.decided_by,
            decision=Decision.REJECT if rejected else Decision.ANSWER,
            parts=tuple(part.part() for part in self.parts),
        )


class PublishBody(_Body):
    """A message for Workstacean's bus. The hub supports two kinds of topic."""

    topic: Annotated[str, Field(min_length=1, max_length=300)]
    """message.inbound.* asks for work, ceremony.{id}.execute fires a ceremony."""
    payload: dict[str, Any] = {}
    """For message.inbound: content, parts, skill or skillHint, targets or agentId."""
    correlation_id: _Id | None = None
    """The id of the request; without one the hub makes it."""


class InboundPayload(BaseModel):
    """The payload of a received message. Channels add other keys, which are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True, alias_generator=to_camel, use_attribute_docstrings=True)

    content: str = ""
    """The text for the agent; must not be blank, unless there are parts."""
    parts: Parts = []
    """Files and data beside the content, or in place of it."""
    skill: _Name | None = None
    """The skill."""
    skill_hint: _Name | None = None
    """The skill, if the key skill is missing."""
    targets: Annotated[list[_Name], Field(max_length=64)] = []
    """Names of agents, or all."""
    agent_id: _Name | None = None
    """The only target, if the key targets is missing."""

    _has_content = _content("content")


_In: TypeAlias = Annotated[int | str | None, Field(alias="in")]


class CreateCeremonyBody(CeremonyFile):
    """A new ceremony, with the keys of its file."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["schedule"]}, {"required": ["at"]}, {"required": ["in"]}]}
    )

    targets: Annotated[list[_Name], Field(min_length=1, max_length=TARGETS_MAX)] = Field(default_factory=lambda: [ALL])
    """One request per agent; [all], the default, is every agent with the skill."""
    created_by: Annotated[str, Field(min_length=1, max_length=128)] = "system"
    """The owner. Only the hub's own key may set it; an agent owns the ceremonies that it creates."""
    in_: _In = None
    """The delay until it fires once: seconds, or a number with s, m, h or d."""

    @model_validator(mode="before")
    @classmethod
    def _is_whole(cls, value: Any) -> Any:
        if isinstance(value, dict):
            when = any(value.get(key) is not None for key in ("schedule", "at", "in"))
            if not when or not all(value.get(key) for key in ("id", "name", "skill")):
                hint = "in place of schedule, give at or in for a ceremony that fires once"
                raise _Unfit("id, name, schedule, and skill are required", hint=hint)
            if isinstance(value["id"], str) and not ID.fullmatch(value["id"]):
                raise _Unfit(ID_INVALID, hint=ID_RULE)
        return value


def _changes_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the fields of a model, each optional and nullable."""
    fields: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        kind = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
        fields[name] = (Annotated[kind | None, Field(description=field.description)], None)  # type: ignore[operator]
    return fields


UpdateCeremonyBody: type[BaseModel] = create_model(
    "UpdateCeremonyBody",
    __base__=_Body,
    __doc__="Changes of a ceremony; null removes a key. `createdBy` cannot be changed.",
    **_changes_of(CeremonyFile),
    in_=(_In, Field(default=None, alias="in", description="The delay until it fires once.")),
)


class AnswerBody(_Body):
    """Answer a question, or reject it, which cancels the task."""

    text: str = ""
    """The answer as text."""
    parts: Parts = []
    """Files and data beside the text, or in place of it."""
    decision: Literal["answer", "reject"] = "answer"
    """Whether to answer or to reject; reject needs no text."""
    by: Person = "operator"
    """The name of the person."""

    def answer(self, question_id: str) -> Answer:
        return Answer(
            question_id=question_id,
            text=self.text,
            by=self.by,
            decision=Decision(self.decision),
            parts=tuple(part.part() for part in self.parts),
        )


class CeremonyKeys(TypedDict, total=False):
    """The keys of a ceremony's file (docs/reference/ceremonies.md). None leaves a key out.

    ``in_`` is how long from now it fires, once: seconds, or 30m, 2h, 1d.
    """

    name: str | None
    schedule: str | None
    at: str | None
    in_: int | str | None
    skill: str | None
    targets: Sequence[str] | None
    enabled: bool | None
    notify_channel: str | None
    description: str | None
    timezone: str | None
    timeout_ms: int | None
    prompt: str | None
    overlap: Literal["skip", "queue", "allow"] | None
    catch_up: Literal["none", "one", "all"] | int | None
    catch_up_window: int | None
    late_after: int | None
    expect: Mapping[str, Sequence[str]] | None
