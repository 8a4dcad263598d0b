"""Real parts of a company's network on this machine: tinyproxy, and nginx with TLS in front of an agent."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.ports import held_port
from tests.runtime.authority import Authority

PARTS = ("tinyproxy", "nginx")
MISSING = [part for part in PARTS if shutil.which(part, path="/usr/sbin:/usr/bin:/usr/local/bin") is None]
LOGIN = "me:s3cr3t"


@contextmanager
def _running(command: list[str], port: int, log: Path) -> Iterator[None]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            with suppress(subprocess.TimeoutExpired):
                raise AssertionError(f"{command[0]} ended with {process.wait(timeout=0.05)}: {log.read_text()}")
        else:
            raise AssertionError(f"{command[0]} does not listen: {log.read_text()}")
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)


@contextmanager
def tinyproxy(folder: Path) -> Iterator[tuple[str, Path]]:
    """A proxy that requires ``LOGIN``: its address and its log."""
    log = folder / "tinyproxy.log"
    user, word = LOGIN.split(":")
    configuration = folder / "tinyproxy.conf"
    with held_port() as port:
        configuration.write_text(
            f'Port {port}\nListen 127.0.0.1\nTimeout 60\nLogFile "{log}"\nLogLevel Connect\nMaxClients 50\n'
            f"BasicAuth {user} {word}\nAllow 127.0.0.1\n"
        )
        with _running(["tinyproxy", "-d", "-c", str(configuration)], port, folder / "tinyproxy.out"):
            yield f"http://127.0.0.1:{port}", log


@contextmanager
def nginx(folder: Path, agent: str, authority: Authority) -> Iterator[str]:
    """TLS in front of ``agent``: it requires a client certificate, and compresses with any coding its caller accepts.
    The outer server requests gzip from the inner one, as gateways do that compress on the way to themselves."""
    with held_port() as outer, held_port() as inner:
        command = _nginx_command(folder, agent, authority, outer, inner)
        with _running(command, outer, folder / "nginx.out"):
            yield f"https://127.0.0.1:{outer}"


def _nginx_command(folder: Path, agent: str, authority: Authority, outer: int, inner: int) -> list[str]:
    certificate = folder / "server.pem"
    made = authority.made.issue_cert("127.0.0.1")
    made.private_key_and_cert_chain_pem.write_to_path(certificate)
    temporary = " ".join(
        f"{name}_temp_path {folder / name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    configuration = folder / "nginx.conf"
    configuration.write_text(
        f"""
        daemon off; worker_processes 1; pid {folder / "nginx.pid"}; error_log stderr;
        events {{}}
        http {{
            access_log off; {temporary} proxy_buffering off; proxy_http_version 1.1;
            server {{
                listen 127.0.0.1:{outer} ssl; ssl_certificate {certificate}; ssl_certificate_key {certificate};
                ssl_client_certificate {authority.ca}; ssl_verify_client on;
                location / {{ proxy_pass http://127.0.0.1:{inner}; proxy_set_header Accept-Encoding gzip; }}
            }}
            server {{
                listen 127.0.0.1:{inner};
                gzip on; gzip_proxied any; gzip_min_length 1; gzip_types application/json text/event-stream;
                location / {{ proxy_pass {agent}; }}
            }}
        }}
        """
    )
    return ["nginx", "-e", "stderr", "-p", str(folder), "-c", str(configuration)]
