"""Fixtures of the tests of the command line."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from fleetsim.agent.builtin import reference_agent
from tests.cli.world import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """An empty folder for the command line."""
    return Shell(tmp_path)


@pytest_asyncio.fixture
async def agent() -> AsyncIterator[str]:
    """The address of the reference agent ``scout``."""
    async with reference_agent("scout").serving() as url:
        yield url
