"""The desk for questions: who is asked, and what a card's hitl-mode-v1 declaration means in practice.

* ``autonomous``: nobody is told. ``notification``: a note is published when the work starts.
* ``veto``: the work starts at once and a person may stop it within the window (60 s unless declared).
* ``gated`` and ``compound``: a person decides, never another agent; an agent that ends without having asked
  is called out.

A question goes first to the agent that dispatched the work, if there is one and the card does not name the
operator as reviewer; a blank, failed or late reply leaves it with the person (the question stays open all
the while, and whoever answers first wins).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from fleetsim.caller.dispatcher import Dispatcher
from fleetsim.caller.events import EventLog, Subscription
from fleetsim.caller.tracker import Tracker
from fleetsim.model.card import AgentCard
from fleetsim.model.errors import FleetsimError
from fleetsim.model.extensions import HITL_MODE, declared
from fleetsim.model.journal import Event, Level
from fleetsim.model.work import Answer, Question, SkillRequest, Source
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.workers import Workers

DISPATCHER_PATIENCE_S = 300.0
VETO_WINDOW_S = 60.0
VETO_WINDOW_MAX_S = 24 * 3600.0


class HitlMode(StrEnum):
    """How much a person has to do with a skill (hitl-mode-v1)."""

    AUTONOMOUS = "autonomous"
    NOTIFICATION = "notification"
    VETO = "veto"
    GATED = "gated"
    COMPOUND = "compound"


PERSON_ONLY = frozenset({HitlMode.GATED, HitlMode.COMPOUND})


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What a card declares for one skill."""

    mode: HitlMode
    veto_window_s: float = VETO_WINDOW_S
    operator_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Veto:
    """Work that a person may still stop."""

    correlation_id: str
    agent: str
    skill: str
    expires_at: datetime


def read_declaration(card: AgentCard | None, skill: str) -> Declaration | None:
    """The declaration for a skill, or None; unknown modes and odd numbers are ignored."""
    entry = declared(card, HITL_MODE, skill) if card else None
    mode = entry.get("mode") if entry is not None else None
    if entry is None or not isinstance(mode, str) or mode not in set(HitlMode):
        return None
    window = entry.get("vetoTtlMs")
    usable = isinstance(window, int | float) and not isinstance(window, bool) and window > 0
    return Declaration(
        mode=HitlMode(mode),
        veto_window_s=min(window / 1000, VETO_WINDOW_MAX_S) if usable and window is not None else VETO_WINDOW_S,
        operator_only=entry.get("reviewer") == "operator",
    )


class HitlDesk:
    """Watches the events and does what the declarations ask for. Use as ``async with``."""

    def __init__(
        self,
        runtime: Runtime,
        tracker: Tracker,
        dispatcher: Dispatcher,
        events: EventLog,
        *,
        declaration: Callable[[str, str], Declaration | None],
    ) -> None:
        self._runtime = runtime
        self._tracker = tracker
        self._dispatcher = dispatcher
        self._events = events
        self._declaration = declaration
        self._workers = Workers("hitl")
        self._vetoes: dict[str, Veto] = {}
        self._gates: dict[str, int] = {}

    def vetoes(self) -> tuple[Veto, ...]:
        """Work that may be stopped now, oldest first."""
        return tuple(self._vetoes.values())

    def veto(self, correlation_id: str, *, by: str = "operator") -> bool:
        """Stop work whose window is open. False if there is none."""
        if self._vetoes.pop(correlation_id, None) is None or self._tracker.track(correlation_id) is None:
            return False
        self._tracker.cancel(correlation_id, by=by)
        self._say(f"hitl.veto.{correlation_id}", correlation_id, decision="vetoed", decidedBy=by)
        return True

    async def __aenter__(self) -> HitlDesk:
        self._workers.start(self._watch(self._events.subscribe()), name="watch")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._workers.close()

    async def _watch(self, heard: Subscription) -> None:
        async with heard:
            async for batch in heard:
                for event in batch:
                    self._see(event)

    def _see(self, event: Event) -> None:
        cid = event.correlation_id
        if cid is None or event.agent is None or event.skill is None:
            return
        if event.topic == "agent.skill.dispatched":
            self._started(cid, event.agent, event.skill)
        elif event.topic.startswith("hitl.request."):
            self._asked(cid, event.agent, event.skill, event.payload.get("questionId"))
        elif event.topic.startswith("autonomous.outcome."):
            self._ended(cid, event)

    def _started(self, cid: str, agent: str, skill: str) -> None:
        found = self._declaration(agent, skill)
        if found is None or self._tracker.track(cid) is None:
            return
        if found.mode is HitlMode.NOTIFICATION:
            self._say(f"hitl.notification.{cid}", cid, agent=agent, skill=skill)
        elif found.mode is HitlMode.VETO:
            expires = self._runtime.clock.now() + timedelta(seconds=found.veto_window_s)
            self._vetoes[cid] = Veto(correlation_id=cid, agent=agent, skill=skill, expires_at=expires)
            self._say(f"hitl.veto.{cid}", cid, agent=agent, skill=skill, decision="open", expiresAt=expires.isoformat())
            self._workers.start(self._approve_later(cid, found.veto_window_s), name=f"veto:{cid}")
        elif found.mode in PERSON_ONLY:
            self._gates[cid] = 0

    async def _approve_later(self, cid: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if self._vetoes.pop(cid, None) is not None:
            self._say(f"hitl.veto.{cid}", cid, decision="lapsed")

    def _asked(self, cid: str, agent: str, skill: str, question_id: Any) -> None:
        if cid in self._gates:
            self._gates[cid] += 1
        track = self._tracker.track(cid)
        if track is None or track.asked is None or track.asked.question.question_id != question_id:
            return
        dispatcher = track.record.request.dispatcher_agent
        found = self._declaration(agent, skill)
        barred = found is not None and (found.operator_only or found.mode in PERSON_ONLY)
        if dispatcher and dispatcher != agent and not barred:
            self._workers.start(self._ask_dispatcher(dispatcher, track.asked.question), name=f"ask:{cid}")

    async def _ask_dispatcher(self, dispatcher: str, question: Question) -> None:
        """Ask the dispatching agent; its answer lands only if nobody was quicker."""
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
        if not self._is_open(question):
            return
        self._say(
            f"hitl.escalated.{question.correlation_id}",
            question.correlation_id,
            agent=question.agent,
            skill=question.skill,
            questionId=question.question_id,
            why=f"{dispatcher}: {why}",
        )

    def _is_open(self, question: Question) -> bool:
        track = self._tracker.track(question.correlation_id)
        return track is not None and track.asked is not None and track.asked.question == question

    def _ended(self, cid: str, event: Event) -> None:
        if self._vetoes.pop(cid, None) is not None:
            self._say(f"hitl.veto.{cid}", cid, decision="ended")
        asked = self._gates.pop(cid, None)
        if asked == 0 and event.payload.get("kind") == "completed":
            self._say(f"hitl.skipped.{cid}", cid, Level.WARN, agent=event.agent, skill=event.skill)

    def _say(
        self,
        topic: str,
        cid: str,
        level: Level = Level.INFO,
        *,
        agent: str | None = None,
        skill: str | None = None,
        **payload: Any,
    ) -> None:
        self._events.publish(topic, level=level, correlation_id=cid, agent=agent, skill=skill, **payload)
