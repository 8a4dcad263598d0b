"""The command line: which verbs there are, what they share, and how errors reach a person.

stdout carries the result and nothing else; progress, hints and logs go to stderr. Verbs are loaded only
when called, and what logs and errors need only when there are any, so that ``--help`` and ``--version`` stay quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from fleetsim import __version__
from fleetsim.model.errors import (
    AuthRefused,
    Blame,
    ConfigError,
    FleetsimError,
    HttpRefused,
    RpcError,
    TaskNotFound,
    TimedOut,
    TransportError,
    UnfitAnswer,
    UnknownTarget,
)
from fleetsim.model.limits import TooMuch
from fleetsim.model.optional import load

if TYPE_CHECKING:
    from pathlib import Path

VERBS: dict[str, tuple[str, str]] = {
    "demo": ("fleetsim.cli.demo:demo", "Watch a small fleet at work on this machine."),
    "init": ("fleetsim.cli.init:init", "Write agents.yaml and a first ceremony from your agents' cards."),
    "up": ("fleetsim.cli.up:up", "Run the hub for your agents.yaml, with the dashboard."),
    "dashboard": ("fleetsim.cli.dashboard:dashboard", "Open the dashboard on a running hub or a recording."),
    "send": ("fleetsim.cli.send:send", "Send a request to one agent."),
    "chat": ("fleetsim.cli.send:chat", "Talk with one agent, turn by turn."),
    "task": ("fleetsim.cli.task:task", "List, read, follow and cancel requests."),
    "inbox": ("fleetsim.cli.task:inbox", "Read and answer agents' questions."),
    "ceremony": ("fleetsim.cli.ceremony:ceremony", "Write, list, pause and fire ceremonies."),
    "channel": ("fleetsim.cli.health:channel", "List and test the channels that notify people."),
    "limits": ("fleetsim.cli.limits:limits", "Show what is used of each limit, and raise one for a day."),
    "doctor": ("fleetsim.cli.doctor:doctor", "Check this machine, its files, the hub and each agent."),
    "backup": ("fleetsim.cli.backup:backup", "Copy the hub's ledger and keys while the hub runs."),
    "restore": ("fleetsim.cli.backup:restore", "Put a backup back into the state folder."),
    "ledger": ("fleetsim.cli.backup:ledger", "Move the ledger to PostgreSQL, or back into a file."),
    "config": ("fleetsim.cli.config:config", "Show where each setting comes from."),
    "health": ("fleetsim.cli.health:health", "Show how the fleet has done over the last day."),
    "card": ("fleetsim.cli.card:card", "Read, compare and lock the cards of agents."),
    "mcp": ("fleetsim.cli.mcp:mcp", "Give an agent the fleet as MCP tools."),
    "events": ("fleetsim.cli.health:events", "Follow the events of the hub."),
    "audit": ("fleetsim.cli.audit:audit", "List who did what at the hub."),
    "record": ("fleetsim.cli.record:record", "Record the events of the hub in a file."),
    "agent": ("fleetsim.cli.agent:agent", "Run the reference agent."),
    "check": ("fleetsim.check.cli.check:check", "Test an agent against the checklist."),
    "tape": ("fleetsim.tape.cli:tape", "Record a real agent, and play it in the agent's place."),
    "sim": ("fleetsim.sim.cli.sim:sim", "Simulate a day of a fleet in seconds."),
    "explain": ("fleetsim.check.cli.check:explain", "Explain a row of the checklist."),
    "help": ("fleetsim.cli.help:help_", "Show the help of a verb, or of all verbs as JSON."),
    "completion": ("fleetsim.cli.help:completion", "Print what lets bash, zsh or fish complete verbs."),
}


_WITH_VALUE = frozenset({"-o", "--output", "--config", "--state", "--hub"})
_FLAGS = frozenset({"-q", "--quiet", "--ascii", "--debug"})


@dataclass(slots=True)
class CommonOptions:
    """What every verb shares."""

    output: str = "text"
    config: Path | None = None
    state: Path | None = None
    hub: str | None = None
    quiet: bool = False
    ascii: bool = False

    @property
    def as_json(self) -> bool:
        return self.output == "json"

    @property
    def words(self) -> list[str]:
        """The options that another process of ours needs for the same files and glyphs."""
        given = (("--config", self.config), ("--state", self.state), ("--hub", self.hub))
        return ["--ascii"] * self.ascii + [word for name, value in given if value for word in (name, str(value))]

    @property
    def agents_yaml(self) -> Path:
        """The file this call is about, whether it is there or not: here, else in the nearest folder above.

        A file above counts only if it and its folder belong to this user or to root and others cannot write there:
        anyone can put one into a shared folder such as /tmp.
        """
        from pathlib import Path

        here = Path("agents.yaml")
        if self.config is not None or os.path.lexists(here):
            return self.config or here
        above = next((folder / here for folder in Path.cwd().parents if (folder / here).is_file()), here)
        stats = [path.stat() for path in (above, above.parent) if above != here]
        return above if all(at.st_uid in {0, os.geteuid()} and not at.st_mode & 0o022 for at in stats) else here

    def require_agents_yaml(self) -> Path:
        """The file this call reads. Raises ConfigError, with the way to one, if there is none."""
        path = self.agents_yaml
        if not path.exists():
            import shlex

            given = f"--config {shlex.quote(str(path))} " if self.config else ""
            hint = f"`fleetsim {given}init URL` writes one from your agents' cards; --config FILE names another"
            raise ConfigError(f"there is no {path} here", hint=hint)
        return path

    def note(self, *lines: str) -> None:
        """Tell the person something, on stderr. A line that quotes an agent stays one line."""
        if not self.quiet:
            self.warn(*lines)

    def warn(self, *lines: str) -> None:
        """Tell the person, however quiet, that what stdout carries is not all."""
        from fleetsim.model.text import indented

        for line in lines:
            click.echo(indented(line), err=True)


def load_verb(name: str, place: str) -> click.Command:
    """Import a verb. If its package is not installed, the verb raises ConfigError when it is called."""
    try:
        command = load(place)
    except ConfigError as error:
        missing = error

        def refuse() -> None:
            raise missing

        anything = {"ignore_unknown_options": True, "allow_extra_args": True}
        return click.Command(name, callback=refuse, help=str(error), add_help_option=False, context_settings=anything)
    assert isinstance(command, click.Command)
    return command


_SERVERS = frozenset({"up", "demo", "agent", "mcp", "tape"})


class LazyGroup(click.Group):
    """A group whose verbs are imported when they are used."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _output_read():  # help is printed here
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _output_read():
            return super().invoke(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Accept the options that every verb shares behind the verb as well."""
        shared: list[str] = []
        rest: list[str] = []
        left = iter(args)
        for arg in left:
            if arg == "--":
                rest += [arg, *left]
            elif arg in _WITH_VALUE:
                shared += [arg, *islice(left, 1)]
            elif arg in _FLAGS or arg.split("=")[0] in _WITH_VALUE:
                shared.append(arg)
            else:
                rest.append(arg)
        return super().parse_args(ctx, [*shared, *rest])

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        return load_verb(cmd_name, VERBS[cmd_name][0])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs from the table, importing none."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, text) for name, (_, text) in VERBS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the nearest verb when there is none of that name."""
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], VERBS, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else " See 'fleetsim --help'."
            raise click.UsageError(f"No such verb: {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


_SETTINGS = {
    "help_option_names": ["-h", "--help"],
    "auto_envvar_prefix": "FLEETSIM",
    "token_normalize_func": lambda word: {"a2a-version": "dialect"}.get(word, word),  # an option's older name
}


@click.group(cls=LazyGroup, context_settings=_SETTINGS)
@click.version_option(__version__, "-v", "--version", prog_name="fleetsim", message="%(prog)s %(version)s")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="What stdout carries.")
@click.option("--config", type=click.Path(), help="agents.yaml [default: here, else in the nearest folder above].")
@click.option("--state", type=click.Path(), help="Where the hub keeps its key and ledger.")
@click.option("--hub", metavar="URL", help="The hub, if it is elsewhere; your key there is in WORKSTACEAN_API_KEY.")
@click.option("-q", "--quiet", is_flag=True, help="No progress and hints on stderr.")
@click.option("--ascii", "plain", is_flag=True, help="No glyphs and box drawing.")
@click.option("--debug", is_flag=True, help="Log everything the hub does, without secrets.")
@click.pass_context
def cli(
    ctx: click.Context,
    output: str,
    config: str | None,
    state: str | None,
    hub: str | None,
    quiet: bool,
    plain: bool,
    debug: bool,
) -> None:
    """Run, watch and test a fleet of A2A agents.

    \b
    New here?          fleetsim demo
    Have an agent?     fleetsim send http://127.0.0.1:8000 "hello"
    Have a fleet?      fleetsim init URL...   (writes ./agents.yaml and ./ceremonies/)
                       fleetsim up            (runs it)
    """
    import logging
    from pathlib import Path

    from fleetsim.cli.render import LOG_FORMAT

    ctx.obj = CommonOptions(
        output=output,
        config=None if config is None else Path(config),
        state=None if state is None else Path(state),
        hub=hub,
        quiet=quiet,
        ascii=plain,
    )
    LOG_FORMAT.hide_environment(os.environ)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LOG_FORMAT)
    # A verb that serves logs to stderr. Any other writes there for a person alone, unless --debug is given.
    if not (debug or ctx.invoked_subcommand in _SERVERS):
        handler.setLevel(logging.CRITICAL)
    level = logging.DEBUG if debug else logging.WARNING if quiet else logging.INFO
    logging.basicConfig(level=level, handlers=[handler])
    for loud in ("httpx", "httpcore", "asyncio", "uvicorn", "uvicorn.error", "uvicorn.access", "mcp"):
        logging.getLogger(loud).setLevel(logging.WARNING)


