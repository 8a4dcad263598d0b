"""Agents' keys: their sources and their owners; no other text is accepted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from fleetsim.cli.render import HIDDEN, SafeFormatter
from fleetsim.events.fleet import ConfigRejected
from fleetsim.hub.keys import ADMIN, RESERVED, AgentKeys, Keyring, Principal
from fleetsim.runtime.files import DiskFiles
from fleetsim.testbed.runtime import MemoryFiles
from tests.hub.local_hub import AGENT_KEYS, KEY, LocalHub, local_hub, ready_hub, worker

QUINN, AVA = "q" * 40, "a" * 40
ENV = {"WORKSTACEAN_API_KEY_QUINN": QUINN, "WORKSTACEAN_API_KEY_AVA": AVA}


def holder(ring: Keyring, key: str) -> Principal | None:
    return ring.principal([(b"x-api-key", key.encode("latin-1"))])


async def found(env: Mapping[str, str], *agents: str, yaml: str | None = None, **files: str) -> AgentKeys:
    held = MemoryFiles({**files, **({str(AGENT_KEYS): yaml} if yaml is not None else {})})
    keys = AgentKeys(held, env, AGENT_KEYS)
    await keys.poll(agents)
    return keys


async def opens(t: LocalHub, key: str) -> bool:
    """Whether the key is accepted."""
    return (await t.http("GET", "/api/tasks/c-1", key=key)).status != 401


def test_each_key_belongs_to_its_agent() -> None:
    ring = Keyring(KEY)
    ring.replace({"quinn": QUINN, "ava": AVA})
    assert [holder(ring, key) for key in (KEY, QUINN, AVA, QUINN[:-1], "")] == [
        ADMIN,
        Principal("quinn"),
        Principal("ava"),
        None,
        None,
    ]
    assert ring.problems == ()


@pytest.mark.parametrize("key", ["", " ", "short", "x" * 15, "x" * 513, "with a blank in it", "é" * 20])
def test_an_invalid_key_is_refused_for_every_agent(key: str) -> None:
    """An unset key was the administrator's in the original."""
    ring = Keyring(key)
    ring.replace({"quinn": key})
    assert holder(ring, key) is None
    assert holder(ring, "") is None
    assert len(ring.problems) == 2


def test_incident_14_agents_with_one_key_have_none() -> None:
    ring = Keyring(KEY)
    ring.replace({"quinn": QUINN, "ava": QUINN, "frank": AVA})
    assert holder(ring, QUINN) is None
    assert holder(ring, AVA) == Principal("frank")
    (problem,) = ring.problems
    assert "ava" in problem
    assert "quinn" in problem
    assert QUINN not in problem


def test_incident_14_an_agent_with_the_hubs_own_key_is_not_the_hubs_owner() -> None:
    ring = Keyring(KEY)
    ring.replace({"quinn": KEY})
    assert holder(ring, KEY) is None
    assert "quinn" in ring.problems[0]
    ring.replace({})
    assert holder(ring, KEY) is ADMIN


async def test_the_environment_names_agents_by_their_variables() -> None:
    keys = await found({"WORKSTACEAN_API_KEY_MY_AGENT": QUINN, "WORKSTACEAN_API_KEY_FRANK": AVA}, "my-agent", "ava")
    assert keys.keys == {"my-agent": QUINN, "frank": AVA}
    assert (await found({"WORKSTACEAN_API_KEY": QUINN, "WORKSTACEAN_API_KEY_": AVA, "OTHER": AVA}, "ava")).keys == {}


async def test_two_agents_of_one_variable_have_the_same_key_and_so_none() -> None:
    keys = await found({"WORKSTACEAN_API_KEY_MY_AGENT": QUINN}, "my-agent", "my.agent")
    ring = Keyring(KEY)
    ring.replace(keys.keys)
    assert holder(ring, QUINN) is None


@pytest.mark.parametrize("name", sorted(RESERVED))
async def test_a_reserved_name_has_no_key(name: str) -> None:
    keys = await found({f"WORKSTACEAN_API_KEY_{name.upper()}": QUINN})
    assert keys.keys == {}
    assert "WORKSTACEAN_API_KEY_" in keys.problems[0]
    written = await found(ENV, yaml=f"keys:\n  {name.title()}: {{envKey: WORKSTACEAN_API_KEY_AVA}}\n")
    assert name.title() not in written.keys
    assert written.problems


async def test_the_file_wins_over_the_environment_and_names_the_place_of_a_key() -> None:
    yaml = "keys:\n  quinn: {keyFile: secret/quinn}\n  frank: {envKey: FRANKS}\n"
    keys = await found({**ENV, "FRANKS": "f" * 20}, "quinn", yaml=yaml, **{"secret/quinn": "n" * 32 + "\n"})
    assert keys.keys == {"quinn": "n" * 32, "frank": "f" * 20, "ava": AVA}
    assert keys.problems == ()


