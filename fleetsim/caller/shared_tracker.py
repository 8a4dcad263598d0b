"""The tracker of a hub that shares its ledger: it drives the requests that it owns, and reaches those of other hubs.

A webhook, an answer or a cancel for another hub's request is recorded in the ledger, and its owner applies it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from fleetsim.caller.executor import Executor
from fleetsim.caller.record_writer import RecordWriter
from fleetsim.caller.tracker import Tracker
from fleetsim.events.log import EventLog
from fleetsim.events.request import OutcomeDecided
from fleetsim.ledger import EarlyWebhook, LeaseLost, MessageKind, PassedMessage, SharedLedger
from fleetsim.model.errors import FleetsimError, UnknownTarget
from fleetsim.model.work import Outcome, Question
from fleetsim.request.machine import new_track
from fleetsim.request.records import Phase, QuestionState, RequestRecord
from fleetsim.request.signals import Answered, Effect, RegisterPush
from fleetsim.request.track import Rules, Track
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.workers import Workers

LOOK_S = 5.0
"""How often the ledger is asked for the outcome of another hub's request, should its event be missed."""


class SharedTracker(Tracker):
    """A Tracker over a SharedLedger."""

    def __init__(
        self,
        runtime: Runtime,
        executor: Executor,
        ledger: SharedLedger,
        events: EventLog,
        rules: Rules,
        **options: Any,
    ) -> None:
        super().__init__(runtime, executor, ledger, events, rules, **options)
        self._shared = ledger

    async def find_tracks(self, correlation_ids: Sequence[str]) -> list[Track]:
        found = {track.record.request.correlation_id: track for track in await super().find_tracks(correlation_ids)}
        elsewhere = [correlation_id for correlation_id in correlation_ids if correlation_id not in found]
        asked = {question.correlation_id: question for question in await self.find_questions()} if elsewhere else {}
        for correlation_id in elsewhere:
            record = await self._shared.request(correlation_id)
            if record is not None and record.phase is not Phase.CLOSED:
                track, question = new_track(record, self._moment()), asked.get(correlation_id)
                asking = replace(track.asking, question=question, recorded=question is not None)
                found[correlation_id] = replace(track, asking=asking)
        return [found[correlation_id] for correlation_id in correlation_ids if correlation_id in found]

    async def find_questions(self) -> tuple[Question, ...]:
        records = await self._shared.questions()
        return tuple(record.question for record in records if record.state is QuestionState.OPEN)

    async def find_question(self, question_id: str) -> Question | None:
        if (question := await super().find_question(question_id)) is not None:
            return question
        record = await self._shared.question(question_id)
        return record.question if record is not None and record.state is QuestionState.OPEN else None

    async def find_holder(self, agent: str, task_id: str) -> str | None:
        return self.find(agent, task_id) or await self._shared.holder(agent, task_id)

    async def count_open(self) -> int:
        return sum(member.owned for member in await self._shared.members())

    async def wait(self, correlation_id: str) -> Outcome:
        while True:
            with suppress(LeaseLost, UnknownTarget):  # another hub has it, or had it before this one
                return await super().wait(correlation_id)
            # After the subscription: an earlier outcome is in the ledger, and the event of a later one arrives here.
            async with self._events.subscribe(kinds=(OutcomeDecided,), about=correlation_id, everywhere=True) as ended:
                record = await self._shared.request(correlation_id)
                if record is None:
                    raise UnknownTarget(f"no request {correlation_id!r} is known")
                if record.phase is not Phase.CLOSED and correlation_id not in self.open_tracks:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_S):
                            await ended.next_batch()

    async def cancel(self, correlation_id: str, *, by: str = "operator") -> None:
        if correlation_id in self.open_tracks:
            await super().cancel(correlation_id, by=by)
        elif not await self.pass_on(correlation_id, MessageKind.CANCEL, by=by):
            raise UnknownTarget(f"no request {correlation_id!r} is in flight")

    async def take_webhook(self, webhook: EarlyWebhook) -> bool:
        if webhook.correlation_id in self.open_tracks:
            return await super().take_webhook(webhook)
        return await self.pass_on(webhook.correlation_id, MessageKind.WEBHOOK, webhook=webhook)

    async def pass_on(self, correlation_id: str, kind: MessageKind, **about: Any) -> bool:
        """Record a message for the hub that owns a request. False if the request is not open."""
        return await self._shared.pass_on(PassedMessage(correlation_id=correlation_id, kind=kind, **about))

    async def take_message(self, message: PassedMessage) -> None:
        """Apply a webhook, an answer or a cancel that another hub received, and return once the effect is on record.
        Raises NotAccepting if it is not recorded yet; the message must be kept."""
        cid = message.correlation_id
        if cid not in self.open_tracks:
            return
        if (webhook := message.webhook) is not None:
            await super().take_webhook(webhook)
        elif message.answer is not None:
            self.signal(cid, Answered(answer=message.answer))
        elif message.kind is MessageKind.CANCEL:
            await super().cancel(cid, by=message.by)
        await self._recorded(cid)

    def require_lease(self) -> None:
        self._shared.require_lease()

    async def _call(self, cid: str, record: RequestRecord, effect: Effect) -> None:
        if isinstance(effect, RegisterPush):  # another hub refuses a webhook of a task that is not on record
            with suppress(FleetsimError, ValueError):
                await self._writer.save_now(cid)
        await super()._call(cid, record, effect)

    async def drop_all(self) -> int:
        """Forget every request, and record nothing: another hub owns them. Returns the number of them."""
        await self._workers.close()
        self._workers = Workers("tracker")
        self._writer = RecordWriter(self._shared, self._events, self._workers, self.open_tracks, self.signal)
        dropped = list(self.open_tracks.values())
        for track in dropped:
            self._forget(track)
            self._resolve(track.correlation_id, LeaseLost())
        return len(dropped)
