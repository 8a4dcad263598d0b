"""The promises of a ledger. ``test_ledger.py`` and ``test_ledger_threads.py`` run these on each of its forms.

They provide ``opened``, which opens a ledger, and ``kept``, which opens the same one again.
"""

from __future__ import annotations

import asyncio
import time

import pytest
from msgspec.structs import replace

from fleetsim.health.outcome_stats import OutcomeFacts
from fleetsim.ledger import NoticeState, RunStatus
from fleetsim.model.errors import NotAccepting, OverLimit
from fleetsim.model.task import DataPart, TaskState
from fleetsim.model.work import OutcomeKind, SkillRequest
from fleetsim.request.limits import LimitUse
from fleetsim.request.records import Phase, QuestionState
from tests.ledger.ledgers import (
    START,
    OpenLedger,
    answer,
    at,
    booking,
    card,
    event,
    notice,
    outcome,
    question,
    record,
    run,
    task,
    webhook,
)


async def test_an_accepted_request_is_open_until_its_outcome(opened: OpenLedger) -> None:
    async with opened() as ledger:
        assert await ledger.accept([record("c-1")])
        assert await ledger.open_requests() == (record("c-1"),)
        assert await ledger.close(outcome("c-1"))
        assert await ledger.open_requests() == ()
        closed = await ledger.request("c-1")
        assert closed is not None
        assert closed.phase is Phase.CLOSED
        assert await ledger.outcome("c-1") == outcome("c-1")


async def test_the_first_outcome_stays_and_a_later_close_returns_false(opened: OpenLedger) -> None:
    async with opened() as ledger:
        await ledger.accept([record("c-1")])
        told = await asyncio.gather(*(ledger.close(outcome("c-1", text=f"answer {n}")) for n in range(8)))
        assert sorted(told) == [False] * 7 + [True]
        kept = await ledger.outcome("c-1")
        assert kept is not None
        assert kept.text == f"answer {told.index(True)}"
        assert len(await ledger.outcomes(since=at(0))) == 1


async def test_open_requests_are_paged_once_each_even_if_others_move_or_end_meanwhile(opened: OpenLedger) -> None:
    async with opened() as ledger:
        await ledger.accept([record(f"c-{n}") for n in range(7)])
        await ledger.close(outcome("c-1"))
        pages = []
        async for page in ledger.open_pages(page=2):
            pages.append([row.request.correlation_id for row in page])
            await ledger.update(*(replace(row, phase=Phase.ACCEPTED, task=task()) for row in page))
            if len(pages) == 1:
                await ledger.close(outcome("c-0"))
                await ledger.close(outcome("c-4"))
        assert pages == [["c-0", "c-2"], ["c-3", "c-5"], ["c-6"]]


async def test_of_many_claims_of_one_slot_at_once_exactly_one_succeeds(opened: OpenLedger) -> None:
    async with opened() as ledger:
        told = await asyncio.gather(*(ledger.accept([record(f"c-{n}")], run=run(run_id=f"r-{n}")) for n in range(16)))
        assert sum(told) == 1
        assert len(await ledger.open_requests()) == 1


async def test_a_run_gets_its_end_and_a_missed_slot_is_recorded(opened: OpenLedger) -> None:
    async with opened() as ledger:
        await ledger.accept([record("c-1")], run=run())
        ended = replace(run(status=RunStatus.SUCCESS), ended_at=at(5), children=("c-1",))
        await ledger.save_run(ended)
        await ledger.save_run(run(slot=60, run_id="r-2", status=RunStatus.MISSED))
        assert [r.status for r in await ledger.runs()] == [RunStatus.MISSED, RunStatus.SUCCESS]
        assert (await ledger.runs())[1] == ended
        assert len(await ledger.runs(limit=1)) == 1


async def test_open_requests_are_paged_after_a_name_that_may_have_ended(opened: OpenLedger) -> None:
    async with opened() as ledger:
        await ledger.accept([record(f"c-{n}") for n in (5, 4, 3, 2, 1)])
        assert await ledger.open_ids(limit=2) == ("c-5", "c-4")
        await ledger.close(outcome("c-4"))
        assert await ledger.open_ids(after="c-4", limit=2) == ("c-3", "c-2")
        assert await ledger.open_ids(after="c-2", limit=2) == ("c-1",)
        assert await ledger.open_ids(after="c-1") == ()
        assert await ledger.open_ids(after="c-6") is None


