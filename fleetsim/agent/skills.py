"""Skills: what an agent offers, and the context a skill's function works with.

A skill is a function of one ``SkillContext``: an async function, a generator that yields its answer in pieces, or a
plain function, which runs in a thread. It returns (completed), raises ``SkillFailed`` or ``SkillRejected``, or raises
anything else (failed; the caller learns the type only).
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from random import Random  # noqa: TID251 - the type of a stream of chance, which the runtime hands in
from typing import Any, Protocol, overload

from fleetsim.agent.tasks import UsageTotals
from fleetsim.model.card import AgentSkill
from fleetsim.model.errors import ConfigError
from fleetsim.model.extensions import EffectDelta
from fleetsim.model.task import Artifact, DataPart, FilePart, JsonObject, Message, Part, TextPart
from fleetsim.model.text import one_line
from fleetsim.wire.json import dump

Radius = ("self", "project", "repo", "fleet", "public")
"""blast-v1's radii, smallest first."""


class SkillEnded(Exception):
    """The text is the reason that the caller reads; ``metadata`` goes beside it."""

    def __init__(self, reason: str = "", *, metadata: JsonObject | None = None) -> None:
        super().__init__(reason)
        self.metadata = metadata or {}


class SkillFailed(SkillEnded):
    """The goal was not met."""


class SkillRejected(SkillEnded):
    """The skill will not do this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """effect-domain-v1: a change a skill declares it makes, with how sure it is to happen (0 to 1)."""

    domain: str
    path: str
    delta: float = 1.0
    confidence: float = 1.0


class ArtifactWriter(Protocol):
    """Writes the output of a task; the runner's job is one. Each write may raise TaskEnded or OutputLimit."""

    def put(self, artifact: Artifact, *, append: bool, last_chunk: bool) -> None:
        """Add to the task's artifacts."""

    def note(self, text: str) -> None:
        """Show what the skill is doing."""

    async def ask(self, question: str, *, auth: bool) -> Message:
        """Wait for somebody."""

    def unread(self) -> tuple[Message, ...]:
        """Take the messages that came unasked."""

    async def breathe(self) -> None:
        """Let readers run."""


