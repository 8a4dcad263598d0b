"""Tools for a language model to reach the fleet: their schemas, and the functions that carry out its calls.

Every format of a tool list comes from one table. Arguments come from a model, and other agents' answers go to one:
both are bounded, and neither is trusted.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol, TypeAlias

from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.alias_generators import to_camel

from fleetsim.api.answer import to_json
from fleetsim.api.answers import AgentFacts, CeremonyFacts, FoundSkill, SharedAgent
from fleetsim.api.bodies import Parts, read
from fleetsim.api.part_rows import part_notes
from fleetsim.client.results import ChatResponse
from fleetsim.model.errors import ConfigError, FleetsimError, HttpRefused
from fleetsim.model.limits import WIRE_BYTES_MAX
from fleetsim.model.parts import LISTED_MAX, ListedPart, content_of
from fleetsim.model.text import escape, neutralise, one_line
from fleetsim.wire.json import dump, parse_untrusted

ARGUMENTS_BYTES_MAX = WIRE_BYTES_MAX
RESULT_CHARS_MAX = 50_000
"""Characters of text and data in one result; ``offset`` and ``part`` of wait_for_task have the rest."""

EFFECTS_SHOWN = 5
WAIT_S_MAX = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The reply to a model: ``text`` in words, ``data`` for programs. An agent's own words stand last in it.

    ``files`` are files with their content, base64 as the agent sent it, for the program to show to the model.
    """

    text: str
    data: Mapping[str, Any] = field(default_factory=dict)
    is_error: bool = False
    files: tuple[ListedPart, ...] = ()

    @classmethod
    def of_error(cls, error: FleetsimError) -> ToolResult:
        """The error and the next step, with the seconds to wait: no MCP client shows ``Retry-After``."""
        following = f"\nNext: {one_line(error.hint, 500)}" if error.hint else ""
        if isinstance(error, HttpRefused) and error.retry_after_s:
            following += f"\nTry again in {math.ceil(error.retry_after_s)} s."
        return cls(text=f"Error: {one_line(str(error), 1_000)}{following}", is_error=True)


class ToolCalls(Protocol):
    """The calls of ``HubClient`` that tools make."""

    async def ceremonies(self) -> list[CeremonyFacts]: ...
    async def create_ceremony(self, *of: Any, **keys: Any) -> CeremonyFacts: ...
    async def update_ceremony(self, *of: Any, **keys: Any) -> CeremonyFacts: ...
    async def delete_ceremony(self, *of: Any, **keys: Any) -> None: ...
    async def run_ceremony(self, *of: Any, **keys: Any) -> str: ...
    async def list_agents(self) -> list[AgentFacts] | list[SharedAgent]: ...
    async def find_skills(self, *of: Any, **keys: Any) -> list[FoundSkill]: ...
    async def chat_with_agent(self, *of: Any, **keys: Any) -> ChatResponse: ...
    async def delegate(self, *of: Any, **keys: Any) -> str: ...
    async def chat_task(self, *of: Any, **keys: Any) -> ChatResponse: ...
    async def cancel(self, *of: Any, **keys: Any) -> None: ...
    async def retry(self, *of: Any, **keys: Any) -> str: ...


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel, use_attribute_docstrings=True)


_Text: TypeAlias = Annotated[str, Field(max_length=16_384)] | None
_Action: TypeAlias = Literal["list", "create", "update", "delete", "run", "pause", "resume"]


