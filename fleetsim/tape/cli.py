"""``fleetsim tape``: record a real agent, and play the tape in its place."""

from __future__ import annotations

import asyncio
import shlex
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from fleetsim.cli import render
from fleetsim.cli.ask import AskOptions, agent_client
from fleetsim.cli.main import CommonOptions, Exit
from fleetsim.cli.options import call_options, timeout_option, with_scheme
from fleetsim.cli.terminal import Progress
from fleetsim.client import AgentClient
from fleetsim.model.errors import AuthRefused, ConfigError
from fleetsim.model.text import one_line
from fleetsim.runtime.address import AddressPolicy
from fleetsim.runtime.limits import ServerLimits
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.real import running_runtime
from fleetsim.runtime.server import is_loopback, listen, serving
from fleetsim.tape.replay import LOST, Replay
from fleetsim.tape.save import environment_secrets
from fleetsim.tape.servers import TapeRecorder, TapeServer
from fleetsim.tape.tape import TAPE_BYTES_MAX, Tape

SAVE_EVERY_S = 1.0
SHOWN_MAX = 20


@click.group()
def tape() -> None:
    """Record a real agent in a file, and play it in the agent's place: in CI, offline, at no cost.

    \b
    fleetsim tape record https://quinn.example --out quinn.tape --port 9001
    fleetsim send http://127.0.0.1:9001 "what is open?"      (the real agent replies)
    fleetsim tape play quinn.tape --port 9001
    fleetsim send http://127.0.0.1:9001 "what is open?"      (the tape replies)
    """


def _served_options(command: Any) -> Any:
    text = "A private address webhooks may go to (repeatable). On 127.0.0.1, all of this machine are allowed."
    allow = click.option("--allow-webhook", "allowed", multiple=True, metavar="HOST:PORT", help=text)
    host = click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
    return host(
        click.option("--port", default=9001, show_default=True, help="Port; 0 picks a free one.")(allow(command))
    )


@tape.command()
@click.argument("url")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The file to write.")
@click.option("--webhook-url", default="", metavar="URL", help="The recorder's origin as the agent reaches it.")
@_served_options
@click.pass_obj
def record(common: CommonOptions, /, url: str, out: Path, **options: Any) -> None:
    """Stand between callers and the agent at URL until Ctrl-C, and keep requests, replies, streams and webhooks.

    \b
    fleetsim tape record https://quinn.example --out quinn.tape --port 9001

    Call the agent at the printed address. The tape has harmless headers alone. Credentials, tokens, values of
    environment variables named like secrets, and strings with the shape of a known kind of key are ***. Other strings
    that may be secrets are listed at the end: read these lines before you commit the tape. Only you can read the file.

    Exit codes: 0, 2 if the file exists already, 3 if the agent cannot be reached.
    """
    if out.exists():
        raise ConfigError(f"{out} exists already", hint="give another name with --out")
    asyncio.run(_record(common, with_scheme(url), out, **options))


@tape.command()
@click.argument("file", metavar="TAPE", type=click.Path(path_type=Path))
@click.option(
    "--match",
    "matching",
    type=click.Choice(["text", "skill", "order"]),
    default="text",
    show_default=True,
    help="Compare skill and text, only the skill, or only the order of requests.",
)
@click.option("--fast", is_flag=True, help="Play without pauses.")
@click.option(
    "--on-miss",
    type=click.Choice(["fail", "record"]),
    default="fail",
    show_default=True,
    help="record: add the real agent's reply to the tape.",
)
@_served_options
@click.pass_obj
def play(common: CommonOptions, /, file: Path, **options: Any) -> None:
    """Act as the agent of TAPE until Ctrl-C: the same card and replies, with new ids, at the recorded pace.

    \b
    fleetsim tape play quinn.tape --port 9001
    fleetsim tape play quinn.tape --port 9001 --fast --on-miss record

    A request without a recorded reply gets an error that shows the nearest recorded request. Texts are compared without
    ids, dates, capitals and runs of white space. The tape speaks the versions and bindings that were recorded.
    """
    asyncio.run(_play(common, file, **options))


@tape.command()
@click.argument("file", metavar="TAPE", type=click.Path(path_type=Path))
@click.option("--to", "agent", required=True, metavar="AGENT", help="The candidate: a URL, or a name of agents.yaml.")
@click.option("--allow-side-effects", is_flag=True, help="Also send requests of skills with declared effects.")
@click.option(
    "--fail-on",
    type=click.Choice(["text", "time", "cost"]),
    multiple=True,
    help="Another text, more time or a higher cost is worse, too (repeatable).",
)
@click.option(
    "--factor",
    type=click.FloatRange(min=1.0),
    default=1.5,
    show_default=True,
    help="Time and cost differ above this many times as much as on the tape.",
)
@timeout_option("How long to wait for the end of each request.")
@call_options
@click.pass_obj
def replay(common: CommonOptions, /, file: Path, fail_on: tuple[str, ...], factor: float, **options: Any) -> int:
    """Send the messages of TAPE to a candidate, and compare states, text, time and cost with the tape.

    \b
    fleetsim tape replay quinn.tape --to http://127.0.0.1:9000
    fleetsim tape replay quinn.tape --to http://127.0.0.1:9000 --fail-on cost --factor 1.2 -o json

    Follow-ups and answers go out in their place in the conversation, with the candidate's own ids. A request is worse
    if it completed or asked on the tape, and does not at the candidate. Requests of skills with declared effects are
    left out and counted, and so are those that the tape does not show to their end. Ctrl-C shows what was compared.

    Exit codes: 0 nothing is worse, 1 something is, 2 usage, 3 unreachable or a connection failed, 4 credentials,
    6 nothing was compared.
    """
    return asyncio.run(_replay(common, file, frozenset(fail_on), factor, **options))


