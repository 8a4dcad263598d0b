"""Delivering notices: each sink has a queue of its own, so that one that fails holds up nothing and nobody else.

A caller queues a notice and does not wait. A webhook is retried as the agents' webhooks are; a
command runs once. Each delivery or failure is an event, and each sink counts them. A notice of a question or a run is a
row of the ledger, too: until its time is over it is sent again, after a restart as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Protocol

from msgspec import convert, structs, to_builtins

from fleetsim.api.answers import ChannelRow, SinkResult, SinkRow
from fleetsim.ceremony.file import GRACE_S
from fleetsim.channels import notice as put
from fleetsim.channels.alerts import AlertSettings
from fleetsim.channels.channel import OPERATOR, Channel, ChannelIds, Destination, SinkKind
from fleetsim.channels.links import AnswerLinks, without_link
from fleetsim.channels.notice import Notice, NoticeKind
from fleetsim.events.fleet import (
    AlertCleared,
    AlertRaised,
    CeremonyCompleted,
    CeremonyLate,
    CeremonyMissed,
    CeremonyNews,
    CeremonySkipped,
    NoticeDelivered,
    NoticeFailed,
)
from fleetsim.events.log import EventLog, Subscription
from fleetsim.events.request import (
    Event,
    QuestionAnswered,
    QuestionAsked,
    QuestionExpired,
    QuestionOverdue,
    QuestionWithdrawn,
)
from fleetsim.ledger import LeaseLost, Ledger, NoticeRecord, NoticeState, SharedLedger
from fleetsim.model.errors import FleetsimError, UnknownTarget
from fleetsim.model.text import one_line
from fleetsim.model.work import Question
from fleetsim.request.asking import asked
from fleetsim.request.records import QuestionState
from fleetsim.runtime.address import AddressPolicy, AllowEntry, parse_webhook_url
from fleetsim.runtime.explain import did_you_mean
from fleetsim.runtime.limits import TokenBucket
from fleetsim.runtime.ports import Program, Runtime, WayOut
from fleetsim.runtime.programs import desktop_program
from fleetsim.runtime.retry import DELAYS_S
from fleetsim.runtime.webhook import SCHEME, Delivery, WebhookSender, write_secret
from fleetsim.runtime.workers import Workers
from fleetsim.wire.json import dump

log = logging.getLogger(__name__)

WAITING_MAX = 100
"""Notices that wait for one sink; beyond, the oldest is left out."""

APART_S, BURST = 2.0, 5.0
"""Each sink gets at most ``BURST`` notices at once, then one per ``APART_S`` seconds: Discord's limit."""

RETRY_S = 60.0
"""Seconds from a failure of a sink until it gets the oldest of its undelivered notices again; it gets all of them once
it takes one."""

QUESTION_ENDED = "the question has ended"
CLOSE_S = 3.0
TEST_S = 12.0
REASON_CHARS_MAX = 200

_PLAIN_WAY = WayOut()
_ONCE = frozenset({SinkKind.LOG, SinkKind.COMMAND, SinkKind.DESKTOP})
"""A failed command may have had its effect, and a failed log or desktop is not away for a while."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A notice on its way to one sink. ``over``: why it is not to be sent again. ``ended``: its last row."""

    notice: Notice
    record: NoticeRecord | None = None
    failed: bool = False
    over: str = ""
    ended: NoticeRecord | None = None


@dataclass(slots=True, eq=False)
class _Queue:
    """The notices that wait for one sink, oldest first, and its figures. ``failed`` ones are sent again later."""

    channel_id: str
    sink: Destination
    rate: TokenBucket
    row: SinkRow
    place: str
    waiting: deque[_Waiting] = field(default_factory=deque)
    failed: deque[_Waiting] = field(default_factory=deque)
    stirred: asyncio.Event = field(default_factory=asyncio.Event)
    worker: asyncio.Task[None] | None = None

    def kept(self) -> list[_Waiting]:
        """The notices that have a row in the ledger."""
        return [item for item in (*self.failed, *self.waiting) if item.record is not None]


