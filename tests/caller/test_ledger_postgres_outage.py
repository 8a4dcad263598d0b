"""PostgreSQL stops, crashes and is killed under load: the ledger loses nothing, and goes on without help."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from fleetsim.caller.ledger import Ledger, LedgerLimits
from fleetsim.caller.ledger.postgres.ledger import open_postgres
from fleetsim.caller.ledger.postgres.place import Place
from fleetsim.model.errors import ConfigError, NotAccepting
from tests.caller.ledgers import outcome, record
from tests.postgres import Server

pytestmark = [pytest.mark.pg, pytest.mark.sockets]


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    running.start()
    yield running
    running.close()


async def work(ledger: Ledger, name: str, accepted: set[str], refused: set[str], closed: set[str]) -> None:
    """Accept and close requests for ever, and note each reply."""
    number = 0
    while True:
        number += 1
        request = f"{name}-{number}"
        try:
            await ledger.accept([record(request)])
        except NotAccepting:
            refused.add(request)
            await asyncio.sleep(0.01)
            continue
        accepted.add(request)
        try:
            assert await ledger.close(outcome(request))
            closed.add(request)
        except NotAccepting:
            await asyncio.sleep(0.01)


async def refused_call(ledger: Ledger) -> None:
    """Write until it is refused: a commit in doubt may hold every worker, so another call sees the refusal."""
    with suppress(NotAccepting):
        while True:
            await ledger.require_writable()


async def until(reached: Callable[[], bool]) -> None:
    """Wait for the workers to get so far."""
    while not reached():  # noqa: ASYNC110 - the condition is a count
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("end", ["fast", "immediate", "kill"])
async def test_a_server_that_comes_back_has_each_write_that_was_confirmed_and_no_other(
    server: Server, end: str
) -> None:
    accepted: set[str] = set()
    refused: set[str] = set()
    closed: set[str] = set()
    place = Place.read(server.url(), password=True)
    async with open_postgres(place, limits=LedgerLimits()) as ledger:
        workers = [asyncio.ensure_future(work(ledger, f"w{n}", accepted, refused, closed)) for n in range(16)]
        for _ in range(2):
            before = len(accepted)
            await until(lambda count=before + 200: len(accepted) >= count)
            if end == "kill":
                server.kill()
            else:
                await asyncio.to_thread(server.stop, end)
            await refused_call(ledger)
            assert ledger.refusal
            await asyncio.to_thread(server.start)
        before = len(accepted)
        await until(lambda: len(accepted) >= before + 200)
        for worker in workers:
            worker.cancel()
        await asyncio.wait(workers)
        for worker in workers:
            assert worker.cancelled()
        for request in accepted:
            assert await ledger.request(request) is not None
            assert request not in closed or await ledger.outcome(request) is not None
        for request in refused:
            assert await ledger.request(request) is None


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (("correct-horse", "wrong"), "password"),
        (("/postgres?", "/nothing?"), "database"),
        (("127.0.0.1", "127.0.0.2"), "answers"),
    ],
)
async def test_a_ledger_that_cannot_be_opened_names_the_next_step(
    server: Server, change: tuple[str, str], word: str
) -> None:
    with pytest.raises(ConfigError, match=word) as failed:
        async with open_postgres(Place.read(server.url().replace(*change), password=True)):
            pass
    assert failed.value.hint
    assert "correct-horse" not in str(failed.value)


async def test_two_fleets_on_one_database_do_not_see_each_other(server: Server) -> None:
    async with (
        open_postgres(Place.read(server.url("one"), password=True)) as one,
        open_postgres(Place.read(server.url("two"), password=True)) as two,
    ):
        await one.accept([record("c-1")])
        assert await two.request("c-1") is None
        assert await two.open_ids() == ()


@pytest.mark.parametrize("url", ["mysql://h/d", "postgresql://u:secret@h/d", 'postgresql://u@h/d?schema=a";drop'])
def test_an_address_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as failed:
        Place.read(url)
    assert "secret" not in f"{failed.value} {failed.value.hint}"