async def test_an_update_is_read_after_the_next_start(kept: OpenLedger) -> None:
    later = replace(record("c-1"), phase=Phase.ACCEPTED, dialect="0.3", task=task(), answers=1, cancel_wanted=True)
    async with kept() as ledger:
        await ledger.accept([record("c-1"), record("c-2")])
        await ledger.update(replace(record("c-1"), phase=Phase.SENDING))
        await ledger.update(later)
    async with kept() as ledger:
        assert await ledger.open_requests() == (later, record("c-2"))
        assert await ledger.request("c-1") == later


async def test_the_content_of_a_large_request_stays_over_any_update(kept: OpenLedger) -> None:
    asked = SkillRequest(correlation_id="c-1", text="long " * 4_000, targets=("a",), parts=(DataPart(data={"x": 1}),))
    accepted = replace(record("c-1"), request=asked)
    later = replace(accepted, phase=Phase.ACCEPTED, task=task())
    async with kept() as ledger:
        await ledger.accept([accepted, record("c-2")])
        await ledger.update(later)
        assert await ledger.untold_requests() == (later, record("c-2"))
    async with kept() as ledger:
        assert await ledger.open_requests() == (later, record("c-2"))
        assert [page async for page in ledger.open_pages(page=1)][:2] == [(later,), (record("c-2"),)]
        await ledger.close(outcome("c-1"))
        assert await ledger.request("c-1") == replace(later, phase=Phase.CLOSED)


@pytest.mark.parametrize("name", ["c-\x00", "c-" + "x" * 10_000])
async def test_an_id_that_no_row_can_have_is_unknown(opened: OpenLedger, name: str) -> None:
    async with opened() as ledger:
        await ledger.accept([record("c-1")])
        assert await ledger.request(name) is None
        assert await ledger.outcome(name) is None
        assert await ledger.open_ids(after=name) is None
        assert await ledger.ids(name) == ()
        assert await ledger.answer(answer(name), at(1)) is None
        assert await ledger.request("c-1") == record("c-1")


async def test_only_an_outcome_closes_a_request(opened: OpenLedger) -> None:
    async with opened() as ledger:
        await ledger.accept([record("c-1")])
        with pytest.raises(ValueError, match="outcome alone"):
            await ledger.update(replace(record("c-1"), phase=Phase.CLOSED))
        assert len(await ledger.open_requests()) == 1


async def test_a_question_is_opened_once_and_answered_once(opened: OpenLedger) -> None:
    async with opened() as ledger:
        await ledger.accept([record("c-1")])
        assert await ledger.ask(question("q-1", "c-1"))
        assert not await ledger.ask(question("q-1", "c-1"))
        told = await asyncio.gather(*(ledger.answer(answer("q-1", f"say {n}"), at(n)) for n in range(8)))
        given = [n for n, asked in enumerate(told) if asked is not None]
        assert len(given) == 1
        assert told[given[0]] == question("q-1", "c-1")
        (kept,) = await ledger.questions()
        assert await ledger.question("q-1") == kept
        assert await ledger.question("q-2\0") is None
        assert kept.state is QuestionState.ANSWERED
        assert kept.answer == answer("q-1", f"say {given[0]}")
        assert kept.answered_at == at(given[0])


@pytest.mark.slow
async def test_every_open_question_is_returned_however_many_there_are(opened: OpenLedger) -> None:
    async with opened() as ledger:
        await ledger.accept([record("c-1")])
        asked = await asyncio.gather(*(ledger.ask(question(f"q-{n}", "c-1")) for n in range(10_001)))
        assert all(asked)
        assert [q.question.question_id for q in await ledger.questions()] == [f"q-{n}" for n in range(10_001)]


async def test_an_early_webhook_is_kept_over_a_restart_until_its_request_ends(kept: OpenLedger) -> None:
    later = replace(record("c-1"), phase=Phase.ACCEPTED, task=task())
    async with kept() as ledger:
        await ledger.accept([record("c-1"), record("c-2")])
        assert await ledger.keep_webhook(webhook("c-1", "first"))
        assert await ledger.keep_webhook(webhook("c-2"))
        assert await ledger.keep_webhook(webhook("c-1", "second"))
        await ledger.update(later)
    async with kept() as ledger:
        texts = [webhook("c-1", "first"), webhook("c-2"), webhook("c-1", "second")]
        assert await ledger.early_webhooks() == tuple(texts)
        await ledger.close(outcome("c-1"))
        assert await ledger.early_webhooks() == (webhook("c-2"),)
    async with kept() as ledger:
        assert await ledger.early_webhooks() == (webhook("c-2"),)