class _ManageCron(_Arguments):
    """Schedule requests to agents (ceremonies), for yourself or others: list, create, update, delete, run now, pause
    and resume those that you made. A paused ceremony stays paused until it is resumed, whatever else is changed."""

    action: _Action
    """What to do."""
    id: _Text = None
    """Which ceremony: letters, digits, dots, dashes, underscores, such as my-agent.hourly-sweep. For all but list."""
    name: _Text = None
    """The name for people. Required to create."""
    schedule: _Text = None
    """When it fires: five cron fields (minute, hour, day of month, month, day of week), such as 0 14 * * MON-FRI. To
    create, this, at or in is needed."""
    at: _Text = None
    """Instead of schedule: the one time it fires, such as 2026-11-22T15:30."""
    in_: Annotated[_Text, Field(alias="in")] = None
    """Instead of schedule: how long from now it fires, once, such as 30m, 2h or 1d."""
    timezone: _Text = None
    """The clock of schedule and at, such as Europe/Berlin. UTC unless given."""
    skill: _Text = None
    """The skill that is asked for. Needed to create."""
    targets: Annotated[list[str], Field(max_length=64)] | None = None
    """Names of the agents that are asked. Every agent with the skill unless given."""
    prompt: _Text = None
    """The text for the agents."""
    description: _Text = None
    """What it is for."""
    enabled: bool | None = None
    """Whether it fires. Leave it out unless it is to change."""
    notify_channel: _Text = None
    """The channel that receives each run's result."""
    timeout_ms: int | None = None
    """How long a request may take, in milliseconds."""

    @field_validator("targets", mode="before")
    @classmethod
    def _as_written_by_tools_of_before(cls, value: Any) -> Any:
        return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value


class _ListAgents(_Arguments):
    """List the agents of the fleet: what each is for, its skills, and whether it is up."""


_Short: TypeAlias = Annotated[str, Field(max_length=200)] | None


class _FindSkills(_Arguments):
    """Find who can do something: skills by words, by the effect that they declare on the world, or by both. The most
    promising come first: by declared confidence and by success in the last day."""

    text: _Short = None
    """Words about the work, such as triage bug reports."""
    domain: _Short = None
    """The domain of an effect that the skill declares, such as board."""
    path: _Short = None
    """The path of that effect, or its beginning, such as bugs.open or bugs."""
    direction: Literal["increase", "decrease"] | None = None
    """Whether that effect makes the value at the path larger or smaller."""
    agent: _Short = None
    """The name of one agent, to see its skills alone."""
    limit: Annotated[int, Field(ge=1)] = 20
    """The largest number of skills to list; more than 100 are never listed."""


class _ChatWithAgent(_Arguments):
    """Say something to another agent and wait for its answer. To go on with the conversation, give the contextId of the
    answer; to answer what the agent asks, its taskId too."""

    agent: str
    """The name of the agent."""
    message: str = ""
    """The text to send. Needed unless there are parts."""
    parts: Parts = []
    """Files and data to send with the message, or instead of it. An answer to a question that asks for data has it
    here."""
    context_id: _Text = None
    """The conversation to go on with."""
    task_id: _Text = None
    """The task to go on with, or whose question is answered."""
    skill: _Text = None
    """The skill to use, if a certain one is wanted."""
    done: bool = False
    """Whether this is the last turn of the conversation."""


class _Delegate(_Arguments):
    """Give work to another agent without waiting for it. The answer is a correlationId for wait_for_task."""

    agent: str
    """The name of the agent."""
    skill: str
    """The skill to use."""
    message: str = ""
    """The work to do. Needed unless there are parts."""
    parts: Parts = []
    """Files and data to send with the message, or instead of it."""
    project_slug: _Text = None
    """The project it is for."""


class _WaitForTask(_Arguments):
    """Wait for the answer or the question of delegated work or of a chat. Also read the rest of a long answer (offset),
    and each of the files and data that came with it (part)."""

    correlation_id: Annotated[str, Field(max_length=256)]
    """As delegate or chat_with_agent gave it."""
    wait_seconds: Annotated[int, Field(ge=0, le=WAIT_S_MAX)] = 25
    """How long to wait for news, in seconds."""
    offset: Annotated[int, Field(ge=0)] = 0
    """The character to begin with, as a result before named it, for the rest of a long answer or of a long part."""
    part: Annotated[int, Field(ge=1)] | None = None
    """The number of a file or data that came with the answer, to have that instead of the text."""


