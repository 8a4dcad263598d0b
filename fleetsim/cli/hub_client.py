"""A running hub, as the other verbs reach it: found through its state directory, called with its key."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fleetsim.cli.main import Common
from fleetsim.hub.remote import HubRemote
from fleetsim.hub.state import HubAddress, StateDir, state_path
from fleetsim.model.errors import ConfigError, Unreachable
from fleetsim.runtime.real import real_runtime

_START = "start one with `fleetsim up`, or look at a demo with `fleetsim demo`"
_BEGIN = "write agents.yaml with `fleetsim init URL`, then start one with `fleetsim up`; or `fleetsim demo`"


def find(common: Common) -> HubAddress | None:
    """The hub running on this machine for this state directory, if there is one; else a demo's, if one runs."""
    state = StateDir(state_path(os.environ, common.state))
    return state.find() or state.find_demo()


@asynccontextmanager
async def hub(common: Common) -> AsyncIterator[HubRemote]:
    """The running hub.

    Raises:
        ConfigError: there is none.
        Unreachable: it is announced and does not answer.
    """
    address = find(common)
    if address is None:
        raise ConfigError(
            "no hub is running for this state directory", hint=_START if common.agents_yaml.exists() else _BEGIN
        )
    if address.demo:
        common.note("no hub of yours is running: this is the demo's")
    runtime = real_runtime()
    try:
        yield HubRemote(address, runtime)
    except Unreachable as error:
        raise Unreachable(f"the hub at {address.url} does not answer: {error}", hint=_START) from error
    finally:
        await runtime.transport.aclose()
