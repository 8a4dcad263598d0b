"""``fleetsim check`` and ``explain``: hold an agent to the checklist, and tell a row of it in full."""

from __future__ import annotations

import asyncio
import difflib
import shlex
import sys
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from fleetsim.check import baseline as accepted_failures
from fleetsim.check.app_parent import AppSpec, check_app_process
from fleetsim.check.files import FORMATS
from fleetsim.check.listener import Listener, socket_listener, usual_listener
from fleetsim.check.options import Hint, Options, Target
from fleetsim.check.report import Report
from fleetsim.check.requirement import ONCE, PROFILES, Requirement
from fleetsim.check.runner import run_check, select
from fleetsim.check.sections import REQUIREMENTS
from fleetsim.check.text import explain as explain_text
from fleetsim.check.text import render
from fleetsim.cli.exit_codes import Exit
from fleetsim.cli.main import CommonOptions
from fleetsim.cli.options import Typed, pin_options, report_files, with_scheme
from fleetsim.cli.render import emit_json, line, lines
from fleetsim.cli.terminal import Progress
from fleetsim.client.credential import Credential
from fleetsim.model.errors import ConfigError
from fleetsim.model.text import one_line
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.real import running_runtime
from fleetsim.wire.dialect import DIALECTS

KINDS = ("quick", "slow", "ask", "fail", "stream")
FILE_BYTES_MAX = accepted_failures.BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckPlan:
    target: Target
    app: AppSpec | None
    options: Options
    requirements: tuple[Requirement, ...]
    listen: tuple[str, int] | None
    seen_as: str | None
    reports: tuple[tuple[str, Path], ...]
    baseline: Path | None
    write_baseline: Path | None
    strict: bool
    verbose: bool
    command: str


@click.command()
@click.argument("url", required=False)
@pin_options
@click.option("--app", metavar="MODULE:ATTR", help="Run this ASGI agent for the check, instead of a URL.")
@click.option("--logger", "loggers", multiple=True, metavar="NAME", help="With --app: where it logs deliveries [all].")
@click.option("--store", default="", metavar="MODULE:ATTR", help="With --app: what holds its tasks by id (H-01).")
@click.option("--dialect", "dialects", multiple=True, type=click.Choice([*DIALECTS]), help="Probe only this.")
@click.option("--only", multiple=True, metavar="PATTERN", help="Rows by id or section, e.g. 'P-*' (repeatable).")
@click.option("--webhook-listen", metavar="HOST:PORT", help="Where webhooks may go; port 0 picks a free one.")
@click.option("--webhook-url", metavar="URL", help="The listener's origin as the agent reaches it, if that differs.")
@click.option("--allow-side-effects", is_flag=True, help="Also probe what costs or leaves traces.")
@click.option("--skill-quick", metavar="SKILL[=TEXT]", help="A skill that ends at once.")
@click.option("--skill-slow", metavar="SKILL[=TEXT]", help="A skill that takes about four seconds.")
@click.option("--skill-ask", metavar="SKILL[=TEXT]", help="A skill that asks a question.")
@click.option("--skill-fail", metavar="SKILL[=TEXT]", help="A skill that fails.")
@click.option("--skill-stream", metavar="SKILL[=TEXT]", help="A skill that answers in pieces.")
@click.option("--mutating", multiple=True, metavar="SKILL", help="A skill that changes the world (repeatable): X-02.")
@click.option("--profile", type=click.Choice(list(PROFILES)), help="A stricter reading: what its callers broke on.")
@click.option("--api-key-env", metavar="VAR", help="The variable with the API key (X-API-Key).")
@click.option("--bearer-env", metavar="VAR", help="The variable with the bearer token.")
@click.option("--other-key-env", metavar="VAR", help="A second caller's key or token, of the same kind.")
@click.option("--report", "reports", multiple=True, metavar="FORMAT=PATH", help="junit, html, json or markdown.")
@click.option("--baseline", type=click.Path(path_type=Path), help="Accepted failures, each with a reason.")
@click.option("--write-baseline", type=click.Path(path_type=Path), help="Write today's failures as a baseline.")
@click.option("--strict", is_flag=True, help="A failed SHOULD fails the check too.")
@click.option("--seed", type=int, default=0, show_default=True, help="Another order of the probes, repeatable.")
@click.option("--jobs", type=click.IntRange(1, 32), default=8, show_default=True, help="Probes at once.")
@click.option("--watch", type=float, metavar="SECONDS", help="Run again every so often, or on Enter; 0: on Enter only.")
@click.option("--verbose", is_flag=True, help="List every row, by its id.")
@click.option("--list", "listing", is_flag=True, help="List the checklist and do nothing.")
@click.pass_obj
def check(common: CommonOptions, /, url: str | None, **options: Any) -> int:
    """Hold an agent to the checklist: what passes, what a fleet would trip over, and the fix.

    \b
    fleetsim agent --port 9000 --allow-webhook 127.0.0.1:9199
    fleetsim check http://127.0.0.1:9000 --webhook-listen 127.0.0.1:9199
    fleetsim check --app my_agent:app
    fleetsim explain P-17

    --app runs an agent written in Python by itself: MODULE:ATTR from this folder, MODULE:make() where a function
    makes it. That tests what no URL shows: its log, its garbage, and hours of virtual time if it uses no threads.
    URLs beside it are paths, as /a2a. Webhooks go to 127.0.0.1:9199 unless --webhook-listen says where.

    A text alone is enough for most rows; those that need a slow, asking, failing or streaming skill find it by
    its id or tag on the card, or by --skill-...: SKILL, SKILL=TEXT to send, or =TEXT for an agent that picks
    the skill by itself.

    The first line is the verdict: PASSED, FAILED, or INCOMPLETE where a third or more was not tested or something
    was lost on the way. What was not tested is told by what it would take, and the last line tests most of it.

    Exit codes: 0 every MUST that was tested passes, 1 something fails, 2 usage, 3 unreachable or could not tell,
    4 credentials, 6 nothing was tested.
    """
    requirements = select(options["only"])
    if options["listing"]:
        return _list(common, requirements)
    app = options["app"]
    if url is None and app is None:
        ways = "fleetsim check http://127.0.0.1:9000, or a Python one: fleetsim check --app my_agent:app"
        raise click.UsageError(f"Which agent? Give its URL, e.g. {ways}")
    if app is None and (options["loggers"] or options["store"]):
        raise click.UsageError("--logger and --store look into an agent that --app runs")
    if not requirements:
        raise click.UsageError(f"No row fits {', '.join(options['only'])}. See 'fleetsim check --list'.")
    return asyncio.run(_run(common, _plan(url or "", requirements, options), options["watch"]))