def main(argv: list[str] | None = None) -> None:
    sys.exit(run(lambda: cli.main(args=argv, prog_name="fleetsim", standalone_mode=False), argv))


def run(work: Callable[[], Any], argv: list[str] | None = None) -> int:
    """Run a verb and return the exit code; errors become one clear line and the next step."""
    try:
        with _output_read():
            code = _run(work, argv)
            sys.stdout.flush()
            return code
    except _ReaderLeft:
        print_nowhere()
        return Exit.BROKEN_PIPE


def print_nowhere() -> None:
    """Drop what is printed from now on: it has no reader, and the interpreter flushes at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.dup2(nowhere, sys.stderr.fileno())


class _ReaderLeft(Exception):
    """The reader of our output has ended, as ``head`` does. Of a BrokenPipeError, click would make exit status 1."""


@contextmanager
def _output_read() -> Iterator[None]:
    """Raise _ReaderLeft for a BrokenPipeError, also for one in the group of a task group."""
    try:
        yield
    except BrokenPipeError:
        raise _ReaderLeft from None
    except BaseExceptionGroup as group:
        if group.subgroup(BrokenPipeError) is None:
            raise
        raise _ReaderLeft from None


def _run(work: Callable[[], Any], argv: list[str] | None) -> int:
    try:
        code = work()
        return int(code) if isinstance(code, int) else Exit.OK
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except FleetsimError as error:
        _report(error, argv if argv is not None else sys.argv[1:])
        return exit_for(error)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return Exit.INTERRUPTED
    except (_ReaderLeft, BrokenPipeError):
        raise
    except Exception as error:  # noqa: BLE001 - the last one who can tell a person
        from fleetsim.cli.render import LOG_FORMAT
        from fleetsim.model.text import neutralise

        if "--debug" in (argv if argv is not None else sys.argv):
            click.echo(LOG_FORMAT.trace(error), err=True)
            return Exit.FAILED
        click.echo(f"error: {type(error).__name__}: {neutralise(str(error), limit=500, lines=False)}", err=True)
        click.echo("  next: this is a fault in fleetsim; run it again with --debug to see where", err=True)
        return Exit.FAILED


def _report(error: FleetsimError, argv: list[str]) -> None:
    """Print the error and the next step; as one JSON document with ``-o json``."""
    import json

    from fleetsim.model.text import escape, indented

    if "json" in argv:
        facts = {"code": code_for(error), "message": str(error), "hint": error.hint, "blame": error.blame.value}
        if hasattr(error, "wire_code"):
            facts["a2aCode"] = error.wire_code
        click.echo(escape(json.dumps({"error": facts}, ensure_ascii=False)), err=True)
        return
    by = ""
    if isinstance(error, RpcError) and error.blame is Blame.AGENT and not isinstance(error, TaskNotFound):
        by = f"the agent refused it with {error.wire_code}: "  # as the hub does; an unknown task names the agent
    click.echo(f"error: {by}{indented(str(error))}", err=True)
    if error.hint:
        click.echo(f"  next: {indented(error.hint)}", err=True)


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    AUTH = 4
    TIMEOUT = 5
    NOTHING_RAN = 6
    WAITING = 7
    VIOLATED = 8
    INTERRUPTED = 130
    BROKEN_PIPE = 141


class NoAnswer(FleetsimError):
    """A turn through the hub came to no end of the agent's own; ``exit_code`` says which way."""

    def __init__(self, reason: str, exit_code: Exit, correlation_id: str) -> None:
        super().__init__(reason, hint=f"fleetsim task get {correlation_id}")
        self.exit_code = exit_code


NOBODY_THERE = frozenset({404, 410, 502, 504})
"""HTTP statuses that mean that nothing is at the address; any other status is from a server that is there."""


def exit_for(error: FleetsimError) -> Exit:
    match error:
        case NoAnswer():
            return error.exit_code
        case ConfigError() | UnknownTarget() | TooMuch() | UnfitAnswer():
            return Exit.USAGE
        case AuthRefused():
            return Exit.AUTH
        case TimedOut():
            return Exit.TIMEOUT
        case TransportError():
            return Exit.UNREACHABLE
        case HttpRefused(status=status) if status in NOBODY_THERE:
            return Exit.UNREACHABLE
        case _:
            return Exit.FAILED


def code_for(error: FleetsimError) -> str:
    """A stable name for scripts, e.g. ``FLEETSIM_ERR_CONFIG_ERROR``."""
    words = "".join(f"_{c}" if c.isupper() else c for c in type(error).__name__).upper()
    return f"FLEETSIM_ERR{words}"
