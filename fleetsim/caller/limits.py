"""The limits in force: what a request books in them, what is used of each, and the requests that they hold."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from itertools import count
from typing import Any

from msgspec.structs import replace

from fleetsim.api.health import LimitFacts
from fleetsim.caller.tracker import Tracker
from fleetsim.events.fleet import ActionTaken
from fleetsim.events.log import EventLog
from fleetsim.health.fleet_health import FleetHealth
from fleetsim.ledger import Ledger
from fleetsim.model.errors import OverLimit, UnknownTarget
from fleetsim.model.text import one_line
from fleetsim.model.work import Decision, Question, QuestionKind
from fleetsim.request.limits import Booking, Limit, LimitUse, PeriodKey, book, raise_in
from fleetsim.request.records import QuestionRecord, QuestionState, RequestRecord
from fleetsim.request.signals import LimitDecided
from fleetsim.request.track import Track
from fleetsim.runtime.explain import did_you_mean
from fleetsim.runtime.ports import Clock

HELD_MAX = 1_000
"""Requests that the limits of a hub hold; it refuses more."""


class CurrentLimits:
    """``limits`` are those of agents.yaml in force. ``newest`` is the last result of ``read``.

    A limit with ``atLimit: ask`` asks once in a period, for the requests of all hubs; one of them has the question. The
    answer and its effect are in the ledger, so they survive restarts and take-overs.
    """

    def __init__(self, clock: Clock, ledger: Ledger, health: FleetHealth, limits: Mapping[str, Limit]) -> None:
        self.limits = limits
        self.newest: tuple[LimitFacts, ...] = ()
        self._clock, self._ledger, self._health = clock, ledger, health

    def bookings(self, record: RequestRecord) -> tuple[Booking, ...]:
        """The bookings of a request, also in the limits of its fallback agents. Limits that ask come last."""
        now, request, skill, found = self._clock.now(), record.request, record.skill, []
        agents = [record.agent, *(other.agent for other in record.fallback)]
        for name, limit in sorted(self.limits.items(), key=lambda item: item[1].at_limit == "ask"):
            if fitting := [agent for agent in agents if limit.applies(request, agent, skill)]:
                found.append(limit.booking(name, now, self._health.estimates(fitting[0], skill)))
        return tuple(found)

    async def read(self) -> tuple[LimitFacts, ...]:
        """What is used of each limit now, at all hubs. Raises NotAccepting."""
        limits, now, facts = self.limits, self._clock.now(), []
        uses = await self._ledger.limit_uses(now) if limits else {}
        for name, limit in limits.items():
            booking = limit.booking(name, now, {})
            use, number = uses.get(booking.key) or LimitUse(), booking.unit.number
            most = (booking.most or 0) + use.raised
            taken = use.used + use.reserved
            chosen = (f"{kind} {of}" for kind in ("agent", "skill", "key", "ceremony") if (of := getattr(limit, kind)))
            facts.append(
                LimitFacts(
                    name=name,
                    subject=", ".join(chosen) or "fleet",
                    unit=booking.unit.value,
                    per=limit.per,
                    zone=limit.zone,
                    most=number(most),
                    raised=number(use.raised),
                    used=number(use.used),
                    reserved=number(use.reserved),
                    left=number(max(0, most - taken)),
                    share=round(taken / most, 4) if most else 1.0,
                    resets_at=booking.ends,
                )
            )
        self.newest = tuple(facts)
        return self.newest

    async def raise_by(self, name: str, number: float, *, question: int | None = None) -> LimitFacts:
        """Raise a limit by a number of its unit until its period ends; for a ``question`` only the first time.

        Raises UnknownTarget and NotAccepting.
        """
        if name not in self.limits:
            raise UnknownTarget(f"there is no limit “{one_line(name, 64)}”{did_you_mean(name, self.limits)}")
        usual = self.limits[name].booking(name, self._clock.now(), {})
        more = usual.unit.amount(number)
        await self._ledger.book((replace(usual, used=0, reserved=0, raised=more, most=None, question=question),))
        return next(facts for facts in await self.read() if facts.name == name)

    async def may_wait(self, refusal: OverLimit, tracker: Tracker) -> bool:
        """Whether a request without room is held. Not after a person has rejected the limit's question."""
        now, limit = self._clock.now(), self.limits.get(refusal.limit)
        if limit is None or limit.at_limit != "ask" or sum(t.record.held for t in tracker.tracks()) >= HELD_MAX:
            return False
        booking = limit.booking(refusal.limit, now, {})
        _, asked = await self._asked(booking, await self._ledger.limit_uses(now))
        return asked is None or asked.answer is None or asked.answer.decision is Decision.ANSWER

    async def release(self, tracker: Tracker, events: EventLog) -> None:
        """Send the held requests of this hub that have room, oldest first; ask about the others, or refuse them.

        The one with the question is last, so that it stays open while others wait. Raises NotAccepting, and OverLimit
        if another hub took the room.
        """
        held = [track for track in tracker.tracks() if track.record.held]
        uses = await self._ledger.limit_uses(self._clock.now()) if held else {}
        full = set[str]()
        for track in sorted(held, key=lambda track: track.asking.question is not None):
            bookings = self.bookings(track.record)
            if not full.isdisjoint(booking.limit for booking in bookings):
                continue
            if isinstance(changed := book(uses, bookings), OverLimit):
                booking = next(booking for booking in bookings if booking.limit == changed.limit)
                decided = await self._decide(track, booking, uses, str(changed), events)
                full |= set() if decided and decided.refusal else {booking.limit}
            else:
                await self._ledger.book(bookings)
                uses, decided = uses | changed, LimitDecided(bookings=bookings)
            if decided is not None:
                tracker.signal(track.correlation_id, decided)

    async def _decide(
        self, track: Track, booking: Booking, uses: Mapping[PeriodKey, LimitUse], why: str, events: EventLog
    ) -> LimitDecided | None:
        """The refusal, or the question for more room, or None: it waits. An answer is applied."""
        name, unit, record, had = booking.limit, booking.unit, track.record, track.asking.question
        asks = self.limits[name].at_limit == "ask"
        question_id, asked = await self._asked(booking, uses)
        answer = asked.answer if asked is not None else None
        if not asks or (answer is not None and answer.decision is Decision.REJECT):
            return LimitDecided(refusal=why)
        step = unit.number(max(booking.most or 0, booking.used + booking.reserved))
        if answer is not None:
            number, by = raise_in(answer.text, step), answer.by
            await self.raise_by(name, number, question=int(question_id.rpartition("-")[2]))
            detail = f"by {number:g} {unit}, as the answer to {question_id}"
            events.publish(ActionTaken(by=by, role="answerer", action="raise-limit", object=name, detail=detail))
        elif asked is None and (had is None or had.question_id != question_id):
            text = f"The hub asks: {why}. Requests wait. “approve” raises it by {unit.shown(step)} until then, a number"
            text += " by that. If you reject, it refuses these and all later requests until then."
            about: dict[str, Any] = {"agent": record.agent, "skill": record.skill, "task_id": "", "context_id": ""}
            about |= {"asked_at": self._clock.now(), "expires_at": booking.ends, "text": text, "text_chars": len(text)}
            cid = track.correlation_id
            question = Question(question_id=question_id, correlation_id=cid, kind=QuestionKind.INPUT, **about)
            return LimitDecided(question=question)
        return None

    async def _asked(self, booking: Booking, uses: Mapping[PeriodKey, LimitUse]) -> tuple[str, QuestionRecord | None]:
        """The limit's question in this period by its id, which all hubs agree on; None if it has still to be asked."""
        about = sha256("\0".join(booking.key).encode()).hexdigest()[:24]
        for number in count((uses.get(booking.key) or LimitUse()).questions):
            asked = await self._ledger.question(question_id := f"limit-{about}-{number}")
            if asked is None or asked.state not in {QuestionState.WITHDRAWN, QuestionState.EXPIRED}:
                break
        return question_id, asked
