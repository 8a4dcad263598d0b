"""What ``fleetsim check`` does: an agent is held to the checklist, once or again and again, and a report told."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from fleetsim.check.agent_under_test import KINDS, Hint, Options, Target
from fleetsim.check.app_parent import AppSpec, check_app_process
from fleetsim.check.comparison import REPORT_BYTES_MAX, OtherSide, compare
from fleetsim.check.formats import FORMATS, WIDTH, joined, render
from fleetsim.check.listener import Listener, host_port, socket_listener, usual_listener
from fleetsim.check.report import BASELINE_BYTES_MAX, Report, read_baseline, stale, write_baseline
from fleetsim.check.requirement import ONCE, Requirement
from fleetsim.check.runner import run_check
from fleetsim.cli.ask import agent_entry, credentials_given, is_url, way_given, wire_logged
from fleetsim.cli.main import CommonOptions, Exit
from fleetsim.cli.options import STDOUT, Typed, in_repository, no_commands, report_files, with_scheme
from fleetsim.cli.render import emit_json, line, lines
from fleetsim.cli.terminal import Progress
from fleetsim.client.credential import Credential, way_with
from fleetsim.fleet.auth import signed_request
from fleetsim.model.text import one_line
from fleetsim.runtime.files import read_file
from fleetsim.runtime.ports import Runtime, WayOut
from fleetsim.runtime.real import running_runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """An agent that is held to the rows, and how it is reached."""

    target: Target
    credentials: tuple[Credential, ...]
    app: AppSpec | None
    way: WayOut | None
    options: Options


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckPlan:
    """A check as its options (``given``) say it. ``file`` is the one at which a code host shows the failures."""

    side: Side
    other: Side | OtherSide | None
    requirements: tuple[Requirement, ...]
    reports: tuple[tuple[str, Path], ...]
    command: str
    file: str
    given: Mapping[str, Any]


def run(
    common: CommonOptions, url: str, requirements: tuple[Requirement, ...], given: dict[str, Any], *, command: str
) -> int:
    """Check as the options of ``fleetsim check`` say; ``command`` is what a person types to do it again."""
    file = given["source"]
    if not file and given["app"]:
        module = Path(*given["app"].partition(":")[0].split("."))
        file = in_repository(module / "__init__.py" if module.is_dir() else module.with_suffix(".py"))
    side = _side(common, url, given)
    other: Side | OtherSide | None = None
    if (against := given["against"]) is not None and Path(against).is_file():
        other = OtherSide.read(read_file(Path(against), REPORT_BYTES_MAX, private=False), against)
    elif against is not None:
        other = _side(common, against, {**given, "app": None, "rpc_url": None, "card_url": None})
    plan = CheckPlan(
        side=side,
        other=other,
        requirements=requirements,
        reports=report_files(given["reports"], FORMATS),
        command=command,
        file=file or in_repository(common.agents_yaml),
        given=given,
    )
    return asyncio.run(_run(common, plan))


def _side(common: CommonOptions, url: str, options: dict[str, Any]) -> Side:
    """The agent at a URL, of ``--app`` or of agents.yaml; options go before what its entry says."""
    entry = None if options["app"] or is_url(url) else asyncio.run(agent_entry(common, url))
    credentials = credentials_given(options["api_key_env"], options["bearer_env"], options["auth"])
    if entry is not None:
        url = entry.url
        options = {
            **options,
            "rpc_url": options["rpc_url"] or entry.rpc_url,
            "card_url": options["card_url"] or entry.card_url,
            "dialects": options["dialects"] or ((entry.wire,) if entry.wire else ()),
        }
        credentials = credentials or entry.credentials
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

    return Side(
        target=Target(
            url=at(url),
            headers=entry.headers if entry is not None else {},
            dialects=tuple(sorted(options["dialects"])) or None,
            rpc_url=at(options["rpc_url"]),
            card_url=at(options["card_url"]),
        ),
        credentials=credentials,
        app=app,
        way=way_with(credentials, way_given(options["proxy"], options["ca"], entry.way if entry is not None else None)),
        options=Options(
            hints={kind: Hint.parse(given, kind) for kind in KINDS if (given := options[f"skill_{kind}"])},
            mutating=tuple(options["mutating"]),
            profile=options["profile"] or "",
            sdk=options["sdk"] or "",
            signers=tuple(options["signers"]),
            side_effects=options["allow_side_effects"],
            seed=options["seed"],
            jobs=options["jobs"],
            reply_s=options["timeout_s"],
        ),
    )


def tell_list(common: CommonOptions, requirements: tuple[Requirement, ...]) -> int:
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


async def _run(common: CommonOptions, plan: CheckPlan) -> int:
    given = plan.given
    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(running_runtime(seed=given["seed"]))
        runtime = await stack.enter_async_context(wire_logged(plain, plan.side.target.url, given["wire_log"]))
        listener = None
        if place := given["webhook_listen"]:
            listening = socket_listener(*host_port(place), seen_as=given["webhook_url"])
            listener = await stack.enter_async_context(listening)
        elif plan.side.app is not None:
            listener = await stack.enter_async_context(usual_listener())
        while True:
            code = await _once(common, plan, runtime, listener)
            if given["watch"] is None:
                return code
            await _until_again(common, given["watch"])


async def _once(common: CommonOptions, plan: CheckPlan, runtime: Runtime, listener: Listener | None) -> int:
    given, accepted = plan.given, {}
    strict, min_tested = given["strict"], given["min_tested"]
    if (baseline := given["baseline"]) is not None:
        text = await runtime.files.read(baseline, bytes_max=BASELINE_BYTES_MAX)
        accepted = dict(read_baseline(text, str(baseline)))
    report = replace(await _checked(common, plan, plan.side, runtime, listener), file=plan.file)
    comparison, other = None, plan.other
    if isinstance(other, Side):
        other = OtherSide.of(await _checked(common, plan, other, runtime, listener))
    if other is not None:
        report, comparison = compare(report, other)
    report = report.with_accepted(accepted)
    with no_commands(plan.reports):
        if common.as_json:
            emit_json({**report.as_json(), **({"comparison": comparison.as_json()} if comparison is not None else {})})
        else:
            if comparison is not None:
                lines(joined(comparison.lines()))
            shape: dict[str, Any] = {"verbose": given["verbose"], "plain": common.ascii, "strict": strict}
            width = min(WIDTH, shutil.get_terminal_size().columns) if sys.stdout.isatty() else WIDTH
            lines(render(report, command=plan.command, width=width, **shape))
    for kind, path in plan.reports:
        if path == STDOUT:
            lines(FORMATS[kind](report))
        else:
            await runtime.files.write(path, FORMATS[kind](report).encode("utf-8", "replace"), mode=0o644)
    if (path := given["write_baseline"]) is not None:
        await runtime.files.write(path, write_baseline(report).encode(), mode=0o644)
        written = one_line(str(path))
        common.note(f"wrote {written}: write your reason behind each failure that you accept, and delete the others")
        common.note(f"  next: the same check with --baseline {written} instead of --write-baseline")
    for key in stale(report, accepted):
        common.note(f"the baseline accepts {key}, which passes now")
    if (tested := report.coverage()) < min_tested:
        common.note(f"{tested} % of what applies was tested; --min-tested demands {min_tested} %")
    return exit_code(report, strict=strict, min_tested=min_tested)


async def _checked(
    common: CommonOptions, plan: CheckPlan, side: Side, runtime: Runtime, listener: Listener | None
) -> Report:
    """Hold an agent of a plan to the rows, with its progress on stderr."""
    if side.way is not None:
        runtime = replace(runtime, transport=runtime.transport.through(side.way))
    own, other = await signed_request(side.credentials, runtime, side.target.headers), None
    if env := plan.given["other_key_env"]:
        other = (await signed_request(side.credentials, runtime, side.target.headers, env=env)).headers
    target = replace(side.target, headers=own.headers, query=own.url.removeprefix("?"), other_headers=other)
    async with Progress(
        f"starting {side.app.app}" if side.app else f"meeting {side.target.url}", quiet=common.quiet
    ) as progress:

        def tell(done: int, total: int, requirement: str) -> None:
            progress.say(f"checked {done} of {total}, {requirement}")

        check = run_check if side.app is None else partial(check_app_process, side.app, say=progress.say)
        return await check(
            target, runtime, listener=listener, options=side.options, requirements=plan.requirements, progress=tell
        )


def exit_code(report: Report, *, strict: bool, min_tested: int = 0) -> Exit:
    """The exit status of a check; ``min_tested`` is in percent of the rows that apply."""
    if report.nothing_tested:
        return Exit.UNREACHABLE if report.could_not_tell else Exit.NOTHING_RAN
    if not report.passed(strict=strict):
        return Exit.FAILED
    if report.could_not_tell:
        return Exit.UNREACHABLE
    return Exit.FAILED if report.coverage() < min_tested else Exit.OK


async def _until_again(common: CommonOptions, seconds: float) -> None:
    """Wait for Enter, or for ``seconds`` unless they are 0."""
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
