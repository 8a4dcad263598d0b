"""Fetching a file that an agent gave by its address, when a person asks for it.

The address is the agent's word: it is judged by the address policy like a webhook's, redirects lead nowhere, and
nothing of ours goes with the request, neither a credential nor a header from a file.
"""

from __future__ import annotations

from fleetsim.model.errors import BlockedAddress, HttpRefused
from fleetsim.runtime.address import AddressPolicy, parse_webhook_url
from fleetsim.runtime.ports import Limits, Request, Runtime

REMOTE_BYTES_MAX = 64 * 1024 * 1024
REMOTE_URL_CHARS_MAX = 8_192
REMOTE_LIMITS = Limits(first_byte_s=30.0, total_s=300.0, body_bytes_max=REMOTE_BYTES_MAX)


async def fetch_remote(runtime: Runtime, uri: str, policy: AddressPolicy) -> bytes:
    """What is at ``uri``.

    Raises:
        BlockedAddress: no plain http(s) address, or one the policy refuses.
        HttpRefused: any answer but 200; a redirect is one.
        LimitReached: more than ``REMOTE_BYTES_MAX`` bytes.
        TransportError: it cannot be had.
    """
    parsed = parse_webhook_url(uri, what="the file's address", chars_max=REMOTE_URL_CHARS_MAX)
    host = f"[{parsed.host}]" if ":" in parsed.host else parsed.host
    where = f"{host}:{parsed.port}"
    request = Request(method="GET", url=parsed.url, headers={"accept": "*/*"}, limits=REMOTE_LIMITS)
    try:
        reply = await runtime.transport.guarded(policy).exchange(request)
    except BlockedAddress as error:
        raise BlockedAddress(str(error), hint=f"to allow it: --allow {where}") from None
    if reply.status != 200:
        redirect = ", a redirect, which is not followed" if 300 <= reply.status < 400 else ""
        raise HttpRefused(f"{where} answered HTTP {reply.status}{redirect}", status=reply.status)
    return reply.body
