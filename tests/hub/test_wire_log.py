"""The wire log: its content, its masks, and no cost while nobody reads it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fleetsim.api.answers import WireExchange
from fleetsim.api.wire_rows import as_command, as_curl, as_text
from fleetsim.client.wire_log import AGENT_BYTES_MAX, AGENT_ENTRIES_MAX, BODY_BYTES_MAX, LOOK_S, WireLog
from fleetsim.model.errors import ConfigError, UnknownTarget
from fleetsim.model.masking import masked, masked_headers, masked_url
from fleetsim.testbed.runtime import virtual_runtime
from tests.hub.local_hub import KEY, LocalHub, ready_hub, worker


async def echoed(t: LocalHub, text: str = "hello") -> str:
    (cid,) = await t.remote.submit({"text": text, "skill": "echo", "targets": ["quinn"], "interface": "cli"})
    await asyncio.sleep(5)
    return str(cid)


async def test_a_request_shows_its_exchanges_and_webhooks_without_secrets() -> None:
    async with ready_hub(worker()) as t:
        assert await t.remote.wire(agent="quinn") == []
        cid, other = await echoed(t), await echoed(t, "another")
        rows = await t.remote.wire(task=cid)
        assert rows
        assert all(row["agent"] == "quinn" and other not in str(row) for row in rows)
        sent = next(row for row in rows if "SendStreamingMessage" in row["body"])
        assert (sent["status"], sent["problem"]) == (200, "")
        assert "you said hello" in sent["reply"] + str(sent["frames"])
        assert sent["seconds"] is not None
        assert sent["bodyBytes"] > 0
        assert as_command(sent) == "fleetsim send quinn hello"
        assert as_curl(sent).startswith("curl -X POST http://quinn.example:8000/a2a -H ")
        assert KEY not in str(rows)
        shown = as_text(rows)
        assert "fleetsim send quinn hello" in shown
        assert "you said hello" in shown
        assert "<-" in shown
        pushes = [row for row in rows if '"token"' in row["body"]]
        assert pushes
        assert all('"token":"***"' in row["body"].replace(" ", "") for row in pushes)


async def test_the_log_is_off_and_empty_after_a_while_without_a_reader() -> None:
    async with ready_hub(worker()) as t:
        await echoed(t)
        assert await t.remote.wire(agent="quinn") == []
        await echoed(t)
        assert await t.remote.wire(agent="quinn")
        await asyncio.sleep(LOOK_S + 1)
        assert not t.hub.wire.on
        assert await t.remote.wire(agent="quinn") == []


async def test_only_the_hubs_own_key_reads_the_wire_log() -> None:
    async with ready_hub(worker()) as t:
        for query in ({}, {"agent": "quinn", "task": "x"}):
            with pytest.raises(ConfigError):
                await t.remote.get("/wire", **query)
        with pytest.raises(UnknownTarget):
            await t.remote.wire(agent="nobody")
        with pytest.raises(UnknownTarget):
            await t.remote.wire(task="nothing")
        assert not t.hub.wire.on
        assert (await t.http("GET", "/api/wire?agent=quinn", b"", {"x-api-key": "wrong"})).status == 401


async def test_a_wire_log_that_is_off_costs_no_call() -> None:
    runtime = virtual_runtime()
    log = WireLog(runtime.clock)
    tap = log.tap(runtime.transport, "quinn")
    assert (tap.open, tap.exchange) == (runtime.transport.open, runtime.transport.exchange)
    log.keep_on()
    assert tap.exchange != runtime.transport.exchange


async def test_the_size_of_the_wire_log_is_bounded() -> None:
    runtime = virtual_runtime()
    log = WireLog(runtime.clock)
    for _ in range(AGENT_ENTRIES_MAX + 5):
        log.begin("quinn", "POST", "http://quinn.example/", {}, b"x" * 100)
    assert len(log.read("quinn")) == AGENT_ENTRIES_MAX
    for _ in range(50):
        entry, _ = log.begin("max", "POST", "http://max.example/", {}, b"x" * 10 * BODY_BYTES_MAX)
    assert (len(entry.body), entry.body_bytes) == (BODY_BYTES_MAX, 10 * BODY_BYTES_MAX)
    assert sum(len(entry.body) for entry in log.read("max")) <= AGENT_BYTES_MAX


@pytest.mark.parametrize(
    "text",
    [
        '{"token": "s3cret-value"}',
        '{"pushNotificationConfig":{"authentication":{"credentials":"s3cret-value"}}}',
        '{"access_token":"s3cret-value"}',
        '{"client_secret":"s3cret-value',
        '{"token":"a\\"s3cret-value"}',
        '{"token":"s3cret-value\\',
    ],
)
def test_secrets_in_bodies_are_masked(text: str) -> None:
    assert "s3cret-value" not in masked(text)


def test_secrets_in_headers_and_queries_are_masked() -> None:
    headers, hidden = masked_headers(
        {"x-anything": "s3cret-value", "authorization": "Bearer s3cret-value", "accept": "text/html"}
    )
    assert "s3cret-value" not in str(headers)
    assert headers["accept"] == "text/html"
    assert "s3cret-value" in hidden
    url, hidden = masked_url("https://me:s3cret-value@agent.example/a2a?key=s3cret-value&historyLength=3")
    assert ("s3cret-value" not in url, "historyLength=3" in url, hidden) == (True, True, ("s3cret-value",))


def exchange(**about: Any) -> WireExchange:
    entry = {"number": 1, "at": "", "agent": "quinn", "kind": "call", "method": "POST", "url": "http://a/"}
    return WireExchange(**{**entry, "headers": {}, "body": "", "body_bytes": 0, "status": 200, **about})


def test_control_characters_cannot_split_a_word_of_a_command() -> None:
    command = as_curl(exchange(url="http://a/$(x)", body="'; rm -rf / \x1b[2J"))
    assert "\x1b" not in command
    assert "'http://a/$(x)'" in command


def test_a_text_of_several_lines_stays_behind_the_gutter() -> None:
    text = as_text([exchange(body="a\n-> max\x1b[2J", body_bytes=9, reply="b\n<- max", reply_bytes=8)])
    assert "\x1b" not in text
    assert [line for line in text.splitlines() if line.startswith(("->", "<-"))] == []
