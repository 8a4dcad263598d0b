"""A file by address is fetched on request, from addresses that the policy allows, without our credentials."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from fleetsim.cli import parts as remote_file
from fleetsim.cli.parts import fetch_remote
from fleetsim.model.errors import BlockedAddress, HttpRefused, LimitReached
from fleetsim.runtime.address import AddressPolicy
from fleetsim.runtime.ports import Runtime
from fleetsim.testbed.network import MemoryNetwork
from fleetsim.testbed.runtime import virtual_runtime

PUBLIC = "93.184.216.34"


@asynccontextmanager
async def files(address: str = PUBLIC) -> AsyncIterator[tuple[Runtime, list[Request]]]:
    """A file server at https://files.example and the requests it received."""
    asked: list[Request] = []

    async def serve(request: Request) -> Response:
        asked.append(request)
        if request.url.path == "/away":
            return RedirectResponse("http://127.0.0.1:9000/")
        if request.url.path == "/gone":
            return PlainTextResponse("no", 404)
        return Response(b"\x00\xff" * int(request.query_params.get("n", 2)))

    network = MemoryNetwork()
    network.addresses["files.example"] = (address,)
    network.mount("https://files.example", Starlette(routes=[Route("/{rest:path}", serve)]))
    async with network:
        yield virtual_runtime(network=network), asked


async def test_a_public_file_is_fetched_without_any_credential_or_header_of_ours() -> None:
    async with files() as (runtime, asked):
        assert await fetch_remote(runtime, "https://files.example/a?signed=x", AddressPolicy()) == b"\x00\xff" * 2
        (request,) = asked
        assert request.method == "GET"
        sent = set(request.headers.keys())
        assert sent <= {"host", "accept", "user-agent", "accept-encoding", "connection", "content-length"}


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.7", "169.254.169.254", "192.168.1.1", "100.64.0.1", "::1"])
async def test_a_name_with_a_private_address_is_refused_before_a_byte_leaves(address: str) -> None:
    async with files(address) as (runtime, asked):
        with pytest.raises(BlockedAddress) as refused:
            await fetch_remote(runtime, "https://files.example/a", AddressPolicy())
        assert "--allow files.example:443" in str(refused.value.hint)
        assert not asked


async def test_an_address_that_a_person_allows_is_fetched() -> None:
    async with files("10.0.0.7") as (runtime, _):
        policy = AddressPolicy.allowing("files.example:443")
        assert await fetch_remote(runtime, "https://files.example/a", policy)


@pytest.mark.parametrize(
    "uri",
    [
        "file:///etc/passwd",
        "ftp://files.example/a",
        "https://user:pass@files.example/a",
        "https://files.example\\@inside.example/a",
        "https://files.example/a#b",
        "//files.example/a",
        "data:text/plain,x",
        "",
        "https://files.example/" + "a" * 9_000,
    ],
)
async def test_an_address_that_is_not_a_plain_url_is_refused(uri: str) -> None:
    async with files() as (runtime, asked):
        with pytest.raises(BlockedAddress):
            await fetch_remote(runtime, uri, AddressPolicy())
        assert not asked


async def test_a_redirect_is_not_followed() -> None:
    async with files() as (runtime, asked):
        with pytest.raises(HttpRefused):
            await fetch_remote(runtime, "https://files.example/away", AddressPolicy.allowing("127.0.0.1:9000"))
        assert [request.url.path for request in asked] == ["/away"]


async def test_an_error_page_is_not_a_file() -> None:
    async with files() as (runtime, _):
        with pytest.raises(HttpRefused, match="404"):
            await fetch_remote(runtime, "https://files.example/gone", AddressPolicy())


async def test_a_file_past_the_limit_is_not_fetched_whole() -> None:
    async with files() as (runtime, _):
        with pytest.raises(LimitReached):
            await fetch_remote(
                runtime, f"https://files.example/a?n={remote_file.REMOTE_BYTES_MAX // 2 + 1}", AddressPolicy()
            )