async def test_questions_come_oldest_first_and_the_newest_fit_the_limit(opened: OpenLedger) -> None:
    async with opened() as ledger:
        await ledger.accept([record("c-1")])
        for n in range(5):
            await ledger.ask(question(f"q-{n}", "c-1"))
        assert [q.question.question_id for q in await ledger.questions(limit=2)] == ["q-3", "q-4"]


async def test_outcomes_come_by_their_end_and_the_newest_fit_the_limit(opened: OpenLedger) -> None:
    async with opened() as ledger:
        await ledger.accept([record(f"c-{n}") for n in range(4)])
        for n, ended in enumerate((30, 10, 20, 5)):
            await ledger.close(outcome(f"c-{n}", ended=ended))
        (short,) = await ledger.outcomes(since=at(0), limit=1, chars_max=2)
        assert (short.correlation_id, short.text, short.text_chars, short.truncated) == ("c-0", "do", 4, True)
        names = [o.correlation_id for o in await ledger.outcomes(since=at(10))]
        assert names == ["c-1", "c-2", "c-0"]
        assert [o.correlation_id for o in await ledger.outcomes(since=at(0), limit=2)] == ["c-2", "c-0"]
        assert await ledger.outcomes(since=at(31)) == ()
        assert await ledger.outcomes(since=at(0), kinds=["failed"]) == ()
        assert len(await ledger.outcomes(since=at(0), kinds=["failed", OutcomeKind.COMPLETED])) == 4


async def test_outcomes_for_health_are_paged_by_their_end_without_gap_or_repeat(
    opened: OpenLedger,
) -> None:
    async with opened() as ledger:
        await ledger.accept([record(f"c-{n}") for n in range(7)])
        for n, ended in enumerate((30, 10, 20, 20, 20, 5, 10)):
            await ledger.close(outcome(f"c-{n}", ended=ended))
        for size in (1, 2, 3, 6, 100):
            pages = [page async for page in ledger.outcome_facts(since=at(10), page=size)]
            names = [facts.correlation_id for page in pages for facts in page]
            assert names == ["c-1", "c-6", "c-2", "c-3", "c-4", "c-0"]
            assert max(map(len, pages)) <= size
        whole = {o.correlation_id: o for o in await ledger.outcomes(since=at(0))}
        assert all(
            getattr(facts, name) == getattr(whole[facts.correlation_id], name)
            for facts in pages[0]
            for name in OutcomeFacts.__slots__
        )


async def test_the_last_good_card_of_each_agent_survives(kept: OpenLedger) -> None:
    async with kept() as ledger:
        await ledger.save_card(card("b"))
        await ledger.save_card(card("a"))
        await ledger.save_card(card("a", "Renamed", fetched=60))
    async with kept() as ledger:
        assert await ledger.cards() == (card("a", "Renamed", fetched=60), card("b"))


async def test_a_raised_notice_survives_until_it_is_delivered_or_given_up(kept: OpenLedger) -> None:
    async with kept() as ledger:
        for subject in ("q-1", "q-2", "r-1"):
            await ledger.save_notice(notice(subject))
        await ledger.save_notice(notice("q-1", place="ops log"))
        await ledger.save_notice(notice("q-1", NoticeState.DELIVERED))
        await ledger.save_notice(notice("q-2", NoticeState.GIVEN_UP))
    async with kept() as ledger:
        assert await ledger.notices("q-1") == (notice("q-1", NoticeState.DELIVERED), notice("q-1", place="ops log"))
        assert await ledger.take_notices() == (notice("r-1"), notice("q-1", place="ops log"))
        assert await ledger.notices("q-9") == ()


