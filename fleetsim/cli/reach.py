"""How a verb reaches an agent directly, without a hub."""

from __future__ import annotations

from fleetsim.client import AgentClient, Credential
from fleetsim.client.core import ClientLimits
from fleetsim.model.limits import KIB, TEXT_CHARS_MAX, wire_bytes
from fleetsim.runtime.http_sse import StreamLimits
from fleetsim.runtime.ports import Runtime

TEXT_MAX_MAX = 64 * KIB * KIB
"""The most characters that can be asked for; they are held in memory, and on the wire they may be twelve times that."""

TEXT_MAX_HELP = f"Take so many characters of text from the agent itself.  [default: {TEXT_CHARS_MAX}]"


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
) -> AgentClient:
    """A client of the agent at ``url``. A URL without a scheme is taken as http on this machine's word."""
    if "://" not in url:
        url = f"http://{url}"
    credential = None
    if api_key_env:
        credential = Credential(scheme="apiKey", env=api_key_env)
    elif bearer_env:
        credential = Credential(scheme="bearer", env=bearer_env)
    return AgentClient(url, runtime=runtime, credential=credential, dialect=dialect, limits=limits)
