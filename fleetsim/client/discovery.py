"""Fetching an agent's card: both paths, with the credential and under limits, each failure told apart."""

from __future__ import annotations

from collections.abc import Mapping

from fleetsim.client.address import AgentUrl
from fleetsim.client.answer import refuse_status, wire_error
from fleetsim.client.redirect import open_following
from fleetsim.model.card import AgentCard
from fleetsim.model.errors import AuthRefused, FleetsimError, HttpRefused, WireError
from fleetsim.runtime.exchange import exchange
from fleetsim.runtime.ports import Limits, Request, Runtime
from fleetsim.wire.dialect import VERSION_HEADER, read_card
from fleetsim.wire.json import parse_untrusted

VERSION = "1.0"
"""Sent with the request, since some agents change their card by it (interop.md section 6)."""


async def fetch_card(
    runtime: Runtime, address: AgentUrl, *, headers: Mapping[str, str], limits: Limits, credential: str | None
) -> tuple[AgentCard, str]:
    """The first card found at the addresses where one may be, and its address.

    A path that is missing, leads elsewhere or holds something else is passed over, and so are others beside one that
    refuses the credential: an endpoint may guard all that is below it, and the card be open. An overloaded agent and
    a failed connection end the search.

    Raises:
        AuthRefused, HttpRefused, WireError, LimitReached, TransportError
    """
    found: FleetsimError | None = None
    closed: set[str] = set()
    for url in address.card_urls():
        if (folder := url.rpartition("/.well-known/")[0]) in closed:
            continue
        try:
            return await _fetch(runtime, address, url, headers, limits, credential), url
        except AuthRefused as error:
            closed.add(folder)
            found = error
        except HttpRefused as error:
            if error.retryable:
                raise
            found = found or error
        except WireError as error:
            found = found if isinstance(found, AuthRefused) else error
    if isinstance(found, HttpRefused) and not isinstance(found, AuthRefused):
        raise HttpRefused(
            f"{address.where}: no agent card at {' or '.join(_path(url) for url in address.card_urls())} "
            f"(HTTP {found.status})",
            status=found.status,
            hint="is this the address of an A2A agent?",
        ) from found
    assert found is not None  # there is always at least one address
    raise found


async def _fetch(
    runtime: Runtime, address: AgentUrl, url: str, headers: Mapping[str, str], limits: Limits, credential: str | None
) -> AgentCard:
    address.require(url)
    sent = {**headers, "accept": "application/json", VERSION_HEADER.lower(): VERSION}
    request = Request(method="GET", url=url, headers=sent, limits=limits)
    reply = await exchange(lambda asked: open_following(runtime, address, asked), request)
    where = f"{address.where}{_path(url)}"
    refuse_status(where, credential, reply.status, reply.headers, reply.body, runtime.clock.now())
    try:
        return read_card(parse_untrusted(reply.body, bytes_max=limits.body_bytes_max))
    except WireError as error:
        raise wire_error(where, str(error), reply.headers, reply.body) from error


def _path(url: str) -> str:
    return "/" + url.split("/", 3)[3]
