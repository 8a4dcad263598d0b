"""Hubs of one fleet share keys through a real PostgreSQL, sealed: ``make pg``."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path

import asyncpg
import pytest

from fleetsim.hub.keys import HubKeys, next_epoch
from fleetsim.hub.state import API_KEY_FILE, CALLBACK_KEYS_FILE
from fleetsim.ledger.place import Place
from fleetsim.ledger.postgres.ledger import open_postgres
from fleetsim.ledger.postgres.secrets import FILE_VARIABLE, VARIABLE, sealing_key, shared
from fleetsim.model.errors import ConfigError
from fleetsim.runtime.files import DiskFiles
from fleetsim.testbed.runtime import virtual_runtime
from tests.cli.world import Shell
from tests.postgres import Server

pytestmark = [pytest.mark.pg, pytest.mark.sockets]

SEALING, OTHER = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))
IDS = virtual_runtime().ids


@pytest.fixture
async def place(server: Server, request: pytest.FixtureRequest) -> Place:
    place = Place.read(server.url("keys"), password=True)
    await execute(place, "DROP SCHEMA IF EXISTS keys CASCADE")
    return place


async def execute(place: Place, sql: str) -> None:
    connection = await asyncpg.connect(place.dsn)
    await connection.execute(sql)
    await connection.close()


async def share(place: Place, mine: str, sealing: str | None = SEALING, *, hub: str = "this") -> str:
    key = await sealing_key({} if sealing is None else {VARIABLE: sealing}, DiskFiles())
    return await shared(place, "hub", mine, key, hub=hub)


async def test_hubs_that_start_at_the_same_time_agree_on_one_set_of_keys(place: Place) -> None:
    answers = await asyncio.gather(*(share(place, f"of hub {n}") for n in range(8)))
    assert len(set(answers)) == 1
    assert answers[0].startswith("of hub ")
    assert await share(place, "of a later hub") == answers[0]


async def test_a_hub_without_a_sealing_key_keeps_its_own_keys_until_others_share_theirs(place: Place) -> None:
    assert await share(place, "mine", sealing=None) == "mine"
    assert await share(place, "ours") == "ours"
    with pytest.raises(ConfigError) as failed:
        await share(place, "mine", sealing=None)
    assert VARIABLE in str(failed.value.hint)


@pytest.mark.parametrize("sealing", [None, SEALING])
async def test_two_hubs_with_keys_of_their_own_do_not_run_side_by_side(place: Place, sealing: str | None) -> None:
    async with open_postgres(place, name="other"):
        with pytest.raises(ConfigError, match="other") as failed:
            await share(place, "mine", sealing)
    assert VARIABLE in str(failed.value.hint)
    async with open_postgres(place, name="this"):
        assert await share(place, "mine", sealing) == "mine", "the hub that starts again is not another one"


@pytest.mark.parametrize("sealing", [(None, None), (None, SEALING), (SEALING, None)])
async def test_only_one_of_several_hubs_with_keys_of_their_own_starts(
    place: Place, sealing: tuple[str | None, str | None]
) -> None:
    starts = [share(place, f"of {n}", key, hub=f"hub {n}") for n, key in enumerate(sealing)]
    results = await asyncio.gather(*starts, return_exceptions=True)
    refused = [result for result in results if isinstance(result, ConfigError)]
    assert (len(refused), len(results)) == (1, 2), results
    assert VARIABLE in str(refused[0].hint)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE keys.secrets SET sealed = overlay(sealed PLACING 'AAAA' FROM length(sealed) - 3)",
        "UPDATE keys.secrets SET sealed = 'é'",
        "UPDATE keys.secrets SET name = 'hub', sealed = (SELECT sealed FROM keys.secrets WHERE name = 'other')"
        " WHERE name = 'hub'",
    ],
)
async def test_a_damaged_or_moved_row_is_refused(place: Place, damage: str) -> None:
    await share(place, "ours")
    await shared(place, "other", "theirs", await sealing_key({VARIABLE: SEALING}, DiskFiles()), hub="this")
    await execute(place, damage)
    with pytest.raises(ConfigError) as failed:
        await share(place, "mine")
    assert "secrets" in str(failed.value.hint)


async def test_the_row_of_another_fleet_is_refused(place: Place, server: Server) -> None:
    await execute(place, "DROP SCHEMA IF EXISTS others CASCADE")
    await share(Place.read(server.url("others"), password=True), "theirs")
    await share(place, "ours")
    await execute(place, "UPDATE keys.secrets SET sealed = (SELECT sealed FROM others.secrets)")
    with pytest.raises(ConfigError):
        await share(place, "mine")


async def test_a_wrong_sealing_key_names_the_next_step_and_no_key(place: Place) -> None:
    await share(place, "ours")
    with pytest.raises(ConfigError) as failed:
        await share(place, "mine", OTHER)
    assert VARIABLE in str(failed.value.hint)
    assert SEALING not in repr(failed.value) + str(failed.value.hint)


async def test_no_secret_is_readable_in_the_database(place: Place) -> None:
    await share(place, "a secret of a hub")
    connection = await asyncpg.connect(place.dsn)
    (row,) = await connection.fetch("SELECT * FROM keys.secrets")
    await connection.close()
    assert "a secret of a hub" not in str(dict(row))
    assert SEALING not in str(dict(row))


@pytest.mark.parametrize("weak", ["short", "correct horse battery staple, which is long", SEALING[:-8], "é" * 32])
async def test_a_weak_sealing_key_is_refused_without_repeating_it(weak: str) -> None:
    with pytest.raises(ConfigError) as failed:
        await sealing_key({VARIABLE: weak}, DiskFiles())
    assert "openssl" in str(failed.value.hint)
    assert weak not in str(failed.value)


async def test_a_sealing_key_in_a_file_must_be_private_and_the_only_one(tmp_path: Path) -> None:
    path = tmp_path / "sealing"
    path.write_text(SEALING + "\n")
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="others can read"):
        await sealing_key({FILE_VARIABLE: str(path)}, DiskFiles())
    path.chmod(0o600)
    from_file = await sealing_key({FILE_VARIABLE: str(path)}, DiskFiles())
    from_variable = await sealing_key({VARIABLE: SEALING}, DiskFiles())
    assert from_file is not None
    assert from_variable is not None
    assert from_file.thumbprint() == from_variable.thumbprint()
    with pytest.raises(ConfigError):
        await sealing_key({VARIABLE: SEALING, FILE_VARIABLE: str(path)}, DiskFiles())


def test_two_epochs_of_callback_keys_reach_the_other_hubs() -> None:
    first, second = HubKeys.fresh(IDS), HubKeys.fresh(IDS)
    token = first.tokens().mint(agent="quinn", correlation_id="c-1")
    epoch, callback = next_epoch(first.epoch, first.callback, IDS)
    rotated = HubKeys(api_key=first.api_key, callback=callback, epoch=epoch, proof=first.proof)
    adopted = second.adopt(rotated.encode())
    assert (adopted.api_key, adopted.epoch, adopted.hub_id) == (first.api_key, 2, first.hub_id)
    assert adopted.proof == second.proof
    assert adopted.tokens().verify(token) is not None
    for text in ("[]", "{}", '{"apiKey": "short"}', json.dumps({"apiKey": first.api_key, "current": 1, "keys": {}})):
        with pytest.raises(ValueError, match="key"):
            second.adopt(text)


async def test_verbs_find_the_fleets_key_in_the_state_folder_of_each_hub(
    tmp_path: Path, server: Server, place: Place
) -> None:
    hubs = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        shell = Shell(tmp_path / name, {"FLEETSIM_LEDGER": server.url("keys"), VARIABLE: SEALING})
        shell.write("agents.yaml", "agents: []\n")
        hubs.append(shell)
        with shell.up():
            assert (await shell.arun("health")).returncode == 0
        assert SEALING not in shell.said
    one, two = ((shell.home / "state" / API_KEY_FILE).read_text() for shell in hubs)
    assert one == two
    assert "api-key" in hubs[1].said
    own = [(shell.home / "state" / CALLBACK_KEYS_FILE).read_text() for shell in hubs]
    assert own[0] != own[1], "the files of a hub that joins stay, for its own ledger"
    del hubs[1].env[VARIABLE]
    refused = await hubs[1].arun("up", "--headless", "--port", "0")
    assert (refused.returncode, VARIABLE in refused.stderr) == (2, True)
