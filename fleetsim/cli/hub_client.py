"""A running hub, as the verbs reach it: found through its state directory, called with its key."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from fleetsim.api.answers import KeyIdentity
from fleetsim.cli.main import CommonOptions
from fleetsim.client.hub_client import HubClient
from fleetsim.hub.state import HubAddress, StateDir, state_path
from fleetsim.model.errors import FleetsimError, Unreachable
from fleetsim.runtime.real import running_runtime

_REJECTED_S = 1.0
_START = "start one with `fleetsim up`, or name the folder of a hub that runs: --state FOLDER or FLEETSIM_STATE"
_TAKE_OVER = "`fleetsim up --take-over`, once no hub uses the original of this backup any more"
_BEGIN = "write agents.yaml with `fleetsim init URL`, then start one with `fleetsim up`; or `fleetsim demo`"


def find_hub(common: CommonOptions) -> HubAddress | None:
    """The hub of ``--hub``; without it the hub running on this machine for this state directory, if there is one; else
    a demo's, if one runs."""
    if common.hub is not None:
        return HubAddress(url=common.hub, pid=0, api_key=None, proof=None)
    state = StateDir(state_path(os.environ, common.state))
    return state.find() or state.find_demo()


@asynccontextmanager
async def connect(common: CommonOptions) -> AsyncIterator[HubClient]:
    """The running hub; what it rejected of agents.yaml is reported. Raises Unreachable if no hub answers."""
    address = find_hub(common)
    if address is None:
        from fleetsim.ledger.sqlite.copies import COPY, mark_of

        state = StateDir(state_path(os.environ, common.state))
        copied = mark_of(state.ledger_path) == COPY
        hint = _TAKE_OVER if copied else _START if common.agents_yaml.exists() else _BEGIN
        raise Unreachable(f"no hub is running with the state folder {state.path}", hint=hint)
    if address.demo:
        common.note("no hub of yours is running: this is the demo's")
    async with running_runtime() as runtime:
        hub = address.client(runtime)
        with suppress(FleetsimError, TimeoutError):  # the verb itself says what is wrong with the hub
            async with asyncio.timeout(_REJECTED_S):
                for problem in (await hub.read(KeyIdentity, "/whoami")).rejected:
                    common.warn(f"warning: the hub goes on with the last good version: {problem}")
        yield hub


def at_hub(common: CommonOptions, work: Callable[[HubClient], Awaitable[Any]]) -> Any:
    """What ``work`` brings from the running hub. Raises as ``connect`` and ``HubClient``."""

    async def run() -> Any:
        async with connect(common) as hub:
            return await work(hub)

    return asyncio.run(run())