@pytest.mark.parametrize(
    ("yaml", "says"),
    [
        ("keys: [", "agent-keys.yaml:2:1"),
        ("keys:\n  quinn: {}\n", "in envKey or in keyFile"),
        ("keys:\n  quinn: {envKey: A, keyFile: b}\n", "not in both"),
        (f"keys:\n  quinn: {{key: {QUINN}}}\n", "agent-keys.yaml:2"),
        ("keys:\n  ../quinn: {envKey: A}\n", "1 to 64 letters"),
        ("keys:\n  quinn: {envKey: UNSET}\n", "UNSET holds no key"),
        ("keys:\n  quinn: {keyFile: gone}\n", "gone"),
        ("keys:\n  quinn: {keyFile: empty}\n", "empty holds no key"),
    ],
)
async def test_an_error_in_the_keys_is_reported_and_no_agent_gets_a_key(yaml: str, says: str) -> None:
    keys = await found({}, yaml=yaml, empty="\n")
    assert keys.keys == {}
    (problem,) = keys.problems
    assert says in problem
    assert QUINN not in problem


@pytest.mark.parametrize(("mode", "taken"), [(0o600, True), (0o400, True), (0o640, False), (0o604, False)])
async def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path, mode: int, taken: bool) -> None:
    (tmp_path / "quinn.key").write_text(QUINN)
    (tmp_path / "quinn.key").chmod(mode)
    (tmp_path / "agent-keys.yaml").write_text("keys:\n  quinn: {keyFile: quinn.key}\n")
    keys = AgentKeys(DiskFiles(), {}, tmp_path / "agent-keys.yaml")
    await keys.poll(())
    assert keys.keys == ({"quinn": QUINN} if taken else {})
    assert ("others can read it" in " ".join(keys.problems)) is not taken


async def test_a_key_in_a_file_is_rotated_while_the_hub_runs_and_the_old_one_is_refused() -> None:
    async with local_hub(worker()) as t:
        t.files.put("quinn.key", QUINN)
        t.files.put(AGENT_KEYS, "keys:\n  quinn: {keyFile: quinn.key}\n")
        await asyncio.sleep(5)
        assert await opens(t, QUINN)
        t.files.put("quinn.key", AVA)
        await asyncio.sleep(5)
        assert (await opens(t, QUINN), await opens(t, AVA)) == (False, True)
        await t.files.remove(AGENT_KEYS)
        await asyncio.sleep(6)
        assert (await opens(t, AVA), await opens(t, KEY)) == (False, True)


async def test_a_log_shows_no_key_of_before_or_after_a_rotation(tmp_path: Path) -> None:
    (tmp_path / "agent-keys.yaml").write_text("keys:\n  quinn: {keyFile: quinn.key}\n")
    formatter = SafeFormatter()
    keys = AgentKeys(DiskFiles(), {}, tmp_path / "agent-keys.yaml", hide=formatter.hide)
    for key in (QUINN, AVA):
        (tmp_path / "quinn.key").write_text(key)
        (tmp_path / "quinn.key").chmod(0o600)
        await keys.poll(())
    assert formatter.clean(f"{QUINN} then {AVA}") == f"{HIDDEN} then {HIDDEN}"


async def test_a_broken_file_changes_no_key_and_is_reported_once() -> None:
    async with local_hub(worker(), agent_keys=ENV) as t:
        t.files.put(AGENT_KEYS, "keys:\n  quinn: {envKey: WORKSTACEAN_API_KEY_AVA}\n  ava: {keyFile: none}\n")
        await asyncio.sleep(5)
        assert (await opens(t, AVA), await opens(t, QUINN)) == (True, False)
        t.files.put(AGENT_KEYS, "keys: [")
        await asyncio.sleep(20)
        assert (await opens(t, AVA), await opens(t, QUINN)) == (True, False)
        told = [event.error for event in t.events("config.rejected") if isinstance(event, ConfigRejected)]
        assert len(told) == 2
        assert all(QUINN not in error and AVA not in error for error in told)


async def test_shared_secrets_are_reported_when_the_hub_starts() -> None:
    async with local_hub(worker(), agent_keys={**ENV, "WORKSTACEAN_API_KEY_AVA": QUINN}) as t:
        assert not await opens(t, QUINN)
        (event,) = t.events("config.rejected")
        assert {"ava", "quinn"} <= set(str(event).split())


async def test_agents_keep_their_keys_and_their_requests_over_a_restart() -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        reply = await t.http("POST", "/api/requests", b'{"text": "x", "skill": "ponder"}', key=QUINN)
        (cid,) = json.loads(reply.body)["data"]["correlationIds"]
        await t.restart()
        assert [(await t.http("GET", f"/api/tasks/{cid}", key=key)).status for key in (QUINN, AVA)] == [200, 404]
