"""A stream of ledger calls to crash in: every method, mostly valid, some refused, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from fleetsim.ledger import Ledger, LedgerLimits, RunStatus
from fleetsim.model.work import OutcomeKind
from fleetsim.request.records import Phase, QuestionState
from tests.ledger import ledgers as make

LIMITS = LedgerLimits(events_max=40, outcomes_min=1_000_000, busy_s=0.02)


@dataclass(frozen=True)
class Call:
    """One method of the ledger and its arguments."""

    method: str
    args: tuple[Any, ...]

    async def on(self, ledger: Ledger) -> object:
        """Make the call. Returns "ValueError" if it is refused as invalid; NotAccepting passes."""
        args, named = self.args, {}
        if self.method == "accept":
            args, named = self.args[:1], {"run": self.args[1]}
        try:
            result: object = await getattr(ledger, self.method)(*args, **named)
        except ValueError:
            return "ValueError"
        return result


def names(count: int) -> list[str]:
    """Every correlation id that the first ``count`` calls can have used."""
    return ["nobody", *(f"c-{n}{part}" for n in range(count) for part in ("", "-a", "-b"))]


def calls(seed: int) -> Iterator[Call]:
    """The endless stream of calls."""
    rng = random.Random(seed)
    accepted: list[str] = []
    seq = 0
    for n in range(1_000_000):
        pick = rng.random()
        known = rng.choice(accepted[-12:]) if accepted else "nobody"
        text = "word " * rng.choice((1, 5, 50, 400))
        if pick < 0.3 or not accepted:
            batch = rng.choice(([f"c-{n}"], [f"c-{n}"], [f"c-{n}-a", f"c-{n}-b"], [f"c-{n}-a", known]))
            slot = make.run(slot=60 * rng.randrange(n + 1), run_id=f"r-{n}") if rng.random() < 0.4 else None
            accepted.append(batch[0])
            yield Call("accept", ([make.record(name, text=text) for name in batch], slot))
        elif pick < 0.35:
            yield Call("keep_webhook", (make.webhook(known, text),))
        elif pick < 0.45:
            later = replace(make.record(known), phase=Phase.ACCEPTED, task=make.task(text))
            yield Call("update", (later,))
        elif pick < 0.65:
            kind = rng.choice(list(OutcomeKind))
            yield Call("close", (make.outcome(known, kind=kind, ended=n, text=text),))
        elif pick < 0.73:
            yield Call("ask", (make.question(f"q-{n // 4}", known),))
        elif pick < 0.8:
            yield Call("answer", (make.answer(f"q-{n // 4 - rng.randrange(3)}", text), make.at(n)))
        elif pick < 0.84:
            yield Call("settle", (f"q-{n // 4 - rng.randrange(3)}", QuestionState.DELIVERED))
        elif pick < 0.88:
            yield Call("save_run", (make.run(slot=60 * n, run_id=f"r-{n}", status=RunStatus.MISSED),))
        elif pick < 0.9:
            yield Call("save_card", (make.card(rng.choice("abc"), text),))
        else:
            topics = ("autonomous.outcome.user.echo", "agent.skill.update")
            events = [make.event(seq + k, topic=rng.choice(topics), request=known) for k in range(1, 4)]
            seq += 3
            yield Call("append", (events,))
