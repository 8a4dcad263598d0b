"""``fleetsim help`` and ``fleetsim completion``: the verbs for a person, a program and a shell."""

from __future__ import annotations

import click

from fleetsim.cli.main import CommonOptions, cli
from fleetsim.model.errors import ConfigError


@click.command(name="help")
@click.argument("verb", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="One JSON document with every verb below VERB and its options.")
@click.pass_context
def help_(ctx: click.Context, /, verb: tuple[str, ...], as_json: bool) -> None:
    """Show the help of VERB, or of all verbs.

    \b
    fleetsim help ceremony next
    fleetsim help --json
    """
    command: click.Command = cli
    above = ctx.find_root()
    for name in verb:
        below = command.get_command(above, name) if isinstance(command, click.Group) else None
        if below is None:
            raise ConfigError(f"there is no verb {' '.join(verb)!r}", hint="`fleetsim help` lists the verbs")
        command, above = below, click.Context(below, parent=above, info_name=name)
    if as_json or ctx.ensure_object(CommonOptions).as_json:
        from fleetsim.cli import render

        render.emit_json({"schema": "fleetsim/help/1", **_described(command, above)})
    else:
        click.echo(command.get_help(above))


def _described(command: click.Command, ctx: click.Context) -> dict[str, object]:
    described: dict[str, object] = {
        "name": ctx.command_path,
        "help": command.get_help(ctx),
        "options": [
            {
                "names": [*option.opts, *option.secondary_opts],
                "kind": option.param_type_name,
                "type": option.type.name,
                "required": option.required,
                "repeatable": option.multiple or option.nargs == -1,
                "help": getattr(option, "help", None) or "",
            }
            for option in command.params
        ],
    }
    if isinstance(command, click.Group):
        verbs = {name: command.get_command(ctx, name) for name in command.list_commands(ctx)}
        described["verbs"] = [
            _described(verb, click.Context(verb, parent=ctx, info_name=name))
            for name, verb in verbs.items()
            if verb is not None and not verb.hidden
        ]
    return described


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the lines that teach SHELL to complete fleetsim's verbs and options.

    \b
    eval "$(fleetsim completion bash)"      in ~/.bashrc
    eval "$(fleetsim completion zsh)"       in ~/.zshrc, after compinit
    fleetsim completion fish | source       in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    of_shell = get_completion_class(shell)
    assert of_shell is not None
    click.echo(of_shell(cli, {}, "fleetsim", "_FLEETSIM_COMPLETE").source())
