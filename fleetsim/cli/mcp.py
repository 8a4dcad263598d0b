"""``fleetsim mcp``: the fleet as tools of a model, for whatever speaks MCP."""

from __future__ import annotations

import asyncio
import os
import signal
from importlib.util import find_spec

import click

from fleetsim.cli.ask import way_given
from fleetsim.cli.hub_client import find_hub
from fleetsim.cli.main import CommonOptions
from fleetsim.cli.options import way_options
from fleetsim.cli.terminal import on_stop
from fleetsim.client.credential import Credential
from fleetsim.client.hub_client import DEFAULT_URL, KEY_VARIABLE, URL_VARIABLE, HubClient
from fleetsim.model.errors import ConfigError, FleetsimError, Unreachable
from fleetsim.runtime.ports import Runtime, WayOut
from fleetsim.runtime.real import running_runtime
from fleetsim.runtime.server import is_loopback


@click.command()
@click.option("--key-env", default=KEY_VARIABLE, show_default=True, help="On stdio: the variable with the agent's key.")
@click.option("--http", is_flag=True, help="Serve streamable HTTP, for clients that each show their own key.")
@click.option("--host", default="127.0.0.1", show_default=True, help="With --http: the address.")
@click.option("--port", default=3001, show_default=True, help="With --http: the port; 0 picks a free one.")
@click.option("--allow-host", multiple=True, metavar="HOST", help="With --http: a further Host header to answer to.")
@click.option("--allow-remote", is_flag=True, help="With --http: listen for other machines (put TLS in front).")
@way_options
@click.option("--admin", is_flag=True, help="Take the hub's own key too, which may do everything.")
@click.pass_obj
def mcp(
    common: CommonOptions,
    key_env: str,
    http: bool,
    host: str,
    port: int,
    allow_host: tuple[str, ...],
    allow_remote: bool,
    proxy: str | None,
    ca: str | None,
    admin: bool,
) -> None:
    """Give an agent the fleet as MCP tools: its ceremonies, talking with others, giving them work.

    An MCP client starts it itself, and talks with it over stdio. Its configuration:

    \b
    {"mcpServers": {"fleet": {
      "command": "fleetsim",
      "args": ["mcp"],
      "env": {"WORKSTACEAN_URL": "http://127.0.0.1:3000",
              "WORKSTACEAN_API_KEY": "the agent's key"}}}}

    Use a key of the agent's own, which reaches only that agent's requests and ceremonies. The hub's own key and those
    of people are refused without --admin. With --admin and without a key in the environment, the key of the hub on this
    machine is used. The hub is that of --hub, else of WORKSTACEAN_URL, else of this machine.

    Over HTTP every client sends its key as Authorization: Bearer or X-API-Key, and acts as that agent:

    \b
    fleetsim mcp --http --port 3001     (then: http://127.0.0.1:3001/mcp)
    """
    url, common.hub = common.hub, None  # the hub of this machine proves its identity, also if its address is given
    if find_spec("mcp") is None:
        raise ConfigError("the MCP package is not installed", hint="pip install 'fleetsim[mcp]'")
    if http and not allow_remote and not is_loopback(host):
        hint = "bind to 127.0.0.1, or say --allow-remote and put TLS in front"
        raise ConfigError(f"{host} can be reached from other machines", hint=hint)
    if http:
        asyncio.run(_serve_http(common, url, host, port, allow_host, admin, way_given(proxy, ca)))
    else:
        asyncio.run(_serve_stdio(common, url, key_env, admin, way_given(proxy, ca)))


async def _serve_stdio(common: CommonOptions, url: str | None, key_env: str, admin: bool, way: WayOut) -> None:
    from fleetsim.cli.mcp_server import require_agents, serve_stdio

    key = os.environ.get(key_env, "").strip()
    async with running_runtime() as runtime:
        if not key and admin:
            address = find_hub(common)
            if address is None:
                raise Unreachable(f"{key_env} is not set, and no hub runs on this machine")
            hub = address.client(runtime)
        else:
            Credential("apiKey", key_env).headers()
            hub = _hub(common, url, key, runtime, way)
        try:
            hint = "give the agent a key (docs/reference/agent-keys.md); --admin accepts the hub's own key"
            agent = await require_agents(hub, admin=admin, hint=hint)
            common.note(f"tools of {agent or 'the hub itself'} at {hub.url}")
        except ConfigError:
            raise
        except FleetsimError as error:  # asked again before every call: the hub may be started later
            common.note(f"warning: {error}")
        await serve_stdio(hub, admin=admin)


async def _serve_http(
    common: CommonOptions, url: str | None, host: str, port: int, allow_hosts: tuple[str, ...], admin: bool, way: WayOut
) -> None:
    from fleetsim.cli.mcp_server import serving_http

    async with running_runtime() as runtime:

        def hub_of_key(key: str) -> HubClient:
            return _hub(common, url, key, runtime, way)

        async with serving_http(
            hub_of_key, runtime, host=host, port=port, admin=admin, allow_hosts=allow_hosts
        ) as address:
            stopped = asyncio.Event()
            on_stop(stopped.set, signal.SIGINT)
            common.note(f"tools at {address}; Ctrl-C stops it")
            await stopped.wait()


def _hub(common: CommonOptions, url: str | None, key: str, runtime: Runtime, way: WayOut) -> HubClient:
    """The hub at ``url``; a hub that announced itself here must prove its identity before it receives the key."""
    given = url or os.environ.get(URL_VARIABLE, "").strip()
    address = find_hub(common)
    if address is not None and (not given or given.rstrip("/") == address.url):
        return HubClient(address.url, api_key=key, proof=address.proof, runtime=runtime)
    return HubClient(given or DEFAULT_URL, api_key=key, runtime=runtime, way=way)