def _plan(url: str, requirements: tuple[Requirement, ...], options: dict[str, Any]) -> CheckPlan:
    headers, other_headers = _headers(options["api_key_env"], options["bearer_env"]), None
    if other := options["other_key_env"]:
        other_headers = _headers(other, None) if options["api_key_env"] else _headers(None, other)
    app = None
    if options["app"] is not None:
        app = AppSpec(app=options["app"], loggers=options["loggers"], store=options["store"])

    def at(text: Typed) -> Typed:
        """The address; of an agent that is run here a path, as it has no other beforehand."""
        if app is not None and text and not text.startswith("/"):
            raise click.UsageError(
                f"--app runs the agent itself, and {one_line(text)} is elsewhere: give a path, as /a2a"
            )
        return with_scheme(text) if app is None else text

    return CheckPlan(
        target=Target(
            url=at(url),
            headers=headers,
            other_headers=other_headers,
            dialects=tuple(sorted(options["dialects"])) or None,
            rpc_url=at(options["rpc_url"]),
            card_url=at(options["card_url"]),
        ),
        app=app,
        options=Options(
            hints={kind: Hint.parse(given, kind) for kind in KINDS if (given := options[f"skill_{kind}"])},
            mutating=tuple(options["mutating"]),
            profile=options["profile"] or "",
            side_effects=options["allow_side_effects"],
            seed=options["seed"],
            jobs=options["jobs"],
        ),
        requirements=requirements,
        listen=_host_port(options["webhook_listen"]),
        seen_as=options["webhook_url"],
        reports=report_files(options["reports"], FORMATS),
        baseline=options["baseline"],
        write_baseline=options["write_baseline"],
        strict=options["strict"],
        verbose=options["verbose"],
        command=_command(url, options),
    )


def _command(url: str, options: dict[str, Any]) -> str:
    """What was asked for, as a person would type it again."""
    words = ["fleetsim", "check", *([url] if url else [])]
    for option in check.params:
        given = options.get(option.name or "")
        if not isinstance(option, click.Option) or given == option.default or given in (None, False, ()):
            continue
        if option.is_flag:
            words.append(option.opts[0])
            continue
        for value in given if option.multiple else (given,):
            words += [option.opts[0], f"{value[0]}={value[1]}" if isinstance(value, tuple) else str(value)]
    return shlex.join(words)


def _headers(key_env: str | None, bearer_env: str | None) -> dict[str, str]:
    headers: dict[str, str] = {}
    if key_env:
        headers |= Credential("apiKey", key_env).headers()
    if bearer_env:
        headers |= Credential("bearer", bearer_env).headers()
    return headers