def _ended(row: NoticeRecord, reason: str) -> NoticeRecord:
    """The row of a notice that was delivered, or given up for ``reason``."""
    state = NoticeState.GIVEN_UP if reason else NoticeState.DELIVERED
    return structs.replace(row, state=state, reason=one_line(reason, REASON_CHARS_MAX))


class Channels:
    """The channels in force. ``async with``; leaving gives notices under way a moment."""

    def __init__(
        self,
        runtime: Runtime,
        events: EventLog,
        channels: Mapping[str, Channel],
        way: WayOut = _PLAIN_WAY,
        ledger: Ledger | None = None,
        *,
        links: AnswerLinks | None = None,
        link_base: str = "",
    ) -> None:
        self._runtime = runtime
        self._links = links
        self._events = events
        self._ledger = ledger
        self._shared = ledger if isinstance(ledger, SharedLedger) else None
        self._keeping = asyncio.Lock()
        self._closing = False
        self.in_force: Mapping[str, Channel] = {}
        self._queues: dict[tuple[str, Destination], _Queue] = {}
        self._senders: dict[tuple[str, bool, bool, WayOut], WebhookSender] = {}
        self._workers = Workers("channels")
        self.apply(channels, way, link_base)

    async def __aenter__(self) -> Channels:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing = True
        for queue in self._queues.values():
            queue.stirred.set()
        try:
            await self._workers.drain(CLOSE_S)
        finally:  # the person who stops the hub may not wait that long
            if lost := sum(item.record is None for queue in self._queues.values() for item in queue.waiting):
                log.warning("%d notices were not delivered before the hub stopped", lost)
            await self._workers.close()

    def apply(self, channels: Mapping[str, Channel], way: WayOut = _PLAIN_WAY, link_base: str = "") -> None:
        """Use the channels of a new agents.yaml, and its way to them; those that are internal take no proxy.

        A sink that is still there keeps its queue and figures. Links that answer begin with ``link_base``; "" for none.
        """
        self._way, self._link_base = way, link_base
        queues: dict[tuple[str, Destination], _Queue] = {}
        for key, channel in channels.items():
            for number, sink in enumerate(channel.sinks):
                rate = TokenBucket(self._runtime.clock, per_s=1 / APART_S, burst=BURST)
                same = sum(other.shown == sink.shown for other in channel.sinks[:number])
                place = f"{key} {sink.shown}{f' {same + 1}' if same else ''}"
                queues[key, sink] = self._queues.get((key, sink)) or _Queue(
                    key, sink, rate, SinkRow(sink=sink.shown, kind=sink.kind.value), place
                )
        for at, queue in self._queues.items():
            if at not in queues and queue.worker is not None:
                queue.worker.cancel()
        self.in_force, self._queues = channels, queues

    def rows(self) -> tuple[ChannelRow, ...]:
        """Every channel, in the order of the file."""
        rows = []
        for key, channel in self.in_force.items():
            queues = [self._queues[key, sink] for sink in channel.sinks]
            sinks = tuple(
                structs.replace(queue.row, waiting=len(queue.waiting), undelivered=len(queue.kept()))
                for queue in queues
            )
            rows.append(ChannelRow(id=key, agents=channel.agents, sinks=sinks))
        return tuple(rows)

    def read_link(self, token: str) -> tuple[str, str] | None:
        """The question of a link, and who is recorded if it decides; None if no sink of now has such a link."""
        if self._links is None or not self._link_base:
            return None
        return self._links.verify(token, {sink.reader(key) for key, sink in self._queues})

    def send(self, channel_id: str, notice: Notice, *, owner: str = OPERATOR) -> None:
        """Queue a notice for every sink of the channel, without waiting.

        An unknown channel is ignored: the ceremonies of the seeds name channels of another program. A channel
        that ``owner`` may not use is an event.
        """
        channel = self.in_force.get(channel_id)
        if channel is None:
            return
        if refusal := channel.refusal(owner):
            self._publish_failure(channel_id, notice, SinkResult(sink="", attempts=0, reason=refusal))
            return
        for sink in channel.sinks:
            self._queue(self._queues[channel_id, sink], _Waiting(notice))

    async def keep(
        self, channel_id: str, notice: Notice, *, subject: str, until: datetime, owner: str = OPERATOR
    ) -> None:
        """As ``send``, for a notice that is a row of the ledger until ``until``. No sink gets one of a subject twice.

        Without a ledger that takes writes, the notice is still sent.
        """
        channel = self.in_force.get(channel_id)
        if self._ledger is None or channel is None or channel.refusal(owner):
            self.send(channel_id, notice, owner=owner)
            return
        async with self._keeping:  # a question may be taken up while its event arrives
            known = {}
            with suppress(FleetsimError):
                known = {row.place: row for row in await self._ledger.notices(subject)}
            content = to_builtins(notice, builtin_types=(datetime,))
            for queue in [self._queues[channel_id, sink] for sink in channel.sinks]:
                there = known.get(queue.place)
                if there is not None and (there.state is not NoticeState.RAISED or self._has(queue, there)):
                    continue
                row = there or NoticeRecord(
                    subject=subject, place=queue.place, kind=notice.kind, until=until, content=content
                )
                if there is None:
                    await self._save(row)
                self._queue(queue, _Waiting(notice, row))

    async def take_up(self, row: NoticeRecord, over: str = "") -> None:
        """Send a raised notice of an earlier run or of another hub, unless it is ``over``."""
        queue = next((queue for queue in self._queues.values() if queue.place == row.place), None)
        if queue is None:
            await self._save(_ended(row, "agents.yaml has no such sink any more"))
        elif not self._has(queue, row):
            self._queue(queue, _Waiting(convert(row.content, Notice), row, over=over))

    async def end(self, subject: str, reason: str) -> None:
        """Give up the undelivered notices of a question that has ended."""
        for queue in self._queues.values():
            for item in queue.kept():
                if item.record is not None and item.record.subject.startswith(subject):
                    item.over = reason
            queue.stirred.set()

    def drop_kept(self) -> None:
        """Another hub sends the notices of this one."""
        for queue in self._queues.values():
            kept = queue.kept()
            queue.failed.clear()
            if queue.worker is not None and queue.waiting and queue.waiting[0] in kept:
                queue.worker.cancel()  # what fails is tried for a while
                queue.worker = self._workers.start(self._serve(queue), name="the rest")
            queue.waiting = deque(item for item in queue.waiting if item not in kept)

    @staticmethod
    def _has(queue: _Queue, row: NoticeRecord) -> bool:
        return any(item.record is not None and item.record.subject == row.subject for item in queue.kept())

    def _queue(self, queue: _Queue, item: _Waiting) -> None:
        queue.waiting.append(item)
        queue.stirred.set()
        while len(queue.waiting) + len(queue.failed) > WAITING_MAX:
            left_out = (queue.failed or queue.waiting).popleft()
            queue.row = structs.replace(queue.row, left_out=queue.row.left_out + 1)
            if (row := left_out.record) is not None:
                left_out.record = None
                ended = left_out.ended or _ended(row, "left out for newer notices")
                self._workers.start(self._save(ended), name="left out")
        if queue.worker is None or queue.worker.done():
            queue.worker = self._workers.start(self._serve(queue), name=f"{queue.channel_id} {queue.sink.kind.value}")

    async def _save(self, row: NoticeRecord) -> bool:
        try:
            if self._ledger is not None:
                await self._ledger.save_notice(row)
        except FleetsimError as error:
            log.warning("the ledger does not have the notice of %s: %s", row.subject, error)
            return False
        return True

    async def test(self, channel_id: str) -> tuple[SinkResult, ...]:
        """Send a test notice to every sink of the channel, once and now; the result of each. Raises UnknownTarget."""
        channel = self.in_force.get(channel_id)
        if channel is None:
            near = did_you_mean(channel_id, self.in_force)
            raise UnknownTarget(
                f"there is no channel “{one_line(channel_id, 64)}”{near}", hint="`fleetsim channel list` shows them"
            )
        notice = Notice(
            kind="test",
            at=self._runtime.clock.now(),
            tone=NoticeKind.PLAIN,
            headline=f"test of channel {channel_id}",
            text="If you read this, notices arrive here.",
        )
        queues = [self._queues[channel_id, sink] for sink in channel.sinks]
        return tuple(await asyncio.gather(*(self._tell_once(queue, notice) for queue in queues)))

    async def _tell_once(self, queue: _Queue, notice: Notice) -> SinkResult:
        try:
            async with asyncio.timeout(TEST_S):
                result = await self._tell(queue, notice, retried=False)
        except TimeoutError:
            result = SinkResult(sink=queue.sink.shown, reason=f"no end within {TEST_S:g} s")
        self._note(queue, notice, result)
        return result

    async def _serve(self, queue: _Queue) -> None:
        """Send a sink its waiting notices, one at a time, until none is left; failed ones again from time to time."""
        while queue.waiting or queue.failed:
            queue.stirred.clear()
            if not queue.waiting:
                with suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_S):
                        await queue.stirred.wait()
                if self._closing:
                    return
                ended = [item for item in queue.failed if item.over]
                if ended or not queue.waiting:
                    again = ended or list(queue.failed)[:1]
                    queue.failed = deque(item for item in queue.failed if item not in again)
                    queue.waiting.extend(again)
                continue
            item = queue.waiting[0]
            if not item.over and item.ended is None:
                await queue.rate.turn()
            if item not in queue.waiting:  # left out for newer ones, or dropped
                continue
            done = await self._send(queue, item)
            if item in queue.waiting:
                queue.waiting.remove(item)  # only now: until its row is written, it must not be taken up once more
                if not done:
                    queue.failed.append(item)

    async def _send(self, queue: _Queue, item: _Waiting) -> bool:
        """Send a notice and record what became of it; False if that must be tried again."""
        if item.ended is None:
            row, over = item.record, item.over
            if row is not None and not over and self._runtime.clock.now() >= row.until:
                over = "its time was over"
            result = SinkResult(sink=queue.sink.shown, attempts=0, reason=over)
            if not over:
                if row is not None and self._shared is not None:
                    try:
                        self._shared.require_lease()
                    except LeaseLost:
                        return False  # another hub may send it by now; ``drop_kept`` removes it then
                result = await self._tell(queue, item.notice, retried=True)
            if not result.reason or not (item.failed or over):  # each failure once
                self._note(queue, item.notice, result, subject=row.subject if row is not None else "")
            if not result.reason:
                queue.waiting.extendleft(reversed(queue.failed))
                queue.failed.clear()
            if (row := item.record) is None:
                return True
            if result.reason and not over and queue.sink.kind not in _ONCE:
                item.failed = True
                return False
            item.ended = _ended(row, result.reason)
        return await self._save(item.ended)

    async def _tell(self, queue: _Queue, notice: Notice, *, retried: bool) -> SinkResult:
        """Deliver one notice, with a link that answers an open question. Never raises for a bad sink."""
        link = ""
        if self._links and self._link_base and notice.kind == "question" and notice.command and not notice.link:
            reader = queue.sink.reader(queue.channel_id)
            link = self._links.link(self._link_base, notice.facts["questionId"], reader)
            notice = replace(notice, link=link)
        try:
            attempts, reason = await self._deliver(queue.sink, queue.channel_id, notice, retried=retried)
        except Exception as error:  # whatever a sink makes of a notice is its own trouble and nobody else's
            log.exception("a notice for channel %s was lost", queue.channel_id)
            attempts, reason = 1, type(error).__name__
        if link:  # a program may have repeated it
            reason = without_link(reason, link)
        return SinkResult(sink=queue.sink.shown, attempts=attempts, reason=one_line(reason, REASON_CHARS_MAX))

    async def _deliver(self, sink: Destination, channel_id: str, notice: Notice, *, retried: bool) -> tuple[int, str]:
        """The number of attempts, and the reason if it did not arrive."""
        match sink.kind:
            case SinkKind.LOG:
                log.info("channel %s: %s", channel_id, put.log_line(notice))
                return 1, ""
            case SinkKind.COMMAND:
                program = Program(argv=sink.argv, stdin=put.plain(notice).encode(), seconds=sink.timeout_s)
                return 1, (await self._runtime.programs.run(program)).reason  # once: a command may have had its effect
            case SinkKind.DESKTOP:
                return 1, (await self._runtime.programs.run(desktop_program(*put.desktop_texts(notice)))).reason
            case SinkKind.DISCORD:
                body = put.discord(notice)
            case SinkKind.SLACK:
                body = put.slack(notice)
            case SinkKind.WEBHOOK:
                body = put.webhook(notice, channel_id)
        # A sender that reaches this sink's host and port alone.
        url = parse_webhook_url(sink.url)
        at = f"{url.host}:{url.port}"
        way = WayOut(tls=self._way.tls) if sink.internal else self._way
        key = at, sink.internal, retried, way
        if key not in self._senders:
            if sink.internal:
                entry = AllowEntry.parse(at)
            else:
                entry = AllowEntry(ports=range(url.port, url.port + 1), networks=(), host=url.host, public=True)
            policy = AddressPolicy(allow=(entry,), ports=frozenset())
            runtime = self._runtime
            if way != _PLAIN_WAY:
                runtime = replace(runtime, transport=runtime.transport.through(way))
            self._senders[key] = WebhookSender(runtime, policy, delays_s=DELAYS_S if retried else ())
        result = await self._senders[key].deliver(
            Delivery(
                url=sink.url,
                body=dump(body),
                scheme=SCHEME if sink.secret else None,
                credentials=write_secret(sink.secret) if sink.secret else None,
                task_id=f"channel:{channel_id}",
                state=notice.kind,
            )
        )
        return result.attempts, result.reason

    def _note(self, queue: _Queue, notice: Notice, result: SinkResult, *, subject: str = "") -> None:
        now, row = self._runtime.clock.now(), queue.row
        if result.reason:
            since, failed = row.failing_since or now, row.failed + 1
            queue.row = structs.replace(row, last_at=now, failed=failed, failing_since=since, last_error=result.reason)
            log.warning("channel %s: %s was not told: %s", queue.channel_id, result.sink, result.reason)
            self._publish_failure(queue.channel_id, notice, result)
            return
        queue.row = structs.replace(row, last_at=now, delivered=row.delivered + 1, failing_since=None)
        self._events.publish(
            NoticeDelivered(
                correlation_id=notice.correlation_id,
                channel=queue.channel_id,
                sink=result.sink,
                kind=notice.kind,
                attempts=result.attempts,
                alert=notice.facts.get("alert", ""),
                subject=notice.facts.get("subject") or subject,
            )
        )

    def _publish_failure(self, channel_id: str, notice: Notice, result: SinkResult) -> None:
        self._events.publish(
            NoticeFailed(
                correlation_id=notice.correlation_id,
                channel=channel_id,
                sink=result.sink,
                kind=notice.kind,
                attempts=result.attempts,
                reason=result.reason,
            )
        )


