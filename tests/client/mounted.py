"""A whole agent as an SDK mounts it: below a path of a larger application, with its calls at a path of their own."""

from __future__ import annotations

from dataclasses import replace

from starlette.applications import Starlette
from starlette.routing import Mount

from fleetsim.agent import Agent
from fleetsim.agent.agent import Engine, build_app
from fleetsim.agent.builtin import reference_agent
from fleetsim.runtime.ports import Runtime

PATH, RPC = "/agents/x", "/rpc"


def mounted(
    origin: str, runtime: Runtime, *, path: str = PATH, rpc: str = RPC, agent: Agent | None = None
) -> Starlette:
    """An application with one agent at ``path``, which accepts calls only at ``path`` + ``rpc``."""
    settings = (agent or reference_agent()).settings
    app = build_app(Engine(replace(settings, url=origin + path + rpc, path=rpc, rest=False), runtime))
    return Starlette(routes=[Mount(path, app)])