def _host_port(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise ConfigError(f"{one_line(text)} is no HOST:PORT", hint="e.g. --webhook-listen 127.0.0.1:9199")
    return host.strip("[]"), int(port)


def _list(common: CommonOptions, requirements: tuple[Requirement, ...]) -> int:
    if common.as_json:
        emit_json([{"id": r.id, "severity": r.severity, "section": r.section, "title": r.title} for r in requirements])
        return Exit.OK
    section = ""
    for requirement in requirements:
        if requirement.section != section:
            section = requirement.section
            line("")
            line(section)
        dialects = "" if requirement.dialects == ONCE else f"  ({', '.join(requirement.dialects)})"
        line(f"  {requirement.id}  {requirement.severity:<6} {requirement.title}{dialects}")
    return Exit.OK if requirements else Exit.NOTHING_RAN


async def _run(common: CommonOptions, plan: CheckPlan, watch: float | None) -> int:
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(running_runtime(seed=plan.options.seed))
        listener = None
        if plan.listen is not None:
            listener = await stack.enter_async_context(socket_listener(*plan.listen, seen_as=plan.seen_as))
        elif plan.app is not None:
            listener = await stack.enter_async_context(usual_listener())
        while True:
            code = await _once(common, plan, runtime, listener)
            if watch is None:
                return code
            await _until_again(common, watch)


async def _once(common: CommonOptions, plan: CheckPlan, runtime: Runtime, listener: Listener | None) -> int:
    accepted = {}
    if plan.baseline is not None:
        text = await runtime.files.read(plan.baseline, bytes_max=FILE_BYTES_MAX)
        accepted = dict(accepted_failures.read(text, str(plan.baseline)))
    async with Progress(
        f"starting {plan.app.app}" if plan.app else f"meeting {plan.target.url}", quiet=common.quiet
    ) as progress:

        def tell(done: int, total: int, requirement: str) -> None:
            progress.say(f"checked {done} of {total}, {requirement}")

        if plan.app is None:
            report = await run_check(
                plan.target,
                runtime,
                listener=listener,
                options=plan.options,
                requirements=plan.requirements,
                progress=tell,
            )
        else:
            report = await check_app_process(
                plan.app,
                plan.target,
                runtime,
                listener=listener,
                options=plan.options,
                requirements=plan.requirements,
                progress=tell,
                say=progress.say,
            )
    report = report.with_accepted(accepted)
    for kind, path in plan.reports:
        await runtime.files.write(path, FORMATS[kind](report).encode("utf-8", "replace"), mode=0o644)
    if plan.write_baseline is not None:
        await runtime.files.write(plan.write_baseline, accepted_failures.write(report).encode(), mode=0o644)
    for key in accepted_failures.stale(report, accepted):
        common.note(f"the baseline accepts {key}, which passes now")
    if common.as_json:
        emit_json(report.as_json())
    else:
        lines(render(report, verbose=plan.verbose, plain=common.ascii, strict=plan.strict, command=plan.command))
    return exit_code(report, strict=plan.strict)


def exit_code(report: Report, *, strict: bool) -> Exit:
    if not report.passed(strict=strict):
        return Exit.FAILED
    if report.could_not_tell:
        return Exit.UNREACHABLE
    return Exit.OK if report.tested else Exit.NOTHING_RAN


async def _until_again(common: CommonOptions, seconds: float) -> None:
    """Wait for Enter, or for so many seconds unless they are 0."""
    common.note("again on Enter" + (f" or in {seconds:g} s" if seconds else "") + "; Ctrl-C ends")
    pressed = asyncio.Event()
    loop, stdin = asyncio.get_running_loop(), sys.stdin

    def read() -> None:
        if not stdin.readline():
            loop.remove_reader(stdin)
            return
        pressed.set()

    with suppress(OSError, ValueError, NotImplementedError):
        loop.add_reader(stdin, read)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds or None):
                await pressed.wait()
    finally:
        with suppress(OSError, ValueError, NotImplementedError):
            loop.remove_reader(stdin)


@click.command()
@click.argument("row_id", metavar="ID")
@click.pass_obj
def explain(common: CommonOptions, row_id: str) -> int:
    """Explain a row of the checklist: what it demands, who says so, how it is probed, how to fix it.

    \b
    fleetsim explain P-17
    fleetsim check --list
    """
    requirement = REQUIREMENTS.get(row_id.upper().partition("@")[0])
    if requirement is None:
        near = difflib.get_close_matches(row_id.upper(), REQUIREMENTS, n=1)
        hint = f"Did you mean {near[0]}?" if near else "See 'fleetsim check --list'."
        raise click.UsageError(f"No such row: {row_id!r}. {hint}")
    if common.as_json:
        emit_json(requirement.as_json())
    else:
        lines(f"{explain_text(requirement)}\n")
    return Exit.OK
