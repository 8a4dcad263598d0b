"""The actions of a person at the dashboard, carried out at a hub in this process or over the API of another."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from fleetsim.api.answers import AccessRole, FoundSkill, WireExchange
from fleetsim.api.bodies import RequestBody, read
from fleetsim.api.part_rows import read_part_row
from fleetsim.cli.parts import read_parts, save_parts
from fleetsim.client.hub_client import HubClient
from fleetsim.client.hub_follow import with_parts
from fleetsim.dashboard.controls import Controls, TypedRequest, WholeText
from fleetsim.fleet.skill_search import FOUND_MAX, SkillQuery, find_skills
from fleetsim.hub.hub import Hub
from fleetsim.model.asking import answer_schema, text_of
from fleetsim.model.errors import ConfigError, UnknownTarget, Unreachable, WireError
from fleetsim.model.parts import answer_parts
from fleetsim.model.task import DataPart
from fleetsim.model.text import one_line
from fleetsim.model.work import Answer, Decision
from fleetsim.wire.json import parse_untrusted


def _typed(text: str, *, wants_data: bool) -> tuple[str, tuple[DataPart, ...]]:
    """A typed answer: JSON becomes data if the question requests data, everything else stays text."""
    if not wants_data or text.strip()[:1] not in set('{["'):
        return text, ()
    return "", (_json(text, "words without a bracket go as text"),)


def _json(text: str, hint: str) -> DataPart:
    typed = text.encode()
    try:
        return DataPart(data=parse_untrusted(typed, bytes_max=len(typed)))
    except WireError as error:
        raise ConfigError(f"this is no JSON: {error}", hint=hint) from None


def _body(draft: TypedRequest) -> dict[str, Any]:
    """The body of the request in a form. Raises ConfigError."""
    try:
        paths = [Path(one).expanduser() for one in shlex.split(draft.files)]
    except ValueError:
        raise ConfigError("a quotation mark in the files is not closed") from None
    if missing := [path for path in paths if not path.is_file()]:  # a pipe would stop the screen
        raise ConfigError(f"there is no file {one_line(str(missing[0]), 200)}", hint="quote a path that has blanks")
    data = [_json(draft.data, "a text needs quotation marks")] if draft.data.strip() else []
    body = {"text": draft.text, "targets": [draft.agent], "interface": "dashboard"}
    return body | with_parts((*read_parts(paths, ()), *data)) | ({"skill": draft.skill} if draft.skill else {})


def _folder(typed: str) -> Path:
    return Path(typed).expanduser().absolute()


class SavingControls(Controls):
    """Saves the files and data of an answer that ``text`` brings."""

    async def save(self, correlation_id: str, indexes: Sequence[int], folder: str) -> Mapping[int, str]:
        chosen = [part for part in (await self.text(correlation_id)).parts if part.index in indexes]
        saved = await save_parts(chosen, _folder(folder))
        if not saved.paths:
            why = next(iter(saved.failed.values()), "fleetsim fetches no file from an address of an agent here")
            raise UnknownTarget(why, hint=f"see: fleetsim task download {correlation_id} --remote")
        return {index: str(path) for index, path in saved.paths.items()}


class HubControls(SavingControls):
    """The actions of a person on the screen, carried out at the hub of this process."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def send(self, draft: TypedRequest) -> str:
        body = read(RequestBody, _body(draft))
        return (await self._hub.submit(body.request(self._hub.runtime.ids.new())))[0]

    async def answer(self, question_id: str, text: str) -> str:
        question = next((q for q in await self._hub.tracker.find_questions() if q.question_id == question_id), None)
        text, parts = _typed(text, wants_data=question is not None and answer_schema(question.parts) is not None)
        question = await self._hub.tracker.answer(Answer(question_id=question_id, text=text, parts=parts))
        self._hub.note_action("answer", question_id, correlation_id=question.correlation_id)
        return f"sent to {question.agent}"

    async def reject(self, question_id: str) -> None:
        reject = Answer(question_id=question_id, text="", decision=Decision.REJECT)
        question = await self._hub.tracker.answer(reject)
        self._hub.note_action("reject", question_id, correlation_id=question.correlation_id)

    async def veto(self, correlation_id: str) -> None:
        if not await self._hub.hitl.veto(correlation_id):
            raise UnknownTarget("its window is closed by now", hint="x cancels a task at any time")
        self._hub.note_action("veto", correlation_id, correlation_id=correlation_id)

    async def cancel(self, correlation_id: str) -> None:
        await self._hub.dispatcher.cancel(correlation_id)
        self._hub.note_action("cancel", correlation_id, correlation_id=correlation_id)

    async def retry(self, correlation_id: str, *, may_repeat: bool) -> None:
        new = await self._hub.dispatcher.retry(correlation_id, may_repeat=may_repeat)
        self._hub.note_action("retry", correlation_id, correlation_id=correlation_id, detail=f"as {new}")

    async def fire(self, ceremony_id: str) -> None:
        await self._hub.require_scheduler().run_now(ceremony_id)
        self._hub.note_action("fire", ceremony_id)

    async def refresh(self, agent: str) -> None:
        await self._hub.broker.refresh(agent)
        self._hub.note_action("refresh-card", agent)

    async def skills(self, agent: str) -> Sequence[FoundSkill]:
        return find_skills(SkillQuery(agent=agent), self._hub.broker.views(), self._hub.snapshot())

    async def wire(self, *, agent: str = "", task: str = "", after: int = 0) -> Sequence[WireExchange]:
        return await self._hub.wire_rows(agent=agent, task=task, after=after)

    async def text(self, correlation_id: str) -> WholeText:
        track = await self._hub.tracker.find_track(correlation_id)
        if track is not None and (question := track.question) is not None:
            return WholeText(text=question.text, chars=max(question.text_chars, len(question.text)))
        if track is not None:
            task = track.task
            text, chars = text_of(task) if task else ("", 0)
            return WholeText(text=text, chars=chars, parts=answer_parts(task)[0] if task else ())
        outcome = await self._hub.ledger.outcome(correlation_id)
        if outcome is None:
            raise UnknownTarget("the ledger has it no more")
        return WholeText(text=outcome.text, chars=max(outcome.text_chars, len(outcome.text)), parts=outcome.parts)


