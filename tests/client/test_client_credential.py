"""Credentials: read per request, never shown."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from fleetsim.client import AgentClient, Credential
from fleetsim.model.errors import ConfigError
from fleetsim.runtime.ports import Runtime
from fleetsim.testbed.network import MemoryNetwork
from fleetsim.testbed.runtime import MemoryFiles
from tests.client.scripted import ScriptedAgent, task


def test_each_scheme_has_its_header() -> None:
    assert Credential.of("bearer", "s3cr3t").headers() == {"authorization": "Bearer s3cr3t"}
    assert Credential.of("apiKey", "s3cr3t").headers() == {"x-api-key": "s3cr3t"}
    assert Credential("apiKey", header="X-Key", secret="s3cr3t").headers() == {"x-key": "s3cr3t"}


def test_the_environment_is_read_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    credential = Credential("bearer", "AGENT_KEY")
    monkeypatch.setenv("AGENT_KEY", " one\n")
    assert credential.headers() == {"authorization": "Bearer one"}
    monkeypatch.setenv("AGENT_KEY", "two")
    assert credential.headers() == {"authorization": "Bearer two"}
    monkeypatch.delenv("AGENT_KEY")
    with pytest.raises(ConfigError, match="AGENT_KEY"):
        credential.headers()


@pytest.mark.parametrize("secret", ["", "  ", "a\r\nX: 1", "a\nb", "é", "a\x00b", "x" * 9_000])
def test_a_secret_that_is_not_a_header_value_is_refused_and_not_shown(
    secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError) as caught:
        Credential.of("apiKey", secret).headers()
    assert len(secret) < 3 or secret not in str(caught.value)


@pytest.mark.parametrize("more", [{"scheme": "basic"}, {"scheme": "apiKey", "query": "code"}, {"scheme": "oauth2"}])
def test_a_variable_that_is_not_text_is_refused(more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_KEY", os.fsdecode(b"p\xe4ss"))
    with pytest.raises(ConfigError, match="AGENT_KEY"):
        Credential(env="AGENT_KEY", **more).require()


def test_a_secret_is_in_no_repr() -> None:
    assert "s3cr3t" not in repr(Credential.of("bearer", "s3cr3t"))


AGENT = "http://agent.example"


async def sent_by(
    runtime: Runtime, network: MemoryNetwork, *credentials: Credential, headers: Mapping[str, str] | None = None
) -> list[tuple[Mapping[str, str], dict[str, list[str]]]]:
    """The headers and query of the request for the card and of a call."""
    network.mount(AGENT, ScriptedAgent({"*": task()}).app)
    async with network:
        await AgentClient(AGENT, runtime=runtime, credential=credentials, headers=headers or {}).send_task("hi")
    return [(seen.request.headers, parse_qs(urlsplit(seen.request.url).query)) for seen in network.seen]


@pytest.mark.parametrize(
    ("credential", "header"),
    [
        (Credential("apiKey", header="X-Functions-Key", secret="s3"), ("x-functions-key", "s3")),
        (Credential("apiKey", cookie="session", secret="s3"), ("cookie", "session=s3")),
        (Credential("basic", username="me", secret="p\u00e4ss"), ("authorization", "Basic bWU6cMOkc3M=")),
    ],
)
async def test_a_secret_is_sent_in_the_place_of_its_scheme(
    runtime: Runtime, network: MemoryNetwork, credential: Credential, header: tuple[str, str]
) -> None:
    for headers, query in await sent_by(runtime, network, credential, headers={header[0]: "mine"}):
        assert headers[header[0]].removeprefix("mine; ") == header[1]
        assert query == {}


async def test_a_key_in_the_query_is_escaped_and_no_header_has_it(runtime: Runtime, network: MemoryNetwork) -> None:
    for headers, query in await sent_by(runtime, network, Credential("apiKey", query="code", secret="a&b=c d")):
        assert query == {"code": ["a&b=c d"]}
        assert "a&b" not in str(headers)


async def test_several_credentials_are_sent_together(runtime: Runtime, network: MemoryNetwork) -> None:
    both = Credential("apiKey", header="x-sub", secret="one"), Credential("bearer", secret="two")
    for headers, _ in await sent_by(runtime, network, *both):
        assert (headers["x-sub"], headers["authorization"]) == ("one", "Bearer two")


async def test_a_secret_in_a_file_is_read_for_each_request(runtime: Runtime, network: MemoryNetwork) -> None:
    files = runtime.files
    assert isinstance(files, MemoryFiles)
    files.put("/run/key", "one\n")
    network.mount(AGENT, ScriptedAgent({"*": task()}).app)
    async with network:
        agent = AgentClient(AGENT, runtime=runtime, credential=Credential("bearer", file="/run/key"))
        await agent.discover()
        files.put("/run/key", "two\n")
        await agent.send_task("hi")
    assert [seen.request.headers["authorization"] for seen in network.seen] == ["Bearer one", "Bearer two"]


@pytest.mark.parametrize(("content", "mode"), [(None, 0o600), ("", 0o600), ("k", 0o644), ("k" * 9_000, 0o600)])
async def test_a_file_that_is_missing_empty_open_or_large_sends_nothing(
    runtime: Runtime, network: MemoryNetwork, content: str | None, mode: int
) -> None:
    files = runtime.files
    assert isinstance(files, MemoryFiles)
    if content is not None:
        await files.write(Path("/run/key"), content.encode(), mode=mode)
    network.mount(AGENT, ScriptedAgent({"*": task()}).app)
    async with network:
        with pytest.raises(ConfigError, match="/run/key"):
            await AgentClient(AGENT, runtime=runtime, credential=Credential("bearer", file="/run/key")).discover()
    assert list(network.seen) == []
