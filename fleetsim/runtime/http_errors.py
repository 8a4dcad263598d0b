"""What goes wrong below, in our words: one sentence per kind of thing, whichever library met it.

``translate`` is for what aiohttp, ssl and the operating system raise; httpx's exceptions are ``http_given``'s to
tell apart. Messages name host and port alone: a path or a query may hold a secret.
"""

from __future__ import annotations

import errno
import os
import ssl

import aiohttp
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

FOREIGN = (aiohttp.ClientError, OSError, ValueError)
"""Everything aiohttp may raise (``ssl.SSLError`` is an OSError; a bad address, text or certificate a ValueError)."""


def translate(error: Exception, *, where: str, sent: bool) -> FleetsimError:
    """Our error for a foreign one. ``where`` is host:port; ``sent`` whether request bytes had left."""
    match error:
        case FleetsimError():
            return error
        case aiohttp.ConnectionTimeoutError():
            return Unreachable(f"{where}: no connection in time")
        case aiohttp.ClientConnectorCertificateError():
            return tls_failed(where, error.certificate_error)
        case aiohttp.ClientConnectorSSLError():
            return tls_failed(where, error.os_error)
        case aiohttp.ClientConnectorDNSError():
            return unresolved(where)
        case aiohttp.ClientConnectorError():
            return refused(where, error.os_error)
        case aiohttp.ServerTimeoutError():
            return TimedOut(f"{where}: no answer in time", sent=sent)
        case aiohttp.ClientResponseError():
            return _not_http(error, where)
        case aiohttp.InvalidURL():
            return unusable(where)
        case aiohttp.ClientError() | OSError():
            return broken(where) if sent else Unreachable(f"{where}: {reason_of(error)}")
        case _:
            return unwritable(where, error, sent=sent)


def unusable(where: str) -> FleetsimError:
    return Unreachable(f"{where}: not a usable http(s) address")


def unresolved(where: str) -> FleetsimError:
    return Unreachable(f"{where}: the name does not resolve")


def refused(where: str, cause: BaseException) -> FleetsimError:
    return Unreachable(f"{where}: {reason_of(cause)}", hint="is it running, and is the port right?")


def tls_failed(where: str, cause: BaseException) -> FleetsimError:
    return Unreachable(f"{where}: TLS failed: {reason_of(cause)}", hint="check the certificate and the scheme")


def unwritable(where: str, error: Exception, *, sent: bool) -> FleetsimError:
    return Unreachable(f"{where}: the request could not be written ({type(error).__name__})", sent=sent)


def broken(where: str) -> FleetsimError:
    return ConnectionLost(f"{where}: the connection broke before the answer was complete")


def headers_flood(where: str) -> FleetsimError:
    return LimitReached(f"{where}: more response headers than allowed")


def not_http(where: str) -> FleetsimError:
    return WireError(f"{where}: the answer is not HTTP", hint="is this the port of an HTTP server?")


def _not_http(error: aiohttp.ClientResponseError, where: str) -> FleetsimError:
    inner: BaseException = error
    while inner.__cause__ is not None:
        inner = inner.__cause__
    if isinstance(inner, BadHttpMessage) and "interim" in str(inner):
        return LimitReached(f"{where}: more interim responses than allowed")
    if isinstance(inner, LineTooLong) or (isinstance(inner, BadHttpMessage) and "too many" in str(inner).lower()):
        return headers_flood(where)
    return not_http(where)


def reason_of(cause: BaseException) -> str:
    """What the operating system or OpenSSL says, in lower case."""
    if isinstance(cause, ssl.SSLError):  # whose errno is OpenSSL's, not the system's
        said = getattr(cause, "verify_message", None) or cause.reason or "handshake failed"
        return one_line(str(said).replace("_", " ").lower(), 160)
    number = getattr(cause, "errno", None)
    if isinstance(number, int) and number in errno.errorcode:
        return os.strerror(number).lower()
    return one_line(str(cause), 160) or type(cause).__name__
