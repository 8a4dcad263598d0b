"""After any sequence of calls and reopenings the ledger has the content of an independent model."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from msgspec.structs import replace

from fleetsim.ledger import Ledger, LedgerLimits, RunStatus
from fleetsim.ledger.sqlite import SqliteLedger
from fleetsim.ledger.sqlite.checks import row_damage, structure_damage
from fleetsim.ledger.sqlite.storage import InlineStorage
from fleetsim.model.work import OutcomeKind
from fleetsim.request.records import Phase, QuestionState
from tests.ledger import ledgers as make
from tests.ledger.ledger_model import Model
from tests.scale import scaled

pytestmark = pytest.mark.slow

T = TypeVar("T")

EXAMPLES = scaled(150, share=10)

LIMITS = LedgerLimits(events_max=6, outcomes_min=1, outcomes_max=3, keep_s=50)

picks = st.integers(0, 31)
"""Mostly a name that exists, sometimes one of a few names that may not."""
runs = st.sampled_from([f"r-{n}" for n in range(3)])
slots = st.tuples(st.sampled_from(["daily", "weekly"]), st.integers(0, 2))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
moments = st.integers(0, 100)
TOPICS = ("autonomous.outcome.user.echo", "agent.skill.request", "agent.skill.update")


class LedgerMachine(RuleBasedStateMachine):
    """Drives a real file and the model side by side."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.loop = asyncio.new_event_loop()
        self.model = Model(LIMITS)
        self.open()
        for first in range(0, 9, 3):  # calls without data are dull: begin with some work, half of it done
            self.accept([first, first + 1, first + 2], None, "")
            self.close(first, OutcomeKind.COMPLETED, first, "")
            self.ask(first % 3, first + 1)

    def open(self) -> None:
        path = Path(self.folder.name) / "ledger.db"
        self.storage = InlineStorage(make.opener(path, "synchronous = OFF"))  # the power is not cut here
        self.ledger: Ledger = SqliteLedger(self.storage, LIMITS)
        self.wait(self.ledger.__aenter__())

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def request(self, pick: int) -> str:
        known = list(self.model.requests)
        return known[pick % len(known)] if known and pick < 26 else f"c-{pick % 15}"

    def question(self, pick: int) -> str:
        known = list(self.model.asked)
        return known[pick % len(known)] if known and pick < 26 else f"q-{pick % 3}"

    def both(self, real: Coroutine[Any, Any, T], model: Callable[[], T]) -> None:
        """The same result, or ValueError from both."""
        assert self.told(lambda: self.wait(real)) == self.told(model)

    @staticmethod
    def told(call: Callable[[], T]) -> T | str:
        try:
            return call()
        except ValueError:
            return "ValueError"

    @rule(
        numbers=st.lists(st.integers(0, 14), min_size=1, max_size=3), run=st.none() | st.tuples(slots, runs), text=texts
    )
    def accept(self, numbers: list[int], run: tuple[tuple[str, int], str] | None, text: str) -> None:
        records = [make.record(f"c-{n}", text=text) for n in numbers]
        claimed = make.run(run[0][0], run[0][1], run_id=run[1]) if run else None
        self.both(self.ledger.accept(records, run=claimed), lambda: self.model.accept(records, claimed))

    @rule(pick=picks, text=texts, phase=st.sampled_from([Phase.SENDING, Phase.ACCEPTED]))
    def update(self, pick: int, text: str, phase: Phase) -> None:
        later = replace(make.record(self.request(pick), text=text), phase=phase, task=make.task(text))
        self.both(self.ledger.update(later), lambda: self.model.update(later))

    @rule(pick=picks, kind=st.sampled_from(OutcomeKind), ended=moments, text=texts)
    def close(self, pick: int, kind: OutcomeKind, ended: int, text: str) -> None:
        ended_at = 1_000 * len(self.model.results) + ended  # decided later, ended later: then the order is known
        waiting = [name for name in self.model.requests if self.model.open(name)]
        name = waiting[pick % len(waiting)] if waiting and pick < 20 else self.request(pick)
        result = make.outcome(name, kind=kind, ended=ended_at, text=text)
        self.both(self.ledger.close(result), lambda: self.model.close(result))

    @rule(number=st.integers(0, 2), pick=picks)
    def ask(self, number: int, pick: int) -> None:
        asked = make.question(f"q-{number}", self.request(pick))
        self.both(self.ledger.ask(asked), lambda: self.model.ask(asked))

    @rule(pick=picks, text=texts)
    def keep_webhook(self, pick: int, text: str) -> None:
        early = make.webhook(self.request(pick), text)
        self.both(self.ledger.keep_webhook(early), lambda: self.model.keep_webhook(early))

    @rule(pick=picks, text=texts, at=moments)
    def answer(self, pick: int, text: str, at: int) -> None:
        given = make.answer(self.question(pick), text)
        self.both(self.ledger.answer(given, make.at(at)), lambda: self.model.answer(given, make.at(at)))

    @rule(pick=picks, state=st.sampled_from(["delivered", "withdrawn", "expired"]))
    def settle(self, pick: int, state: str) -> None:
        name, end = self.question(pick), QuestionState(state)
        self.both(self.ledger.settle(name, end), lambda: self.model.settle(name, end))

    @rule(slot=slots, run_id=runs, status=st.sampled_from(RunStatus))
    def save_run(self, slot: tuple[str, int], run_id: str, status: RunStatus) -> None:
        saved = make.run(slot[0], slot[1], run_id=run_id, status=status)
        self.both(self.ledger.save_run(saved), lambda: self.model.save_run(saved))

    @rule(agent=st.sampled_from("ab"), name=texts)
    def save_card(self, agent: str, name: str) -> None:
        shot = make.card(agent, name)
        self.both(self.ledger.save_card(shot), lambda: self.model.save_card(shot))

    @rule(steps=st.lists(st.integers(0, 2), max_size=8), pick=picks, topic=st.sampled_from(TOPICS))
    def append(self, steps: list[int], pick: int, topic: str) -> None:
        seq = self.model.journal[-1].seq if self.model.journal else 0
        events = []
        for step in steps:
            seq += step
            made = make.event(seq or 1, topic=topic, request=self.request(pick))
            events.append(replace(made, at=make.START))
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
            self.inspect()
        finally:
            self.wait(self.ledger.__aexit__())
            self.loop.close()
            self.folder.cleanup()

    def inspect(self) -> None:
        """Look at the whole ledger, after the last call."""
        whole = self.storage.read(lambda c: structure_damage(c, None) or row_damage(c, None))
        assert self.wait(whole) is None


def test_the_ledger_has_the_content_of_the_model_after_any_calls() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        LedgerMachine,
        settings=settings(
            max_examples=EXAMPLES, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
