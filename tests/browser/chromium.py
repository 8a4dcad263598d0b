"""One page of the dashboard in Debian's Chromium: the text of its terminal, its keys, and all that it fetched."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Page

FIND_TERMINAL = """
Object.defineProperty(Object.prototype, "terminal", {configurable: true, set(value) {
  window.foundTerminal = value;
  Object.defineProperty(this, "terminal", {value, writable: true, configurable: true});
}});
"""
"""textual.js keeps the terminal to itself: this finds it when it is assigned."""
LINES = """() => {
  const terminal = window.foundTerminal, buffer = terminal.buffer.active;
  return [...Array(terminal.rows).keys()].map(y => buffer.getLine(buffer.viewportY + y).translateToString(true));
}"""


class Tab:
    """``requests``, ``dialogs`` and ``popups`` are those of the page; ``output`` has the bytes for its terminal."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.requests: list[str] = []
        self.trouble: list[str] = []
        self.output = bytearray()
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("requestfailed", lambda request: self.trouble.append(f"failed: {request.url}"))
        page.on("dialog", lambda dialog: self.trouble.append(f"dialog: {dialog.message}"))
        page.on("popup", lambda popup: self.trouble.append(f"popup: {popup.url}"))
        page.on("pageerror", lambda error: self.trouble.append(f"error: {error}"))
        page.on("download", lambda download: self.trouble.append(f"download: {download.url}"))
        page.on("websocket", lambda socket: socket.on("framereceived", self._received))

    def _received(self, frame: Any) -> None:
        if isinstance(frame, bytes):
            self.output += frame

    async def lines(self) -> list[str]:
        found: list[str] = await self.page.evaluate(LINES)
        return found

    async def text(self) -> str:
        return "\n".join(await self.lines())

    async def until(self, *words: str) -> str:
        """The text of the terminal once it has all the words."""
        for _ in range(600):
            text = await self.text()
            if all(word in text for word in words):
                return text
            await asyncio.sleep(0.1)
        raise AssertionError(f"{words} did not appear:\n{text}")

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.page.keyboard.press(key)

    async def settle(self) -> None:
        """Wait until the terminal has shown the same for a while: two drawings of the dashboard."""
        before, same = await self.text(), 0
        while same < 3:
            await asyncio.sleep(0.2)
            now = await self.text()
            before, same = now, same + 1 if now == before else 0

    async def click(self, column: int, row: int) -> None:
        """Click on a cell; the first has column and row 0."""
        box = await self.page.locator(".xterm-screen").bounding_box()
        assert box is not None
        columns, rows = await self.page.evaluate("() => [window.foundTerminal.cols, window.foundTerminal.rows]")
        x, y = box["x"] + (column + 0.5) * box["width"] / columns, box["y"] + (row + 0.5) * box["height"] / rows
        await self.page.mouse.move(x, y)
        await self.page.mouse.click(x, y)


@asynccontextmanager
async def chromium(*, width: int = 1_280, height: int = 800) -> AsyncIterator[BrowserContext]:
    """A new profile of Chromium, which runs without a screen."""
    from playwright.async_api import async_playwright

    program = shutil.which("chromium")
    assert program is not None, "Chromium is missing: run the tests by `make browser`"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        context = await browser.new_context(viewport={"width": width, "height": height})
        await context.add_init_script(FIND_TERMINAL)
        try:
            yield context
        finally:
            await browser.close()


async def open_tab(context: BrowserContext, address: str, *words: str) -> Tab:
    """The page at the address, once its terminal shows the words."""
    tab = Tab(await context.new_page())
    response = await tab.page.goto(address)
    assert response is not None
    assert response.status == 200
    await tab.page.wait_for_function("() => document.body?.classList.contains('-first-byte')", timeout=60_000)
    await tab.until(*words)
    return tab
