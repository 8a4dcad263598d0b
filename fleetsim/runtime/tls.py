"""The TLS of outgoing connections: the authorities that are trusted, and the certificate that we present, from PEM
files. A context is made again when one of them changes: certificates rotate without a restart.
"""

from __future__ import annotations

import os
import ssl
from functools import lru_cache

from fleetsim.model.errors import ConfigError
from fleetsim.model.text import one_line
from fleetsim.runtime.ports import SYSTEM_CA, TlsFiles


def tls_context(files: TlsFiles) -> ssl.SSLContext:
    """The context for ``files``; certifi's authorities unless they or SSL_CERT_FILE or SSL_CERT_DIR name others.

    Making one takes a tenth of a second, so it is kept until a file changes. Raises ConfigError, which names the
    missing or wrong file and the variable or key that names it.
    """
    if bool(files.certificate) != bool(files.key):
        raise ConfigError("a client certificate takes two files: the certificate and its key")
    ca, named = files.ca, "ca"
    if not ca:
        ca, named = os.environ.get("SSL_CERT_FILE", ""), "SSL_CERT_FILE"
    folder = "" if ca else os.environ.get("SSL_CERT_DIR", "")
    own = ((files.certificate, "certificateFile"), (files.key, "keyFile"))
    stamps = [_stamp(path, name) for path, name in ((ca, named), *own) if path and path != SYSTEM_CA]
    return _context(ca, named, folder, files.certificate, files.key, tuple(stamps))


@lru_cache(64)
def _context(
    ca: str, named: str, folder: str, certificate: str, key: str, stamps: tuple[tuple[int, ...], ...]
) -> ssl.SSLContext:
    try:
        if ca == SYSTEM_CA:
            context = ssl.create_default_context()
        elif folder:
            context = ssl.create_default_context(capath=folder)
        else:
            import certifi  # and with it twenty modules, for calls over TLS alone

            context = ssl.create_default_context(cafile=ca or certifi.where())
    except OSError as error:  # an SSLError is one
        raise _wrong(ca, named, "holds no certificate in PEM form") from error
    if certificate:
        try:
            # Without a password OpenSSL would ask for one on the terminal.
            context.load_cert_chain(certificate, key, password="")
        except (OSError, ValueError) as error:
            why = "they are no PEM certificate with its key, or the key has a passphrase"
            raise _wrong(f"{certificate} and {key}", "certificateFile and keyFile", why) from error
    return context


def _stamp(path: str, named: str) -> tuple[int, ...]:
    """Numbers that differ after a change of the file. Raises ConfigError, also for a key that others can read."""
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a usable path"
        raise _wrong(path, named, reason.lower()) from error
    if named == "keyFile" and status.st_mode & 0o077:
        raise _wrong(path, named, "others can read it", hint=f"chmod 600 {one_line(path, 300)}")
    return status.st_mtime_ns, status.st_size, status.st_ino


def _wrong(path: str, named: str, why: str, *, hint: str | None = None) -> ConfigError:
    return ConfigError(f"{named} is {one_line(path, 300)}: {why}", hint=hint)
