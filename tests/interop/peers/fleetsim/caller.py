"""The whole caller against a released server: dispatcher, tracker, ledger, webhook door, questions, outcomes.

Each check allows one way for news to arrive, with polls too far apart to help, so that an outcome in time
proves that way.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from assembly import NEVER_S, Assembly, Ways, assembled
from checks import Absent, expect, expect_shown, report
from script import FULL_TEXT, SCRIPT

from fleetsim.events.fleet import WebhookAccepted
from fleetsim.events.log import Subscription
from fleetsim.events.request import StreamReceived
from fleetsim.model.task import TaskState
from fleetsim.model.work import Answer, Outcome, OutcomeKind

OUTCOME_S = 6.0


@dataclass
class Bench:
    """One server, and a caller for each way of hearing from it."""

    url: str
    port: int
    seen: Counter[str] = field(default_factory=Counter)

    @asynccontextmanager
    async def caller(self, ways: Ways) -> AsyncIterator[Assembly]:
        async with assembled(self.url, self.port, os.environ.get("INTEROP_BEARER"), ways) as made:
            if ways.exclusive and ways.streaming and not made.offers_streaming:
                raise Absent("the card says streaming false")
            if ways.exclusive and ways.push and not made.offers_push:
                raise Absent("the card says push false")
            yield made
            # Late webhooks must not make a second outcome: wait for them, then count.
            await asyncio.sleep(0.2)
            self.seen.update(outcome.correlation_id for outcome in made.outcomes)


ONLY_POLL = Ways(streaming=False, push=False, poll_s=0.3)
ONLY_STREAM = Ways(streaming=True, push=False, poll_s=NEVER_S)
ONLY_PUSH = Ways(streaming=False, push=True, poll_s=NEVER_S)
ALL_WAYS = Ways(streaming=True, push=True, poll_s=0.3)


async def done(made: Assembly, text: str, kind: OutcomeKind = OutcomeKind.COMPLETED) -> Outcome:
    async with asyncio.timeout(OUTCOME_S):
        outcome = await made.tracker.wait(await made.ask(text, uuid.uuid4().hex))
    expect(outcome.kind, kind, f"outcome ({outcome.reason})")
    return outcome


async def complete(bench: Bench) -> str:
    async with bench.caller(ALL_WAYS) as made:
        outcome = await done(made, "complete alpha")
    expect(outcome.text, SCRIPT["echo_prefix"] + "complete alpha", "text")
    expect((outcome.success, outcome.blame.value), (True, "nobody"), "success and blame")
    return f"via {outcome.via}"


async def cost(bench: Bench) -> str:
    async with bench.caller(ALL_WAYS) as made:
        outcome = await done(made, "complete beta")
    if outcome.cost_usd is None:
        raise Absent("no cost part")
    expect(outcome.cost_usd, SCRIPT["cost"]["costUsd"], "cost in US dollars")
    usage = outcome.usage
    expect(usage and (usage.input_tokens, usage.output_tokens), (11, 7), "tokens")
    return f"{outcome.cost_usd} USD"


async def by_stream(bench: Bench) -> str:
    async with bench.caller(ONLY_STREAM) as made:
        outcome = await done(made, "stream gamma")
        heard = [e for e in made.events.recent() if isinstance(e, StreamReceived)]
    expect(outcome.text, FULL_TEXT, "text")
    if len(heard) < len(SCRIPT["chunks"]):
        raise AssertionError(f"{len(heard)} updates were published")
    return f"{len(heard)} updates, via {outcome.via}"


async def by_poll(bench: Bench) -> str:
    async with bench.caller(ONLY_POLL) as made:
        outcome = await done(made, "stream delta")
    if outcome.text.startswith(SCRIPT["echo_prefix"]):
        raise Absent("answers in the reply")
    expect(outcome.text, FULL_TEXT, "text")
    return f"via {outcome.via}"


async def by_webhook(bench: Bench) -> str:
    async with bench.caller(ONLY_PUSH) as made:
        outcome = await done(made, "stream epsilon")
        accepted = [e for e in made.events.recent() if isinstance(e, WebhookAccepted)]
    expect(outcome.text, FULL_TEXT, "text")
    if not accepted:
        raise AssertionError("no webhook was accepted")
    return f"{len(accepted)} webhooks, via {outcome.via}"


async def fail(bench: Bench) -> str:
    async with bench.caller(ALL_WAYS) as made:
        outcome = await done(made, "fail please", OutcomeKind.FAILED)
    expect((outcome.success, outcome.blame.value), (False, "agent"), "success and blame")
    if not outcome.reason and not outcome.text:
        raise AssertionError("no reason")
    return outcome.reason or outcome.text


async def cancel(bench: Bench) -> str:
    async with bench.caller(ALL_WAYS) as made, made.events.subscribe() as news, asyncio.timeout(OUTCOME_S):
        cid = await made.ask("slow", uuid.uuid4().hex)
        if await first_of(news, "agent.skill.dispatched", "autonomous.outcome") == "agent.skill.dispatched":
            await made.tracker.cancel(cid)
        outcome = await made.tracker.wait(cid)
    if outcome.kind is OutcomeKind.COMPLETED:
        raise Absent("the task ended before the cancel")
    expect(outcome.kind, OutcomeKind.CANCELED, f"outcome ({outcome.reason})")
    expect(outcome.success, False, "success")
    return f"via {outcome.via}"


async def ask(bench: Bench, ways: Ways = ONLY_POLL) -> str:
    async with bench.caller(ways) as made, made.events.subscribe() as news, asyncio.timeout(OUTCOME_S):
        cid = await made.ask("ask", uuid.uuid4().hex)
        if await first_of(news, "hitl.request", "autonomous.outcome") == "autonomous.outcome":
            outcome = await made.tracker.wait(cid)
            raise Absent(f"never asks: {outcome.kind} {outcome.text!r}")
        (question,) = made.tracker.questions()
        expect_shown(question.text)
        expect(question.kind.value, TaskState.INPUT_REQUIRED.value, "kind of question")
        await made.tracker.answer(Answer(question_id=question.question_id, text="blue"))
        outcome = await made.tracker.wait(cid)
    expect((outcome.kind, outcome.text), (OutcomeKind.COMPLETED, SCRIPT["answer_prefix"] + "blue"), "outcome")
    return f"asked once, then {outcome.kind} via {outcome.via}"


async def first_of(news: Subscription, *topics: str) -> str:
    """The first of these topics that is published; the check's own limit bounds the wait."""
    async for batch in news:
        for event in batch:
            for topic in topics:
                if event.topic.startswith(topic):
                    return topic
    raise AssertionError(f"none of {topics}")


async def one_outcome_each(bench: Bench) -> str:
    twice = [cid for cid, count in bench.seen.items() if count != 1]
    if twice or not bench.seen:
        raise AssertionError(f"{len(twice)} of {len(bench.seen)} requests had not exactly one outcome")
    return f"{len(bench.seen)} requests"


async def main(url: str, port: str) -> None:
    bench = Bench(url, int(port))
    for op, check in {
        "caller-complete": complete,
        "caller-cost": cost,
        "caller-by-stream": by_stream,
        "caller-by-poll": by_poll,
        "caller-by-webhook": by_webhook,
        "caller-fail": fail,
        "caller-cancel": cancel,
        "caller-ask": ask,
        "caller-ask-by-stream": lambda b: ask(b, ONLY_STREAM),
        "caller-ask-by-webhook": lambda b: ask(b, ONLY_PUSH),
        "caller-one-outcome": one_outcome_each,
    }.items():
        await report(op, check(bench))


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    asyncio.run(main(*sys.argv[1:]))
