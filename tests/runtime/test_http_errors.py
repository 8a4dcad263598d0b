"""What TLS and the operating system say went wrong, in our words."""

from __future__ import annotations

import errno
import ssl

import pytest

from fleetsim.model.errors import Unreachable
from fleetsim.runtime.exchange import refused, tls_failed


def tls(reason: str, verify: str = "") -> ssl.SSLError:
    error = ssl.SSLCertVerificationError(1, f"[SSL: {reason}] no") if verify else ssl.SSLError(1, f"[SSL: {reason}] no")
    error.reason = reason
    if verify:
        error.verify_message = verify  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (tls_failed("a:80", tls("WRONG_VERSION_NUMBER")), "a:80: TLS failed: wrong version number"),
        (
            tls_failed("a:80", tls("CERTIFICATE_VERIFY_FAILED", "self_signed Certificate")),
            "a:80: TLS failed: self signed certificate",
        ),
        (refused("a:80", OSError(errno.ECONNREFUSED, "x")), "a:80: connection refused"),
        (refused("a:80", OSError("all of them\nfailed")), "a:80: all of them failed"),
        (refused("a:80", ConnectionResetError()), "a:80: ConnectionResetError"),
    ],
)
def test_what_kept_a_connection_from_being_made_is_told_in_our_words(told: Unreachable, says: str) -> None:
    assert str(told) == says
    assert not told.sent
    assert told.hint
