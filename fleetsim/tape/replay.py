"""Sends the messages of a tape to a candidate, and compares how each request ends there and on the tape."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from fleetsim.cli.comparison import ChangedRow, Comparison
from fleetsim.client import AgentClient
from fleetsim.client.follow import WAIT_S, Following, OutgoingMessage
from fleetsim.client.results import FollowResult
from fleetsim.client.stream import AnswerRequest, EventStream
from fleetsim.model.call import Operation, SendMessage
from fleetsim.model.errors import AuthRefused, FleetsimError, RpcError, TimedOut, TransportError, WireError
from fleetsim.model.event import TaskEvent, fold
from fleetsim.model.extensions import read_declared
from fleetsim.model.task import Task
from fleetsim.model.text import one_line
from fleetsim.runtime.ports import SseEvent
from fleetsim.tape.talks import TapeEntry, TapeReader
from fleetsim.tape.tape import TASK_ID, Tape, TapeFrame, made_ids, plain, renamed, unpack
from fleetsim.wire.cards import read_card
from fleetsim.wire.reading import read_push_body

TIME_SLACK_S = 2.0
"""A poll may find the end of a task this much later."""
EFFECTS = "the skill, or one that the agent may choose, has declared effects: add --allow-side-effects"
NO_END = "the tape does not show how it ends by itself"
NO_QUESTION = "it follows a question that the candidate did not ask"
LOST = "the connection to the candidate failed"
_MESSAGES = frozenset({Operation.SEND, Operation.STREAM})
_LOOKS = frozenset({Operation.GET, Operation.SUBSCRIBE})


class ComparedRequest(NamedTuple):
    """A message of the tape, and how it ended here, at the candidate, and there, on the tape."""

    line: int
    text: str
    here: FollowResult
    there: FollowResult


@dataclass(slots=True, kw_only=True)
class Replay:
    """Messages that were sent are in ``compared``; ``left_out`` counts the others by reason. ``total`` counts all."""

    tape: Tape
    client: AgentClient
    side_effects: bool = False
    timeout_s: float = WAIT_S
    total: int = 0
    compared: list[ComparedRequest] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    async def run(self) -> None:
        """Send the messages, one conversation after the other. Raises AuthRefused, and the errors of ``discover``."""
        cards = [await self.client.discover(), *([read_card(self.tape.head.card)] if self.tape.head.card else ())]
        talks = conversations(self.tape)
        self.total = sum(map(len, talks))
        for turns in talks:
            skills = {turn[0].asked.skill for turn in turns} - {""} or {""}
            effects = any(read_declared(card, skill or None).effects for card in cards for skill in skills)
            sent, why = (0, EFFECTS) if effects and not self.side_effects else await self._send(turns)
            if sent < len(turns):
                self.left_out[why] += len(turns) - sent

    async def _send(self, turns: list[list[TapeEntry]]) -> tuple[int, str]:
        """Send the messages of a conversation; returns how many were sent, and why the next one was not."""
        names: dict[str, str] = {}
        question: Task | None = None
        for sent, (first, *later) in enumerate(turns):
            there, asked, call = await recorded(first, *later), first.asked, first.asked.call
            assert isinstance(call, SendMessage)
            if there is None or asked.task_id not in {"", *names, *first.made}:
                return sent, NO_END
            task_id = names.get(asked.task_id) or None
            names.setdefault(asked.context_id, self.client.runtime.ids.new() if asked.context_id else "")
            message = OutgoingMessage(
                text="",
                parts=call.message.parts,
                task_id=task_id,
                context_id=names[asked.context_id] or None,
                metadata=renamed({**call.metadata, **call.message.metadata}, names),
            )
            streamed = asked.operation is Operation.STREAM
            following = Following(self.client, message, streamed=streamed, answers=question, timeout_s=self.timeout_s)
            try:
                await following.finish()
                here = following.report()
            except AuthRefused:
                raise
            except TransportError as error:
                if not isinstance(error, TimedOut):
                    return sent, LOST
                here = following.report() if following.task else _refused(error)
            except FleetsimError as error:
                here = _refused(error)
            names |= {there.task_id: here.task_id, there.context_id: here.context_id}
            question = here.question if isinstance(here.question, Task) else None
            self.compared.append(ComparedRequest(first.line, call.message.text, here, there))
            if there.question is not None and question is None:
                return sent + 1, NO_QUESTION
        return len(turns), ""

    def comparison(self, source: str, factor: float, fail_on: frozenset[str]) -> Comparison:
        """The requests that differ; one is worse by its state, or by what ``fail_on`` names."""
        changed = []
        for line, text, here, there in self.compared:
            if found := differences(here, there, factor):
                by_state = "state" in found
                whys = _apart(_said(here), _said(there))
                if by_state:
                    whys = here.reason or here.text, there.reason or there.text
                changed.append(
                    ChangedRow(
                        key=f"line {line}",
                        mark=",".join(found),
                        title=one_line(text, 80),
                        here=_told(here),
                        there=_told(there),
                        reason=whys[0],
                        reason_there=whys[1],
                        worse=(by_state and not _failed(there)) or not fail_on.isdisjoint(found),
                        better=by_state and _failed(there) and here.success,
                    )
                )
        head, card = self.tape.head, self.client.card
        return Comparison(
            here=f"{card.name if card else ''} {self.client.url}, {self._sum('here')}",
            there=f"{head.agent} {head.url}, recorded {head.recorded} in {source}, {self._sum('there')}",
            changed=tuple(changed),
            same=len(self.compared) - len(changed),
            what="requests",
        )

    def _sum(self, side: Literal["here", "there"]) -> str:
        results = [getattr(one, side) for one in self.compared]
        dollars = sum(result.cost_usd or 0.0 for result in results)
        return f"{sum(one.duration_s for one in results):.1f} s" + (f", ${dollars:.4f}" if dollars else "")

    def as_json(self, comparison: Comparison) -> dict[str, Any]:
        def facts(result: FollowResult) -> dict[str, Any]:
            return {**result.facts(), "success": result.success, "seconds": round(result.duration_s, 3)}

        return {
            "schema": "fleetsim/replay/1",
            "total": self.total,
            "leftOut": dict(self.left_out),
            "requests": [
                {"row": f"line {line}", "sent": text, "here": facts(here), "there": facts(there)}
                for line, text, here, there in self.compared
            ],
            "comparison": comparison.as_json(),
        }


# -- the tape -----------------------------------------------------------------------------------------------------


def conversations(tape: Tape) -> list[list[list[TapeEntry]]]:
    """The conversations of a tape. Each has its messages, and each of these the later exchanges about its task."""
    talks: dict[int, list[list[TapeEntry]]] = {}
    of_task: dict[str, list[TapeEntry]] = {}
    for entry in TapeReader(tape).entries:
        if entry.asked.operation in _MESSAGES:
            talks.setdefault(id(entry.talk), []).append(turn := [entry])
            of_task.update(dict.fromkeys(made_ids(entry.row.replies, TASK_ID), turn))
        elif entry.asked.task_id in of_task:
            of_task[entry.asked.task_id].append(entry)
    return list(talks.values())


async def recorded(*turn: TapeEntry) -> FollowResult | None:
    """How a message ended on the tape, or what it waits for; None if the tape does not show it, or a cancel."""
    if any(entry.asked.operation is Operation.CANCEL for entry in turn):
        return None
    try:
        task, moved_s = await last_seen(*turn)
    except RpcError as error:
        return _refused(error)
    result = None if task is None else FollowResult.of_task(task, duration_s=moved_s - turn[0].row.at)
    return None if result is None or (result.open and result.question is None) else result


async def last_seen(*turn: TapeEntry) -> tuple[Task | None, float]:
    """The task of a message as it stood at last, and the second of its last move. Raises the RpcError of a refusal."""
    task: Task | None = None
    moved_s = turn[0].row.at
    for at_s, event in sorted([one for entry in turn for one in await _events(entry)], key=lambda one: one[0]):
        before, task = task, fold(task, event)
        moved_s = moved_s if before is not None and before.state is task.state else at_s
    return task, moved_s


async def _events(entry: TapeEntry) -> list[tuple[float, TaskEvent]]:
    """The events of an exchange and its webhooks, with their seconds. Raises the RpcError that refused a message."""
    row, asked, seen = entry.row, entry.asked, list[tuple[float, TaskEvent]]()
    now_s = row.at

    async def frames() -> AsyncGenerator[SseEvent, None]:
        nonlocal now_s
        for frame in [TapeFrame(row.ended, row.reply)] if row.frames is None else row.frames:
            now_s = row.at + frame.after
            yield SseEvent(unpack(frame.body).decode("utf-8", "replace"), frame.event)

    try:
        for hook in entry.webhooks:
            seen += [(hook.at, event) for event in read_push_body(hook.body)]
        if asked.spoken is not None and asked.operation in _MESSAGES | _LOOKS:
            rpc_id = str(row.body.get("id")) if isinstance(row.body, dict) else ""
            of = AnswerRequest(request_id=rpc_id, dialect=asked.spoken, operation=asked.operation, where="the tape")
            async for event in EventStream(of, frames()):
                seen.append((now_s, event))
    except WireError:
        pass
    except RpcError:
        if asked.operation in _MESSAGES:
            raise
    return seen


# -- results ------------------------------------------------------------------------------------------------------


def differences(here: FollowResult, there: FollowResult, factor: float) -> list[str]:
    """The names of the differences: the state, or else the text, and time or cost above ``factor`` times the tape's."""
    if (here.state, here.success) != (there.state, there.success):
        return ["state"]
    slow = here.duration_s > max(there.duration_s * factor, there.duration_s + TIME_SLACK_S)
    known = here.cost_usd is not None and there.cost_usd is not None
    costs = [(one.cost_usd if known else one.tokens) or 0 for one in (here, there)]
    found = {"text": _said(here) != _said(there), "time": slow, "cost": costs[0] > costs[1] * factor > 0}
    return [name for name, differs in found.items() if differs]


def _refused(error: FleetsimError) -> FollowResult:
    reason = one_line(str(error))
    return FollowResult(state="refused", open=False, success=False, text="", text_chars=0, reason=reason)


def _failed(result: FollowResult) -> bool:
    return not result.success and result.question is None


def _said(result: FollowResult) -> str:
    """The text, the files and the data, as they are compared."""
    parts = [f"{part} {part.raw or ''} {'' if part.data is None else part.data}" for part in result.parts]
    return plain("\n".join([result.text, *parts]), ())


def _apart(one: str, other: str) -> tuple[str, str]:
    """Two texts from shortly before the place at which they differ."""
    same = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), 0)
    return one[max(0, same - 40) :], other[max(0, same - 40) :]


def _told(result: FollowResult) -> str:
    dollars = "" if result.cost_usd is None else f", ${result.cost_usd:.4f}"
    tokens = f", {result.tokens:,} tokens" if result.tokens else ""
    return f"{result.state} in {result.duration_s:.1f} s{dollars}{tokens}"
