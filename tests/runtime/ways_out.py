"""The forms of the Transport over sockets, and helpers that send requests with them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import httpx2
import pytest
from msgspec.structs import replace

from fleetsim.model.errors import FleetsimError
from fleetsim.runtime.http_given import as_transport
from fleetsim.runtime.ports import Limits, Request, Transport
from fleetsim.runtime.real import running_runtime

PATIENT = Limits(connect_s=5, first_byte_s=10, total_s=20, body_bytes_max=64 * 1024)
FAST = replace(PATIENT, first_byte_s=0.3)


@asynccontextmanager
async def over_ours() -> AsyncIterator[Transport]:
    async with running_runtime() as runtime:
        yield runtime.transport


@asynccontextmanager
async def over_httpx() -> AsyncIterator[Transport]:
    async with httpx.AsyncHTTPTransport() as given:
        yield as_transport(given)


@asynccontextmanager
async def over_httpx2() -> AsyncIterator[Transport]:
    async with httpx2.AsyncHTTPTransport() as given:
        yield as_transport(given)


FORMS = {"ours": over_ours, "httpx": over_httpx, "httpx2": over_httpx2}


def post(url: str, *, limits: Limits = PATIENT, streaming: bool = False, **headers: str) -> Request:
    return Request(method="POST", url=url, headers=headers, body=b'{"a":1}', limits=limits, streaming=streaming)


async def fails(transport: Transport, request: Request) -> FleetsimError:
    with pytest.raises(FleetsimError) as caught:
        await transport.exchange(request)
    return caught.value
