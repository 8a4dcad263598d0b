"""Keys and clicks at random never end the app, and change nothing on a read-only screen."""

from __future__ import annotations

import pytest

from tests.dashboard.random_driver import READING, drive

pytestmark = [pytest.mark.sockets, pytest.mark.slow]  # the real loop, no socket is opened


@pytest.mark.parametrize("read_only", [False, True])
async def test_random_keys_and_clicks_do_not_end_the_app(read_only: bool) -> None:
    asked = {what[0] for what in await drive(300, 7, read_only=read_only)}
    assert not read_only or asked <= READING
