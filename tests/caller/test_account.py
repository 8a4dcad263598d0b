"""One agent cannot use the time of others: its work is charged to its own account."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

from fleetsim.caller.account import Account, AccountLimits, Accounts
from fleetsim.model.limits import LARGE_JSON_BYTES
from fleetsim.runtime.ports import IncomingResponse
from fleetsim.runtime.sse import StreamLimits, read_events
from fleetsim.testbed.runtime import CountedWork, virtual_runtime

LIMITS = AccountLimits()
EVENTS = 5_000


def meter(step_s: float = 0.0) -> Accounts:
    """A meter of work that takes ``step_s`` from each wait to the next."""
    return Accounts(virtual_runtime(work=CountedWork(step_s)))


async def test_an_agent_in_debt_waits_and_another_does_not() -> None:
    found = meter()
    loud, quiet = found.account("loud"), found.account("quiet")
    loud.charge(LIMITS.work_ahead_s + 1.0)
    assert (loud.debt_s(), quiet.debt_s()) == (1.0 / LIMITS.work_per_s, 0.0)
    assert await loud.turn() == pytest.approx(1.0 / LIMITS.work_per_s)
    assert await quiet.turn() == 0.0
    assert loud.debt_s() == 0.0


async def test_unused_time_of_an_agent_is_not_saved() -> None:
    account = meter().account("scout")
    await asyncio.sleep(86_400)
    account.charge(LIMITS.work_ahead_s, round(LIMITS.events_ahead))
    assert account.debt_s() == 0.0
    account.charge(0.0, 1)
    assert account.debt_s() == pytest.approx(1 / LIMITS.events_per_s)


async def test_work_is_charged_at_any_depth_and_waiting_is_not() -> None:
    found = meter(step_s=0.125)

    async def deep() -> str:
        await asyncio.sleep(1_000)
        return "done"

    async def work() -> str:
        await asyncio.sleep(1_000)
        return await deep()

    account = found.account("scout")
    assert await found.charged("scout", work()) == "done"
    assert account.debt_s() == pytest.approx((0.125 - LIMITS.work_ahead_s) / LIMITS.work_per_s), "the last stretch"


async def test_an_error_and_a_cancellation_pass_through_charged_work() -> None:
    found = meter(step_s=1.0)
    seen: list[str] = []

    async def fails() -> None:
        await asyncio.sleep(1)
        raise ValueError("no")

    async def lasts() -> None:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            seen.append("cancelled")
            await asyncio.sleep(5)
            seen.append("tidied up")
            raise

    with pytest.raises(ValueError, match="no"):
        await found.charged("scout", fails())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3):
            await found.charged("scout", lasts())
    assert seen == ["cancelled", "tidied up"]
    assert found.account("scout").debt_s() > 0, "what was at work when it failed is charged too"


def stream(count: int, taken: list[float], *, chunk: int = 100) -> IncomingResponse:
    """A stream of ``count`` small events at the pace of the reader; ``taken`` has the time of each chunk."""

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(0, count, chunk):
            taken.append(asyncio.get_running_loop().time())
            yield b'data: {"x":1}\n\n' * chunk

    return IncomingResponse(status=200, headers={"content-type": "text/event-stream"}, chunks=chunks())


async def test_a_stream_is_read_at_the_pace_of_its_account_and_paused_meanwhile() -> None:
    account, taken = meter().account("loud"), list[float]()
    limits = StreamLimits(idle_s=0.5, idle_event_s=0.5, first_event_s=0.5)
    events = [event async for event in read_events(stream(EVENTS, taken), limits=limits, turns=account)]
    took = asyncio.get_running_loop().time()
    assert len(events) == EVENTS, "every event arrives, and our own pause is not the sender's silence"
    assert took == pytest.approx((EVENTS - LIMITS.events_ahead) / LIMITS.events_per_s, abs=0.1)
    assert taken[len(taken) // 2] == pytest.approx(took / 2, rel=0.1), "what is not read yet stays with the sender"


@pytest.mark.slow
async def test_four_streams_of_one_agent_share_its_account() -> None:
    account = meter().account("loud")

    async def read() -> int:
        return len([event async for event in read_events(stream(EVENTS, []), turns=account)])

    assert await asyncio.gather(*(read() for _ in range(4))) == [EVENTS] * 4
    took = asyncio.get_running_loop().time()
    assert took == pytest.approx((4 * EVENTS - LIMITS.events_ahead) / LIMITS.events_per_s, rel=0.01)


@pytest.mark.parametrize("streams", [1, 4])
async def test_others_run_after_a_few_events_however_many_have_arrived(streams: int) -> None:
    account = meter().account("loud")
    count, since, most = round(LIMITS.events_ahead) // streams, 0, 0

    async def read() -> None:
        nonlocal since, most
        async for _ in read_events(stream(count, [], chunk=count), turns=account):
            since += 1
            most = max(most, since)

    async def other() -> None:
        nonlocal since
        while not reading.done():
            await asyncio.sleep(0)
            since = 0

    reading = asyncio.gather(*(read() for _ in range(streams)))
    await other()
    assert 0 < most <= LIMITS.turn_events * streams


async def test_an_endless_line_of_comments_lets_others_run_too() -> None:
    account = meter(step_s=0.001).account("loud")
    turns = 0

    class Counted:
        owner = "loud"

        async def turn(self, events: int = 0) -> float:
            nonlocal turns
            assert not events
            turns += 1
            return await account.turn()

        async def paid(self) -> float:
            raise AssertionError("without a large document")

    async def chunks() -> AsyncIterator[bytes]:
        yield b":\n" * 50_000

    incoming = IncomingResponse(status=200, headers={"content-type": "text/event-stream"}, chunks=chunks())
    assert [event async for event in read_events(incoming, turns=Counted())] == []
    assert turns >= 100, "five hundred lines at most between two looks"


async def test_work_without_a_wait_is_charged_while_it_runs() -> None:
    """A chunk may hold a thousand lines without an event, between which no wait would come."""
    found = meter(step_s=LIMITS.turn_s / 4)
    account, most, since = found.account("loud"), 0, 0

    async def work() -> None:
        nonlocal most, since
        for _ in range(40):
            since += 1
            most = max(most, since)
            await account.turn()

    async def other() -> None:
        nonlocal since
        while not working.done():
            await asyncio.sleep(LIMITS.turn_s / 2)
            since = 0

    working = asyncio.ensure_future(found.charged("loud", work()))
    await other()
    assert most <= 5


# ---------------------------------------------------------------------- one account

NO_CREDIT = AccountLimits(work_per_s=0.5, work_ahead_s=0.0, events_per_s=10.0, events_ahead=0.0)
"""A charge is owed at once: two seconds for one second of work, a tenth for an event."""


def account(step_s: float = 0.0, limits: AccountLimits = NO_CREDIT) -> Account:
    return Accounts(virtual_runtime(work=CountedWork(step_s)), limits).account("scout")


async def test_while_an_agent_runs_ahead_others_have_half_of_the_time() -> None:
    found = account(limits=LIMITS)

    async def work() -> None:
        for _ in range(10):
            found.charge(LIMITS.turn_s)
            assert await found.turn() >= LIMITS.turn_s
            assert found.debt_s() == 0.0, "there is credit"

    began = asyncio.get_running_loop().time()
    await asyncio.gather(work(), work())
    assert asyncio.get_running_loop().time() - began == pytest.approx(20 * LIMITS.turn_s)


async def test_a_flood_of_work_has_a_quarter_of_the_time_however_long_it_lasts() -> None:
    reader = meter(step_s=LIMITS.turn_s / 4).account("reader")
    began = asyncio.get_running_loop().time()
    for _ in range(4 * 5_000):
        reader.begin()
        await reader.turn()
    took_s = asyncio.get_running_loop().time() - began
    assert took_s == pytest.approx(5_000 * LIMITS.turn_s / LIMITS.work_per_s, rel=0.05)


async def test_large_documents_of_one_agent_are_parsed_one_at_a_time_as_its_debt_is_paid() -> None:
    found, parsed = account(), list[float]()

    async def stream() -> AsyncIterator[bytes]:
        for _ in range(2):
            yield b"data: " + b"x" * LARGE_JSON_BYTES * 2 + b"\n\n"

    async def read() -> None:
        incoming = IncomingResponse(status=200, headers={"content-type": "text/event-stream"}, chunks=stream())
        async for _ in read_events(incoming, turns=found):
            parsed.append(asyncio.get_running_loop().time())
            found.charge(0.25)

    await asyncio.gather(read(), read())
    least_s = 0.25 / NO_CREDIT.work_per_s
    assert min(later - sooner for sooner, later in pairwise(parsed)) >= least_s


async def test_abandoned_charged_work_is_closed() -> None:
    found, seen = meter(step_s=1.0), list[str]()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            seen.append("tidied up")

    given_up = found.charged("scout", work())
    given_up.send(None)
    given_up.close()
    assert seen == ["tidied up"]


async def test_work_cancelled_before_its_start_leaves_no_coroutine_unawaited() -> None:
    found, began = meter(), []

    async def work() -> None:
        began.append(True)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        task = asyncio.ensure_future(found.charged("scout", work()))
        task.cancel()
        await asyncio.wait([task])
        del task
        gc.collect()
    assert (began, [str(warning.message) for warning in warned]) == ([], [])


async def test_awaited_work_is_charged_like_a_worker() -> None:
    found = meter(step_s=1.0)

    async def work() -> str:
        await asyncio.sleep(1)
        return "done"

    assert (
        await found.charged("awaited", work()) == await asyncio.ensure_future(found.charged("task", work())) == "done"
    )
    assert found.account("awaited").debt_s() > 0.0


async def test_an_agent_that_waits_for_a_limit_is_reported_once_and_again_after_a_minute_below_it() -> None:
    told: list[tuple[str, str, str]] = []
    accounts = Accounts(virtual_runtime(work=CountedWork(0.0)), reached=lambda *of: told.append(of))
    account = accounts.account("loud")

    async def read() -> None:
        async for _ in read_events(stream(EVENTS, []), turns=account):
            pass

    await asyncio.gather(*(read() for _ in range(40)))
    assert asyncio.get_running_loop().time() > 120
    assert [of[:2] for of in told] == [("loud", "events_per_s")]
    assert list(accounts.at_limit()) == [("loud", "events_per_s")]
    await asyncio.sleep(61)
    assert list(accounts.at_limit()) == []
    account.charge(10.0)
    await account.turn()
    assert [of[1] for of in told] == ["events_per_s", "work_per_s"]


async def test_a_short_wait_is_not_reported() -> None:
    told: list[tuple[str, str, str]] = []
    account = Accounts(virtual_runtime(work=CountedWork(0.0)), reached=lambda *of: told.append(of)).account("scout")
    account.charge(LIMITS.work_ahead_s + 0.05)
    assert await account.turn() == pytest.approx(0.2)
    assert told == []


async def test_large_documents_are_read_one_at_a_time_from_any_sender() -> None:
    accounts = meter()
    reading: list[int] = []

    async def read(name: str) -> None:
        await accounts.account(name).paid()
        reading.append(turn)

    turn = 0
    work = asyncio.gather(*(read(f"a{n}") for n in range(5)))
    while not work.done():
        await asyncio.sleep(0)
        turn += 1
    assert len(set(reading)) == 5, "between two of them everybody else has a turn"
