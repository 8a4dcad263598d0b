"""Addresses that only this machine can reach."""

from __future__ import annotations

import pytest

from fleetsim.runtime.server import is_loopback


@pytest.mark.parametrize(
    ("host", "alone"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("LocalHost", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("::", False),
        ("agent.example", False),
    ],
)
def test_only_this_machine_reaches_loopback(host: str, alone: bool) -> None:
    assert is_loopback(host) is alone
