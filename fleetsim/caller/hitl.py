"""Questions to people: decides who is asked, and applies a card's hitl-mode-v1 declaration.

* ``autonomous``: no notice. ``notification``: a note is published when the work starts.
* ``veto``: the work starts at once and a person may stop it within the window (60 s unless declared).
* ``gated`` and ``compound``: a person decides, never another agent; an agent that ends without a question is reported.

A question goes first to the agent that dispatched the work, if there is one and the card does not name the
operator as reviewer; a blank, failed or late reply leaves it with the person (the question stays open all
the while, and the first answer wins).
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from fleetsim.api.answers import Veto
from fleetsim.caller.dispatcher import Dispatcher
from fleetsim.caller.shared_tracker import SharedTracker
from fleetsim.caller.tracker import Tracker
from fleetsim.events.log import EventLog, Subscription
from fleetsim.events.request import (
    GateSkipped,
    NotifiedWorkStarted,
    OutcomeDecided,
    QuestionAsked,
    QuestionEscalated,
    TaskBound,
    VetoWindowMoved,
)
from fleetsim.ledger import MessageKind
from fleetsim.model.errors import FleetsimError
from fleetsim.model.extensions import PERSON_ONLY, HitlMode
from fleetsim.model.work import DEFAULT_SKILL, Answer, OutcomeKind, Question, SkillRequest, Source
from fleetsim.request.records import RequestRecord
from fleetsim.request.track import Track
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.workers import Workers

DISPATCHER_PATIENCE_S = 300.0
_WATCHED = (TaskBound, QuestionAsked, OutcomeDecided)


class HitlMonitor:
    """Watches the events and does what the declarations ask for. Use as ``async with``."""

    def __init__(self, runtime: Runtime, tracker: Tracker, dispatcher: Dispatcher, events: EventLog) -> None:
        self._runtime = runtime
        self._tracker = tracker
        self._dispatcher = dispatcher
        self._events = events
        self._workers = Workers("hitl")
        self._vetoes: dict[str, Veto] = {}
        self._elsewhere: dict[str, Veto] = {}
        """Work of other hubs that may be stopped."""
        self._gates: dict[str, bool] = {}
        """Gated work in progress, and whether its agent has asked a question."""

    def vetoes(self) -> tuple[Veto, ...]:
        """Work that may be stopped now, oldest first."""
        now = self._runtime.clock.now()
        elsewhere = [veto for veto in self._elsewhere.values() if veto.expires_at > now]
        return (*self._vetoes.values(), *elsewhere)

    async def veto(self, correlation_id: str, *, by: str = "operator") -> bool:
        """Stop work whose window is open, at the hub that owns it. False if there is none."""
        if correlation_id not in self._vetoes or self._tracker.open_tracks.get(correlation_id) is None:
            elsewhere = any(correlation_id == veto.correlation_id for veto in self.vetoes())
            if not elsewhere or not isinstance(self._tracker, SharedTracker):
                return False
            return await self._tracker.pass_on(correlation_id, MessageKind.VETO, by=by)
        del self._vetoes[correlation_id]
        await self._tracker.cancel(correlation_id, by=by)
        self._events.publish(VetoWindowMoved(correlation_id=correlation_id, decision="vetoed", decided_by=by))
        return True

    def take_up(self, record: RequestRecord) -> None:
        """After a restart: a window stays open for the rest of its time, and a gate knows the questions so far."""
        if record.bound_at is None or record.declared.hitl is None:
            return  # work that its agent has not accepted yet will publish its event later
        if (track := self._tracker.open_tracks.get(record.request.correlation_id)) is not None:
            self._follow(track)

    def note_elsewhere(self, event: VetoWindowMoved) -> None:
        """Note a window of another hub."""
        cid, expires_at = event.correlation_id or "", event.expires_at
        self._elsewhere.pop(cid, None)
        if event.decision == "open" and expires_at is not None:
            skill = event.skill or DEFAULT_SKILL
            self._elsewhere[cid] = Veto(correlation_id=cid, agent=event.agent or "", skill=skill, expires_at=expires_at)

    async def drop_all(self) -> None:
        """Another hub owns the requests of this one."""
        await self._workers.close()
        self._workers = Workers("hitl")
        self._vetoes.clear()
        self._gates.clear()
        self._watch_events()

    def _watch_events(self) -> None:
        self._workers.start(self._watch(self._events.subscribe(kinds=_WATCHED)), name="watch")

    async def __aenter__(self) -> HitlMonitor:
        self._watch_events()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._workers.close()

    async def _watch(self, events: Subscription) -> None:
        async with events:
            async for batch in events:
                for event in batch:
                    match event:
                        case TaskBound(correlation_id=str(cid)):
                            self._started(cid)
                        case QuestionAsked(correlation_id=str(cid)):
                            self._asked(cid, event.question_id)
                        case OutcomeDecided(correlation_id=str(cid)):
                            self._ended(cid, event)

    def _started(self, cid: str) -> None:
        track = self._tracker.open_tracks.get(cid)
        if track is None:
            return
        self._follow(track)
        rule = track.record.declared.hitl
        if rule is not None and rule.mode is HitlMode.NOTIFICATION:
            self._events.publish(
                NotifiedWorkStarted(correlation_id=cid, agent=track.record.agent, skill=track.record.skill)
            )

    def _follow(self, track: Track) -> None:
        """Watch work that its agent accepted, if its declaration requires it."""
        rule = track.record.declared.hitl
        if rule is not None and rule.mode is HitlMode.VETO:
            self._open_window(track.record, rule.veto_window_s)
        elif rule is not None and rule.mode in PERSON_ONLY:
            self._gates[track.correlation_id] = bool(track.record.over) or track.asking.question is not None

    def _open_window(self, record: RequestRecord, window_s: float) -> None:
        """Let a person stop it until ``window_s`` seconds after the agent accepted it, also after a restart."""
        now, cid = self._runtime.clock.now(), record.request.correlation_id
        expires = (record.bound_at or now) + timedelta(seconds=window_s)
        left_s = min((expires - now).total_seconds(), window_s)  # the clock may have been set back
        if left_s <= 0 or cid in self._vetoes:
            return
        self._vetoes[cid] = Veto(correlation_id=cid, agent=record.agent, skill=record.skill, expires_at=expires)
        self._events.publish(
            VetoWindowMoved(
                correlation_id=cid, agent=record.agent, skill=record.skill, decision="open", expires_at=expires
            )
        )
        self._workers.start(self._approve_later(cid, left_s), name=f"veto:{cid}")

    async def _approve_later(self, cid: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if self._vetoes.pop(cid, None) is not None:
            self._events.publish(VetoWindowMoved(correlation_id=cid, decision="lapsed"))

    def _asked(self, cid: str, question_id: str) -> None:
        if cid in self._gates:
            self._gates[cid] = True
        track = self._tracker.open_tracks.get(cid)
        question = track.question if track is not None else None
        if track is None or question is None or question.question_id != question_id:
            return
        dispatcher = track.record.request.dispatcher_agent
        rule = track.record.declared.hitl
        barred = not question.task_id or (rule is not None and rule.person_only)
        if dispatcher and dispatcher != track.record.agent and not barred:  # an agent must not approve its own work
            self._workers.start(self._ask_dispatcher(dispatcher, question), name=f"ask:{cid}")

    async def _ask_dispatcher(self, dispatcher: str, question: Question) -> None:
        """Ask the dispatching agent. Its answer counts only if no other answer came first."""
        text = (
            f"{question.agent} is working on {question.skill!r} for you and needs a decision.\n"
            f"Its question: {question.text}\nReply with the decision alone, in a sentence or two."
        )
        request = SkillRequest(
            correlation_id=self._runtime.ids.new(),
            text=text,
            targets=(dispatcher,),
            parent_id=question.correlation_id,
            system_actor="hitl",
            source=Source(interface="hitl"),
            timeout_s=DISPATCHER_PATIENCE_S,
        )
        try:
            (cid,) = await self._dispatcher.submit(request)
            async with asyncio.timeout(DISPATCHER_PATIENCE_S):
                outcome = await self._tracker.wait(cid)
            if outcome.success and outcome.text.strip():
                reply = f"{dispatcher} answers: {outcome.text.strip()}"
                await self._tracker.answer(Answer(question_id=question.question_id, text=reply, by=dispatcher))
                return
            why = outcome.reason or "a blank answer"
        except TimeoutError:
            why = "no answer in time"
        except FleetsimError as error:
            why = str(error)
        track = self._tracker.open_tracks.get(question.correlation_id)
        if track is None or track.question != question:
            return  # another answer came first
        self._events.publish(
            QuestionEscalated(
                correlation_id=question.correlation_id,
                agent=question.agent,
                skill=question.skill,
                question_id=question.question_id,
                why=f"{dispatcher}: {why}",
            )
        )

    def _ended(self, cid: str, event: OutcomeDecided) -> None:
        if self._vetoes.pop(cid, None) is not None:
            self._events.publish(VetoWindowMoved(correlation_id=cid, decision="ended"))
        has_asked = self._gates.pop(cid, True)
        if not has_asked and event.outcome.kind is OutcomeKind.COMPLETED:
            self._events.publish(GateSkipped(correlation_id=cid, agent=event.agent, skill=event.skill))
