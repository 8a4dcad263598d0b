"""Named points: they do nothing in production, and call a handler while it is installed."""

from __future__ import annotations

import pytest

from fleetsim.runtime import failpoints
from fleetsim.runtime.failpoints import installed


def test_a_handler_is_called_at_every_point_until_it_is_removed() -> None:
    heard: list[str] = []
    with installed(heard.append):
        failpoints.reached("room.before")
        failpoints.reached("room.after")
    failpoints.reached("room.later")
    assert heard == ["room.before", "room.after"]


def test_the_error_of_a_handler_is_raised_at_the_point_and_the_previous_handler_returns() -> None:
    heard: list[str] = []

    def stop(point: str) -> None:
        raise OSError(point)

    with installed(heard.append):
        with pytest.raises(OSError, match=r"room\.point"), installed(stop):
            failpoints.reached("room.point")
        failpoints.reached("room.next")
    assert heard == ["room.next"]
