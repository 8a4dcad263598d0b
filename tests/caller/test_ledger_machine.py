"""Any sequence of calls, reopenings included, leaves the ledger as an independent model says."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from fleetsim.caller.ledger import Phase, QuestionState, RunStatus
from fleetsim.caller.ledger_sqlite import LedgerLimits, open_ledger
from fleetsim.caller.ledger_verify import row_damage, structure_damage
from fleetsim.model.journal import outcome_topic
from fleetsim.model.work import OutcomeKind
from fleetsim.testbed.runtime import VirtualClock
from tests.caller import ledgers as make
from tests.caller.ledger_model import Model

T = TypeVar("T")

EXAMPLES = int(os.environ.get("FLEETSIM_LEDGER_EXAMPLES", "20"))

LIMITS = LedgerLimits(events_max=6, outcomes_min=1, outcomes_max=4, keep_s=50)

requests = st.sampled_from([f"c-{n}" for n in range(9)])
questions = st.sampled_from([f"q-{n}" for n in range(4)])
runs = st.sampled_from([f"r-{n}" for n in range(4)])
slots = st.tuples(st.sampled_from(["daily", "weekly"]), st.integers(0, 2))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
moments = st.integers(0, 100)


class LedgerMachine(RuleBasedStateMachine):
    """Drives a real file and the model side by side."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.loop = asyncio.new_event_loop()
        self.model = Model(LIMITS)
        self.open()

    def open(self) -> None:
        path = Path(self.folder.name) / "ledger.db"
        self.ledger = open_ledger(path, clock=VirtualClock(), storage="inline", limits=LIMITS)
        self.wait(self.ledger.__aenter__())

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def both(self, real: Coroutine[Any, Any, T], model: Callable[[], T]) -> None:
        """The same answer, or ValueError from both."""
        assert self.told(lambda: self.wait(real)) == self.told(model)

    @staticmethod
    def told(call: Callable[[], T]) -> T | str:
        try:
            return call()
        except ValueError:
            return "ValueError"

    @rule(names=st.lists(requests, max_size=3), run=st.none() | st.tuples(slots, runs), text=texts)
    def accept(self, names: list[str], run: tuple[tuple[str, int], str] | None, text: str) -> None:
        records = [make.record(name, text=text) for name in names]
        claimed = make.run(run[0][0], run[0][1], run_id=run[1]) if run else None
        self.both(self.ledger.accept(records, run=claimed), lambda: self.model.accept(records, claimed))

    @rule(name=requests, text=texts, phase=st.sampled_from([Phase.SENDING, Phase.ACCEPTED]))
    def update(self, name: str, text: str, phase: Phase) -> None:
        later = replace(make.record(name, text=text), phase=phase, task=make.task(text))
        self.both(self.ledger.update(later), lambda: self.model.update(later))

    @rule(name=requests, kind=st.sampled_from(OutcomeKind), ended=moments, text=texts)
    def close(self, name: str, kind: OutcomeKind, ended: int, text: str) -> None:
        ended_at = 1_000 * len(self.model.results) + ended  # decided later, ended later: the order is then known
        result = make.outcome(name, kind=kind, ended=ended_at, text=text)
        self.both(self.ledger.close(result), lambda: self.model.close(result))

    @rule(name=questions, request=requests)
    def ask(self, name: str, request: str) -> None:
        asked = make.question(name, request)
        self.both(self.ledger.ask(asked), lambda: self.model.ask(asked))

    @rule(name=questions, text=texts, at=moments)
    def answer(self, name: str, text: str, at: int) -> None:
        given = make.answer(name, text)
        self.both(self.ledger.answer(given, make.at(at)), lambda: self.model.answer(given, make.at(at)))

    @rule(name=questions, state=st.sampled_from(["delivered", "withdrawn", "expired"]))
    def settle(self, name: str, state: str) -> None:
        end = QuestionState(state)
        self.both(self.ledger.settle(name, end), lambda: self.model.settle(name, end))

    @rule(slot=slots, run_id=runs, status=st.sampled_from(RunStatus))
    def save_run(self, slot: tuple[str, int], run_id: str, status: RunStatus) -> None:
        saved = make.run(slot[0], slot[1], run_id=run_id, status=status)
        self.both(self.ledger.save_run(saved), lambda: self.model.save_run(saved))

    @rule(agent=st.sampled_from("ab"), name=texts)
    def save_card(self, agent: str, name: str) -> None:
        shot = make.card(agent, name)
        self.both(self.ledger.save_card(shot), lambda: self.model.save_card(shot))

    @rule(steps=st.lists(st.integers(0, 2), max_size=8), request=requests, outcome=st.booleans())
    def append(self, steps: list[int], request: str, outcome: bool) -> None:
        seq = self.model.journal[-1].seq if self.model.journal else 0
        topic = outcome_topic("user", "echo") if outcome else "agent.skill.update"
        events = []
        for step in steps:
            seq += step
            events.append(make.event(seq or 1, topic=topic, request=request))
        self.both(self.ledger.append(events), lambda: self.model.append(events))

    @rule(at=st.integers(0, 5_000))
    def prune(self, at: int) -> None:
        self.both(self.ledger.prune(make.at(at)), lambda: self.model.prune(make.at(at)))

    @rule()
    def reopen(self) -> None:
        self.wait(self.ledger.__aexit__())
        self.open()

    @invariant()
    def agree(self) -> None:
        if hasattr(self, "ledger"):
            self.wait(self.model.agrees_with(self.ledger))

    def teardown(self) -> None:
        if not hasattr(self, "ledger"):
            return
        try:
            whole = self.ledger._storage.read(lambda c: structure_damage(c, None) or row_damage(c, None))
            assert self.wait(whole) is None
        finally:
            self.wait(self.ledger.__aexit__())
            self.loop.close()
            self.folder.cleanup()


def test_the_ledger_does_what_the_model_says() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        LedgerMachine,
        settings=settings(
            max_examples=EXAMPLES, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
