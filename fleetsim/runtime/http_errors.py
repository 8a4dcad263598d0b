"""What goes wrong below, in our words: one sentence per kind of thing, whoever met it.

Messages name host and port alone: a path or a query may hold a secret.
"""

from __future__ import annotations

import errno
import os
import ssl

from fleetsim.model.errors import ConnectionLost, FleetsimError, LimitReached, Unreachable, WireError
from fleetsim.model.text import one_line


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


def reason_of(cause: BaseException) -> str:
    """What the operating system or OpenSSL says, in lower case."""
    if isinstance(cause, ssl.SSLError):  # whose errno is OpenSSL's, not the system's
        said = getattr(cause, "verify_message", None) or cause.reason or "handshake failed"
        return one_line(str(said).replace("_", " ").lower(), 160)
    number = getattr(cause, "errno", None)
    if isinstance(number, int) and number in errno.errorcode:
        return os.strerror(number).lower()
    return one_line(str(cause), 160) or type(cause).__name__
