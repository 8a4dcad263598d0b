"""The hub's client as agents use it: ceremonies, other agents, and refusals before a request is sent."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from fleetsim.client import HubClient
from fleetsim.model.errors import AuthRefused, ConfigError, TimedOut, UnknownTarget, Unreachable
from fleetsim.testbed.network import MemoryNetwork
from fleetsim.testbed.runtime import virtual_runtime
from tests.hub.local_hub import FOLDER, HUB, KEY, local_hub, ready_hub, worker
from tests.hub.test_agent_keys import AVA, ENV, QUINN
from tests.hub.test_ceremony_api import SWEEP, call

KEYS: dict[str, Any] = {"name": "Hourly Sweep", "schedule": "0 * * * *", "skill": "echo", "targets": ["quinn"]}


async def test_an_agent_makes_changes_pauses_fires_and_deletes_its_ceremony() -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        quinn = t.agents_client(QUINN)
        row = await quinn.create_ceremony("quinn.sweep", **KEYS)
        assert (row["createdBy"], row["enabled"], row["targets"]) == ("quinn", True, ["quinn"])
        assert [ceremony["id"] for ceremony in await quinn.ceremonies()] == ["quinn.sweep"]
        run_id = await quinn.run_ceremony("quinn.sweep")
        await asyncio.sleep(5)
        assert [(run["runId"], run["status"]) for run in await quinn.ceremony_runs("quinn.sweep")] == [
            (run_id, "success")
        ]
        assert (await quinn.pause_ceremony("quinn.sweep"))["nextFireAt"] is None
        assert (await quinn.resume_ceremony("quinn.sweep"))["enabled"] is True
        await quinn.delete_ceremony("quinn.sweep")
        assert await quinn.ceremonies() == []


async def test_incident_12_an_update_without_enabled_leaves_a_ceremony_paused() -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        quinn = t.agents_client(QUINN)
        await quinn.create_ceremony("q", **KEYS, enabled=False, prompt="sweep it")
        row = await quinn.update_ceremony("q", name="Renamed", enabled=None, prompt=None)
        assert (row["name"], row["enabled"]) == ("Renamed", False)
        assert b"prompt: sweep it" in t.files.take(FOLDER / "q.yaml")
        await quinn.update_ceremony("q", without=["prompt"])
        assert b"prompt" not in t.files.take(FOLDER / "q.yaml")


@pytest.mark.parametrize(
    "keys",
    [
        {"name": ""},
        {"skill": None},
        {"schedule": None},
        {"schedule": "61 * * * *"},
        {"schedule": "0 0 30 2 *"},
        {"schedule": "* * * * * *"},
        {"timezone": "Mars/Olympus"},
        {"targets": []},
        {"targets": ["all", "quinn"]},
        {"timeout_ms": 0},
        {"enabled": "false"},
        {"in_": "soon", "schedule": None},
        {"at": "yesterday", "schedule": None},
        {"shedule": "0 * * * *"},
        {"overlap": "maybe"},
    ],
)
async def test_an_error_is_raised_before_the_call_in_the_hubs_own_words(keys: dict[str, Any]) -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        quinn, asked = t.agents_client(QUINN), len(t.network.seen)
        given = {**KEYS, **keys}
        with pytest.raises(ConfigError) as said:
            await quinn.create_ceremony("q", **given)
        assert len(t.network.seen) == asked
        camel = {"timeout_ms": "timeoutMs", "in_": "in"}
        body = {"id": "q", **{camel.get(key, key): value for key, value in given.items() if value is not None}}
        status, refusal = await call(t, "POST", "/api/ceremonies/create", body, key=QUINN)
        assert (status, refusal["error"], refusal.get("hint")) == (400, str(said.value), said.value.hint)


@pytest.mark.parametrize(
    "keys", [{"schedule": "61 * * * *"}, {"timezone": "Mars/Olympus"}, {"enabled": 1}, {"at": "x"}]
)
async def test_a_wrong_change_is_refused_before_the_call_in_the_hubs_own_words(keys: dict[str, Any]) -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        quinn = t.agents_client(QUINN)
        await quinn.create_ceremony("q", name="Q", skill="echo", in_="1d")
        asked = len(t.network.seen)
        with pytest.raises(ConfigError) as said:
            await quinn.update_ceremony("q", **keys)
        assert len(t.network.seen) == asked
        status, refusal = await call(t, "POST", "/api/ceremonies/q/update", keys, key=QUINN)
        assert (status, refusal["error"]) == (400, str(said.value)) or "schedule" in keys


@pytest.mark.parametrize("ceremony_id", ["", "..", "../x", "a/b", ".hidden", "-x", "x\n", "é", "x" * 129, "a b", "%2e"])
async def test_no_method_sends_an_invalid_id_to_the_hub(ceremony_id: str) -> None:
    async with local_hub(worker(), agent_keys=ENV) as t:
        quinn, asked = t.agents_client(QUINN), len(t.network.seen)
        verbs = [
            quinn.create_ceremony(ceremony_id, **KEYS),
            quinn.update_ceremony(ceremony_id, name="x"),
            quinn.pause_ceremony(ceremony_id),
            quinn.delete_ceremony(ceremony_id),
            quinn.run_ceremony(ceremony_id),
            quinn.ceremony_runs(ceremony_id),
        ]
        for verb in verbs:
            with pytest.raises(ConfigError):
                await verb
        with pytest.raises(ConfigError):
            await quinn.update_ceremony("fine")
        assert len(t.network.seen) == asked


@pytest.mark.slow
async def test_an_agent_chats_answers_questions_and_waits_for_delegated_work() -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        ava = t.agents_client(AVA)
        first = await ava.chat_with_agent("quinn", "hello", skill="echo")
        assert (first.status, first.success, first.text) == ("done", True, "you said hello")
        asked = await ava.chat_with_agent("quinn", "ship it", skill="ask")
        assert (asked.status, asked.text) == ("input-required", "which branch?")
        done = await ava.chat_with_agent("quinn", "main", context_id=asked.context_id, task_id=asked.task_id)
        assert (done.status, done.text) == ("done", "going with main")
        last = await ava.chat_with_agent("quinn", "bye", skill="echo", done=True)
        assert (last.context_id, last.task_id) == (None, None)
        work = await ava.delegate("quinn", "ponder", "think")
        with pytest.raises(TimedOut, match=work):
            await ava.wait_for_task(work, timeout_s=30)
        thought = await ava.wait_for_task(work, timeout_s=900)
        assert (thought.status, thought.text) == ("done", "at last")
        failed = await ava.wait_for_task(await ava.delegate("quinn", "fail", "x"))
        assert (failed.status, failed.success, failed.error) == ("done", False, "the disk is full")
        with pytest.raises(UnknownTarget):
            await t.agents_client(QUINN).chat_task(work)


async def test_a_chat_that_takes_longer_returns_pending() -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        began = t.runtime.clock.monotonic()
        pending = await t.agents_client(AVA).chat_with_agent("quinn", "think", skill="ponder", wait_s=5)
        assert (pending.status, t.runtime.clock.monotonic() - began) == ("working", pytest.approx(5, abs=1))
        assert (await t.agents_client(AVA).wait_for_task(pending.correlation_id, timeout_s=900)).text == "at last"


@pytest.mark.parametrize("body", [("", "x"), ("quinn", " "), ("all", "x"), ("q" * 201, "x")])
async def test_a_message_that_no_agent_can_get_is_refused_before_the_call(body: tuple[str, str]) -> None:
    async with local_hub(worker(), agent_keys=ENV) as t:
        ava, asked = t.agents_client(AVA), len(t.network.seen)
        for refused in (ava.chat_with_agent(*body), ava.delegate(body[0], "echo", body[1])):
            with pytest.raises(ConfigError):
                await refused
        assert len(t.network.seen) == asked


@pytest.mark.parametrize(("key", "who"), [(QUINN, "quinn"), (AVA, "ava"), (KEY, None)])
async def test_whoami_returns_the_owner_of_a_key(key: str, who: str | None) -> None:
    async with local_hub(worker(), agent_keys=ENV) as t:
        assert await t.agents_client(key).whoami() == who


async def test_the_key_is_in_no_repr_message_or_log(caplog: pytest.LogCaptureFixture) -> None:
    wrong = "w" * 40
    with caplog.at_level(logging.DEBUG):
        async with local_hub(worker(), agent_keys=ENV) as t:
            client = t.agents_client(wrong)
            with pytest.raises(AuthRefused) as said:
                await client.ceremonies()
            shown = f"{client!r} {client} {said.value!r} {said.value.hint} {said.value.__cause__!r}"
    assert HUB in shown
    assert wrong not in shown + caplog.text


async def test_an_unreachable_hub_is_an_error_with_the_next_step() -> None:
    network = MemoryNetwork()
    async with network:
        nobody = HubClient("http://nobody.example:1", api_key=QUINN, runtime=virtual_runtime(network=network))
        with pytest.raises(Unreachable) as said:
            await nobody.ceremonies()
        assert "fleetsim up" in (said.value.hint or "")


@pytest.mark.parametrize("url", ["ftp://x", "http://u:p@x", "x", "http://x/ y", ""])
def test_a_malformed_address_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigError) as said:
        HubClient(url, api_key=QUINN)
    assert "u:p" not in str(said.value)


def test_the_address_of_the_hub_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKSTACEAN_URL", "http://hub.example:9/")
    assert HubClient().url == "http://hub.example:9"
    monkeypatch.delenv("WORKSTACEAN_URL")
    assert HubClient().url == "http://127.0.0.1:3000"


async def test_the_seeds_example_is_sent_unchanged() -> None:
    class Outgoing(HubClient):
        async def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
            assert (path, json.dumps(body)) == ("/ceremonies/create", json.dumps(SWEEP))
            raise ConfigError("it went out")

    with pytest.raises(ConfigError, match="it went out"):
        await Outgoing().create_ceremony(SWEEP["id"], **{key: value for key, value in SWEEP.items() if key != "id"})