class _CancelTask(_Arguments):
    """Stop work that was delegated, or a chat that is still at work. wait_for_task says how it ended."""

    correlation_id: Annotated[str, Field(max_length=256)]
    """As delegate or chat_with_agent gave it."""


class _RetryTask(_Arguments):
    """Send work again that no agent accepted (undeliverable), or whose skill may run twice. wait_for_task says how the
    new one ended."""

    correlation_id: Annotated[str, Field(max_length=256)]
    """As delegate or chat_with_agent gave it."""


async def _manage_cron(hub: ToolCalls, arguments: Any) -> ToolResult:
    keys = arguments.model_dump(exclude_none=True)
    action, ceremony_id = keys.pop("action"), keys.pop("id", "")
    if action == "list":
        rows = await hub.ceremonies()
        lines = [_ceremony_line(row) for row in rows]
        return ToolResult(text="\n".join(lines) or "No ceremonies registered.", data={"ceremonies": to_json(rows)})
    if action == "create":
        row = await hub.create_ceremony(ceremony_id, **keys)
        return ToolResult(text=f"Created. {_ceremony_line(row)}", data=to_json(row))
    if not ceremony_id:
        raise ConfigError(f"{action} requires id", hint="the action list shows the ids of your ceremonies")
    if action == "delete":
        await hub.delete_ceremony(ceremony_id)
        return ToolResult(text=f'Ceremony "{ceremony_id}" deleted', data={"id": ceremony_id})
    if action == "run":
        run_id = await hub.run_ceremony(ceremony_id)
        return ToolResult(text=f'Ceremony "{ceremony_id}" triggered, run {run_id}', data={"runId": run_id})
    if action in {"pause", "resume"}:
        keys = {"enabled": action == "resume"}
    row = await hub.update_ceremony(ceremony_id, **keys)
    return ToolResult(text=f"Updated. {_ceremony_line(row)}", data=to_json(row))


async def _list_agents(hub: ToolCalls, _: Any) -> ToolResult:
    rows = [
        {
            "name": agent.name,
            "tags": list(agent.tags),
            "enabled": agent.enabled,
            "health": agent.health.value,
            "description": one_line(agent.description, 300),
            "skills": [one_line(skill) for skill in agent.skills[:LISTED_MAX]],
            "skillsTotal": len(agent.skills),
        }
        for agent in await hub.list_agents()
    ]
    return _listed("agents", rows, _agent_line) if rows else ToolResult(text="The fleet has no agents.")


async def _find_skills(hub: ToolCalls, arguments: Any) -> ToolResult:
    found = await hub.find_skills(**arguments.model_dump())
    rows = [to_json(replace(skill, effects=skill.effects[:EFFECTS_SHOWN])) for skill in found]
    return _listed("skills", rows, _skill_line) if rows else ToolResult(text="No skill matches.", data={"skills": []})


def _listed(key: str, rows: list[dict[str, Any]], line: Callable[[Mapping[str, Any]], str]) -> ToolResult:
    """The first rows, as far as one result holds them, in words and for programs."""
    lines: list[str] = []
    left = RESULT_CHARS_MAX
    for row in rows:
        left -= len(dump(row))
        if left < 0:
            break
        lines.append(line(row))
    shown = rows[: len(lines)]
    if len(shown) < len(rows):
        lines.append(f"and {len(rows) - len(shown):,} more; find_skills with a text or an effect has fewer")
    return ToolResult(text="\n".join(lines), data={key: shown})


def _agent_line(row: Mapping[str, Any]) -> str:
    more = row["skillsTotal"] - len(row["skills"])
    skills = ", ".join(row["skills"]) + (f" and {more:,} more" if more else "")
    state = row["health"] if row["enabled"] else "takes no work"
    return f"{one_line(row['name'], 64)} ({state}): {row['description']}; skills: {skills or 'none'}"


