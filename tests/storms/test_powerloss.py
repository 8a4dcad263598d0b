"""A smaller ``make powerloss``: what was acknowledged survives every image, and the control shows the test sees."""

from __future__ import annotations

import pytest

from tests.storms.powerloss import storm
from tests.storms.sqlite_vfs import WHY_NOT, available

pytestmark = [pytest.mark.sockets, pytest.mark.skipif(not available(), reason=WHY_NOT)]


def test_no_acknowledged_call_is_lost_whatever_the_disk_kept_of_the_rest() -> None:
    assert set(storm("FULL", images=45, count=80, seed=1)) == {"kept"}


def test_without_a_sync_at_every_commit_the_same_test_loses_calls() -> None:
    assert storm("NORMAL", images=30, count=80, seed=1, witness=False)["lost acknowledged calls"] > 0


def test_a_disk_that_lies_about_its_syncs_is_found_out_by_the_witness() -> None:
    told = storm("NORMAL", images=30, count=80, seed=1)
    assert any("lacks rows it once had" in what for what in told)
