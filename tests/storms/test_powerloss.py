"""A smaller ``make powerloss``: acknowledged calls survive every image, and a control shows that the test can fail."""

from __future__ import annotations

import pytest

from tests.storms.powerloss import storm
from tests.storms.sqlite_vfs import WHY_NOT, available

pytestmark = [pytest.mark.sockets, pytest.mark.skipif(not available(), reason=WHY_NOT)]


def test_no_acknowledged_call_is_lost_whatever_else_the_disk_kept() -> None:
    assert set(storm("FULL", images=45, count=80, seed=1)) == {"kept"}


def test_without_a_sync_at_every_commit_the_same_test_loses_calls() -> None:
    assert storm("NORMAL", images=30, count=80, seed=1, witness=False)["lost acknowledged calls"] > 0


def test_a_disk_with_false_syncs_is_detected_by_the_witness() -> None:
    told = storm("NORMAL", images=30, count=80, seed=1)
    assert any("lacks rows it once had" in what for what in told)
