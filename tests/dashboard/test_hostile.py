"""The text of an agent is data: no escape of it reaches a terminal, and no markup of it has an effect.

Two terminals are used: Textual's own headless one for every screen and a click, and a pseudo-terminal whose
every byte is looked at.
"""

from __future__ import annotations

import ast
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import pytest
from rich.text import Text

import fleetsim.dashboard
from fleetsim.events.request import Event
from fleetsim.model.text import neutralise
from tests.dashboard.driver import showing
from tests.dashboard.escapes import WALK, foreign, typed
from tests.dashboard.journal import HOSTILE, NOW, Journal

sockets = pytest.mark.sockets
ROOT = Path(__file__).parents[2]


def hostile_events() -> list[Event]:
    """A fleet whose every text is hostile, with something on every screen."""
    j = Journal(start=NOW - timedelta(minutes=3))
    for at, text in enumerate(HOSTILE):
        agent = f"{at:02d}{text[:30]}"
        j.card(agent, text[:9], (text, "b" + text), warnings=[text], auth=text, url=text, rpcUrl=text)
        j.card(agent, text[:9], (text,), changed=text, warnings=[text])
        asked = j.request(agent, text, actor=text, text=text)
        j.bind(asked)
        j.status(asked, text)
        j.chunk(asked, text)
        j.ask(asked, text)
        settled = j.request(agent, text, actor=text)
        j.answered(settled, j.ask(settled, text), by=text)
        j.update(settled, text, text)
        j.end(settled, "failed", reason=text, text=text)
        j.say("agent.card.failed", agent=agent, reason=text, stale=True)
        j.say(text or "x", agent=text, skill=text, task_id=text, correlation_id=text, **{"p" + text: text})
    facts = [
        {
            "id": f"{at}{text}",
            "name": text,
            "schedule": text,
            "timezone": text,
            "skill": text,
            "targets": [text],
            "path": text,
        }
        for at, text in enumerate(HOSTILE)
    ]
    j.say("ceremony.loaded", ceremonies=facts, errors=[{"path": text, "error": text} for text in HOSTILE])
    for ceremony in facts:
        about = {"runId": "r", "trigger": ceremony["name"], "scheduledAt": j.at.isoformat()}
        j.say(f"ceremony.{ceremony['id']}.execute", **about)
        j.say(f"ceremony.{ceremony['id']}.completed", runId="r", status=ceremony["name"], error=ceremony["name"])
    j.say("config.rejected", path=HOSTILE[0], error=HOSTILE[1] + HOSTILE[8])
    return j.events


@sockets
async def test_no_screen_shows_anything_hostile() -> None:
    visits = (
        "1",
        "enter",
        "2",
        "enter",
        "escape",
        "3",
        "enter",
        "escape",
        "4",
        "enter",
        "escape",
        "5",
        "enter",
        "escape",
        "l",
    )
    async with showing(hostile_events()) as ui:
        for visit in visits:
            await ui.press(visit)
            if ui.focused != "answer":
                await ui.press("j")
            shown = ui.text
            assert neutralise(shown, limit=len(shown) + 1) == shown
            assert "cannot be drawn" not in shown
        assert ui.app.is_running


@sockets
async def test_every_line_of_a_screen_is_neutralised_before_a_widget_gets_it() -> None:
    async with showing(hostile_events()) as ui:
        for text in HOSTILE:
            ui.status_line.show([Text(text)])
            ui.status_line.set_titles(Text(text))
            await ui.pilot.pause()
            shown = ui.text
            assert neutralise(shown, limit=len(shown) + 1) == shown
            title = ui.status_line.border_title or ""
            assert neutralise(title, limit=len(title) + 1) == title


@sockets
async def test_a_click_on_markup_does_nothing() -> None:
    j = Journal(start=NOW)
    about = j.request("quinn", "echo", text="[@click=app.quit]press[/]")
    j.bind(about)
    j.chunk(about, "[@click=app.quit]PRESS ME[/] [link=https://x.example]here[/link]")
    async with showing(j.events, "2", "enter") as ui:
        rows = ui.text.split("\n")
        y = next(at for at, row in enumerate(rows) if "PRESS ME" in row)
        assert "[@click=app.quit]PRESS ME[/]" in rows[y]
        x = rows[y].index("PRESS ME")
        for offset in ((x, y), (x + 3, y), (x - 5, y), (rows[y].index("here"), y)):
            await ui.pilot.click(offset=offset)
            await ui.settle()
        assert ui.app.is_running
        assert not ui.app._exit
        assert all(
            not segment.style.link
            for strip in ui.app.screen._compositor.render_strips()
            for segment in strip
            if segment.style
        )


