"""The wire log on the screen: it follows, is bounded, copies commands, and keeps texts of agents behind a gutter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from msgspec import convert

from fleetsim.api.answers import WireExchange
from fleetsim.dashboard.actions import ACTIONS
from fleetsim.dashboard.settings import Settings
from fleetsim.dashboard.wire_screen import GUTTER, LOOK_EVERY_S, ROWS_MAX, WireScreen, exchange_lines
from fleetsim.model.errors import Unreachable
from tests.dashboard.driver import EVENTS, Driver, showing


def exchange(number: int, **about: Any) -> dict[str, Any]:
    body = '{"jsonrpc":"2.0","method":"message/send","params":{"message":{"parts":[{"text":"hello"}]}}}'
    return {
        "number": number,
        "at": f"2026-11-27T03:00:{number % 60:02}.123456+00:00",
        "agent": "quinn",
        "kind": "call",
        "method": "POST",
        "url": "http://quinn.example/a2a?key=***",
        "headers": {"authorization": "***"},
        "body": body,
        "bodyBytes": len(body),
        "status": 200,
        "replyHeaders": {},
        "reply": "the reply",
        "replyBytes": 9,
        "frames": [],
        "framesTotal": 0,
        "seconds": 0.25,
        "problem": "",
        **about,
    }


@asynccontextmanager
async def open_log(*rows: dict[str, Any], size: tuple[int, int] = (120, 36)) -> AsyncIterator[Driver]:
    async with showing(size=size) as ui:
        ui.desk.exchanges = list(rows)
        await ui.press("2", "w")
        await ui.settle()
        assert isinstance(ui.app.screen, WireScreen)
        yield ui


async def looked(ui: Driver) -> None:
    await asyncio.sleep(LOOK_EVERY_S * 1.5)
    await ui.settle()


async def test_the_log_follows_with_the_newest_exchange_first() -> None:
    async with open_log() as ui:
        ui.desk.exchanges = [exchange(1, status=None, seconds=None), exchange(2, kind="webhook", url="http://hub/cb")]
        await looked(ui)
        assert " open " in "".join(line for line in ui.text.splitlines() if "03:00:01" in line)
        ui.desk.exchanges = [exchange(1), exchange(2, kind="webhook", url="http://hub/cb"), exchange(3, status=503)]
        await looked(ui)
        lines = [line for line in ui.text.splitlines() if "03:00:0" in line]
        assert [line.split("03:00:0")[1][0] for line in lines[:3]] == ["3", "2", "1"]
        assert "message/send" in lines[0]
        assert "503" in lines[0]
        assert "POST /cb" in lines[1]
        assert "250ms" in lines[2], "a call under way is read again"
        await ui.press("escape")
        assert not isinstance(ui.app.screen, WireScreen)


async def test_an_exchange_is_shown_whole_and_copied_as_curl_and_as_a_command() -> None:
    async with open_log(exchange(1), exchange(2, kind="webhook")) as ui:
        await ui.press("c")
        assert ui.app.clipboard.startswith("curl -X POST")
        await ui.press("f")
        assert "no fleetsim command" in ui.text, "a webhook"
        await ui.press("j", "f")
        assert ui.app.clipboard == "fleetsim send quinn hello"
        assert "the reply" in ui.text


async def test_the_keys_of_the_log_are_those_of_the_person() -> None:
    keys = {"copy-curl": "f5", "wire": "f6", "back": "f7"}
    actions = [replace(action, keys=keys.get(action.id, action.keys)) for action in ACTIONS]
    async with showing(EVENTS, "2", settings=Settings(actions=actions)) as ui:
        ui.desk.exchanges = [exchange(1)]
        for close in ("f6", "f7", "q"):
            await ui.press("f6")
            await ui.settle()
            assert "f5 curl" in ui.text
            await ui.press("c", "f5")
            assert ui.app.clipboard.startswith("curl -X POST")
            await ui.press(close)
            assert not isinstance(ui.app.screen, WireScreen)


async def test_a_text_of_an_agent_stays_behind_the_gutter_and_has_no_escapes() -> None:
    hostile = "\x1b]0;owned\x07" + "✓ completed " * 40 + "\n  next: rm -rf /"
    lines = [row.plain for row in exchange_lines(convert(exchange(1, reply=hostile, replyBytes=500), WireExchange), 40)]
    told = [row for row in lines if "completed" in row or "rm -rf" in row]
    assert len(told) > 5
    assert all(row.startswith(GUTTER) for row in told)
    assert not any("\x1b" in row or "\x07" in row for row in lines)
    assert max(len(row) for row in lines) <= 40


async def test_the_newest_exchanges_stay() -> None:
    async with open_log(*(exchange(number) for number in range(1, ROWS_MAX + 101))) as ui:
        ui.desk.exchanges.append(exchange(ROWS_MAX + 101))
        await looked(ui)
        assert len(ui.app.screen.query_one("#wire-list").rows.items) == ROWS_MAX  # type: ignore[attr-defined]
        assert ui.app.screen.query_one("#wire-list").rows.items[0]["number"] == ROWS_MAX + 101  # type: ignore[attr-defined]


async def test_a_hub_that_refuses_says_why_and_the_log_goes_on() -> None:
    async with open_log(exchange(1), size=(60, 20)) as ui:
        ui.desk.error = Unreachable("the hub is away")
        await looked(ui)
        assert "the hub is away" in ui.text
        assert "message/send" in ui.text
        await ui.press("v")
        assert "no terminal" in ui.text
