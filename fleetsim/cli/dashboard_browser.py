"""``fleetsim dashboard --serve``: the screens in browsers on this machine. Each viewer has a process of its own.

textual-serve brings the terminal of the page. Its server is not used: it has no authentication, and its page loads a
font from another host (docs/decisions/0062).
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from hmac import compare_digest
from pathlib import Path
from string import Template

import textual_serve
from aiohttp import WSMsgType, web
from aiohttp.typedefs import Handler

import fleetsim.dashboard
from fleetsim.cli.main import CommonOptions
from fleetsim.cli.render import line
from fleetsim.cli.terminal import on_stop
from fleetsim.dashboard.viewer import MESSAGE_BYTES_MAX, STOP_S, Viewer
from fleetsim.model.errors import ConfigError
from fleetsim.runtime.real import UuidIds
from fleetsim.runtime.workers import Workers

PLACE_S = 3.0
"""How long a page waits for the place of another that closes."""
HEARTBEAT_S = 15.0
"""A browser that does not answer for this long has left."""
_OURS = Path(fleetsim.dashboard.__file__).parent
PAGE = Template((_OURS / "browser.html").read_text(encoding="utf-8"))
_THEIRS = Path(textual_serve.__file__).parent / "static"
STATIC = {
    "browser.js": _OURS / "browser.js",
    "textual.js": _THEIRS / "js" / "textual.js",
    "xterm.css": _THEIRS / "css" / "xterm.css",
    "mono.ttf": _THEIRS / "fonts" / "RobotoMono-VariableFont_wght.ttf",
    "italic.ttf": _THEIRS / "fonts" / "RobotoMono-Italic-VariableFont_wght.ttf",
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "font-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; sandbox allow-scripts allow-same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}
"""xterm.js writes its own styles, and turns addresses in texts of agents into links. The sandbox has no
``allow-popups``, so a click on one opens no page."""
TO_PAGE = '<!doctype html><meta http-equiv="refresh" content="0;url=/"><title>fleetsim</title>'
"""Not a redirect: a browser that follows one from another site does not send the new cookie."""


class BrowserServer:
    """The page, its files and its websocket, for browsers with the cookie.

    A token in the address buys the cookie once; then there is a new token, for another browser.
    """

    def __init__(
        self, common: CommonOptions, argv: Sequence[str], *, viewers_max: int, public_url: str | None = None
    ) -> None:
        self._common, self._argv, self._viewers_max = common, argv, viewers_max
        self._public = public_url
        self._places = asyncio.Semaphore(viewers_max)
        self._ids = UuidIds()
        self._token, self._session = self._ids.secret(), self._ids.secret()
        self._port = 0
        self._sockets: set[web.WebSocketResponse] = set()
        self.app = web.Application(middlewares=[self._guard])
        self.app.on_response_prepare.append(self._harden)
        self.app.on_shutdown.append(self._leave)
        self.app.add_routes(
            [
                web.get("/", self._page, allow_head=False),
                web.get("/static/{name}", self._static, allow_head=False),
                web.get("/ws", self._websocket, allow_head=False),
            ]
        )

    @property
    def _cookie(self) -> str:
        """Cookies do not know ports: each dashboard of this machine has its own."""
        return f"fleetsim-{self._port}"

    def listening(self, port: int) -> None:
        self._port = port
        self._print_address()

    def _print_address(self) -> None:
        line(f"{self._public or f'http://127.0.0.1:{self._port}'}/?token={self._token}")

    def _origin(self, host: str) -> str | None:
        """The origin of a request to this host, or None for a host that is not the dashboard's."""
        own = [f"http://127.0.0.1:{self._port}", f"http://localhost:{self._port}", *filter(None, [self._public])]
        return next((url for url in own if url.partition("://")[2] == host), None)

    async def _harden(self, _: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(HEADERS)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse other names of this machine (DNS rebinding), pages of other sites, and browsers without the cookie."""
        if (own := self._origin(request.host)) is None:
            raise web.HTTPForbidden(text=f"open {self._public or f'http://127.0.0.1:{self._port}'}/\n")
        if request.headers.get("Origin", None if request.path == "/ws" else own) != own:
            raise web.HTTPForbidden(text="a page of another site may not use the dashboard\n")
        known = _same(request.cookies.get(self._cookie, ""), self._session)
        if request.path != "/" or "token" not in request.query:
            if not known:
                raise web.HTTPForbidden(text="open the newest address that fleetsim dashboard --serve printed\n")
            return await handler(request)
        response = web.Response(text=TO_PAGE, content_type="text/html")
        if not known:
            if not _same(request.query["token"], self._token):
                raise web.HTTPForbidden(text="the token is wrong or was used: open the newest address\n")
            self._token = self._ids.secret()
            secure = own.startswith("https://")
            response.set_cookie(self._cookie, self._session, httponly=True, samesite="Strict", secure=secure)
            self._common.note("a browser has opened the dashboard; the next browser needs this address:")
            self._print_address()
        return response

    async def _page(self, request: web.Request) -> web.Response:
        await self._take_place()
        self._places.release()
        socket = (self._origin(request.host) or "").replace("http", "ws", 1)
        return web.Response(text=PAGE.substitute(socket=socket), content_type="text/html")

    async def _static(self, request: web.Request) -> web.FileResponse:
        if (path := STATIC.get(request.match_info["name"])) is None:
            raise web.HTTPNotFound
        return web.FileResponse(path)

    async def _take_place(self) -> None:
        """Wait a moment: a page that is loaded again comes before its old process has ended."""
        try:
            async with asyncio.timeout(PLACE_S):
                await self._places.acquire()
        except TimeoutError:
            text = f"{self._viewers_max} viewers are here: close a page, or start with a higher --viewers\n"
            raise web.HTTPServiceUnavailable(text=text) from None

    async def _websocket(self, request: web.Request) -> web.WebSocketResponse:
        try:
            width, height = (int(request.query[name][:6]) for name in ("width", "height"))
        except (KeyError, ValueError):
            raise web.HTTPBadRequest(text="the width and height are missing\n") from None
        await self._take_place()
        socket = web.WebSocketResponse(heartbeat=HEARTBEAT_S, max_msg_size=MESSAGE_BYTES_MAX)
        self._sockets.add(socket)
        try:
            await socket.prepare(request)
            async with Viewer(self._argv, width=width, height=height) as viewer, Workers("viewer") as workers:
                workers.start(_draw(viewer, socket), name="draw")
                async for message in socket:
                    if message.type is WSMsgType.TEXT and (reply := await viewer.take(message.data)):
                        await socket.send_str(reply)
        finally:
            self._sockets.discard(socket)
            self._places.release()
        return socket

    async def _leave(self, _: web.Application) -> None:
        await asyncio.gather(*(socket.close() for socket in self._sockets))


def _same(given: str, secret: str) -> bool:
    return compare_digest(given.encode("utf-8", "replace"), secret.encode())


async def _draw(viewer: Viewer, socket: web.WebSocketResponse) -> None:
    with suppress(ConnectionError):
        async for drawing in viewer:
            await socket.send_bytes(drawing)
        await socket.close()


async def serve(
    common: CommonOptions, argv: Sequence[str], *, port: int, viewers_max: int, public_url: str | None = None
) -> None:
    """Serve the screens that ``argv`` draws until Ctrl-C or SIGTERM. Raises ConfigError if the port is in use."""
    stopped = asyncio.Event()
    on_stop(stopped.set, signal.SIGINT)
    server = BrowserServer(common, argv, viewers_max=viewers_max, public_url=public_url)
    runner = web.AppRunner(server.app, access_log=None, shutdown_timeout=STOP_S)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, "127.0.0.1", port).start()
        except OSError as error:
            why = os.strerror(error.errno or 0)
            raise ConfigError(f"port {port}: {why}", hint="--port 0 picks a free one") from None
        server.listening(runner.addresses[0][1])
        where = "a browser" if public_url else "a browser on this machine"
        common.note(f"  next: open this address in {where}; Ctrl-C stops it")
        await stopped.wait()
    finally:
        await runner.cleanup()
