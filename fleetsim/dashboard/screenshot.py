"""Pictures of the screens, made by the program itself from recorded events, without a terminal."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path

from textual.pilot import Pilot

from fleetsim.caller.events import Event
from fleetsim.dashboard.app import FleetApp
from fleetsim.dashboard.controls import WholeText
from fleetsim.dashboard.feed import Replay
from fleetsim.model.errors import FleetsimError

SIZE = (120, 36)
_FONT_FACE = re.compile(r"@font-face\s*\{[^}]*\}\s*")
_FAMILY = re.compile(r"font-family:\s*Fira Code,\s*monospace")
_NBSP = "&#160;"
_CELL = 12.2
_TEXT = re.compile(
    r'(?P<head><text class="[^"]*") x="(?P<x>[\d.]+)" y="(?P<y>[\d.]+)" textLength="(?P<length>[\d.]+)"'
    r"(?P<rest>[^>]*)>(?P<blanks>(?:&#160;)+)"
)
"""A text of Textual's picture that begins with blanks; a cell is ``_CELL`` wide in it."""
_LOCAL_FONTS = 'font-family: "DejaVu Sans Mono", "Cascadia Mono", Menlo, Consolas, monospace'


class StoppedClock:
    """A clock that stands at the moment of the picture."""

    def __init__(self, at: datetime) -> None:
        self._at = at

    def now(self) -> datetime:
        """That moment."""
        return self._at

    def monotonic(self) -> float:
        """Always the same."""
        return 0.0


class _NoControls:
    """A picture changes nothing."""

    async def answer(self, question_id: str, text: str) -> str:
        raise FleetsimError("this is a picture")

    async def reject(self, question_id: str) -> None:
        raise FleetsimError("this is a picture")

    async def veto(self, correlation_id: str) -> None:
        raise FleetsimError("this is a picture")

    async def cancel(self, correlation_id: str) -> None:
        raise FleetsimError("this is a picture")

    async def fire(self, ceremony_id: str) -> None:
        raise FleetsimError("this is a picture")

    async def refresh(self, agent: str) -> None:
        raise FleetsimError("this is a picture")

    async def text(self, correlation_id: str) -> WholeText:
        raise FleetsimError("a recording has excerpts")


class _Frozen(Replay):
    """A whole recording at once, shown as live at its last moment."""

    @property
    def live(self) -> bool:
        """So that the header says LIVE."""
        return True

    async def __aiter__(self):  # type: ignore[no-untyped-def]
        async for batch in super().__aiter__():
            yield batch
        await asyncio.Event().wait()


async def take(
    events: Iterable[Event],
    *,
    size: tuple[int, int] = SIZE,
    screen: str = "fleet",
    at: datetime | None = None,
    title: str = "demo-fleet",
    ascii: bool = False,
    keys: Sequence[str] = (),
    then: Callable[[Pilot[None]], Awaitable[None]] | None = None,
) -> str:
    """The SVG of a screen after these events, seen ``at`` a moment (the last event's, if not given).

    ``keys`` are pressed first, and ``then`` may do more with the running app.
    """
    recorded = tuple(events)
    moment = at or recorded[-1].at
    app = FleetApp(_Frozen(recorded), _NoControls(), clock=StoppedClock(moment), title=title, ascii=ascii)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        app.show_screen(screen)
        await pilot.pause()
        if keys:
            await pilot.press(*keys)
            await pilot.pause()
        if then is not None:
            await then(pilot)
        app.draw()
        await pilot.pause()
        return _tidy(app.export_screenshot(title="fleetsim", simplify=True))


def _tidy(svg: str) -> str:
    """A picture that looks the same everywhere: no font from another host, no text that begins with blanks."""
    svg = _FAMILY.sub(_LOCAL_FONTS, _FONT_FACE.sub("", svg))
    return _TEXT.sub(_unblank, svg)


def _unblank(text: re.Match[str]) -> str:
    """Some renderers swallow blanks at the beginning of a text: begin it where its first letter is."""
    blanks = len(text["blanks"]) // len(_NBSP)
    x, length = float(text["x"]) + blanks * _CELL, float(text["length"]) - blanks * _CELL
    return f'{text["head"]} x="{x:g}" y="{text["y"]}" textLength="{length:g}"{text["rest"]}>'


def screenshot(
    events: Iterable[Event],
    path: Path,
    size: tuple[int, int] = SIZE,
    screen: str = "fleet",
    *,
    at: datetime | None = None,
) -> None:
    """Write the SVG of a screen after these events to ``path``. Not to be called on a running event loop."""
    path.write_text(asyncio.run(take(events, size=size, screen=screen, at=at)), encoding="utf-8")
