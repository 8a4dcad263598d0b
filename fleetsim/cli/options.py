"""Options that several commands share: where an agent is and how it is called, and how long a command waits."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import click
from click.core import ParameterSource

from fleetsim.model.errors import ConfigError, FleetsimError
from fleetsim.model.limits import KIB, TEXT_CHARS_MAX
from fleetsim.model.spans import seconds_of
from fleetsim.model.text import one_line

Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]

TEXT_MAX_MAX = 64 * KIB * KIB
"""The most characters that can be asked for; they are held in memory, and on the wire they may be twelve times that."""

STDOUT = Path("-")
"""The file of ``--report`` that is standard output."""

TEXT_MAX_HELP = f"Read up to this many characters of text from the agent itself.  [default: {TEXT_CHARS_MAX}]"


def way_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--proxy`` and ``--ca``; agents.yaml has them for an agent given by its name."""
    proxy = "Go through this HTTP proxy; `environment` for that of HTTPS_PROXY and NO_PROXY, `none` for none."
    ca = "Trust the authorities in this PEM file; `system` for those of the operating system."
    return click.option("--proxy", metavar="URL", help=proxy)(click.option("--ca", metavar="FILE", help=ca)(command))


def pin_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``way_options``, and ``--rpc-url`` and ``--card-url`` for an agent whose card or address leads elsewhere."""
    command = way_options(command)
    card = "Read the card there, at the origin of the URL.  [default: below the URL, then at its root]"
    rpc = "Call the agent there, at the origin of the URL, whatever its card says."
    return click.option("--rpc-url", metavar="URL", help=rpc)(
        click.option("--card-url", metavar="URL", help=card)(command)
    )


def call_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``pin_options``, the dialect, and for an agent given by its URL the credential and the signers of its card;
    agents.yaml has these by name."""
    from fleetsim.wire.dialect import DIALECTS  # not for the verbs that call no agent

    version = click.option(
        "--dialect",
        type=click.Choice(sorted(DIALECTS)),
        metavar="DIALECT",
        help="Speak A2A 1.0, 0.3 or 0.1, whatever the card says; 1.0+http and 0.3+http are over HTTP+JSON. "
        "Its older name --a2a-version works too.",
    )
    return pin_options(
        auth_options(_signer("Call the agent only if one of these keys signed its card")(version(command)))
    )


def auth_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The credentials for an agent given by its URL. They name variables and files; no secret is on a command line."""
    key = click.option("--api-key-env", metavar="VAR", help="Send the key in this variable as X-API-Key.")
    token = click.option("--bearer-env", metavar="VAR", help="Send the token in this variable as a bearer token.")
    auth = click.option(
        "--auth",
        metavar="{…}",
        help="Send a credential in another form: `auth` of agents.yaml in { }, such as "
        "'{header: x-functions-key, credentialsEnv: FUNC_KEY}'; `fleetsim card` prints it.",
    )
    return key(token(auth(command)))


def _signer(rule: str, more: str = "") -> Decorator:
    text = f"{rule} (repeatable): a JWK Set, JWK or PEM file, or the https address of a JWK Set.{more}"
    return click.option("--signer", "signers", multiple=True, metavar="FILE|URL", help=text)


signer_option = _signer("Whose key may sign the card", "  [default: a key at the agent's own origin]")


wire_log_option = click.option(
    "--wire-log",
    metavar="FILE",
    help="At the end, write the newest 200 requests and replies to FILE (- is stderr), secrets masked.",
)


report_option = click.option(
    "--report",
    "reports",
    multiple=True,
    metavar="FORMAT=PATH",
    help="junit, html, json, sarif, or github: annotations (repeatable; PATH - is stdout).",
)


Typed = TypeVar("Typed", str, str | None)


def with_scheme(url: Typed) -> Typed:
    """An address as typed: one without a scheme is taken as http on this machine's word."""
    return f"http://{url}" if url is not None and "://" not in url else url


def secret_of(variable: str | None) -> str | None:
    """The value of a variable that an option names. Raises ConfigError if it has none."""
    if variable is None:
        return None
    value = os.environ.get(variable, "").strip()
    if not value:
        raise ConfigError(f"the environment variable {variable} is not set", hint=f"export {variable}=…")
    return value


def timeout_option(what: str, *, default: float | None = 300.0) -> Decorator:
    """The option, in seconds; ``what`` says what is waited for and what becomes of it afterwards."""
    return click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0, min_open=True),
        default=default,
        show_default=default is not None,
        metavar="SECONDS",
        help=what,
    )


def read_span(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    """The callback of an option such as ``8h``, in seconds. Raises BadParameter."""
    try:
        return None if text is None else seconds_of(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def options_given(ctx: click.Context, ours: Collection[str] = ()) -> list[str]:
    """The options of this call for the process that does its work, without ``ours``."""
    words: list[str] = []
    for option in ctx.command.params:
        name = option.name or ""
        given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if isinstance(option, click.Option) and given and name not in ours:
            values = ctx.params[name] if option.multiple else (ctx.params[name],)
            words += [option.opts[0]] if option.is_flag else [w for v in values for w in (option.opts[0], str(v))]
    return words


@asynccontextmanager
async def within(timeout_s: float | None, late: Callable[[], FleetsimError]) -> AsyncIterator[None]:
    """Cancel the block after ``timeout_s``, and raise the error that ``late`` makes."""
    import asyncio  # not for those who only read help

    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise late() from None


def in_repository(path: Path) -> str:
    """A file as a code host names it: relative to the checkout of a CI job, else to the working folder."""
    whole, root = path.resolve(), Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd()).resolve()
    return whole.relative_to(root).as_posix() if whole.is_relative_to(root) else path.as_posix()


@contextmanager
def no_commands(reports: Iterable[tuple[str, Path]]) -> Iterator[None]:
    """Keep GitHub from obeying text of an agent: what is printed within is text alone, if commands go to stdout later.

    https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands#stopping-and-starting-workflow-commands
    """
    from fleetsim.cli.render import line  # not for those who only read help

    stopped = ("github", STDOUT) in reports
    token = os.urandom(16).hex()
    if stopped:
        line(f"::stop-commands::{token}")
    yield
    if stopped:
        line(f"::{token}::")


def report_files(texts: Iterable[str], formats: Collection[str]) -> tuple[tuple[str, Path], ...]:
    """The formats and files of ``--report FORMAT=PATH``; ``-`` is stdout. Raises ConfigError for an unknown format."""
    files = []
    for text in texts:
        kind, _, path = text.partition("=")
        if kind not in formats or not path:
            raise ConfigError(f"{one_line(text)} is no report", hint=f"FORMAT=PATH with {', '.join(formats)}")
        files.append((kind, Path(path)))
    return tuple(files)
