"""A sample of ``python -m tests.storms.nth``: one disk call in many fails, in every way."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.storms.nth import KINDS, run
from tests.storms.sqlite_vfs import WHY_NOT, available

pytestmark = pytest.mark.skipif(not available(), reason=WHY_NOT)


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 25])
@pytest.mark.parametrize("kind", KINDS)
def test_after_any_failed_disk_call_the_ledger_kept_its_promise_and_recovers(kind: str, length: int) -> None:
    disk_calls, _ = run(kind, 0, 0, 25)
    told = Counter[str]()
    for first in range(1, disk_calls, disk_calls // 5):
        told += run(kind, first, length, 25)[1]
    assert told["done"] > 50
    if kind != "busy":  # "busy" is repeated until the disk is free
        assert told["refused"] + told["not opened"] > 0