async def _record(
    common: CommonOptions, url: str, out: Path, *, webhook_url: str, allowed: tuple[str, ...], **where: Any
) -> None:
    async with running_runtime() as runtime:
        policy = _policy(where["host"], allowed)
        recorder = TapeRecorder(url, runtime, policy=policy, webhook_origin=webhook_url.rstrip("/"))
        async with _served(recorder.app, **where) as (served, stopped):
            at = served + urlsplit(url).path.rstrip("/")
            for place in (url, at):  # the first names what is wrong with the agent, the second records the card
                with suppress(AuthRefused):  # then a caller with the key records it
                    async with AgentClient(place, runtime=runtime) as client:
                        await client.discover()
            name = one_line(recorder.tape.head.agent, 80) or "the agent"
            common.note(f"recording {name} in {out} until Ctrl-C; call it at {at}")
            await _save_until(stopped, common, recorder, out, runtime)


async def _play(
    common: CommonOptions, file: Path, *, on_miss: str, allowed: tuple[str, ...], host: str, port: int, **how: Any
) -> None:
    async with running_runtime() as runtime:
        tape = Tape.read(await runtime.files.read(file, bytes_max=TAPE_BYTES_MAX), str(file))
        policy, head = _policy(host, allowed), tape.head
        live = TapeRecorder(head.url, runtime, policy=policy, tape=tape) if on_miss == "record" else None
        server = TapeServer(tape, runtime, policy=policy, live=live, **how)
        async with _served(server.app, host, port) as (served, stopped):
            agent, at = one_line(head.agent, 80) or "the agent", served + urlsplit(head.url).path.rstrip("/")
            common.note(f"playing {agent}, {len(tape.rows)} lines, until Ctrl-C; call it at {at}")
            await (stopped.wait() if live is None else _save_until(stopped, common, live, file, runtime))


async def _replay(
    common: CommonOptions, file: Path, fail_on: frozenset[str], factor: float, *, allow_side_effects: bool, **how: Any
) -> Exit:
    ask = AskOptions.given(**how)
    async with agent_client(common, ask) as client:
        tape = Tape.read(await client.runtime.files.read(file, bytes_max=TAPE_BYTES_MAX), str(file))
        replay = Replay(tape=tape, client=client, side_effects=allow_side_effects, timeout_s=ask.timeout_s)
        try:
            async with Progress(lambda: f"sent {len(replay.compared)} of {replay.total}", quiet=common.quiet):
                await replay.run()
        finally:  # also after Ctrl-C
            compared = replay.comparison(str(file), factor, fail_on)
            if common.as_json and replay.total:
                render.emit_json(replay.as_json(compared))
            for text in compared.lines() if replay.total and not common.as_json else ():
                render.line(text)
            for why, count in replay.left_out.items():
                common.warn(f"{count} of {replay.total} requests were left out: {why}")
    if compared.worse:
        return Exit.FAILED
    if LOST in replay.left_out:
        return Exit.UNREACHABLE
    return Exit.OK if replay.compared else Exit.NOTHING_RAN


def _policy(host: str, allowed: tuple[str, ...]) -> AddressPolicy:
    """Where webhooks may go: to this machine too, if only this machine can register one."""
    own = ("127.0.0.0/8:*", "[::1]:*", "localhost:*") if is_loopback(host) else ()
    return AddressPolicy.allowing(*own, *allowed)


@asynccontextmanager
async def _served(app: Any, host: str, port: int) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """Serve; yields the origin, and the event of a signal to stop."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with serving(app, ServerLimits(), listen(host, port), what="the tape") as origin:
        yield origin, stopped


async def _save_until(
    stopped: asyncio.Event, common: CommonOptions, recorder: TapeRecorder, out: Path, runtime: Runtime
) -> None:
    """Write the tape each second, less often if it is large, and at the end. Say what may still be a secret in it."""
    recorder.secrets |= environment_secrets()
    written, doubts = b"", list[str]()
    while True:
        ended, began_s = stopped.is_set(), runtime.clock.monotonic()
        content, doubts = recorder.tape.written(recorder.secrets)
        if content != written:
            await runtime.files.write(out, content)
        written = content
        if ended:
            break
        with suppress(TimeoutError):
            async with asyncio.timeout(max(SAVE_EVERY_S, 20 * (runtime.clock.monotonic() - began_s))):
                await stopped.wait()
    more = [f"and {len(doubts) - SHOWN_MAX} more"] * (len(doubts) > SHOWN_MAX)
    common.note(f"{len(recorder.tape.rows)} exchanges and webhooks in {out}")
    common.warn(*doubts[:SHOWN_MAX], *more)
    common.note(f"  next: read it, then fleetsim tape play {shlex.quote(str(out))}")