KINDS = (
    AlertCleared,
    AlertRaised,
    CeremonyCompleted,
    CeremonyLate,
    CeremonyMissed,
    CeremonySkipped,
    QuestionAnswered,
    QuestionAsked,
    QuestionExpired,
    QuestionOverdue,
    QuestionWithdrawn,
)


class NoticeSettings(Protocol):
    """The settings of the fleet (``fleet.settings.FleetSettings``) that notices and alerts need."""

    @property
    def alerts(self) -> AlertSettings: ...
    @property
    def question_channels(self) -> ChannelIds: ...
    @property
    def question_link(self) -> str: ...


class CurrentSettings(Protocol):
    """The settings of the fleet at this moment."""

    @property
    def settings(self) -> NoticeSettings:
        """Those of the version of agents.yaml in force."""


class Notifier:
    """``async with``. Notifies channels of runs, questions and alerts."""

    def __init__(self, events: EventLog, channels: Channels, ledger: Ledger, fleet: CurrentSettings) -> None:
        self._events = events
        self._channels = channels
        self._ledger = ledger
        self._fleet = fleet
        self._workers = Workers("notifier")

    async def __aenter__(self) -> Notifier:
        self._workers.start(self._follow(self._events.subscribe(kinds=KINDS)), name="events")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._workers.close()

    async def _follow(self, events: Subscription) -> None:
        async with events:
            async for batch in events:
                for event in batch:
                    try:
                        await self._tell(event)
                    except Exception:  # one event that fails must not stop the next
                        log.exception("no notice was sent for event %d", event.seq)

    async def _tell(self, event: Event) -> None:
        match event:
            case CeremonyCompleted() if event.notify_channel:
                # The outcomes that can be read: a notice of a run is sent even while the ledger refuses reads.
                outcomes = []
                for correlation_id in event.correlation_ids:
                    try:
                        outcomes.append(await self._ledger.outcome(correlation_id))
                    except FleetsimError as error:
                        log.warning("the notice lacks the outcome of %s: %s", correlation_id, error)
                notice = put.of_run(event, tuple(outcome for outcome in outcomes if outcome is not None))
                await self._keep_run(event, notice, event.run_id)
            case CeremonyLate() | CeremonyMissed() | CeremonySkipped() if event.notify_channel:
                notice, slot = put.of_slot(event), event.scheduled_at or event.at
                subject = f"{notice.kind} {event.ceremony_id} {slot.isoformat()}"
                await self._keep_run(event, notice, subject)
            case QuestionAsked() | QuestionOverdue() | QuestionExpired():
                if isinstance(event, QuestionExpired):
                    await self._channels.end(event.question_id, "the question has expired")
                await self._ask(event)
            case QuestionAnswered() | QuestionWithdrawn():
                await self._channels.end(event.question_id, QUESTION_ENDED)

            case AlertRaised() | AlertCleared(delivered=True):
                for channel in self._fleet.settings.alerts.channels:
                    self._channels.send(channel, put.of_alert(event))

    async def _keep_run(self, event: CeremonyNews, notice: Notice, subject: str) -> None:
        until = notice.at + timedelta(seconds=max(GRACE_S, event.catch_up_window))
        await self._channels.keep(event.notify_channel, notice, subject=subject, until=until, owner=event.created_by)

    async def _ask(self, event: QuestionAsked | QuestionOverdue | QuestionExpired) -> None:
        settings = self._fleet.settings
        notice = put.of_question(event, settings.question_link)
        status = "" if isinstance(event, QuestionAsked) else notice.facts["status"]
        until = getattr(event, "expires_at", None) or datetime.max.replace(tzinfo=UTC)
        for channel in settings.question_channels:
            await self._channels.keep(channel, notice, subject=f"{event.question_id} {status}".strip(), until=until)

    def take_up(self, questions: Iterable[Question]) -> None:
        """Send the notices of open questions that this hub follows from now on, unless they were delivered."""
        for question in questions:
            self._workers.start(self._ask(asked(question)), name=f"ask {question.question_id}")

    async def take_up_left(self) -> None:
        """Send the notices that an earlier run, or a hub that has left, did not deliver; ``take_up`` sends the rest."""
        questions = await self._ledger.questions(open_only=True)
        waiting = {record.question.question_id for record in questions if record.state is QuestionState.OPEN}
        for row in await self._ledger.take_notices():
            question_id, _, status = row.subject.partition(" ")
            ended = row.kind == "question" and status != "expired" and question_id not in waiting
            if ended or status or row.kind != "question":
                await self._channels.take_up(row, over=QUESTION_ENDED if ended else "")
