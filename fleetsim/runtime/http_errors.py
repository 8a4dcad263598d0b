"""The one place where exceptions of httpx, aiohttp, ssl and the operating system become ours.

Messages name host and port alone: a path or a query may hold a secret.
"""

from __future__ import annotations

import errno
import os
import ssl

import aiohttp
import httpx
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong

from fleetsim.model.errors import (
    ConnectionLost,
    FleetsimError,
    LimitReached,
    TimedOut,
    Unreachable,
    WireError,
)
from fleetsim.model.text import one_line

FOREIGN = (
    httpx.HTTPError,
    httpx.InvalidURL,
    httpx.StreamError,
    aiohttp.ClientError,
    aiohttp.InvalidURL,
    ssl.SSLError,
    OSError,
    ValueError,
)
"""Everything the libraries below may raise (``UnicodeError`` and certificate errors are ``ValueError``)."""


def translate(error: Exception, *, where: str, sent: bool) -> FleetsimError:
    """Our error for a foreign one. ``where`` is host:port; ``sent`` whether request bytes had left."""
    cause = _cause(error)
    match cause:
        case FleetsimError():
            return cause
        case aiohttp.ConnectionTimeoutError():
            return Unreachable(f"{where}: no connection in time")
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError():
            return Unreachable(f"{where}: TLS failed: {_reason(cause)}", hint="check the certificate and the scheme")
        case aiohttp.ClientConnectorDNSError():
            return Unreachable(f"{where}: the name does not resolve")
        case aiohttp.ClientConnectorError():
            return Unreachable(f"{where}: {_reason(cause)}", hint="is it running, and is the port right?")
        case aiohttp.ServerTimeoutError():
            return TimedOut(f"{where}: no answer in time", sent=sent)
        case aiohttp.ClientResponseError():
            return _not_http(cause, where)
        case aiohttp.InvalidURL() | httpx.InvalidURL() | httpx.UnsupportedProtocol():
            return Unreachable(f"{where}: not a usable http(s) address")
        case aiohttp.ClientError() | httpx.HTTPError() | OSError():
            return _broken(where, cause, sent)
        case _:
            return Unreachable(f"{where}: the request could not be written ({type(cause).__name__})", sent=sent)


def _cause(error: Exception) -> BaseException:
    """httpx-aiohttp renames what aiohttp raised, often wrongly; the original is the cause."""
    if isinstance(error, httpx.HTTPError) and isinstance(error.__cause__, Exception):
        return error.__cause__
    return error


def _broken(where: str, cause: BaseException, sent: bool) -> FleetsimError:
    if sent:
        return ConnectionLost(f"{where}: the connection broke before the answer was complete")
    return Unreachable(f"{where}: {_reason(cause)}")


def _not_http(cause: aiohttp.ClientResponseError, where: str) -> FleetsimError:
    inner: BaseException = cause
    while inner.__cause__ is not None:
        inner = inner.__cause__
    if isinstance(inner, BadHttpMessage) and "interim" in str(inner):
        return LimitReached(f"{where}: more interim responses than allowed")
    if isinstance(inner, LineTooLong) or (isinstance(inner, BadHttpMessage) and "too many" in str(inner).lower()):
        return LimitReached(f"{where}: more response headers than allowed")
    return WireError(f"{where}: the answer is not HTTP", hint="is this the port of an HTTP server?")


def _reason(cause: BaseException) -> str:
    os_error = getattr(cause, "certificate_error", None) or getattr(cause, "os_error", cause)
    if isinstance(os_error, ssl.SSLError):  # whose errno is OpenSSL's, not the system's
        said = getattr(os_error, "verify_message", None) or os_error.reason or "handshake failed"
        return one_line(str(said).replace("_", " ").lower(), 160)
    number = getattr(os_error, "errno", None)
    if isinstance(number, int) and number in errno.errorcode:
        return os.strerror(number).lower()
    return one_line(str(os_error), 160) or type(cause).__name__
