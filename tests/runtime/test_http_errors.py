"""What the libraries below raise, in our words: whose fault, whether it was sent, and what to look at."""

from __future__ import annotations

import errno
import ssl
from types import SimpleNamespace

import aiohttp
import pytest
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong

from fleetsim.model.errors import (
    ConnectionLost,
    FleetsimError,
    LimitReached,
    TimedOut,
    Unreachable,
    WireError,
)
from fleetsim.runtime.http_errors import translate

KEY = SimpleNamespace(host="a", port=80, ssl=True, is_ssl=True)


def tls(reason: str, verify: str = "") -> ssl.SSLError:
    error = ssl.SSLCertVerificationError(1, f"[SSL: {reason}] no") if verify else ssl.SSLError(1, f"[SSL: {reason}] no")
    error.reason = reason
    if verify:
        error.verify_message = verify  # type: ignore[attr-defined]
    return error


def caused(cause: Exception) -> aiohttp.ClientResponseError:
    error = aiohttp.ClientResponseError(SimpleNamespace(real_url="http://a"), ())
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "sent", "kind", "says"),
    [
        (LimitReached("ours"), True, LimitReached, "ours"),
        (aiohttp.ConnectionTimeoutError(), False, Unreachable, "a:80: no connection in time"),
        (aiohttp.ClientConnectorDNSError(KEY, OSError(-2, "x")), False, Unreachable, "a:80: the name does not resolve"),
        (
            aiohttp.ClientConnectorSSLError(KEY, tls("WRONG_VERSION_NUMBER")),
            False,
            Unreachable,
            "a:80: TLS failed: wrong version number",
        ),
        (
            aiohttp.ClientConnectorCertificateError(KEY, tls("CERTIFICATE_VERIFY_FAILED", "self_signed Certificate")),
            False,
            Unreachable,
            "a:80: TLS failed: self signed certificate",
        ),
        (
            aiohttp.ClientConnectorError(KEY, OSError(errno.ECONNREFUSED, "x")),
            False,
            Unreachable,
            "a:80: connection refused",
        ),
        (aiohttp.ServerTimeoutError(), True, TimedOut, "a:80: no answer in time"),
        (aiohttp.InvalidURL("x"), False, Unreachable, "a:80: not a usable http(s) address"),
        (aiohttp.ServerDisconnectedError(), True, ConnectionLost, "the connection broke before the answer"),
        (OSError(errno.ECONNRESET, "x"), False, Unreachable, "a:80: connection reset by peer"),
        (caused(LineTooLong(b"x", 10)), True, LimitReached, "more response headers than allowed"),
        (caused(BadHttpMessage("Too many headers")), True, LimitReached, "more response headers than allowed"),
        (caused(BadHttpMessage("too many interim ones")), True, LimitReached, "more interim responses than allowed"),
        (caused(BadHttpMessage("no")), True, WireError, "the answer is not HTTP"),
        (ValueError("no"), True, Unreachable, "the request could not be written (ValueError)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_every_foreign_error_is_told_in_our_words(
    error: Exception, sent: bool, kind: type[FleetsimError], says: str
) -> None:
    told = translate(error, where="a:80", sent=sent)
    assert type(told) is kind
    assert says in str(told)
    assert getattr(told, "sent", sent) is sent
