"""Delivering notices: each sink has a queue of its own, so that one that fails holds up nothing and nobody else.

A caller queues a notice and does not wait. A webhook is retried as the agents' webhooks are; a
command runs once. Each delivery or failure is an event, and each sink counts them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from msgspec import structs

from fleetsim.api.answers import ChannelRow, SinkResult, SinkRow
from fleetsim.channels import notice as put
from fleetsim.channels.alerts import AlertSettings
from fleetsim.channels.channel import OPERATOR, Channel, ChannelIds, Destination, SinkKind
from fleetsim.channels.notice import Notice, NoticeKind
from fleetsim.events.fleet import (
    AlertCleared,
    AlertRaised,
    CeremonyCompleted,
    CeremonyLate,
    CeremonyMissed,
    CeremonySkipped,
    NoticeDelivered,
    NoticeFailed,
)
from fleetsim.events.log import EventLog, Subscription
from fleetsim.events.request import Event, QuestionAsked, QuestionExpired, QuestionOverdue
from fleetsim.ledger import Ledger
from fleetsim.model.errors import FleetsimError, UnknownTarget
from fleetsim.model.text import one_line
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

CLOSE_S = 3.0
TEST_S = 12.0
REASON_CHARS_MAX = 200

_PLAIN_WAY = WayOut()


@dataclass(slots=True, eq=False)
class _Queue:
    """The notices that wait for one sink, oldest first, and its figures."""

    channel_id: str
    sink: Destination
    rate: TokenBucket
    row: SinkRow
    waiting: deque[Notice] = field(default_factory=deque)
    worker: asyncio.Task[None] | None = None


class Channels:
    """The channels in force. ``async with``; leaving gives notices under way a moment."""

    def __init__(
        self, runtime: Runtime, events: EventLog, channels: Mapping[str, Channel], way: WayOut = _PLAIN_WAY
    ) -> None:
        self._runtime = runtime
        self._events = events
        self.in_force: Mapping[str, Channel] = {}
        self._queues: dict[tuple[str, Destination], _Queue] = {}
        self._senders: dict[tuple[str, bool, bool, WayOut], WebhookSender] = {}
        self._workers = Workers("channels")
        self.apply(channels, way)

    async def __aenter__(self) -> Channels:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._workers.drain(CLOSE_S)
        finally:  # the person who stops the hub may not wait that long
            if lost := sum(len(queue.waiting) for queue in self._queues.values()):
                log.warning("%d notices were not delivered before the hub stopped", lost)
            await self._workers.close()

    def apply(self, channels: Mapping[str, Channel], way: WayOut = _PLAIN_WAY) -> None:
        """Use the channels of a new agents.yaml, and its way to them; those that are internal take no proxy.

        A sink that is still there keeps its queue and figures.
        """
        self._way = way
        queues: dict[tuple[str, Destination], _Queue] = {}
        for key, channel in channels.items():
            for sink in channel.sinks:
                rate = TokenBucket(self._runtime.clock, per_s=1 / APART_S, burst=BURST)
                queues[key, sink] = self._queues.get((key, sink)) or _Queue(
                    key, sink, rate, SinkRow(sink=sink.shown, kind=sink.kind.value)
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
            sinks = tuple(structs.replace(queue.row, waiting=len(queue.waiting)) for queue in queues)
            rows.append(ChannelRow(id=key, agents=channel.agents, sinks=sinks))
        return tuple(rows)

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
            queue = self._queues[channel_id, sink]
            queue.waiting.append(notice)
            while len(queue.waiting) > WAITING_MAX:
                queue.waiting.popleft()
                queue.row = structs.replace(queue.row, left_out=queue.row.left_out + 1)
            if queue.worker is None or queue.worker.done():
                queue.worker = self._workers.start(self._serve(queue), name=f"{channel_id} {sink.kind.value}")

    async def test(self, channel_id: str) -> tuple[SinkResult, ...]:
        """Send a test notice to every sink of the channel, once and now; the result of each.

        Raises:
            UnknownTarget: the channel is unknown.
        """
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
        """Send a sink its waiting notices, one at a time, until none is left."""
        while queue.waiting:
            await queue.rate.turn()
            notice = queue.waiting[0]
            result = await self._tell(queue, notice, retried=True)
            if queue.waiting[0] is notice:  # it may have been left out meanwhile, for newer ones
                queue.waiting.popleft()
            self._note(queue, notice, result)

    async def _tell(self, queue: _Queue, notice: Notice, *, retried: bool) -> SinkResult:
        """Deliver one notice. Never raises for a bad sink."""
        try:
            attempts, reason = await self._deliver(queue.sink, queue.channel_id, notice, retried=retried)
        except Exception as error:  # whatever a sink makes of a notice is its own trouble and nobody else's
            log.exception("a notice for channel %s was lost", queue.channel_id)
            attempts, reason = 1, type(error).__name__
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

    def _note(self, queue: _Queue, notice: Notice, result: SinkResult) -> None:
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
                subject=notice.facts.get("subject", ""),
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
    QuestionAsked,
    QuestionExpired,
    QuestionOverdue,
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
            case CeremonyCompleted(notify_channel=channel) if channel:
                # The outcomes that can be read: a notice of a run is sent even while the ledger refuses reads.
                outcomes = []
                for correlation_id in event.correlation_ids:
                    try:
                        outcomes.append(await self._ledger.outcome(correlation_id))
                    except FleetsimError as error:
                        log.warning("the notice lacks the outcome of %s: %s", correlation_id, error)
                notice = put.of_run(event, tuple(outcome for outcome in outcomes if outcome is not None))
                self._channels.send(channel, notice, owner=event.created_by)
            case CeremonyLate() | CeremonyMissed() | CeremonySkipped() if event.notify_channel:
                self._channels.send(event.notify_channel, put.of_slot(event), owner=event.created_by)

            case QuestionAsked() | QuestionExpired() | QuestionOverdue():
                settings = self._fleet.settings
                for channel in settings.question_channels:
                    self._channels.send(channel, put.of_question(event, settings.question_link))

            case AlertRaised() | AlertCleared(delivered=True):
                for channel in self._fleet.settings.alerts.channels:
                    self._channels.send(channel, put.of_alert(event))