class AttachedControls(SavingControls):
    """The actions of a person on the screen, carried out over the API of a hub in another process."""

    def __init__(self, connect: Callable[[], HubClient | None], attach: Callable[..., Any] | None = None) -> None:
        self._connect = connect
        self._attach = attach or super().attach

    @property
    def _hub(self) -> HubClient:
        hub = self._connect()
        if hub is None:
            raise Unreachable("no hub is running", hint="the screen connects again when one runs")
        return hub

    async def attach(self, url: str) -> tuple[str, str, AccessRole]:
        return cast("tuple[str, str, AccessRole]", await self._attach(url))

    async def send(self, draft: TypedRequest) -> str:
        return (await self._hub.submit(_body(draft)))[0]

    async def answer(self, question_id: str, text: str) -> str:
        question = await self._hub.question(question_id)
        text, parts = _typed(text, wants_data=question.asks_for_data)
        await self._hub.answer(question_id, text, parts=parts)
        return f"sent to {question.agent}"

    async def reject(self, question_id: str) -> None:
        await self._hub.answer(question_id, "", decision="reject")

    async def veto(self, correlation_id: str) -> None:
        await self._hub.veto(correlation_id)

    async def cancel(self, correlation_id: str) -> None:
        await self._hub.cancel(correlation_id)

    async def retry(self, correlation_id: str, *, may_repeat: bool) -> None:
        await self._hub.retry(correlation_id, may_repeat=may_repeat)

    async def fire(self, ceremony_id: str) -> None:
        await self._hub.run_ceremony(ceremony_id)

    async def refresh(self, agent: str) -> None:
        await self._hub.post(f"/agents/{quote(agent, safe='')}/refresh")

    async def skills(self, agent: str) -> Sequence[FoundSkill]:
        return await self._hub.find_skills(agent=agent, limit=FOUND_MAX)

    async def wire(self, *, agent: str = "", task: str = "", after: int = 0) -> Sequence[WireExchange]:
        return await self._hub.wire(agent=agent or None, task=task or None, after=after)

    async def text(self, correlation_id: str) -> WholeText:
        row = await self._hub.task(correlation_id)
        parts = tuple(map(read_part_row, row.parts))
        return WholeText(text=row.text, chars=max(row.text_chars, len(row.text)), parts=parts)