async def test_of_many_requests_at_once_a_limit_admits_exactly_as_many_as_have_room(kept: OpenLedger) -> None:
    async with kept() as ledger:
        asked = [replace(record(f"c-{n}"), bookings=(booking(5, used=1),)) for n in range(16)]
        told = await asyncio.gather(*(ledger.accept([one]) for one in asked), return_exceptions=True)
        assert [type(answer) for answer in told].count(OverLimit) == 11
        assert len(await ledger.open_requests()) == 5
    async with kept() as ledger:
        assert await ledger.limit_uses(at(0)) == {("daily", "2026-01-01"): LimitUse(used=5)}
        assert await ledger.limit_uses(at(86_400)) == {}
        with pytest.raises(OverLimit):
            await ledger.accept([replace(record("c-16"), bookings=(booking(5, used=1),))])
        assert await ledger.accept([replace(record("c-17"), bookings=(booking(6, used=1),))]), "the limit was changed"
        await ledger.book([booking(raised=1)])
        assert await ledger.accept([replace(record("c-18"), bookings=(booking(6, used=1),))])


async def test_requests_that_are_refused_together_book_nothing_and_claim_no_slot(opened: OpenLedger) -> None:
    async with opened() as ledger:
        small, large = booking(1, limit="small", used=1), booking(9, limit="large", used=1)
        both = [replace(record(name), bookings=(large, small)) for name in ("c-1", "c-2")]
        with pytest.raises(OverLimit) as refused:
            await ledger.accept(both, run=run())
        assert (refused.value.limit, refused.value.resets_at) == ("small", at(86_400))
        assert await ledger.limit_uses(at(0)) == {}
        assert await ledger.open_requests() == ()
        assert await ledger.accept(both[:1], run=run(run_id="r-2"))
        assert not await ledger.accept([replace(record("c-3"), bookings=(large,))], run=run(run_id="r-3"))
        assert {name: use.used for (name, _), use in (await ledger.limit_uses(at(0))).items()} == {
            "small": 1,
            "large": 1,
        }


async def test_the_real_amount_replaces_the_reserved_one_once(opened: OpenLedger) -> None:
    async with opened() as ledger:
        asked = [replace(record(f"c-{n}"), bookings=(booking(100, reserved=40),)) for n in range(3)]
        assert await ledger.accept(asked[:2])
        with pytest.raises(OverLimit):
            await ledger.accept(asked[2:])
        ends = [ledger.close(outcome("c-0"), (booking(used=7, reserved=-40),)) for _ in range(3)]
        assert sum(await asyncio.gather(*ends)) == 1
        assert await ledger.limit_uses(at(0)) == {("daily", "2026-01-01"): LimitUse(used=7, reserved=40)}
        assert await ledger.accept(asked[2:])
        await ledger.close(outcome("c-1"), (booking(used=500, reserved=-40),))
        assert await ledger.limit_uses(at(0)) == {("daily", "2026-01-01"): LimitUse(used=507, reserved=40)}


async def test_the_use_of_a_limit_is_deleted_after_its_period(opened: OpenLedger) -> None:
    async with opened() as ledger:
        await ledger.book([booking(used=3)])
        later = replace(booking(used=3), period="2026-06-01", ends=at(152 * 86_400))
        await ledger.book([later])
        assert list(await ledger.limit_uses(at(0))) == [("daily", "2026-06-01")]


async def test_the_journal_is_read_from_any_number(kept: OpenLedger) -> None:
    async with kept() as ledger:
        assert await ledger.last_seq() == 0
        await ledger.append([])
        await ledger.append([event(n) for n in range(1, 8)])
        await ledger.append([event(9)])
    async with kept() as ledger:
        assert await ledger.last_seq() == 9
        assert await ledger.events(after_seq=5, limit=2) == (event(6), event(7))
        assert await ledger.events(after_seq=7) == (event(9),)
        assert await ledger.events(after_seq=9) == ()
        assert [len(await ledger.events(after_seq=5, chars_max=chars)) for chars in (1, 10**6)] == [1, 3]


@pytest.mark.parametrize("batch", [1, 7, 250])
async def test_the_journal_keeps_only_the_newest_events(opened: OpenLedger, batch: int) -> None:
    async with opened() as ledger:
        for first in range(1, 251, batch):
            await ledger.append([event(n) for n in range(first, min(first + batch, 251))])
        kept = await ledger.events()
        assert [e.seq for e in kept] == list(range(151, 251))
        assert await ledger.last_seq() == 250


