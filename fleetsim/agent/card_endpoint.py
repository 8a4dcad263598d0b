"""The card over HTTP: both paths, each version's form, readable across origins, cacheable, conditional."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from fleetsim.model.card import AgentCard
from fleetsim.wire.dialect import VERSION_HEADER, write_card_for
from fleetsim.wire.json import dump

MAX_AGE_S = 60

_CORS = {
    "access-control-allow-origin": "*",
    "access-control-allow-methods": "GET, HEAD, OPTIONS",
    "access-control-allow-headers": "*",
    "access-control-max-age": "600",
}


class CardEndpoint:
    """Serves the public card. ``card_at`` builds it for the endpoint's own URL."""

    def __init__(self, card_at: Callable[[str], AgentCard], url: str | None, rpc_path: str) -> None:
        self._card_at, self._url, self._rpc_path = card_at, url, rpc_path

    async def __call__(self, request: Request) -> Response:
        """Answer GET, HEAD and the browser's OPTIONS."""
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=_CORS)
        body = dump(write_card_for(self._card_at(self.url_for(request)), request.headers.get(VERSION_HEADER)))
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        cached = {"cache-control": f"public, max-age={MAX_AGE_S}", "vary": VERSION_HEADER, "etag": etag}
        headers = {**_CORS, **cached}
        known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
        if etag in known or known == ["*"]:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type="application/json")

    def url_for(self, request: Request) -> str:
        """The endpoint's URL: as configured, else the socket's own address. Never what a Host header says."""
        if self._url is not None:
            return self._url
        host, port = request.scope.get("server") or ("127.0.0.1", None)
        host = f"[{host}]" if ":" in host else host
        return f"{request.url.scheme}://{host}{f':{port}' if port else ''}{self._rpc_path}"
