"""The ledger's promises in a real PostgreSQL: ``make pg``."""

from __future__ import annotations

import itertools
from typing import ClassVar, Self

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import initialize, run_state_machine_as_test

from fleetsim.ledger import LedgerLimits
from fleetsim.ledger.place import Place
from fleetsim.ledger.postgres.ledger import PostgresLedger, open_postgres
from tests.ledger.ledger_promises import *  # noqa: F403 - each promise is a test here
from tests.ledger.ledgers import SMALL, OpenLedger
from tests.ledger.test_ledger_machine import LIMITS, LedgerMachine
from tests.ledger.test_ledger_shared import (  # noqa: F401
    test_a_raised_notice_belongs_to_one_hub_until_that_hub_has_left,
    test_two_hubs_at_once_admit_no_request_beyond_a_limit,
)
from tests.postgres import Server
from tests.scale import scaled

pytestmark = [pytest.mark.pg, pytest.mark.sockets]

_schemas = (f"fleet_{number}" for number in itertools.count())


class OwningLedger(PostgresLedger):
    """A PostgreSQL ledger that owns the requests of each ledger that was closed before."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        while await self.take_over():
            pass
        return self


def owning(place: Place, limits: LedgerLimits) -> PostgresLedger:
    ledger = open_postgres(place, limits=limits)
    ledger.__class__ = OwningLedger
    return ledger


class PostgresMachine(LedgerMachine):
    """Drives a schema of the server and the model side by side."""

    server: ClassVar[Server]

    @initialize()
    def begin(self) -> None:
        self.place = Place.read(self.server.url(next(_schemas)), password=True)
        super().begin()

    def open(self) -> None:
        self.ledger = owning(self.place, LIMITS)
        self.wait(self.ledger.__aenter__())

    def inspect(self) -> None:
        """PostgreSQL checks its own files."""


def test_a_postgresql_ledger_has_the_content_of_the_model_after_any_calls(server: Server) -> None:
    PostgresMachine.server = server
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        PostgresMachine,
        settings=settings(
            max_examples=scaled(50, share=4),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.fixture
def opened(server: Server) -> OpenLedger:
    place = Place.read(server.url(next(_schemas)), password=True)
    return lambda: owning(place, SMALL)


@pytest.fixture
def kept(opened: OpenLedger) -> OpenLedger:
    return opened