@dataclass(slots=True, kw_only=True, eq=False)
class SkillContext:
    """One task as its skill sees it. ``text`` is the text of the message, ``data`` the content of its data parts,
    ``metadata`` the request's and the message's together (the request's win), ``rng`` this skill's stream of chance.
    ``traceparent`` is the caller's place in a trace (W3C); empty if it names none."""

    task_id: str
    context_id: str
    caller: str
    skill: Skill
    message: Message
    metadata: JsonObject
    rng: Random
    writer: ArtifactWriter = field(repr=False)
    usage: UsageTotals = field(repr=False)
    traceparent: str = ""
    _unnamed: int = field(default=0, init=False, repr=False)

    @property
    def text(self) -> str:
        """The text of the message, without a leading ``/skill`` command."""
        command, _, rest = self.message.text.lstrip().partition(" ")
        return rest.lstrip() if command == f"/{self.skill.skill_id}" else self.message.text

    @property
    def data(self) -> tuple[Any, ...]:
        """The content of the message's data parts."""
        return tuple(part.data for part in self.message.parts if isinstance(part, DataPart))

    @property
    def prompt(self) -> str:
        """All parts as one text for a model: data as JSON, files named and left out (never fetched)."""
        lines = [self.text] if self.text else []
        for part in self.message.parts:
            if isinstance(part, DataPart):
                lines.append(dump(part.data).decode())
            elif isinstance(part, FilePart):
                named = one_line(part.filename or part.uri or "unnamed", 200)
                lines.append(f"[file {named}, {one_line(part.media_type or 'unknown type', 80)}: content not read]")
        return "\n".join(lines)

    async def say(self, text: str) -> None:
        """Append to the answer; streams of the task receive it at once. Raises OutputLimit."""
        if text:
            chunk = Artifact(artifact_id=self.task_id, name="response", parts=(TextPart(text=text),))
            self.writer.put(chunk, append=True, last_chunk=False)
        await self.writer.breathe()

    async def attach(
        self,
        *parts: Part,
        name: str | None = None,
        artifact_id: str | None = None,
        append: bool = False,
        last_chunk: bool = True,
    ) -> None:
        """Add an artifact beside the answer, whole or in chunks of one ``artifact_id``.

        An artifact with the id or the name of an earlier one replaces it; one without either stands beside all others.
        Raises OutputLimit if the task would hold too much, WireError for data without a JSON form.
        """
        for part in parts:
            if isinstance(part, DataPart):
                dump(part.data)  # raises here, in the skill, and not in every later reply
        if not (artifact_id or name or append):
            self._unnamed += 1
        unnamed = "attachment" if self._unnamed <= 1 else f"attachment-{self._unnamed}"
        label = artifact_id or f"{self.task_id}/{name or unnamed}"
        self.writer.put(Artifact(artifact_id=label, name=name, parts=parts), append=append, last_chunk=last_chunk)
        await self.writer.breathe()

    async def status(self, text: str) -> None:
        """Show what the skill is doing, until the task ends; late readers see it too."""
        self.writer.note(text)
        await self.writer.breathe()

    async def ask(self, question: str, *, auth: bool = False) -> str:
        """Ask whoever sent the task and wait for the text of the answer (``input-required``).

        With ``auth`` the task is ``auth-required`` meanwhile.
        """
        return (await self.ask_message(question, auth=auth)).text

    async def ask_message(self, question: str, *, auth: bool = False) -> Message:
        """As ``ask``, returning the whole message of the answer."""
        return await self.writer.ask(question, auth=auth)

    def unread(self) -> tuple[Message, ...]:
        """Take the messages that were sent to the task while it worked, without being asked for."""
        return self.writer.unread()

    def use(
        self,
        input_tokens: int = 0,
        output_tokens: int = 0,
        cost_usd: float | None = None,
        model: str | None = None,
        *,
        cache_creation_input_tokens: int = 0,
        cache_read_input_tokens: int = 0,
    ) -> None:
        """Record one model call (cost-v1); calls add up. Raises ValueError for a negative amount."""
        tokens = {"input_tokens": input_tokens, "output_tokens": output_tokens}
        cached = {
            "cache_creation_input_tokens": cache_creation_input_tokens,
            "cache_read_input_tokens": cache_read_input_tokens,
        }
        self.usage.use(tokens | {kind: count for kind, count in cached.items() if count}, cost_usd, model)
        self.skill.note_undeclared("cost", self.skill.cost)

    def confidence(self, level: float, why: str | None = None) -> None:
        """Say how sure the skill is (confidence-v1), clamped to 0..1. Raises ValueError if not a number."""
        if math.isnan(level):
            raise ValueError("confidence is a number from 0 to 1")
        self.usage.confidence = min(max(level, 0.0), 1.0)
        self.usage.explanation = why
        self.skill.note_undeclared("confidence", self.skill.sure)

    def effect(self, domain: str, path: str, op: str = "set", value: Any = None) -> None:
        """Record an observed change of the world (worldstate-delta-v1). Raises ValueError if ``op`` is not set, inc or
        push, and WireError for a ``value`` without a JSON form."""
        if op not in {"set", "inc", "push"}:
            raise ValueError("op is set, inc or push")
        dump(value)
        self.usage.add(EffectDelta(domain=domain, path=path, op=op, value=value))
        declared = any(e.domain == domain and e.path == path for e in self.skill.effects)
        self.skill.note_undeclared(f"effect {domain}:{path}", declared)


