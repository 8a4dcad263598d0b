"""A check of an agent in this process has the collector run several times, through all that the process holds."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def own_garbage() -> Iterator[None]:
    """Let it look only at what the test made: beside 8,000 collected tests it would take half a second each time.

    Not for tests that call ``testbed.run``: it asks whether anything is frozen, for which everything frozen is counted.
    """
    gc.freeze()
    yield
    gc.unfreeze()
