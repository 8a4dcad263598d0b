"""The dashboard in a real Chromium: seen, walked through, answered and fired; access with a key; hostile texts."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from fleetsim.agent.builtin import reference_agent
from fleetsim.model.text import neutralise
from tests.browser.chromium import Tab, chromium, open_tab
from tests.browser.served import command_line, recording, running, serving, until
from tests.cli.world import Shell
from tests.dashboard.escapes import WALK, foreign
from tests.dashboard.test_hostile import SCRIPT
from tests.house.tree import TOP as ROOT

pytestmark = [pytest.mark.browser, pytest.mark.sockets, pytest.mark.slow]


DIAL = """address => new Promise(done => {
  const socket = new WebSocket(address);
  socket.onopen = () => done("open");
  socket.onerror = () => done("refused");
})"""


@dataclass
class Fleet:
    shell: Shell

    async def ask(self) -> str:
        """A request whose agent waits for an answer."""
        await self.shell.arun("send", "scout", "hi", "--skill", "ask")
        (question,) = (await asyncio.to_thread(self.shell.json, "inbox", "list"))["questions"]
        return str(question["correlationId"])


@pytest_asyncio.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    """A hub with one agent and one ceremony."""
    shell = Shell(tmp_path)
    ceremony = 'id: scout.hello\nname: Hello\nschedule: "0 0 1 1 *"\nskill: echo\ntargets: [scout]\n'
    shell.write("ceremonies/scout.hello.yaml", ceremony)
    async with reference_agent("scout").serving() as url:
        shell.write("agents.yaml", f"fleet: {{ poll_interval_s: 1 }}\nagents:\n  - name: scout\n    url: {url}/a2a\n")
        with shell.up():
            yield Fleet(shell)


async def test_a_person_walks_answers_and_fires(fleet: Fleet) -> None:
    asked = await fleet.ask()
    key = (fleet.shell.home / "state" / "api-key").read_text().strip()
    with serving(fleet.shell.home, "--allow-actions") as served:
        async with chromium() as context:
            tab = await open_tab(context, served.addresses[0], "LIVE", "scout")
            assert tab.page.url == f"{served.origin}/"
            for number, words in (("2", "[2 Tasks]"), ("3", "[3 Inbox"), ("4", "[4 Ceremonies]"), ("5", "[5 Events]")):
                await tab.press(number)
                await tab.until(words)
            await tab.press("1")
            await tab.until("[1 Fleet]")

            await tab.press("3")
            await tab.until("Who shall I greet?")
            await tab.press("r")
            await tab.settle()
            await tab.page.keyboard.type("Ada")
            await tab.until("Ada", "Who shall I greet?")
            await tab.press("Control+s")
            await until_completed(fleet, asked, "Ada")

            await tab.press("Escape")
            await tab.settle()  # at once, escape and 4 would be alt+4
            await tab.press("4")
            await tab.until("[4 Ceremonies]", "Hello")
            await tab.press("Shift+F")
            await tab.until("success")

            page = await tab.page.content()
            assert len(served.viewers) == 1
            arguments = [command_line(pid) for pid in (served.process.pid, *served.viewers)]
            assert not any(key in text for text in (page, bytes(tab.output).decode(), *arguments))
            assert {url.partition("/static/")[0].partition("?")[0].rstrip("/") for url in tab.requests} == {
                served.origin
            }
            assert tab.trouble == []
            await tab.page.close()
        await until(lambda: served.viewers == [])


async def until_completed(fleet: Fleet, correlation_id: str, word: str) -> None:
    done = await fleet.shell.arun("task", "get", correlation_id, "--wait")
    assert done.returncode == 0, done.stderr
    assert word in done.stdout


async def test_a_viewer_without_actions_changes_nothing(fleet: Fleet) -> None:
    await fleet.ask()
    with serving(fleet.shell.home) as served:
        async with chromium(width=900) as context:
            tab = await open_tab(context, served.addresses[0], "LIVE", "read only")
            for screen, key, label in (
                ("4", "Shift+F", "fire now"),
                ("3", "r", "reply"),
                ("3", "Control+r", "reject, veto"),
                ("3", "Control+s", "send"),
                ("2", "x", "cancel"),
                ("1", "Shift+R", "refresh card"),
            ):
                await tab.press(screen, key)
                await tab.until(f"“{label}” is not available")
            rows = (await asyncio.to_thread(fleet.shell.json, "inbox", "list"))["questions"]
            assert len(rows) == 1
            runs = await fleet.shell.arun("ceremony", "history", "scout.hello", "-o", "json")
            assert runs.stdout == "[]\n"


async def test_programs_and_files_of_the_host_are_out_of_reach(fleet: Fleet) -> None:
    await fleet.ask()
    with serving(fleet.shell.home, "--allow-actions", env={"PAGER": "touch", "EDITOR": "touch"}) as served:
        async with chromium() as context:
            tab = await open_tab(context, served.addresses[0], "LIVE")
            for screen, key, label in (
                ("1", "v", "pager"),
                ("2", "s", "save"),
                ("2", "o", "open file"),
                ("3", "Control+e", "editor"),
            ):
                await tab.press(screen, key)
                await tab.until(f"“{label}” is not available")
            await tab.press(":")
            await tab.page.keyboard.type("pager")
            await tab.press("Enter")
            await tab.until("“pager” is not available")
            await tab.press("Control+t", "C")
        assert not (fleet.shell.home / ".config" / "fleetsim").exists()


async def test_a_page_without_its_place_says_why(tmp_path: Path) -> None:
    with serving(tmp_path, "--replay", str(recording(tmp_path)), "--viewers", "1") as served:
        async with chromium() as context, chromium() as stranger:
            page = await context.new_page()
            for address in (served.origin, f"{served.origin}/?token=wrong"):
                response = await page.goto(address)
                assert response is not None
                assert response.status == 403
            tab = await open_tab(context, served.addresses[0], "an-hour")
            for address, status in ((served.addresses[0], 403), (await served.address(1), 200)):
                response = await (await stranger.new_page()).goto(address)
                assert response is not None
                assert response.status == status
            response = await page.goto(served.origin)
            assert response is not None
            assert response.status == 503
            await tab.press("q")
            await tab.page.get_by_text("Open it again").click()
            await tab.page.wait_for_function("() => document.body?.classList.contains('-first-byte')")
            await tab.until("an-hour")


async def test_a_page_shows_why_its_dashboard_cannot_start(fleet: Fleet) -> None:
    with serving(fleet.shell.home) as served:
        async with chromium() as context:
            (fleet.shell.home / "state" / "hub.json").unlink()
            tab = await open_tab(context, served.addresses[0], "no hub is running", "next: ")
            await tab.page.get_by_text("Open it again").wait_for()
    assert served.viewers == []


async def test_a_page_of_another_site_opens_no_websocket(tmp_path: Path) -> None:
    with serving(tmp_path, "--replay", str(recording(tmp_path))) as served:
        async with chromium() as context:
            tab = await open_tab(context, served.addresses[0], "an-hour")
            evil = await context.new_page()
            await evil.goto(served.origin.replace("127.0.0.1", "localhost") + "/none")  # same site, another origin
            for address in (served.origin, served.origin.replace("127.0.0.1", "localhost")):
                assert await evil.evaluate(DIAL, address.replace("http", "ws") + "/ws") == "refused"
            assert len(served.viewers) == 1
            await tab.page.close()


SERVER = """
import asyncio, sys
from fleetsim.cli.dashboard_browser import serve
from fleetsim.cli.main import CommonOptions
asyncio.run(serve(CommonOptions(), [sys.executable, "-c", *sys.argv[1:]], port=0, viewers_max=1))
"""
BAIT = ("evil", "press", "script", "link=", "passwd", "nope")


@pytest.mark.parametrize(("width", "height"), [(1_280, 800), (640, 480)])
async def test_hostile_texts_do_nothing_in_any_widget(tmp_path: Path, width: int, height: int) -> None:
    argv = (sys.executable, "-c", SERVER, SCRIPT, str(tmp_path / "asked.json"))
    with running(argv, tmp_path, {"PYTHONPATH": str(ROOT)}) as served:
        async with chromium(width=width, height=height) as context:
            tab = await open_tab(context, served.addresses[0], "[1 Fleet]")
            seen = 0
            for key in WALK:
                await tab.press(key)
                await tab.settle()
                lines = await tab.lines()
                text = "\n".join(lines)
                assert neutralise(text, limit=len(text) + 1) == text
                if key == "Enter":
                    seen += await click_all(tab, lines)
            assert seen > 10
            assert foreign(bytes(tab.output).decode()) == []
            assert {url.partition("/static/")[0].partition("?")[0].rstrip("/") for url in tab.requests} == {
                served.origin
            }
            assert tab.trouble == []
            assert tab.page.url == f"{served.origin}/"
            assert await tab.page.title() == "fleetsim"
            assert len(context.pages) == 1
            await tab.press("Escape")
            await tab.settle()
            await tab.press("Control+c")
            await tab.page.get_by_text("Open it again").wait_for()
        await until(lambda: (tmp_path / "asked.json").exists())
    assert asked(tmp_path) == []


def asked(folder: Path) -> list[object]:
    found: list[object] = json.loads((folder / "asked.json").read_text())
    return found


async def click_all(tab: Tab, lines: list[str]) -> int:
    """Click on the first of each bait in the texts, also as a browser opens links; the number of clicks."""
    places = [(line.index(bait), row) for bait in BAIT for row, line in enumerate(lines) if bait in line]
    for column, row in places[:4]:
        await tab.click(column + 1, row)
        await tab.page.keyboard.down("Control")
        await tab.click(column + 1, row)
        await tab.page.keyboard.up("Control")
    return len(places[:4])
