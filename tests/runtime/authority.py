"""A certificate authority for one test."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization

from fleetsim.runtime.ports import TlsFiles


class Authority:
    """A certificate authority with its files, a server's context and a client's certificate."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made = trustme.CA()
        self.ca = str(folder / "ca.pem")
        self.made.cert_pem.write_to_path(self.ca)

    def server(
        self,
        *names: str,
        client_certificate: bool = False,
        version: ssl.TLSVersion | None = None,
        days: tuple[int, int] = (-1, 30),
    ) -> ssl.SSLContext:
        """``days`` from today are the first and the last on which the certificate is valid."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        first, last = (datetime.now(UTC) + timedelta(days=day) for day in days)
        made = self.made.issue_cert(*(names or ("127.0.0.1", "agent.test")), not_before=first, not_after=last)
        made.configure_cert(context)
        if client_certificate:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.ca)
        if version is not None:
            context.maximum_version = version
        return context

    def client(self, name: str = "client", *, mode: int = 0o600, passphrase: bytes = b"") -> TlsFiles:
        """A client's certificate and key; a second call with one ``name`` replaces the files."""
        made = self.made.issue_cert("hub@fleet.test")
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        made.cert_chain_pems[0].write_to_path(certificate)
        pem = made.private_key_pem.bytes()
        if passphrase:
            locked = serialization.BestAvailableEncryption(passphrase)
            form = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL
            pem = serialization.load_pem_private_key(pem, None).private_bytes(*form, locked)
        key.write_bytes(pem)
        key.chmod(mode)
        return TlsFiles(ca=self.ca, certificate=str(certificate), key=str(key))
