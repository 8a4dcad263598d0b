"""Named points: silent in production, and a handler's for as long as it is installed."""

from __future__ import annotations

import pytest

from fleetsim.runtime import failpoints
from fleetsim.runtime.failpoints import installed


def test_a_handler_hears_every_point_until_it_is_taken_out() -> None:
    heard: list[str] = []
    with installed(heard.append):
        failpoints.reached("room.before")
        failpoints.reached("room.after")
    failpoints.reached("room.later")
    assert heard == ["room.before", "room.after"]


def test_what_a_handler_raises_is_raised_at_the_point_and_the_handler_before_is_back() -> None:
    heard: list[str] = []

    def stop(point: str) -> None:
        raise OSError(point)

    with installed(heard.append):
        with pytest.raises(OSError, match=r"room\.point"), installed(stop):
            failpoints.reached("room.point")
        failpoints.reached("room.next")
    assert heard == ["room.next"]
