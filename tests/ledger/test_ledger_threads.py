"""The ledger's promises with its own threads, on the real loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetsim.ledger.sqlite import open_ledger
from fleetsim.runtime.ports import Runtime
from tests.ledger.ledger_promises import *  # noqa: F403 - each promise is a test here
from tests.ledger.ledgers import SMALL, OpenLedger

pytestmark = pytest.mark.sockets


@pytest.fixture(params=["memory", "file"])
def opened(request: pytest.FixtureRequest, tmp_path: Path, runtime: Runtime) -> OpenLedger:
    path = tmp_path / "state" / "ledger.db" if request.param == "file" else None
    return lambda: open_ledger(path, clock=runtime.clock, storage="threaded", limits=SMALL)


@pytest.fixture
def kept(tmp_path: Path, runtime: Runtime) -> OpenLedger:
    return lambda: open_ledger(tmp_path / "ledger.db", clock=runtime.clock, storage="threaded", limits=SMALL)