async def test_actions_of_people_are_kept_beside_the_newest_events(opened: OpenLedger) -> None:
    async with opened() as ledger:
        await ledger.accept([record("c-1")])
        for first in range(1, 501, 10):
            acts = [event(first, topic="audit.cancel"), event(first + 1, topic="audit.fire")] if first < 100 else []
            await ledger.append(acts + [event(n) for n in range(first + len(acts), first + 10)])
        numbers = [n for first in range(1, 100, 10) for n in (first, first + 1)]
        kept = [e.seq for e in await ledger.events(limit=1_000)]
        assert [n for n in kept if n < 100] == numbers
        assert 100 <= len(kept) - len(numbers) <= 102
        newest = await ledger.actions(since=at(0), before_seq=2**53, limit=3)
        assert [(e.seq, e.topic) for e in newest] == [(92, "audit.fire"), (91, "audit.cancel"), (82, "audit.fire")]
        older = await ledger.actions(since=at(12), before_seq=newest[-1].seq)
        assert [e.seq for e in older] == [n for n in reversed(numbers) if 12 <= n < 82]
        assert await ledger.untold_requests() == (), "an action that is kept does not make the journal older"


async def test_old_actions_of_people_are_deleted_when_they_are_too_many(opened: OpenLedger) -> None:
    async with opened() as ledger:
        for first in range(1, 501, 10):
            await ledger.append([event(n, topic="audit.fire") for n in range(first, first + 10)])
        kept = [e.seq for e in await ledger.actions(since=at(0), before_seq=2**53)]
        assert kept[0] == 500
        assert 100 <= len(kept) <= 110


async def test_an_outcome_is_unannounced_until_its_event_is_in_the_journal(kept: OpenLedger) -> None:
    async with kept() as ledger:
        await ledger.accept([record("c-1"), record("c-2")])
        await ledger.close(outcome("c-1"))
        await ledger.close(outcome("c-2"))
        await ledger.append([event(1, request="c-2"), event(2, topic="autonomous.outcome.user.echo", request="c-1")])
    async with kept() as ledger:
        assert await ledger.unannounced() == (outcome("c-2"),)
        await ledger.append([event(3, topic="autonomous.outcome.user.echo", request="c-2")])
        assert await ledger.unannounced() == ()


async def test_a_request_is_unannounced_until_its_event_is_in_the_journal(kept: OpenLedger) -> None:
    async with kept() as ledger:
        await ledger.accept([record(f"c-{n}") for n in range(5)])
        for name in ("c-2", "c-3", "c-4"):
            await ledger.close(outcome(name))
        told = [(1, "agent.skill.request", "c-0"), (2, "agent.skill.request", "c-2"), (3, "agent.skill.update", "c-1")]
        rows = [event(n, topic=topic, request=name) for n, topic, name in told]
        await ledger.append([replace(row, at=START) for row in rows])
        await ledger.append([event(4, topic="autonomous.outcome.user.echo", request="c-3")])
    async with kept() as ledger:
        closed = replace(record("c-4"), phase=Phase.CLOSED)
        assert [r.request.correlation_id for r in await ledger.untold_requests()] == ["c-1", "c-4"]
        assert (await ledger.untold_requests())[1].request == closed.request
        await ledger.append([event(5, topic="agent.skill.request", request="c-4")])
        assert await ledger.untold_requests() == (record("c-1"),)


async def test_a_request_older_than_the_journal_is_not_announced_again(kept: OpenLedger) -> None:
    async with kept() as ledger:
        await ledger.accept([record("c-1")])
        assert await ledger.untold_requests() == (record("c-1"),)
        await ledger.append([event(2)])  # the first event is deleted already
        assert await ledger.untold_requests() == ()


async def test_a_request_is_announced_after_the_clock_was_set_back_before_the_whole_journal(kept: OpenLedger) -> None:
    async with kept() as ledger:
        await ledger.append([event(1), event(2)])
        await ledger.accept([record("c-1")])
        assert await ledger.untold_requests() == (record("c-1"),)


async def test_old_closed_requests_are_deleted_with_all_their_rows(opened: OpenLedger) -> None:
    async with opened() as ledger:
        await ledger.accept([record(f"c-{n}") for n in range(10)])
        await ledger.accept([record("ceremony")], run=run(run_id="r-1"))
        await ledger.accept([record("forgotten")], run=run("weekly", run_id="r-2"))
        for n in range(10):
            await ledger.ask(question(f"q-{n}", f"c-{n}"))
            await ledger.close(outcome(f"c-{n}", ended=n))
        await ledger.close(outcome("ceremony", ended=4))
        assert await ledger.prune(at(3600 + 6)) == 6
        assert await ledger.request("c-5") is None
        assert await ledger.outcome("c-5") is None
        assert await ledger.outcome("c-6") is not None
        assert [q.question.question_id for q in await ledger.questions(open_only=False)] == [
            f"q-{n}" for n in (6, 7, 8, 9)
        ]
        assert [r.request.correlation_id for r in await ledger.open_requests()] == ["forgotten"]
        assert [r.claim.run_id for r in await ledger.runs()] == ["r-2", "r-1"]


