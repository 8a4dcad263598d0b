"""``fleetsim task push-config``: the webhooks that an agent has for a task. No secret of one is printed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import click

from fleetsim.cli import render
from fleetsim.cli.ask import AskOptions, agent_client
from fleetsim.cli.hub_client import connect
from fleetsim.cli.main import CommonOptions
from fleetsim.cli.options import call_options, secret_of
from fleetsim.client import AgentClient
from fleetsim.client.hub_follow import request_id
from fleetsim.model.call import PushConfig, TaskPush
from fleetsim.model.errors import UnknownTarget, UnsupportedOperation
from fleetsim.model.masking import MASK, masked_url

T = TypeVar("T")


@click.group("push-config")
def push_config() -> None:
    """Webhooks that an agent has for a task: list, read, set and delete them.

    ID is a request of the running hub, as for `task get`, or with --agent the agent's task id. For a request of the
    hub, the agent of that name in agents.yaml is called. Tokens and credentials are not printed.
    """


def _agent_options(command: Callable[..., Any]) -> Callable[..., Any]:
    agent = click.option("--agent", help="Ask this agent (a URL, or a name in agents.yaml); ID is its task id.")
    return click.argument("task_id", metavar="ID")(agent(call_options(click.pass_obj(command))))


def _at_agent(
    common: CommonOptions, how: dict[str, Any], task_id: str, work: Callable[[AgentClient, str], Awaitable[T]]
) -> T:
    """What ``work`` brings from the agent that has the task, called with the task's id there."""

    async def run() -> T:
        ask, there = AskOptions.given(**how), task_id
        if not ask.agent:
            async with connect(common) as hub:
                row = await hub.task(await request_id(hub, task_id))
            if not row.get("taskId"):
                raise UnknownTarget("the request has no task at its agent", hint="see: fleetsim task get " + task_id)
            ask, there = replace(ask, agent=row["agent"]), row["taskId"]
        async with agent_client(common, ask) as client:
            return await work(client, there)

    return asyncio.run(run())


@push_config.command("list")
@_agent_options
def list_configs(common: CommonOptions, /, task_id: str, **how: Any) -> None:
    """List the webhooks of a task. A2A 0.1 has no list."""
    _show(common, _at_agent(common, how, task_id, AgentClient.list_push))


@push_config.command("get")
@click.option("--id", "config_id", help="Its id, if the task has several.")
@_agent_options
def get(common: CommonOptions, /, task_id: str, config_id: str | None, **how: Any) -> None:
    """Show one webhook of a task."""

    async def read(agent: AgentClient, there: str) -> TaskPush:
        return await agent.get_push(there, config_id or await _only(agent, there))

    _show(common, [_at_agent(common, how, task_id, read)])


@push_config.command("set")
@click.option("--url", required=True, help="Where the agent sends the updates of the task.")
@click.option("--id", "config_id", help="Its id: one of the same id is replaced.  [default: the agent's choice]")
@click.option("--token-env", metavar="VAR", help="The agent sends the token in this variable with each update.")
@click.option("--scheme", help="The agent authenticates with this scheme, such as Bearer or Basic.")
@click.option("--credentials-env", metavar="VAR", help="The credentials of --scheme are in this variable.")
@_agent_options
def set_config(
    common: CommonOptions,
    /,
    task_id: str,
    url: str,
    config_id: str | None,
    token_env: str | None,
    scheme: str | None,
    credentials_env: str | None,
    **how: Any,
) -> None:
    """Have the agent send the updates of a task to a webhook.

    \b
    fleetsim task push-config set 7c0d --url https://ci.example/hook --token-env HOOK_TOKEN --agent https://quinn.example
    """
    if not url.startswith(("http://", "https://")):
        raise click.UsageError("--url begins with http:// or https://")
    if (scheme is None) is not (credentials_env is None):
        raise click.UsageError("--scheme and --credentials-env go together")
    token, credentials = secret_of(token_env), secret_of(credentials_env)
    config = PushConfig(url=url, config_id=config_id, token=token, scheme=scheme, credentials=credentials)
    _show(common, [_at_agent(common, how, task_id, lambda agent, there: agent.set_push(there, config))])


@push_config.command("delete")
@click.option("--id", "config_id", help="Its id, if the task has several.")
@_agent_options
def delete(common: CommonOptions, /, task_id: str, config_id: str | None, **how: Any) -> None:
    """Delete a webhook of a task. A2A 0.1 cannot."""

    async def remove(agent: AgentClient, there: str) -> str | None:
        named = config_id or await _only(agent, there)
        await agent.delete_push(there, named)
        return named

    deleted = _at_agent(common, how, task_id, remove)
    if common.as_json:
        render.emit_json({"schema": "fleetsim/push-config/1", "deleted": deleted})
    common.note("the agent deleted the webhook")


async def _only(agent: AgentClient, task_id: str) -> str | None:
    """The id of the only webhook, which 1.0 demands; None without a list. Raises UnknownTarget for several or none."""
    try:
        known = await agent.list_push(task_id)
    except UnsupportedOperation:
        return None
    if len(known) > 1:
        raise UnknownTarget(
            f"the task has {len(known)} webhooks", hint="name one with --id; `push-config list` has the ids"
        )
    if not known:
        raise UnknownTarget("the agent has no webhook for this task")
    return known[0].config.config_id


def _show(common: CommonOptions, pushes: Sequence[TaskPush]) -> None:
    rows = []
    for push in pushes:
        config = push.config
        try:
            url = masked_url(config.url)[0]
        except ValueError:  # no address at all
            url = MASK
        secret = config.token is not None or config.credentials is not None
        about = {"taskId": push.task_id, "id": config.config_id, "url": url, "scheme": config.scheme}
        rows.append({**about, "secretShown": secret})
    if common.as_json:
        render.emit_json({"schema": "fleetsim/push-config/1", "configs": rows})
        return
    for row in rows:
        hidden = "the agent shows one (hidden here)" if row["secretShown"] else None
        labels = ("id", row["id"]), ("task", row["taskId"]), ("url", row["url"]), ("scheme", row["scheme"])
        render.labels((*labels, ("secret", hidden)))
    if not rows:
        common.note("the agent has no webhook for this task")
