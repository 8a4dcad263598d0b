"""PostgreSQL stops, crashes and is killed under load: the ledger loses no write and recovers without help."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import asyncpg
import pytest
from msgspec.structs import replace

from fleetsim.cli.main import Exit, exit_for
from fleetsim.ledger import LeaseLost, Ledger, LedgerLimits, MessageKind, PassedMessage
from fleetsim.ledger.place import Place
from fleetsim.ledger.postgres.ledger import open_postgres
from fleetsim.ledger.postgres.storage import refused
from fleetsim.ledger.records import NameTaken
from fleetsim.model.errors import ConfigError, NotAccepting
from tests.ledger.ledgers import LostLeases, answer, at, event, outcome, question, record, run
from tests.postgres import Server
from tests.storms.hubs_rig import Line, small_disk

pytestmark = [pytest.mark.pg, pytest.mark.sockets]


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    running.start()
    yield running
    running.close()


async def work(ledger: Ledger, name: str, accepted: set[str], refused: set[str], closed: set[str]) -> None:
    """Accept and close requests without end, and record each reply."""
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
    """Write until a write is refused: a commit in doubt may block every worker, so another call sees the refusal."""
    with suppress(NotAccepting):
        while True:
            await ledger.require_writable()


async def until(reached: Callable[[], bool]) -> None:
    """Wait until the workers have made this number of writes."""
    while not reached():  # noqa: ASYNC110 - the condition is a count
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("end", ["fast", "immediate", "kill"])
async def test_after_an_outage_the_server_has_exactly_the_confirmed_writes(
    server: Server, end: str, caplog: pytest.LogCaptureFixture
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
    assert not any(logged.exc_info for logged in caplog.records), "an outage is no fault"


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


def test_an_unreadable_file_of_the_driver_is_not_taken_for_an_absent_server() -> None:
    error = refused(Place("postgresql://h/d"), PermissionError(13, "Permission denied", "/var/lib/fleet/x.key"))
    assert "/var/lib/fleet/x.key" in str(error)
    assert "HOME" in (error.hint or "")


async def test_two_fleets_on_one_database_do_not_see_each_other(server: Server) -> None:
    async with (
        open_postgres(Place.read(server.url("one"), password=True)) as one,
        open_postgres(Place.read(server.url("two"), password=True)) as two,
    ):
        await one.accept([record("c-1")])
        assert await two.request("c-1") is None
        assert await two.open_ids() == ()


async def test_writes_to_a_silent_server_are_refused_within_a_part_of_the_lease_and_later_accepted(
    server: Server,
) -> None:
    line = Line()
    clock = asyncio.get_running_loop().time
    async with await line.start(server.port):
        address = server.url().replace(str(server.port), str(line.ports[0]))
        async with open_postgres(Place.read(address, password=True), lease_s=12.0) as ledger:
            await ledger.accept([record("before")])
            line.passes.clear()
            began = clock()
            writes = [asyncio.ensure_future(ledger.accept([record(f"w-{n}")])) for n in range(3)]
            await asyncio.sleep(0.1)
            writes += [asyncio.ensure_future(ledger.accept([record(f"later-{n}")])) for n in range(3)]
            errors = await asyncio.gather(*writes, return_exceptions=True)
            assert clock() - began < 6, "half of the lease"
            assert {type(error) for error in errors} == {NotAccepting}
            assert {str(error) for error in errors} == {"the ledger cannot be written: PostgreSQL does not answer"}
            with pytest.raises(NotAccepting):
                await ledger.accept([record("again")])
            assert clock() - began < 12
            line.heal()
            async with asyncio.timeout(10):
                await until_writable(ledger)
            assert await ledger.accept([record("after")])
            assert await ledger.request("w-0") is None


async def test_a_database_that_went_back_ends_the_membership_and_no_event_number_is_given_twice(
    server: Server, tmp_path: Path
) -> None:
    place, listener = Place.read(server.url(), password=True), LostLeases()
    async with open_postgres(place, name="hub") as ledger:
        ledger.report_to(listener)
        await ledger.accept([record("old")])
        await asyncio.to_thread(server.stop)
        shutil.copytree(server.data, tmp_path / "earlier")
        await asyncio.to_thread(server.start)
        await until_writable(ledger)
        await ledger.accept([record("new")])
        await ledger.append([event(0), event(0)])
        assert [seen.seq for seen in await ledger.events()] == [1, 2]
        await asyncio.to_thread(server.stop)
        server.replace(tmp_path / "earlier")
        await asyncio.to_thread(server.start)
        async with asyncio.timeout(20):
            while not listener.reasons:
                with suppress(NotAccepting):
                    await ledger.require_writable()
                await asyncio.sleep(0.05)
        with pytest.raises(LeaseLost):
            await ledger.require_writable()
        assert ledger.refusal
        await ledger.rejoin()
        assert await ledger.request("new") is None
        assert [one.request.correlation_id for one in (await ledger.take_over()).requests] == ["old"]
        await ledger.append([event(0)])
        assert [seen.seq for seen in await ledger.events()] == [3]
        assert not ledger.refusal


async def refusal_of(ledger: Ledger) -> NotAccepting | None:
    """The error of one probe."""
    try:
        await ledger.require_writable()
    except NotAccepting as error:
        return error
    return None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a file system")
async def test_a_hub_is_not_writable_once_its_tables_have_no_room(server: Server) -> None:
    place = Place.read(server.url(), password=True)
    async with open_postgres(place) as ledger:
        with small_disk(2) as disk:
            database = await asyncpg.connect(place.dsn, server_settings={"search_path": place.schema})
            await database.execute(f"CREATE TABLESPACE small LOCATION '{disk}'")
            await database.execute("ALTER TABLE requests SET TABLESPACE small")
            await database.close()
            await ledger.require_writable()
            with suppress(OSError), (disk / "rest").open("wb", buffering=0) as file:
                while file.write(b"x" * 4_096):
                    pass
            async with asyncio.timeout(20):  # one probe a second, and dead rows of the first leave room until then
                while "disk is full" not in str(await refusal_of(ledger)):  # noqa: ASYNC110 - a disk has no event
                    await asyncio.sleep(0.2)
            (disk / "rest").unlink()
            await ledger.require_writable()


async def test_another_hub_of_the_same_name_is_refused_and_an_earlier_process_is_replaced(server: Server) -> None:
    place = Place.read(server.url(), password=True)
    async with open_postgres(place, name="cloned", processes=("image", "first")) as first:
        await first.accept([record("c-1")])
        for _ in range(2):
            with pytest.raises(NameTaken) as refused:
                await open_postgres(place, name="cloned", processes=("image", "other")).__aenter__()
            assert exit_for(refused.value) is Exit.USAGE
        assert len(await first.members()) == 1
        async with open_postgres(place, name="cloned", processes=("image", "first", "second")) as second:
            assert [one.request.correlation_id for one in (await second.take_over()).requests] == ["c-1"]
            with pytest.raises(LeaseLost):
                await first.require_writable()
            with pytest.raises(NameTaken):
                await first.rejoin()


async def test_a_member_of_an_older_version_is_replaced_at_once(server: Server) -> None:
    place = Place.read(server.url(), password=True)
    async with open_postgres(place, name="old"), open_postgres(place, name="old", processes=("new",)) as new:
        assert len(await new.members()) == 1


async def until_writable(ledger: Ledger) -> None:
    while True:
        with suppress(NotAccepting):
            return await ledger.require_writable()
        await asyncio.sleep(0.05)


def test_a_size_limit_is_refused_for_a_ledger_in_postgresql(server: Server) -> None:
    with pytest.raises(ConfigError) as refused:
        open_postgres(Place.read(server.url(), password=True), limits=LedgerLimits(bytes_max=10_000_000))
    assert refused.value.hint


class CommitCutter:
    """A proxy in front of the server. Once ``armed``, it cuts the connection before or after the next commit.
    ``reaches``: the server gets the commit, and its reply is dropped; with ``waits`` once the server has committed.
    ``spared``: the number of commits that pass before."""

    spared = 0

    def __init__(self, server: Server, *, reaches: bool, waits: bool = True) -> None:
        self.armed = False
        self._server, self._reaches, self._waits = server, reaches, waits

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, here = await asyncio.open_connection("127.0.0.1", self._server.port)
        back = asyncio.ensure_future(self._back(there, writer))
        while data := await reader.read(65_536):
            if self.armed and b"COMMIT" in data and self.spared:
                self.spared -= 1
            elif self.armed and b"COMMIT" in data:
                back.cancel()
                await asyncio.wait([back])
                self.armed = False
                if self._reaches:
                    here.write(data)
                    await (there.read(65_536) if self._waits else here.drain())
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


SYNC = b"S\x00\x00\x00\x04"


class HubStopper:
    """A proxy that lets a hub stand still in the middle of a message. Once ``armed``, the last bytes of the next
    statement of a transaction and all later ones stay with it, and the connection stays open."""

    def __init__(self, server: Server) -> None:
        self.armed = False
        self.stopped = asyncio.Event()
        self._server = server

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, here = await asyncio.open_connection("127.0.0.1", self._server.port)
        back = asyncio.ensure_future(CommitCutter._back(there, writer))
        begun = False
        while (data := await reader.read(65_536)) and not self.stopped.is_set():
            if self.armed and begun and data.endswith(SYNC):
                here.write(data.removesuffix(SYNC))
                self.stopped.set()
                await asyncio.wait([back])  # until the server ends the session
                break
            begun = b"BEGIN" in data
            here.write(data)
        back.cancel()
        for end in (here, writer):
            end.close()
            with suppress(OSError):
                await end.wait_closed()


async def test_a_hub_that_stops_in_the_middle_of_a_message_loses_its_requests(server: Server) -> None:
    stopper = HubStopper(server)
    async with await asyncio.start_server(stopper.serve, "127.0.0.1", 0) as proxy:
        port = proxy.sockets[0].getsockname()[1]
        place = Place.read(server.url().replace(f":{server.port}/", f":{port}/"), password=True)
        async with (
            open_postgres(Place.read(server.url(), password=True), name="other", lease_s=2.0) as other,
            open_postgres(place, name="stopped", lease_s=2.0) as ledger,
        ):
            await ledger.accept([record("c-1")])
            stopper.armed = True
            write = asyncio.ensure_future(ledger.accept([record("c-2")]))
            await stopper.stopped.wait()
            async with asyncio.timeout(10):
                while not (taken := await other.take_over()):  # noqa: ASYNC110 - the lease has no event
                    await asyncio.sleep(0.1)
            assert [request.request.correlation_id for request in taken.requests] == ["c-1"]
            with pytest.raises(NotAccepting):
                await write


SLOW = """
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON outcomes DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION slow()
"""


async def test_a_commit_that_takes_the_server_long_is_confirmed(server: Server) -> None:
    cutter = CommitCutter(server, reaches=True, waits=False)
    async with await asyncio.start_server(cutter.serve, "127.0.0.1", 0) as proxy:
        port = proxy.sockets[0].getsockname()[1]
        place = Place.read(server.url().replace(f":{server.port}/", f":{port}/"), password=True)
        async with open_postgres(place) as ledger:
            await ledger.accept([record("c-1")])
            connection = await asyncpg.connect(place.dsn, server_settings={"search_path": place.schema})
            await connection.execute(SLOW)
            await connection.close()
            cutter.armed = True
            assert await ledger.close(outcome("c-1"))
            assert await ledger.outcome("c-1") is not None


async def test_recorded_events_are_confirmed_although_old_ones_could_not_be_deleted(server: Server) -> None:
    cutter = CommitCutter(server, reaches=False)
    async with await asyncio.start_server(cutter.serve, "127.0.0.1", 0) as proxy:
        port = proxy.sockets[0].getsockname()[1]
        place = Place.read(server.url().replace(f":{server.port}/", f":{port}/"), password=True)
        async with open_postgres(place, limits=LedgerLimits(events_max=100)) as ledger:
            cutter.armed, cutter.spared = True, 1
            await ledger.append([event(0)])
            assert not cutter.armed
            assert len(await ledger.events()) == 1


async def test_requests_are_taken_over_although_their_rows_could_not_be_read_at_first(server: Server) -> None:
    place = Place.read(server.url(), password=True)
    blocker = await asyncpg.connect(place.dsn, server_settings={"search_path": place.schema})
    await blocker.execute("ALTER ROLE fleet SET lock_timeout = '200ms'")  # in sessions from now on
    async with open_postgres(place) as other:
        async with open_postgres(place) as leaving:
            await leaving.accept([record("c-1")])
        async with blocker.transaction():
            await blocker.execute("LOCK TABLE webhooks IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(NotAccepting):
                await other.take_over()
        assert [request.request.correlation_id for request in (await other.take_over()).requests] == ["c-1"]
        assert not await other.take_over()
    await blocker.close()


async def test_a_take_over_is_void_if_the_lease_is_lost_while_its_rows_are_read(server: Server) -> None:
    place = Place.read(server.url(), password=True)
    blocker, operator = [
        await asyncpg.connect(place.dsn, server_settings={"search_path": place.schema}) for _ in range(2)
    ]
    async with open_postgres(place) as survivor, open_postgres(place, name="paused") as paused:
        async with open_postgres(place) as leaving:
            await leaving.accept([record("c-1")])
        async with blocker.transaction():
            await blocker.execute("LOCK TABLE webhooks IN ACCESS EXCLUSIVE MODE")
            reading = asyncio.ensure_future(paused.take_over())
            while not await operator.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):  # noqa: ASYNC110 - only the server knows
                await asyncio.sleep(0.02)
            await operator.execute("UPDATE hubs SET ended_at = clock_timestamp() WHERE name = 'paused'")
            with pytest.raises(LeaseLost):
                await paused.require_writable()
            await paused.rejoin()
        with pytest.raises(LeaseLost):
            await reading
        assert [request.request.correlation_id for request in (await survivor.take_over()).requests] == ["c-1"]
        assert not await paused.take_over()
    await blocker.close()
    await operator.close()


async def test_a_hub_whose_requests_were_taken_over_writes_nothing_until_it_joins_again(server: Server) -> None:
    place = Place.read(server.url(), password=True)
    async with open_postgres(place, lease_s=0.5) as late, open_postgres(place) as other:
        await late.accept([record("c-1")])
        late.require_lease()
        while not (taken := await other.take_over()).requests:  # noqa: ASYNC110 - the lease lapses by the clock
            await asyncio.sleep(0.05)
        assert [request.request.correlation_id for request in taken.requests] == ["c-1"]
        with pytest.raises(LeaseLost):
            late.require_lease()
        with pytest.raises(LeaseLost):
            await late.accept([record("c-2")])
        with pytest.raises(LeaseLost):
            await late.close(outcome("c-1"))
        assert await late.request("c-2") is None
        assert await late.outcome("c-1") is None
        await late.rejoin()
        assert not await late.close(outcome("c-1"))
        await late.update(replace(record("c-1"), warnings=("of the hub before",)))
        assert await other.request("c-1") == record("c-1")
        assert await late.accept([record("c-2")])
        assert await other.close(outcome("c-1"))


async def test_a_hub_that_leaves_passes_its_requests_on_at_once(server: Server) -> None:
    place = Place.read(server.url(), password=True)
    async with open_postgres(place) as other:
        async with open_postgres(place) as leaving:
            await leaving.accept([record("c-1"), record("c-2")], run=run())
            await leaving.ask(question("q-1", "c-1"))
            await leaving.accept([record("c-3")])
            await leaving.close(outcome("c-3"))
            assert not await other.take_over()
        taken = await other.take_over(limit=1)
        assert [request.request.correlation_id for request in taken.requests] == ["c-1"]
        assert [question.question for question in taken.questions] == [question("q-1", "c-1")]
        assert [ended for ended, _ in taken.unannounced] == [outcome("c-3")]
        assert taken.runs == (run(),)
        assert len((await other.take_over()).requests) == 1
        assert not await other.take_over()


async def test_the_row_of_a_hub_is_deleted_a_day_after_its_end_unless_it_owns_a_request(server: Server) -> None:
    place = Place.read(server.url(), password=True)
    for request in ("c-1", None):
        async with open_postgres(place) as leaving:
            if request is not None:
                await leaving.accept([record(request)])
    operator = await asyncpg.connect(place.dsn, server_settings={"search_path": place.schema})
    await operator.execute("UPDATE hubs SET ended_at = ended_at - interval '25 hours'")
    async with open_postgres(place) as joined:
        assert await operator.fetchval("SELECT count(*) FROM hubs WHERE ended_at IS NOT NULL") == 1
        assert [request.request.correlation_id for request in (await joined.take_over()).requests] == ["c-1"]
    await operator.close()


async def test_a_message_reaches_the_owner_until_it_is_discarded(server: Server) -> None:
    place = Place.read(server.url(), password=True)
    async with open_postgres(place) as owner, open_postgres(place) as other:
        await owner.accept([record("c-1")])
        await owner.ask(question("q-1", "c-1"))
        message = PassedMessage(correlation_id="c-1", kind=MessageKind.CANCEL, by="ana")
        assert await other.pass_on(message)
        assert not await other.pass_on(replace(message, correlation_id="c-2"))
        assert await other.answer(answer("q-1"), at(5)) == question("q-1", "c-1")
        assert await owner.answer(answer("q-1"), at(6)) is None
        assert await other.passed_on() == ()
        passed = await owner.passed_on()
        assert [(message.correlation_id, message.kind) for message in passed] == [("c-1", "cancel"), ("c-1", "answer")]
        assert passed[1].answer == answer("q-1")
        await owner.discard(passed)
        assert await owner.passed_on() == ()


async def test_the_events_of_all_hubs_have_one_order(server: Server) -> None:
    place = Place.read(server.url(), password=True)
    async with open_postgres(place) as one, open_postgres(place) as two:

        async def publish(ledger: Ledger, request: str) -> None:
            for _ in range(20):
                await ledger.append([event(0, request=request), event(0, request=request)])

        await asyncio.gather(publish(one, "of-one"), publish(two, "of-two"))
        seen = await one.journaled(after_seq=0)
        assert [event.seq for event, _ in seen] == list(range(1, 81))
        assert [mine for _, mine in seen] == [event.correlation_id == "of-one" for event, _ in seen]
        assert await two.events() == tuple(event for event, _ in seen)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://h/d",
        "postgresql://u:secret@h/d",
        "postgresql://u@h/d?password=secret",
        'postgresql://u@h/d?schema=a";drop',
    ],
)
def test_an_unusable_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as failed:
        Place.read(url)
    assert "secret" not in f"{failed.value} {failed.value.hint}"
