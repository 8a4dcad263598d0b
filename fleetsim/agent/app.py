"""The agent as an ASGI application: routes and lifespan, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fleetsim.agent.card_endpoint import CardEndpoint
from fleetsim.agent.engine import Engine
from fleetsim.agent.request_guard import RequestGuard, json_response
from fleetsim.agent.rest import RestEndpoint
from fleetsim.agent.rpc import RpcEndpoint
from fleetsim.model.errors import MethodNotFound
from fleetsim.wire import jsonrpc


def build_app(engine: Engine) -> Starlette:
    """Mount an engine. It starts with the lifespan, or with the first request where there is none."""
    settings, shape = engine.settings, engine.settings.shape
    door = RequestGuard(settings.gate(), settings.limits)
    rpc = RpcEndpoint(lambda: engine.service, door, settings.limits, settings.dialects, shape)
    card = CardEndpoint(engine.card, settings.url if shape.card_url is None else shape.card_url, shape.rpc_paths[0])

    async def call(request: Request) -> Response:
        await engine.start()
        engine.reached_at(card.url_for(request))
        return await rpc(request)

    async def show_card(request: Request) -> Response:
        return await card(request)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with engine:
            yield

    routes = [
        *(Route(path, show_card, methods=["GET", "OPTIONS"]) for path in shape.card_paths),
        *(Route(path, call, methods=["POST"]) for path in (*shape.rpc_paths, *shape.stream_paths)),
    ]
    if shape.rest and "0.3" in settings.dialects:
        aliases = RestEndpoint(lambda: engine.service, engine.start, door, settings.limits, shape.manners["0.3"])
        routes += aliases.routes()
    hint = _Hint(shape.rpc_paths[0])
    return Starlette(
        routes=routes, lifespan=lifespan, exception_handlers={404: hint.nothing_here, 405: hint.wrong_method}
    )


class _Hint:
    """What to say to who knocks at the wrong door."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def nothing_here(self, request: Request, _error: Exception) -> Response:
        """404, with the way."""
        problem = MethodNotFound(f"there is nothing here; A2A calls go to POST {self._path}")
        return json_response(jsonrpc.error(None, problem, "0.3"), status=404)

    async def wrong_method(self, request: Request, error: Exception) -> Response:
        """405, with the way."""
        problem = MethodNotFound(f"A2A calls go to POST {self._path}")
        headers = getattr(error, "headers", None) or {}
        return json_response(jsonrpc.error(None, problem, "0.3"), status=405, headers=headers)