def _skill_line(row: Mapping[str, Any]) -> str:
    answered, rate = row["answeredOutcomes"], row["successRate"]
    told = [f"{one_line(row['agent'], 64)}/{one_line(row['skill'])}: {one_line(row['description'], 300)}"]
    for effect in row["effects"]:
        delta, confidence = effect["delta"], effect["confidence"]
        by = "" if delta is None else f" by {delta:+g}"
        sure = "" if confidence is None else f" (confidence {confidence:.2f})"
        told.append("changes " + one_line(f"{effect['domain']}/{effect['path']}{by}{sure}"))
    told.append(f"{rate:.0%} of {answered} succeeded" if answered else "not measured yet")
    return f"{'; '.join(told)}; {row['health']}"


async def _chat_with_agent(hub: ToolCalls, arguments: Any) -> ToolResult:
    parts = [part.part() for part in arguments.parts]
    return _heard(await hub.chat_with_agent(**arguments.model_dump(exclude={"parts"}), parts=parts))


async def _delegate(hub: ToolCalls, arguments: Any) -> ToolResult:
    parts = [part.part() for part in arguments.parts]
    correlation_id = await hub.delegate(**arguments.model_dump(exclude={"parts"}), parts=parts)
    told = f"Task delegated to {one_line(arguments.agent, 64)}, correlationId {correlation_id}"
    return ToolResult(text=told, data={"correlationId": correlation_id})


async def _wait_for_task(hub: ToolCalls, arguments: Any) -> ToolResult:
    response = await hub.chat_task(arguments.correlation_id, wait_s=arguments.wait_seconds)
    if arguments.part is None or response.status == "working":
        return _heard(response, arguments.offset)
    return _content(response, arguments.part, arguments.offset)


async def _cancel_task(hub: ToolCalls, arguments: Any) -> ToolResult:
    await hub.cancel(arguments.correlation_id)
    told = "The agent is asked to stop; wait_for_task with this correlationId says how it ended"
    return ToolResult(text=told, data={"correlationId": arguments.correlation_id})


async def _retry_task(hub: ToolCalls, arguments: Any) -> ToolResult:
    new = await hub.retry(**arguments.model_dump())
    return ToolResult(text=f"Sent again, correlationId {new}", data={"correlationId": new})


