"""Pictures of the screens from recorded events, without a terminal."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime

from fleetsim.dashboard.app import FleetApp
from fleetsim.dashboard.controls import Controls
from fleetsim.events.request import Event

SIZE = (120, 36)
_FONT_FACE = re.compile(r"@font-face\s*\{[^}]*\}\s*")
_FAMILY = re.compile(r"font-family:\s*Fira Code,\s*monospace")
_NBSP = "&#160;"
_CELL = 12.2
_TEXT = re.compile(
    r'(?P<head><text class="[^"]*") x="(?P<x>[\d.]+)" y="(?P<y>[\d.]+)" textLength="(?P<length>[\d.]+)"'
    r"(?P<rest>[^>]*)>(?P<blanks>(?:&#160;)+)"
)
"""A text of Textual's SVG that begins with blanks; a cell is ``_CELL`` units wide."""
_LOCAL_FONTS = 'font-family: "DejaVu Sans Mono", "Cascadia Mono", Menlo, Consolas, monospace'


class StoppedClock:
    """A clock that always shows the moment of the picture."""

    def __init__(self, at: datetime) -> None:
        self._at = at

    def now(self) -> datetime:
        return self._at

    def monotonic(self) -> float:
        return 0.0

    async def sleep_until(self, when: datetime) -> None:
        """For ever."""
        await asyncio.get_running_loop().create_future()


class RecordedFeed:
    """A whole recording in one batch."""

    lost = ""
    restarts = 0

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = events

    async def __aiter__(self) -> AsyncIterator[Sequence[Event]]:
        yield self._events
        await asyncio.Event().wait()


async def take(
    events: Iterable[Event], *, size: tuple[int, int] = SIZE, screen: str = "fleet", at: datetime | None = None
) -> str:
    """The SVG of a screen after these events, at a moment (by default the moment of the last event)."""
    recorded = tuple(events)
    clock = StoppedClock(at or recorded[-1].at)
    app = FleetApp(RecordedFeed(recorded), Controls(), clock=clock, title="demo-fleet")
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        app.show_screen(screen)
        await pilot.pause()
        app.draw()
        await pilot.pause()
        return _tidy(app.export_screenshot(title="fleetsim", simplify=True))


def _tidy(svg: str) -> str:
    """The SVG with local fonts, and without blanks at the start of a text, so that every renderer shows it alike."""

    def unblank(text: re.Match[str]) -> str:
        # Some renderers drop blanks at the start of a text, so the text starts at its first letter.
        blanks = len(text["blanks"]) // len(_NBSP)
        x, length = float(text["x"]) + blanks * _CELL, float(text["length"]) - blanks * _CELL
        return f'{text["head"]} x="{x:g}" y="{text["y"]}" textLength="{length:g}"{text["rest"]}>'

    return _TEXT.sub(unblank, _FAMILY.sub(_LOCAL_FONTS, _FONT_FACE.sub("", svg)))
