"""Every screen in each state at four sizes, as text with its styles.

``python -m tests.dashboard.snapshots FOLDER`` writes them as HTML for the eye.
"""

from __future__ import annotations

import asyncio
import html
import logging
import math
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, chdir
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.cells import cell_len
from textual.pilot import Pilot

from fleetsim.dashboard.app import FleetApp
from fleetsim.dashboard.controls import Controls
from fleetsim.dashboard.playback import Playback
from fleetsim.recording.reader import RecordingReader
from tests.dashboard.driver import EVENTS, SetClock, bare, showing
from tests.dashboard.recordings import a_run, start, write

SIZES = ((60, 24), (80, 24), (120, 36), (200, 50))
SCREENS = ("fleet", "tasks", "inbox", "ceremonies", "events", "agent", "scenario")
STATES = ("empty", "loading", "live", "stale", "lost", "error")
IMPOSSIBLE = frozenset({("scenario", "loading"), ("scenario", "stale")})
"""A recording is opened with its first line, and no connection of it can break."""
OLD_S = 12
_RUN = re.compile(r"(\d+)([A-Z]+)")


class Legend:
    """The styles of one file by a short name, in the order in which they occur."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def name(self, style: str) -> str:
        at = len(self._names)
        return self._names.setdefault(style, ("" if at < 26 else chr(64 + at // 26)) + chr(65 + at % 26))

    @property
    def lines(self) -> list[str]:
        return [f"{name} {style}" for style, name in self._names.items()]


def drawn(app: FleetApp, legend: Legend) -> list[str]:
    """The screen: a line of text, and below it the cells of each style if not all have the first one."""
    lines: list[str] = []
    for strip in app.screen._compositor.render_strips():
        pieces = [(str(segment.style), cell_len(segment.text)) for segment in strip]
        runs = [(style, sum(n for _, n in group)) for style, group in groupby(pieces, key=lambda piece: piece[0])]
        named = "".join(f"{cells}{legend.name(style)}" for style, cells in runs if cells)
        lines.append("|" + strip.text.rstrip())
        if named != f"{app.size.width}A":
            lines.append("~" + named)
    while lines and lines[-1] == "|":
        lines.pop()
    return lines


def break_panes(app: FleetApp) -> None:
    """Make every pane fail when it is drawn."""

    def broken(view: object) -> None:
        raise KeyError("latency")

    for pane in app.panes.values():
        pane.draw = broken  # type: ignore[method-assign]


@asynccontextmanager
async def attached(state: str) -> AsyncIterator[tuple[FleetApp, Pilot[None]]]:
    """The app over a feed in a state."""
    events = {"loading": [], "empty": bare().events}.get(state, list(EVENTS))
    async with showing(events, size=SIZES[0]) as ui:
        if state == "stale":
            ui.feed.lost = "127.0.0.1:3000: connection refused"
            ui.app.tick()
        elif state == "lost":
            ui.feed.fail(OSError("the hub refuses the key"))
            await ui.pilot.pause()
        if state in {"stale", "lost", "loading"}:
            ui.clock.pass_(OLD_S)
        yield ui.app, ui.pilot


@asynccontextmanager
async def played(state: str) -> AsyncIterator[tuple[FleetApp, Pilot[None]]]:
    """The app over a recording in a state."""
    lines = {"empty": [start()], "lost": [*a_run(), {"t": 1_199.0, "kind": "event"}]}.get(state, a_run())
    clock = SetClock()
    with TemporaryDirectory() as folder, chdir(folder), RecordingReader(write(Path("run.jsonl"), lines)) as reader:
        playback = Playback(reader, clock, speed=math.inf)
        playback.written = state == "live"
        app = FleetApp(playback, Controls(), clock=clock, title=playback.name, read_only=True)
        async with app.run_test(size=SIZES[0]) as pilot:
            async with asyncio.timeout(20):
                while not playback.waiting and playback.error is None:
                    await pilot.pause(0.01)
            clock.pass_(OLD_S)
            yield app, pilot


async def shown(app: FleetApp, pilot: Pilot[None], screen: str) -> None:
    """Open the screen and wait until it is drawn."""
    app.show_agent("quinn") if screen == "agent" else app.show_screen(screen)
    for _ in range(2):
        await pilot.pause()
        app.draw()
    await pilot.pause()


async def taken(state: str, screens: Sequence[str], legends: Mapping[str, Legend]) -> dict[str, list[str]]:
    """The lines of each screen in a state, at all sizes."""
    lines: dict[str, list[str]] = {screen: [] for screen in screens}
    async with (played if screens == SCREENS[-1:] else attached)(state) as (app, pilot):
        for width, height in SIZES:
            await pilot.resize_terminal(width, height)
            for screen in screens:
                await shown(app, pilot, screen)
                if state == "error":
                    break_panes(app)
                    await shown(app, pilot, screen)
                    for pane in app.panes.values():
                        del pane.draw
                lines[screen] += [f"== {width} x {height}, {state}", *drawn(app, legends[screen])]
    return lines


async def snapshots() -> dict[str, str]:
    """The file of each screen."""
    legends = {screen: Legend() for screen in SCREENS}
    lines: dict[str, list[str]] = {screen: [] for screen in SCREENS}
    for state in STATES:
        for screens in (SCREENS[:-1], SCREENS[-1:]):
            if (screens[0], state) not in IMPOSSIBLE:
                for screen, more in (await taken(state, screens, legends)).items():
                    lines[screen] += more
    return {screen: "\n".join([*lines[screen], "== styles", *legends[screen].lines, ""]) for screen in SCREENS}


def page(snapshot: str) -> str:
    """A snapshot as HTML."""
    body, _, styles = snapshot.partition("== styles\n")
    css = []
    for rule in styles.splitlines():
        name, _, style = rule.partition(" ")
        front, _, back = style.partition(" on ")
        words = front.split()
        rules = [f"color:{words[-1]}"] if words and words[-1].startswith("#") else []
        rules += [f"background:{back.split()[0]}"] if back else []
        rules += ["font-weight:bold"] if "bold" in words else []
        css.append(f".{name}{{{';'.join(rules)}}}")
    lines = body.splitlines()
    rows = []
    for at, text in enumerate(lines):
        if text.startswith("=="):
            rows.append(f"</pre><h3>{html.escape(text[3:])}</h3><pre class=A>")
        elif text.startswith("|"):
            below = lines[at + 1] if at + 1 < len(lines) else ""
            rows.append(_row(text[1:], _RUN.findall(below) if below.startswith("~") else [(str(len(text)), "A")]))
    return (
        "<meta charset=utf-8><style>pre{font:14px/1.25 'DejaVu Sans Mono',monospace;padding:8px;display:inline-block}"
        + "".join(css)
        + "</style><pre>"
        + "\n".join(rows)
        + "</pre>"
    )


def _row(text: str, runs: list[tuple[str, str]]) -> str:
    shown, left = "", list(text)
    for cells, name in runs:
        piece, room = "", int(cells)
        while room > 0:
            one = left.pop(0) if left else " "
            piece, room = piece + one, room - max(1, cell_len(one))
        shown += f"<span class={name}>{html.escape(piece)}</span>"
    return shown


if __name__ == "__main__":
    logging.disable()  # of the panes that fail on purpose
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in asyncio.run(snapshots()).items():
        folder.joinpath(f"{name}.html").write_text(page(text), encoding="utf-8")
        folder.joinpath(f"{name}.txt").write_text(text, encoding="utf-8")
