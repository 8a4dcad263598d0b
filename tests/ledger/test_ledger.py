"""The ledger's promises on virtual time, in the caller's own thread."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetsim.ledger.sqlite import open_ledger
from fleetsim.runtime.ports import Runtime
from tests.ledger.ledger_promises import *  # noqa: F403 - each promise is a test here
from tests.ledger.ledgers import SMALL, OpenLedger


@pytest.fixture(params=["memory", "file"])
def opened(request: pytest.FixtureRequest, tmp_path: Path, runtime: Runtime) -> OpenLedger:
    path = tmp_path / "state" / "ledger.db" if request.param == "file" else None
    return lambda: open_ledger(path, clock=runtime.clock, storage="inline", limits=SMALL)


@pytest.fixture
def kept(tmp_path: Path, runtime: Runtime) -> OpenLedger:
    return lambda: open_ledger(tmp_path / "ledger.db", clock=runtime.clock, storage="inline", limits=SMALL)
