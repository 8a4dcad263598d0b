"""Observations have one form, from the ledger or from events."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from fleetsim.events import request as e
from fleetsim.events.fleet import WebhookAccepted
from fleetsim.events.request import Event, Excerpt
from fleetsim.ledger import Ledger, LedgerDamaged
from fleetsim.ledger.sqlite import open_ledger, read_ledger
from fleetsim.model.errors import ConfigError
from fleetsim.model.work import Answer, Decision
from fleetsim.recording.events import ScenarioStarted
from fleetsim.request.records import QuestionState
from fleetsim.sim.observed import of_ledger, of_run
from fleetsim.sim.run import ObservedAgent, Run
from fleetsim.testbed.runtime import VirtualClock
from tests.ledger.ledgers import START, at, card, outcome, question, record, run


async def _work(ledger: Ledger) -> None:
    """A request of a ceremony, one with a question answered after 30 s, and one with an unanswered question."""
    await ledger.accept([record("fired")], run=run())
    await ledger.accept([replace(record("asked"), accepted_at=at(10)), replace(record("waits"), accepted_at=at(20))])
    sent = replace(record("asked"), accepted_at=at(10), dialect="1.0", streaming=True, push=False)
    await ledger.update(sent)
    snapshot = card()
    await ledger.save_card(replace(snapshot, card={**snapshot.card, "capabilities": {"pushNotifications": True}}))
    for name in ("asked", "waits"):
        await ledger.ask(question(f"q-{name}", name))
    await ledger.answer(Answer(question_id="q-asked", text="yes", decision=Decision.REJECT), at(30))
    await ledger.settle("q-waits", QuestionState.EXPIRED)
    for name, begun in (("fired", 0), ("asked", 10), ("waits", 20)):
        await ledger.close(replace(outcome(name, ended=begun + 5), started_at=at(begun), chunks=3))


def test_a_ledger_that_a_hub_has_open_yields_the_ended_requests(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"

    async def look() -> None:
        async with open_ledger(path, clock=VirtualClock(START), storage="inline") as ledger:
            await _work(ledger)
            found = await of_ledger(path, since=START)
            assert [outcome.correlation_id for outcome in found.outcomes] == ["fired", "asked", "waits"]
            assert [outcome.chunks for outcome in found.outcomes] == [3, 3, 3]
            assert {outcome.text for outcome in found.outcomes} == {""}
            assert (found.since, found.until, found.seconds) == (at(0), at(20), 20.0)
            assert found.scheduled == {"fired"}
            assert found.agents == {"a": ObservedAgent(dialect="1.0", streaming=True, push=True)}
            assert [(q.answered_s, q.rejected) for q in found.questions] == [(30.0, True), (None, False)]
            later = await of_ledger(path, since=at(15))
            assert [outcome.correlation_id for outcome in later.outcomes] == ["waits"]

    asyncio.run(look())


def test_reading_a_ledger_changes_and_creates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"

    async def make() -> None:
        async with open_ledger(path, clock=VirtualClock(START), storage="inline") as ledger:
            await _work(ledger)

    async def write() -> None:
        async with read_ledger(path) as ledger:
            await ledger.accept([record("more")])

    asyncio.run(make())
    before = path.read_bytes()
    assert len(asyncio.run(of_ledger(path, since=START)).outcomes) == 3
    with pytest.raises(Exception, match=r"readonly"):
        asyncio.run(write())
    assert path.read_bytes() == before


def test_a_missing_or_wrong_ledger_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(LedgerDamaged, match=r"notes\.txt"):
        asyncio.run(of_ledger(tmp_path / "notes.txt", since=START))
    with pytest.raises(ConfigError, match=r"none\.db"):
        asyncio.run(of_ledger(tmp_path / "none.db", since=START))
    assert not (tmp_path / "none.db").exists()


def _told() -> list[Event]:
    def about(cid: str, seconds: float) -> dict[str, object]:
        return {"correlation_id": cid, "agent": "quinn-2", "skill": "echo", "at": at(seconds)}

    accepted = e.RequestAccepted(text=Excerpt(), parts=(), targets=(), system_actor="x", source="cron")
    bound = e.TaskBound(state="working", context_id=None, dialect="1.0", via="stream")
    piece = e.StreamReceived(type="artifact", text=Excerpt("a"), append=False, artifact_id="r")
    asked = e.QuestionAsked(
        question_id="q", kind="input-required", question=Excerpt(), expires_at=None, context_id=None, system_actor="x"
    )
    events: list[tuple[Event, float]] = [
        (accepted, 0),
        (bound, 1),
        (piece, 2),
        (replace(piece, append=True), 3),
        (replace(piece, append=False), 4),
        (WebhookAccepted(state=None, duplicate=False, parked=False), 4),
        (asked, 5),
        (e.QuestionAnswered(question_id="q", decision="answer", decided_by="me"), 9),
        (e.OutcomeDecided.of(replace(outcome("c", ended=12, agent="quinn-2"), started_at=at(0))), 12),
    ]
    return [replace(event, **about("c", seconds)) for event, seconds in events]  # type: ignore[arg-type]


_REPLICAS = ScenarioStarted(
    scenario="x", seed=1, start=START, duration_s=60.0, agents=(), replicas={"quinn-2": "quinn"}, expect=()
)


def test_events_yield_the_same_and_replicas_are_one_agent() -> None:
    found = of_run(Run.of_events([_REPLICAS, *_told()]), "run.jsonl")
    assert [(outcome.agent, outcome.chunks) for outcome in found.outcomes] == [("quinn", 2)]
    assert found.agents == {"quinn": ObservedAgent(dialect="1.0", streaming=True, push=True)}
    assert found.scheduled == {"c"}
    assert [(q.answered_s, q.rejected) for q in found.questions] == [(4.0, False)]


@pytest.mark.parametrize(("streaming", "told", "push"), [(True, [], True), (False, [], False), (False, _told(), True)])
def test_webhooks_on_a_card_count_if_they_came_or_none_was_requested(
    streaming: bool, told: list[Event], push: bool
) -> None:
    cards = {"quinn": ObservedAgent(dialect="1.0", streaming=streaming, push=True)}
    found = of_run(Run.of_events([_REPLICAS, *told]), "hub", cards=cards)
    assert found.agents["quinn"].push is push


def test_only_requests_within_the_time_are_taken_from_events() -> None:
    found = of_run(Run.of_events(_told()), "hub", since=at(1))
    assert (found.outcomes, found.questions, found.scheduled) == ((), (), frozenset())