async def test_a_clock_that_is_wrong_by_years_leaves_the_newest_outcomes(opened: OpenLedger) -> None:
    async with opened() as ledger:
        await ledger.accept([record(f"c-{n}") for n in range(10)])
        for n in range(10):
            await ledger.close(outcome(f"c-{n}"))
        assert await ledger.prune(at(10 * 365 * 86_400)) == 6
        assert len(await ledger.outcomes(since=at(0))) == 4


async def test_outcomes_past_the_limit_replace_the_oldest(opened: OpenLedger) -> None:
    async with opened() as ledger:
        await ledger.accept([record(f"c-{n}") for n in range(200)])
        for n in range(200):
            await ledger.close(outcome(f"c-{n}"))
        assert await ledger.outcome("c-0") is None, "closing prunes by itself"
        await ledger.prune(at(0))
        assert [o.correlation_id for o in await ledger.outcomes(since=at(0))] == [f"c-{n}" for n in range(180, 200)]


async def test_calls_in_sequence_are_applied_in_that_order(opened: OpenLedger) -> None:
    async with opened() as ledger:
        await ledger.accept([record("c-1")])
        await asyncio.gather(*(ledger.update(replace(record("c-1"), answers=n)) for n in range(1, 100)))
        kept = await ledger.request("c-1")
        assert kept is not None
        assert kept.answers == 99


async def test_a_value_that_cannot_be_recorded_fails_only_its_caller(opened: OpenLedger) -> None:
    base = record("c-1")
    deep: dict[str, object] = {}
    for _ in range(2_000):
        deep = {"a": deep}
    bad = (
        replace(base, request=replace(base.request, metadata={"x": object()})),
        replace(base, request=replace(base.request, metadata=deep)),
        replace(base, accepted_at=base.accepted_at.replace(tzinfo=None)),
    )
    async with opened() as ledger:
        for value in bad:
            with pytest.raises(ValueError, match="cannot be recorded"):
                await ledger.accept([value])
        assert await ledger.accept([base])


async def test_half_surrogates_do_not_stop_a_request(opened: OpenLedger) -> None:
    odd = record("c-1", text="caf\u00e9 \ud83d\ude00 \ud800 \x00 end")
    shown = task("a\udfff")
    async with opened() as ledger:
        await ledger.accept([odd])
        part = DataPart(data={"k\ud800": ["v\udc00", 1, None]})
        artifact = replace(shown.artifacts[0], parts=(*shown.artifacts[0].parts, part))
        await ledger.update(replace(odd, task=replace(shown, artifacts=(artifact,))))
        kept = await ledger.request("c-1")
        assert kept is not None
        assert kept.task is not None
        assert kept.request.text == "caf\u00e9 \U0001f600 \ufffd \x00 end"
        assert kept.task.artifacts[0].parts[1] == DataPart(data={"k\ufffd": ["v\ufffd", 1, None]})


async def test_a_closed_ledger_refuses_every_write(opened: OpenLedger) -> None:
    async with opened() as ledger:
        pass
    with pytest.raises(NotAccepting):
        await ledger.accept([record("c-1")])
    with pytest.raises(NotAccepting):
        await ledger.open_requests()


async def test_a_task_in_every_state_survives_a_restart(kept: OpenLedger) -> None:
    records = [replace(record(f"c-{s}"), task=task(state=s)) for s in TaskState]
    async with kept() as ledger:
        await ledger.accept(records)
    async with kept() as ledger:
        assert await ledger.open_requests() == tuple(records)


@pytest.mark.slow
async def test_ten_thousand_open_requests_load_within_the_restart_budget(kept: OpenLedger) -> None:
    async with kept() as ledger:
        for first in range(0, 10_000, 1_000):
            await ledger.accept([replace(record(f"c-{n}"), task=task("x" * 600)) for n in range(first, first + 1_000)])
    began = time.process_time()
    async with kept() as ledger:
        assert len(await ledger.open_requests()) == 10_000
        assert time.process_time() - began < 5
