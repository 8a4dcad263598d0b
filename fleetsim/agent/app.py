"""The agent as an ASGI application: routes and lifespan, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fleetsim.agent.cardface import CARD_PATHS, CardFace
from fleetsim.agent.engine import Engine
from fleetsim.agent.front import Door, json_response
from fleetsim.agent.rest import RestFace
from fleetsim.agent.rpc import RpcFace
from fleetsim.agent.settings import RPC_PATH
from fleetsim.model.errors import MethodNotFound
from fleetsim.wire import jsonrpc


def build_app(engine: Engine) -> Starlette:
    """Mount an engine. It starts with the lifespan, or with the first request where there is none."""
    settings = engine.settings
    door = Door(settings.gate(), settings.limits)
    rpc = RpcFace(lambda: engine.service, door, settings.limits, settings.dialects)
    card = CardFace(engine.card, settings.url, RPC_PATH)

    async def call(request: Request) -> Response:
        await engine.start()
        return await rpc(request)

    async def show_card(request: Request) -> Response:
        return await card(request)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with engine:
            yield

    rest = RestFace(lambda: engine.service, engine.start, door, settings.limits)
    routes = [
        *(Route(path, show_card, methods=["GET", "OPTIONS"]) for path in CARD_PATHS),
        *(Route(path, call, methods=["POST"]) for path in (RPC_PATH, f"{RPC_PATH}/")),
        *(rest.routes() if "0.3" in settings.dialects else ()),
    ]
    return Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={404: _nothing_here, 405: _wrong_method},
    )


async def _nothing_here(request: Request, _error: Exception) -> Response:
    problem = MethodNotFound(f"there is nothing here; A2A calls go to POST {RPC_PATH}")
    return json_response(jsonrpc.error(None, problem, "0.3"), status=404)


async def _wrong_method(request: Request, error: Exception) -> Response:
    problem = MethodNotFound(f"A2A calls go to POST {RPC_PATH}")
    headers = getattr(error, "headers", None) or {}
    return json_response(jsonrpc.error(None, problem, "0.3"), status=405, headers=headers)
