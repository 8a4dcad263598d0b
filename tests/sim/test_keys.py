"""The keys of a run's agents: each is valid at one agent, and is reported in any other place."""

from __future__ import annotations

import io
import os
from random import Random

import pytest
from msgspec.structs import replace

from fleetsim.client.credential import Credential
from fleetsim.runtime.ports import Request
from fleetsim.sim.agents import FleetKeys
from fleetsim.sim.recorder import Recorder


@pytest.fixture
def keys() -> FleetKeys:
    return FleetKeys(["quinn", "herald"], Random(1))


def key_of(keys: FleetKeys, agent: str) -> str:
    (value,) = Credential(scheme="apiKey", env=variable(keys, agent)).headers().values()
    return value


def variable(keys: FleetKeys, agent: str) -> str:
    return keys.entry(agent).credentials_env or ""


def test_each_agent_accepts_its_own_key_and_the_hub_finds_them_in_the_environment(keys: FleetKeys) -> None:
    with keys.handed_over():
        shown = [(b"x-api-key", key_of(keys, "quinn").encode())]
        assert keys.doors["quinn"].admit(shown) == "hub"
        assert keys.doors["herald"].admit(shown) is None
        before = dict(os.environ)
    assert {name for name in before if name not in os.environ} == {variable(keys, "quinn"), variable(keys, "herald")}


def test_a_new_key_is_required_before_the_hub_has_it(keys: FleetKeys) -> None:
    with keys.handed_over():
        keys.change("quinn")
        assert keys.doors["quinn"].admit([(b"x-api-key", key_of(keys, "quinn").encode())]) is None
        keys.hand_over("quinn")
        assert keys.doors["quinn"].admit([(b"x-api-key", key_of(keys, "quinn").encode())]) == "hub"


def test_a_key_in_a_wrong_place_is_reported_and_one_in_its_place_is_not(keys: FleetKeys) -> None:
    with keys.handed_over():
        key = key_of(keys, "quinn")
    call = Request(method="POST", url="http://quinn.sim:8000/a2a", headers={"x-api-key": key})
    keys.look_at(call, "quinn")
    keys.look_at(replace(call, headers={}), "hub")
    keys.look_for([b"no key", b"nor here"], "the ledger")
    assert (keys.carried, keys.strayed) == (1, [])
    keys.look_at(call, "herald")
    keys.look_at(replace(call, url=f"http://quinn.sim:8000/a2a?key={key}"), "quinn")
    keys.look_at(replace(call, body=key.encode()), "quinn")
    keys.look_at(replace(call, headers={"x-note": key}), "quinn")
    keys.look_for([b"...", f"... {key}"[:10].encode(), f"... {key}"[10:].encode(), b"..."], "the ledger")
    stood = "a key stood in a request to quinn, and not in the header for it"
    assert keys.strayed == ["the key of quinn was sent to herald", stood, stood, stood, "a key stood in the ledger"]


def test_a_recording_counts_the_lines_that_contain_a_key(keys: FleetKeys) -> None:
    recorder = Recorder(io.StringIO())
    with keys.handed_over():
        recorder.write(1.0, "complaint", said=f"{key_of(keys, 'quinn')} was refused")
    recorder.write(2.0, "complaint", said="nothing")
    assert recorder.with_keys == 1