SkillFunction = Callable[[SkillContext], Awaitable[str | None]]
AnyFunction = Callable[[SkillContext], Awaitable[str | None] | AsyncIterator[str] | Iterator[str] | str | None]
"""What ``skill`` accepts: an async function, an async or a plain generator of texts, or a plain function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """One thing an agent offers, and the async function that does it.

    ``cost`` and ``sure`` declare that it reports cost-v1 and confidence-v1; ``effects`` what it changes;
    ``radius`` its blast-v1 radius and ``hitl`` its hitl-mode-v1 mode. ``idempotent``: it may run twice.
    ``public`` false keeps it on the extended card only. ``undeclared`` collects what it did and had not declared.
    """

    skill_id: str
    name: str
    run: SkillFunction = field(repr=False)
    description: str = ""
    tags: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    input_modes: tuple[str, ...] = ()
    output_modes: tuple[str, ...] = ()
    cost: bool = False
    sure: bool = False
    effects: tuple[Effect, ...] = ()
    radius: str | None = None
    hitl: str | None = None
    idempotent: bool = False
    public: bool = True
    undeclared: set[str] = field(default_factory=set, repr=False, compare=False)

    def __call__(self, context: SkillContext) -> Awaitable[str | None]:
        """Run the function, as if it had not been decorated."""
        return self.run(context)

    def note_undeclared(self, what: str, declared: bool) -> None:
        """Remember something done that the skill does not declare."""
        if not declared:
            self.undeclared.add(what)

    def card_entry(self) -> AgentSkill:
        """The skill as the card shows it."""
        return AgentSkill(
            skill_id=self.skill_id,
            name=self.name,
            description=self.description or self.name,
            tags=self.tags or ("general",),
            examples=self.examples,
            input_modes=self.input_modes,
            output_modes=self.output_modes,
        )


@overload
def skill(function: AnyFunction, /) -> Skill: ...


@overload
def skill(skill_id: str | None = None, /, **options: Any) -> Callable[[AnyFunction], Skill]: ...


def skill(what: AnyFunction | str | None = None, /, **options: Any) -> Skill | Callable[[AnyFunction], Skill]:
    """Turn a function into a ``Skill``; its name and docstring are the defaults.

    Use bare (``@skill``) or with an id and any field of ``Skill`` (``@skill("greet", tags=("demo",))``). An async
    function returns its answer. A generator, async or not, yields it in pieces, as ``task.say`` adds them::

        @skill
        async def count(task):
            for number in range(3):
                yield f"{number} "

    A plain function or generator runs in a thread, so that it may block. There it can use what needs no ``await``, and
    a cancel does not end it. Raises ConfigError if a field is unknown or malformed.
    """
    if callable(what):
        return make_skill(what, None, options)
    return lambda function: make_skill(function, what, options)


def make_skill(function: AnyFunction, skill_id: str | None, options: Mapping[str, Any]) -> Skill:
    """Build the skill that ``skill`` and ``Agent.skill`` describe. Raises ConfigError."""
    if isinstance(function, Skill):
        made = function
    else:
        lines = inspect.cleandoc(function.__doc__ or "").splitlines()
        name = getattr(function, "__name__", type(function).__name__)
        made = Skill(
            skill_id=name,
            name=name.replace("_", " ").capitalize(),
            description=lines[0] if lines else "",
            run=function if inspect.iscoroutinefunction(function) else _awaited(function),
        )
    chosen = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    unknown = set(chosen) - {f for f in Skill.__dataclass_fields__ if f not in {"run", "undeclared", "skill_id"}}
    if unknown:
        raise ConfigError(f"a skill has no field {sorted(unknown)[0]!r}", hint="see fleetsim.agent.Skill")
    if skill_id is not None:
        chosen = {"name": skill_id.replace("_", " ").replace("-", " ").capitalize(), **chosen, "skill_id": skill_id}
    fields: dict[str, Any] = {**chosen, "undeclared": set()}
    made = replace(made, **fields)
    if not made.skill_id.isascii() or not made.skill_id.strip() or len(made.skill_id) > 128:
        raise ConfigError(f"{made.skill_id!r} is not a skill id", hint="1 to 128 ASCII characters")
    if made.radius is not None and made.radius not in Radius:
        raise ConfigError(f"{made.radius!r} is not a blast radius", hint=f"one of {', '.join(Radius)}")
    return made


def _awaited(function: Callable[[SkillContext], Any]) -> SkillFunction:
    """A generator or plain function as an async function."""

    async def run(task: SkillContext) -> str | None:
        if inspect.isasyncgenfunction(function):
            async with aclosing(function(task)) as pieces:
                async for piece in pieces:
                    await task.say(piece)
            return None
        answer = await asyncio.to_thread(function, task)
        if inspect.isgenerator(answer):
            while (piece := await asyncio.to_thread(next, answer, _END)) is not _END:
                await task.say(piece)
            return None
        text: str | None = await answer if inspect.isawaitable(answer) else answer
        return text

    return run


_END = object()


def choose_skill(skills: Mapping[str, Skill], default: str, metadata: JsonObject, text: str) -> Skill | None:
    """The skill a message asks for: by ``skillHint``, else by a leading ``/skill``, else the default.

    None if a hint names one the agent does not have: doing something else would not be an answer.
    """
    hint = metadata.get("skillHint", metadata.get("skillId"))
    if isinstance(hint, str) and hint:
        return skills.get(hint)
    command = text.lstrip().partition(" ")[0]
    return skills[command[1:] if command.startswith("/") and command[1:] in skills else default]


SkillChoice = Callable[[Mapping[str, Skill], str, JsonObject, str], Skill | None]
"""How a message's skill is chosen, out of those by id: the default's id, the metadata, the text. None: none fits."""


def undeclared(skills: Iterable[Skill]) -> dict[str, tuple[str, ...]]:
    """Undeclared conduct by skill id; empty if the skills keep to their card."""
    return {skill.skill_id: tuple(sorted(skill.undeclared)) for skill in skills if skill.undeclared}