_TOOLS: Mapping[str, tuple[type[_Arguments], Callable[[ToolCalls, Any], Awaitable[ToolResult]]]] = {
    "manage_cron": (_ManageCron, _manage_cron),
    "list_agents": (_ListAgents, _list_agents),
    "find_skills": (_FindSkills, _find_skills),
    "chat_with_agent": (_ChatWithAgent, _chat_with_agent),
    "delegate": (_Delegate, _delegate),
    "wait_for_task": (_WaitForTask, _wait_for_task),
    "cancel_task": (_CancelTask, _cancel_task),
    "retry_task": (_RetryTask, _retry_task),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as a model sees it; ``schema`` is the JSON Schema of its arguments."""

    name: str
    description: str
    schema: Mapping[str, Any]


def tools() -> tuple[ToolSpec, ...]:
    return tuple(
        ToolSpec(name=name, description=" ".join((model.__doc__ or "").split()), schema=_schema(model))
        for name, (model, _) in _TOOLS.items()
    )


def openai_tools() -> list[dict[str, Any]]:
    """The ``tools`` of a chat completion request."""
    return [
        {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": dict(t.schema)}}
        for t in tools()
    ]


def anthropic_tools() -> list[dict[str, Any]]:
    """The ``tools`` of a messages request."""
    return [{"name": t.name, "description": t.description, "input_schema": dict(t.schema)} for t in tools()]


async def call(hub: ToolCalls, name: str, arguments: Mapping[str, Any] | str) -> ToolResult:
    """Carry out a model's call of a tool; ``arguments`` as a mapping, or as JSON.

    An error becomes a result, for the model to see. Null counts as absent.
    """
    try:
        if name not in _TOOLS:
            raise ConfigError(f"there is no tool {one_line(name, 64)!r}", hint=f"one of {', '.join(_TOOLS)}")
        model, carry_out = _TOOLS[name]
        return await carry_out(hub, read(model, _parsed(arguments)))
    except FleetsimError as error:
        return ToolResult.of_error(error)


def _parsed(arguments: Mapping[str, Any] | str) -> Any:
    """The arguments as JSON values, however they were made. Raises ConfigError, WireError."""
    try:
        sent = arguments.encode() if isinstance(arguments, str) else dump(dict(arguments))
    except (TypeError, ValueError, RecursionError):
        raise ConfigError("the arguments are no JSON object") from None
    if len(sent) > ARGUMENTS_BYTES_MAX:
        raise ConfigError(f"the arguments are more than {ARGUMENTS_BYTES_MAX} bytes")
    value = parse_untrusted(sent.strip() or b"{}", bytes_max=ARGUMENTS_BYTES_MAX)
    return {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else value


def _ceremony_line(row: CeremonyFacts) -> str:
    when = f"{row.schedule} {row.timezone}" if row.schedule else f"once at {row['at']}"
    state = f"next {row['nextFireAt'] or 'never'}" if row.enabled else "paused"
    last = f", last run {row.last_run.status}" if row.last_run else ""
    wrong = "".join(f"; warning: {one_line(warning)}" for warning in row.warnings)
    who = one_line(", ".join(row.targets), 500)
    return f"{row.id}: {one_line(row.name)} ({when}) asks {who} for {one_line(row.skill)}; {state}{last}{wrong}"


def _heard(response: ChatResponse, offset: int = 0) -> ToolResult:
    """An agent's answer or question from a character on, with its data as far as there is room. The ids come first.

    Raises ConfigError for an offset behind the end.
    """
    ids = {
        "correlationId": response.correlation_id,
        "contextId": response.context_id,
        "taskId": response.task_id if response.status != "done" else None,  # one that ended takes no more messages
    }
    known = {key: one_line(value, 500) for key, value in ids.items() if value}
    failed = response.status == "done" and not response.success
    reason = one_line(response.error or "no reason", 500)
    meaning = {
        "done": f"did not succeed: {response.task_state} ({reason})" if failed else "is done",
        "input-required": "asks; answer with chat_with_agent, this contextId and this taskId",
        "working": "is at work still; wait_for_task with this correlationId has the answer later",
    }[response.status]
    shown, place = _piece(response.text, offset)
    lines = [
        f"{one_line(response.agent, 64)} {meaning} [{', '.join(f'{key} {value}' for key, value in known.items())}]"
    ]
    lines += [f"Warning: {one_line(warning, 500)}" for warning in response.warnings]
    if response.answer_schema is not None:
        wanted = escape(dump(dict(response.answer_schema)).decode())
        lines.append(
            f'It asks for data, in parts as {{"kind": "data", "data": …}}, that fits this JSON Schema: {wanted}'
        )
    if response.truncated:
        lines.append(f"The hub kept {len(response.text):,} of the answer's {response.text_chars:,} characters")
    rows: list[dict[str, Any]] = []
    left = RESULT_CHARS_MAX - len(shown)
    for part, row in zip(response.parts, to_json(part_notes(response.parts)), strict=False):
        lines.append(f"{part}; wait_for_task with this correlationId and part {part.index} has it")
        if part.kind == "data" and not part.truncated and len(written := _as_json(part)) <= left:
            left -= len(written)
            lines[-1] = f"data {part.index}: {written}"
            row["data"] = part.data
        rows.append(row)
    if response.parts_total > len(rows):
        lines.append(f"and {response.parts_total - len(rows):,} more files and data")
    if shown and not (failed and shown == reason):
        lines.append(f"What it says{_where(place)}:\n{shown}")
    data = {"status": response.status, "agent": response.agent, "success": response.success, "response": shown}
    data["taskState"] = response.task_state
    optional = {
        "error": reason if failed else None,
        "parts": rows,
        "answerSchema": response.answer_schema,
        "warnings": list(response.warnings),
    }
    given = {key: value for key, value in optional.items() if value}
    return ToolResult(text="\n".join(lines), data={**data, **place, **given, **known}, is_error=failed)


def _content(response: ChatResponse, index: int, offset: int) -> ToolResult:
    """One of the files and data that came with an answer: text as text, anything else in ``files``.

    Raises ConfigError for a number without a part.
    """
    part = next((part for part in response.parts if part.index == index), None)
    if part is None:
        listed = "; ".join(str(part) for part in response.parts[:LISTED_MAX])
        raise ConfigError(f"part {index} does not exist", hint=f"the parts are {listed}" if listed else "no parts came")
    (row,) = to_json(part_notes([part]))
    data = {"correlationId": response.correlation_id, "part": row}
    if part.truncated or (part.kind == "file" and part.raw is None):
        reason = f"it is at {one_line(part.uri, 500)}" if part.uri else "it was too large to be kept"
        return ToolResult(text=f"{part}: the hub has no content of it: {reason}", data=data, is_error=True)
    text = _as_json(part) if part.kind == "data" else _as_text(part)
    if text is None:
        return ToolResult(text=f"{part}; its content is attached", data=data, files=(part,))
    shown, place = _piece(text, offset)
    return ToolResult(text=f"{part}{_where(place)}:\n{shown}", data={**data, "content": shown, **place})


def _as_json(part: ListedPart) -> str:
    return escape(dump(part.data).decode())


def _as_text(part: ListedPart) -> str | None:
    """The content of a file that is text, in UTF-8; None for any other. Raises ConfigError if it is not base64."""
    try:
        content = content_of(part.raw or "")
    except ValueError as error:
        raise ConfigError(f"{part}: {error}") from None
    try:
        return None if b"\0" in content else content.decode()
    except UnicodeDecodeError:
        return None


def _piece(text: str, offset: int) -> tuple[str, dict[str, int]]:
    """As much of a text as one result holds, made harmless, and its place in the whole if it is not all.

    Raises ConfigError for an offset behind the end.
    """
    if offset and offset >= len(text):
        raise ConfigError(f"offset: the text has {len(text):,} characters", hint="the first has the offset 0")
    end = min(offset + RESULT_CHARS_MAX, len(text))
    place = {"offset": offset, "textChars": len(text), "nextOffset": end}
    if end == len(text):
        del place["nextOffset"]
    return neutralise(text[offset:end], limit=RESULT_CHARS_MAX), place if offset or end < len(text) else {}


def _where(place: Mapping[str, int]) -> str:
    if not place:
        return ""
    following = place.get("nextOffset")
    rest = f"; wait_for_task with offset {following} has what follows" if following else ""
    return f" (from character {place['offset']:,} of {place['textChars']:,}{rest})"


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON Schema of a model's arguments, as every maker of models takes it: no references and no alternatives.

    The kinds of a part become one object with the keys of all; which go together is checked when it is called.
    """
    whole = model.model_json_schema()

    def plain(part: dict[str, Any]) -> dict[str, Any]:
        kinds = [kind for kind in part.get("anyOf", ()) if kind != {"type": "null"}]
        merged = {**part, **kinds[0]} if len(kinds) == 1 else part
        if "oneOf" in (items := merged.get("items", {})):
            merged = {
                **merged,
                "items": either([whole["$defs"][kind["$ref"].split("/")[-1]] for kind in items["oneOf"]]),
            }
        kept = {key: value for key, value in merged.items() if key not in {"anyOf", "title", "default"}}
        return {**kept, "description": " ".join(part["description"].split())}

    def either(kinds: list[dict[str, Any]]) -> dict[str, Any]:
        keys = {key: plain(part) for kind in kinds for key, part in kind["properties"].items()}
        names = [kind["properties"]["kind"]["const"] for kind in kinds]
        keys["kind"] = {"type": "string", "enum": names, "description": keys["kind"]["description"]}
        return {"type": "object", "properties": keys, "required": ["kind"], "additionalProperties": False}

    return {
        "type": "object",
        "properties": {key: plain(part) for key, part in whole["properties"].items()},
        "required": whole.get("required", []),
        "additionalProperties": False,
    }
