"""``fleetsim agent``: run the reference agent, to test a caller against or to copy."""

from __future__ import annotations

from collections.abc import Sequence

import click

from fleetsim.cli.main import Common


@click.group(invoke_without_command=True)
@click.option("--name", default="reference", show_default=True, help="The name on its card.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=9000, show_default=True, help="Port to listen on; 0 picks a free one.")
@click.option("--url", help="The endpoint as callers reach it, if that is not where it listens.")
@click.option("--api-key-env", metavar="VAR", help="Demand the key in this variable as X-API-Key.")
@click.option("--bearer-env", metavar="VAR", help="Demand the token in this variable as Authorization: Bearer.")
@click.option(
    "--allow-webhook",
    "allow_webhook",
    multiple=True,
    metavar="HOST:PORT",
    help="A private address webhooks may go to (repeatable). All others are refused.",
)
@click.option(
    "--dialect",
    "dialects",
    multiple=True,
    type=click.Choice(["1.0", "0.3", "0.1"]),
    help="Speak only this dialect (repeatable). [default: all]",
)
@click.option("--no-streaming", is_flag=True, help="Offer no streams.")
@click.option("--no-push", is_flag=True, help="Offer no webhooks.")
@click.pass_context
def agent(
    ctx: click.Context,
    name: str,
    host: str,
    port: int,
    url: str | None,
    api_key_env: str | None,
    bearer_env: str | None,
    allow_webhook: Sequence[str],
    dialects: Sequence[str],
    no_streaming: bool,
    no_push: bool,
) -> None:
    """Run the reference agent until Ctrl-C.

    It speaks A2A 1.0, 0.3 and the legacy 0.1, at /a2a, with its card at both well-known paths. Its skills are
    quick, slow, streaming, asking, failing and flaky: pick one with `--skill`, or start the text with its
    name, as in "/slow 20".

    \b
    fleetsim agent --port 9000
    fleetsim send http://127.0.0.1:9000 "/stream one two three" --stream
    """
    if ctx.invoked_subcommand is not None:
        return
    from fleetsim.agent.builtin import reference_agent

    made = reference_agent(
        name,
        url=url,
        api_key=_secret(api_key_env),
        bearer=_secret(bearer_env),
        allow_webhook=tuple(allow_webhook),
        dialects=tuple(dialects) or ("1.0", "0.3", "0.1"),
        streaming=not no_streaming,
        push_notifications=not no_push,
    )
    common: Common = ctx.obj
    common.note(f"{name}: skills " + ", ".join(s.skill_id for s in made.settings.skills))
    made.serve(host=host, port=port)


def _secret(variable: str | None) -> str | None:
    import os

    from fleetsim.model.errors import ConfigError

    if variable is None:
        return None
    value = os.environ.get(variable, "").strip()
    if not value:
        raise ConfigError(f"the environment variable {variable} is not set", hint=f"export {variable}=…")
    return value
