"""PostgreSQL as operators set it up: several hosts, few rights, strict defaults, a pooler in front: ``make pg``."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
from msgspec import UNSET

from fleetsim.ledger.place import Place
from fleetsim.ledger.postgres.ledger import open_postgres
from fleetsim.ledger.postgres.storage import refused
from fleetsim.model.errors import ConfigError
from tests.ledger.ledgers import LostLeases, event, outcome, record
from tests.postgres import PASSWORD, USER, Server
from tests.storms.hubs_rig import program

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "several-hubs.md"

pytestmark = [pytest.mark.pg, pytest.mark.sockets]


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server whose settings a test may change."""
    running = Server()
    running.start()
    yield running
    running.close()


async def execute(server: Server, *statements: str, database: str = "postgres") -> None:
    address = server.url().replace("/postgres?", f"/{database}?").partition("?")[0]
    connection = await asyncpg.connect(address)
    for statement in statements:
        await connection.execute(statement)
    await connection.close()


async def write_and_read(place: Place) -> None:
    async with open_postgres(place) as ledger:
        assert await ledger.accept([record("c-1")])
        await ledger.append([event(0)])
        assert await ledger.close(outcome("c-1"))
        assert await ledger.outcome("c-1") is not None


async def test_the_primary_of_several_hosts_is_found(own_server: Server, free_port: int) -> None:
    address = own_server.url().replace("@127.0.0.1:", f"@127.0.0.1:{free_port},127.0.0.1:")
    place = Place.read(f"{address}&target_session_attrs=read-write", password=True)
    await write_and_read(place)
    assert PASSWORD not in str(place)
    assert place.address.count("127.0.0.1") == 2


async def test_a_read_only_server_names_the_way_to_the_other_one(own_server: Server) -> None:
    await write_and_read(Place.read(own_server.url(), password=True))
    await execute(own_server, "ALTER DATABASE postgres SET default_transaction_read_only = on")
    with pytest.raises(ConfigError) as failed:
        await write_and_read(Place.read(own_server.url(), password=True))
    assert "target_session_attrs" in str(failed.value.hint)


async def test_strict_defaults_of_the_database_refuse_no_write(own_server: Server) -> None:
    await execute(
        own_server,
        "ALTER DATABASE postgres SET default_transaction_isolation = 'serializable'",
        "ALTER DATABASE postgres SET statement_timeout = 200",
        "ALTER ROLE fleet SET search_path = pg_catalog",
    )
    place = Place.read(own_server.url(), password=True)
    async with open_postgres(place) as one, open_postgres(place) as other:
        await execute(
            own_server,
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(.4); RETURN NULL; END'",
            f"CREATE TRIGGER slow AFTER INSERT ON {place.schema}.requests EXECUTE FUNCTION slow()",
        )
        hubs = {"a": one, "b": other}
        calls = [hub.accept([record(f"{name}-{n}")]) for n in range(50) for name, hub in hubs.items()]
        assert all(await asyncio.gather(*calls))
        state = await one.database_state()
        assert state is not UNSET
        assert state.isolation == "read committed"


@pytest.mark.parametrize("code", ["40001", "40P01"])
async def test_a_group_that_another_transaction_undid_is_tried_once_more(own_server: Server, code: str) -> None:
    place = Place.read(own_server.url(), password=True)
    async with open_postgres(place) as ledger:
        await execute(
            own_server,
            "CREATE SEQUENCE tries",
            f"""CREATE FUNCTION undone() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF nextval('public.tries') = 1 THEN RAISE EXCEPTION 'undone' USING ERRCODE = '{code}'; END IF;
                RETURN NEW; END $$""",
            f"CREATE TRIGGER undone BEFORE INSERT ON {place.schema}.requests FOR EACH ROW EXECUTE FUNCTION undone()",
        )
        assert await ledger.accept([record("c-1")])
        assert await ledger.request("c-1") is not None


async def test_a_hub_needs_no_more_than_the_rights_of_the_page(own_server: Server) -> None:
    await write_and_read(Place.read(own_server.url(), password=True))
    grants = PAGE.read_text().split("```sql\n", 1)[1].split("```", 1)[0]
    await execute(
        own_server,
        f"CREATE ROLE fleet_hub LOGIN PASSWORD '{PASSWORD}'",
        f"CREATE ROLE fleet_reader LOGIN PASSWORD '{PASSWORD}'",
        "REVOKE ALL ON DATABASE postgres FROM PUBLIC",
        "REVOKE SELECT ON pg_stat_activity FROM PUBLIC",
        grants.replace("DATABASE fleet", "DATABASE postgres"),
    )
    hub = Place.read(own_server.url().replace(f"//{USER}:", "//fleet_hub:"), password=True)
    async with open_postgres(hub) as one, open_postgres(hub, name="b") as other:
        one.report_to(LostLeases())
        await one.require_writable()
        assert await one.database_state() is UNSET
        owner = await asyncpg.connect(own_server.url().partition("?")[0])
        await owner.execute("GRANT SELECT ON pg_stat_activity TO PUBLIC")
        assert (before := await one.database_state()) is not UNSET
        further = await asyncpg.connect(own_server.url().partition("?")[0])
        assert (after := await one.database_state()) is not UNSET
        assert after.connections_free == before.connections_free - 1, "connections of other roles count"
        await further.close()
        await owner.close()
        assert await one.accept([record("c-2")])
        await one.append([event(0)])
        assert await other.request("c-2") is not None
    reader = await asyncpg.connect(own_server.url().replace(f"//{USER}:", "//fleet_reader:").partition("?")[0])
    assert await reader.fetchval("SELECT count(*) FROM fleetsim.requests") == 2
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await reader.fetchval("SELECT count(*) FROM fleetsim.secrets")
    await reader.close()


def test_a_refused_certificate_names_the_option_for_its_authority() -> None:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "self-signed certificate"
    failed = refused(Place("postgresql://h/d"), error)
    assert "self-signed certificate" in str(failed)
    assert "sslrootcert" in str(failed.hint)


@pytest.fixture
def pooler(own_server: Server, mode: str, free_port: int) -> Iterator[int]:
    """The port of a PgBouncer in front of the server."""
    with tempfile.TemporaryDirectory(prefix="fleetsim-pooler-") as name:  # pytest's own folder is closed to nobody
        folder = Path(name)
        (folder / "users").write_text(f'"{USER}" "{PASSWORD}"')
        (folder / "ini").write_text(
            f"[databases]\npostgres = host=127.0.0.1 port={own_server.port} dbname=postgres\n[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {free_port}\nauth_type = plain\nauth_file = {folder}/users\n"
            f"pool_mode = {mode}\nunix_socket_dir =\n"
        )
        folder.chmod(0o755)
        user = 65534 if os.geteuid() == 0 else None
        with subprocess.Popen(
            [program("pgbouncer"), "-q", folder / "ini"], user=user, stderr=subprocess.DEVNULL
        ) as running:
            yield free_port
            running.terminate()


@pytest.mark.parametrize("mode", ["session", "transaction"])
async def test_a_pooler_works_in_session_mode_alone(own_server: Server, pooler: int, mode: str) -> None:
    place = Place.read(own_server.url().replace(f":{own_server.port}/", f":{pooler}/"), password=True)
    async with asyncio.timeout(10):
        while True:
            try:
                (await asyncpg.connect(place.dsn)).terminate()
                break
            except OSError:
                await asyncio.sleep(0.05)
    if mode == "session":
        await write_and_read(place)
    else:
        with pytest.raises(ConfigError, match="transaction mode"):
            await write_and_read(place)