@sockets
async def test_what_is_pasted_into_an_answer_is_made_harmless() -> None:
    from textual.events import Paste

    from fleetsim.dashboard.screens.inbox import InboxPane

    async with showing(hostile_events(), "3", "r") as ui:
        assert isinstance(ui.pane, InboxPane)
        ui.app.post_message(Paste("a\x1b]52;c;x\x07b\u202ec"))
        await ui.settle()
        assert ui.pane.box.text == "a\ufffd]52;c;x\ufffdb\ufffdc"


SCRIPT = """
import asyncio, json, sys
from fleetsim.dashboard.app import FleetApp
from tests.dashboard.driver import Desk, HandFeed, SetClock
from tests.dashboard.journal import HOSTILE
from tests.dashboard.test_hostile import hostile_events
from tests.dashboard.test_wire_screen import exchange
desk = Desk()
texts = [text.encode("utf-8", "replace").decode() for text in HOSTILE]
desk.exchanges = [
    exchange(at, agent=text, method=text[:20], url=text, body=text, reply=text, problem=text, frames=[text])
    for at, text in enumerate(texts, 1)
]
asyncio.run(FleetApp(HandFeed(hostile_events()), desk, clock=SetClock(), title="\\x1b]0;t\\x07[@click]").run_async())
with open(sys.argv[1], "w") as file:
    json.dump(sorted({what for what, *_ in desk.asked} - {"wire"}), file)
"""
"""The screens with hostile texts. At the end, the file has the actions that changed something."""


@sockets
def test_no_escape_of_an_agent_reaches_the_terminal() -> None:
    """Every byte a real terminal would get, over all widgets, with Textual's own sequences taken out."""
    said = _on_a_terminal(map(typed, WALK)).decode("utf-8")
    assert "fleetsim" in said
    assert "[@click=app.quit]press[/]" in said
    assert "Wire log of" in said
    assert foreign(said) == []


@pytest.mark.parametrize("text", HOSTILE[:8])
def test_a_sequence_that_textual_does_not_write_is_seen(text: str) -> None:
    own = "\x1b[?1049h\x1b[1;38;2;200;208;218;48;2;14;19;25m\x1b[0m\x1b[12;3H"
    assert foreign(own) == []
    assert foreign(f"{own}{text}{own}") != []


def _on_a_terminal(keys: Iterable[str]) -> bytes:
    """Run the app on a pseudo-terminal, press the keys one by one, quit, and return all it wrote."""
    mine, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 36, 120, 0, 0))
    env = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, os.devnull],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=ROOT,
        env=env,
        start_new_session=True,
    ) as app:
        os.close(theirs)
        output = _until_quiet(mine, b"quit", 30)
        for key in keys:
            os.write(mine, key.encode())
            output += _until_quiet(mine, b"", 2)
        os.write(mine, b"\x1b")
        output += _until_quiet(mine, b"", 2)
        os.write(mine, b"\x03")
        output += _until_quiet(mine, b"", 5)
        os.close(mine)
        assert app.wait(10) == 0
    return output


def _until_quiet(terminal: int, word: bytes, seconds: float) -> bytes:
    """The bytes up to ``word`` and a pause, read for at most ``seconds``; a slow app may write late."""
    output, end = b"", time.monotonic() + seconds
    while time.monotonic() < end:
        ready, _, _ = select.select([terminal], [], [], 0.25)
        if ready:
            try:
                output += os.read(terminal, 65_536)
            except OSError:
                break
        elif output and word in output:
            break
    return output


@pytest.mark.slow
def test_no_module_hands_textual_a_string_of_its_own() -> None:
    """Strings can be markup: only ``widgets`` makes Textual content, and nobody uses a widget that parses it."""
    banned = {"Static", "Label", "Markdown", "RichLog", "Log", "DataTable", "notify", "from_markup", "Header", "Footer"}
    folder = Path(fleetsim.dashboard.__file__).parent
    found: list[str] = []
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            if name in banned or (name == "Content" and path.name != "widgets.py"):
                found.append(f"{path.name}:{getattr(node, 'lineno', 0)} {name}")
    assert found == []
