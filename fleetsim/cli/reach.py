"""How a verb reaches an agent directly, without a hub."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from fleetsim.client import AgentClient, ClientLimits, Credential
from fleetsim.model.limits import KIB, TEXT_CHARS_MAX, wire_bytes
from fleetsim.runtime.http_sse import StreamLimits
from fleetsim.runtime.ports import Runtime

TEXT_MAX_MAX = 64 * KIB * KIB
"""The most characters that can be asked for; they are held in memory, and on the wire they may be twelve times that."""

TEXT_MAX_HELP = f"Take so many characters of text from the agent itself.  [default: {TEXT_CHARS_MAX}]"


def pin_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--rpc-url`` and ``--card-url``, for an agent whose card or address leads elsewhere."""
    card = "Read the card there, at the origin of the URL.  [default: below the URL, then at its root]"
    rpc = "Call the agent there, at the origin of the URL, whatever its card says."
    return click.option("--rpc-url", metavar="URL", help=rpc)(
        click.option("--card-url", metavar="URL", help=card)(command)
    )


Typed = TypeVar("Typed", str, str | None)


def with_scheme(url: Typed) -> Typed:
    """An address as typed: one without a scheme is taken as http on this machine's word."""
    return f"http://{url}" if url is not None and "://" not in url else url


def limits_for(text_chars: int) -> ClientLimits:
    """What an agent is allowed that may say so much."""
    size = wire_bytes(text_chars)
    stream = StreamLimits(line_bytes_max=size, event_bytes_max=size, stream_bytes_max=2 * size)
    return ClientLimits(body_bytes_max=size, stream=stream)


def client_for(
    url: str,
    runtime: Runtime,
    *,
    api_key_env: str | None = None,
    bearer_env: str | None = None,
    dialect: str | None = None,
    limits: ClientLimits | None = None,
    rpc_url: str | None = None,
    card_url: str | None = None,
) -> AgentClient:
    """A client of the agent at ``url``, the addresses as typed. Raises ConfigError."""
    credential = None
    if api_key_env:
        credential = Credential(scheme="apiKey", env=api_key_env)
    elif bearer_env:
        credential = Credential(scheme="bearer", env=bearer_env)
    return AgentClient(
        with_scheme(url),
        runtime=runtime,
        credential=credential,
        dialect=dialect,
        limits=limits,
        rpc_url=with_scheme(rpc_url),
        card_url=with_scheme(card_url),
    )
