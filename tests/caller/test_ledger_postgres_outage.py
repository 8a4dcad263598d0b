"""PostgreSQL stops, crashes and is killed under load: the ledger loses nothing, and goes on without help."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress

import asyncpg
import pytest

from fleetsim.caller.ledger import Ledger, LedgerLimits, LedgerLocked
from fleetsim.caller.ledger.postgres.ledger import open_postgres
from fleetsim.caller.ledger.postgres.place import Place
from fleetsim.caller.ledger.postgres.storage import LedgerTaken
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


class CommitCutter:
    """A proxy in front of the server. Once ``armed``, it cuts the connection at a commit, before or after that.

    ``reaches``: the server gets the commit, and its reply is dropped.
    """

    def __init__(self, server: Server, *, reaches: bool) -> None:
        self.armed = False
        self._server, self._reaches = server, reaches

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, here = await asyncio.open_connection("127.0.0.1", self._server.port)
        back = asyncio.ensure_future(self._back(there, writer))
        while data := await reader.read(65_536):
            if self.armed and b"COMMIT" in data:
                back.cancel()
                await asyncio.wait([back])
                self.armed = False
                if self._reaches:
                    here.write(data)
                    await there.read(65_536)  # the server has committed
                break
            here.write(data)
        back.cancel()
        for end in (here, writer):
            end.close()
            with suppress(OSError):
                await end.wait_closed()

    @staticmethod
    async def _back(there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await there.read(65_536):
            writer.write(data)
        writer.close()


@pytest.mark.parametrize("reaches", [True, False])
async def test_a_commit_without_a_reply_is_confirmed_if_it_reached_the_server_and_refused_if_not(
    server: Server, reaches: bool
) -> None:
    cutter = CommitCutter(server, reaches=reaches)
    async with await asyncio.start_server(cutter.serve, "127.0.0.1", 0) as proxy:
        port = proxy.sockets[0].getsockname()[1]
        place = Place.read(server.url().replace(f":{server.port}/", f":{port}/"), password=True)
        async with open_postgres(place) as ledger:
            await ledger.accept([record("c-1")])
            cutter.armed = True
            try:
                assert await ledger.close(outcome("c-1"))
                confirmed = True
            except NotAccepting:
                confirmed = False
            assert confirmed is reaches
            assert (await ledger.outcome("c-1") is not None) is reaches
            assert await ledger.close(outcome("c-1")) is not reaches


async def test_a_second_hub_is_refused_and_changes_nothing(server: Server) -> None:
    place = Place.read(server.url(), password=True)
    async with open_postgres(place) as first:
        await first.accept([record("c-1")])
        with pytest.raises(LedgerLocked):
            async with open_postgres(place):
                pass
        assert await first.close(outcome("c-1"))


async def test_a_hub_whose_ledger_was_taken_over_writes_nothing_more(server: Server) -> None:
    async with open_postgres(Place.read(server.url(), password=True)) as ledger:
        await ledger.accept([record("c-1")])
        other = await asyncpg.connect(server.url().partition("?")[0])
        await other.execute("UPDATE fleetsim.hubs SET ended_at = now()")
        with pytest.raises(LedgerTaken):
            await ledger.accept([record("c-2")])
        with pytest.raises(LedgerTaken):
            await ledger.close(outcome("c-1"))
        assert await ledger.request("c-2") is None
        assert await ledger.outcome("c-1") is None
        await other.close()


@pytest.mark.parametrize(
    "url",
    [
        "mysql://h/d",
        "postgresql://u:secret@h/d",
        "postgresql://u@h/d?password=secret",
        'postgresql://u@h/d?schema=a";drop',
    ],
)
def test_an_address_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as failed:
        Place.read(url)
    assert "secret" not in f"{failed.value} {failed.value.hint}"
