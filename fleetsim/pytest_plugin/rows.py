"""What ``pytest --fleetsim-agent`` runs, and ``--fleetsim-app``: the check once, ahead of all, and a test for each row.

The check runs on a thread with a loop of its own, so that no other plugin's loop or time limit is touched.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fleetsim.check.agent_under_test import KINDS, Hint, Options, Target
from fleetsim.check.app_parent import AppSpec, check_app_process
from fleetsim.check.evidence import Verdict
from fleetsim.check.listener import host_port, socket_listener, usual_listener
from fleetsim.check.report import BASELINE_BYTES_MAX, Finding, Report, read_baseline
from fleetsim.check.requirement import Requirement, Severity
from fleetsim.check.runner import run_check, select
from fleetsim.client.credential import Credential, Scheme, way_with
from fleetsim.fleet.auth import read_auth, signed_request
from fleetsim.model.errors import ConfigError, FleetsimError
from fleetsim.model.text import neutralise
from fleetsim.runtime.files import read_file
from fleetsim.runtime.real import running_runtime

REPORT: pytest.StashKey[Report] = pytest.StashKey()
JOIN_S = 0.2
EVIDENCE_MAX = 2


class RowFailed(Exception):
    """A row that is not kept, in words for a person."""


def collected(session: pytest.Session) -> list[pytest.Item]:
    """One test for each row that was asked for. Raises UsageError for a pattern that fits none."""
    rows = select(session.config.getoption("--fleetsim-only"))
    if not rows:
        raise pytest.UsageError("--fleetsim-only fits no row; 'fleetsim check --list' names them all")
    checklist = Checklist.from_parent(session, name="fleetsim", nodeid="fleetsim")
    return [RowTest.from_parent(checklist, name=row.id, row=row) for row in rows]


def run_ahead(session: pytest.Session) -> None:
    """Check the agent for the rows that were selected, and keep the report. Ends pytest if it cannot be met."""
    rows = [item.row for item in session.items if isinstance(item, RowTest)]
    if not rows:
        return
    telling = session.config.pluginmanager.get_plugin("terminalreporter")
    url = session.config.getoption("--fleetsim-app") or session.config.getoption("--fleetsim-agent")
    try:
        report = _on_a_thread(session.config, rows)
        if baseline := session.config.getoption("--fleetsim-baseline"):
            text = read_file(Path(baseline), BASELINE_BYTES_MAX, private=False)
            report = report.with_accepted(read_baseline(text, baseline))
    except FleetsimError as error:
        hint = f" ({error.hint})" if error.hint else ""
        pytest.exit(f"fleetsim cannot check {url}: {neutralise(str(error) + hint)}", returncode=3)
    session.config.stash[REPORT] = report
    if not report.dialects:
        pytest.exit(f"fleetsim tested nothing of {url}: {neutralise(report.note)}", returncode=6)
    if telling is not None:
        speaks = ", ".join(f"{name} at {at}" for name, at in report.endpoints.items())
        telling.write_line(
            neutralise(f"fleetsim: {report.agent} speaks A2A {speaks}; checked in {report.seconds:.1f} s")
        )


def _on_a_thread(config: pytest.Config, rows: Iterable[Requirement]) -> Report:
    reports: list[Report] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            reports.append(asyncio.run(_check(config, rows)))
        except BaseException as error:  # noqa: BLE001 - it is raised again below, on pytest's own thread
            failed.append(error)

    thread = threading.Thread(target=work, name="fleetsim check", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(JOIN_S)  # a short wait, so that Ctrl-C works
    if failed:
        raise failed[0]
    return reports[0]


async def _check(config: pytest.Config, rows: Iterable[Requirement]) -> Report:
    option = config.getoption
    app = option("--fleetsim-app")
    url = option("--fleetsim-agent") or ""
    if app and url and not url.startswith("/"):  # run here, it has no other address beforehand
        raise ConfigError(f"--fleetsim-app runs the agent itself, and {url!r} is elsewhere", hint="a path, as /a2a")
    if not app and "://" not in url:
        url = f"http://{url}"
    hints: dict[str, Hint] = {}
    for word in option("--fleetsim-skill"):
        kind, equals, skill = word.partition("=")
        if kind not in KINDS or not equals:
            raise ConfigError(f"{word!r} names no skill", hint=f"KIND=SKILL[=TEXT]; KIND is {', '.join(KINDS)}")
        hints[kind] = Hint.parse(skill, kind)
    options = Options(
        seed=option("--fleetsim-seed") or 0,
        side_effects=option("--fleetsim-allow-side-effects"),
        hints=hints,
    )
    async with AsyncExitStack() as stack:
        listener = None
        if place := option("--fleetsim-webhook-listen"):
            listener = await stack.enter_async_context(socket_listener(*host_port(place)))
        elif app:
            listener = await stack.enter_async_context(usual_listener())
        runtime = await stack.enter_async_context(running_runtime(seed=options.seed))
        schemes: tuple[Scheme, ...] = ("apiKey", "bearer")
        names = (option("--fleetsim-api-key-env"), option("--fleetsim-bearer-env"))
        credentials = tuple(Credential(scheme, name) for scheme, name in zip(schemes, names, strict=True) if name)
        credentials += read_auth(auth) if (auth := option("--fleetsim-auth")) else ()
        other_env = option("--fleetsim-other-key-env")
        own, other = await signed_request(credentials, runtime, {}), None
        if other_env:
            other = (await signed_request(credentials, runtime, {}, env=other_env)).headers
        target = Target(url=url, headers=own.headers, query=own.url.removeprefix("?"), other_headers=other)
        if (way := way_with(credentials)) is not None:
            runtime = replace(runtime, transport=runtime.transport.through(way))
        checked = partial(check_app_process, AppSpec(app=app)) if app else run_check
        return await checked(target, runtime, listener=listener, options=options, requirements=rows)


class Checklist(pytest.Collector):
    """The node that all rows hang from."""

    def collect(self) -> list[pytest.Item]:
        return []


class RowTest(pytest.Item):
    """One row. It passes, fails, or is skipped with the reason; what is only SHOULD or MAY is an expected failure."""

    def __init__(self, *, row: Requirement, **given: Any) -> None:
        super().__init__(**given)
        self.row = row
        self.add_marker(pytest.mark.fleetsim)

    def runtest(self) -> None:
        findings = [f for f in self.config.stash[REPORT].findings if f.requirement.id == self.row.id]
        failures = [finding for finding in findings if finding.failed]
        if failures:
            strict = self.config.getoption("--fleetsim-strict")
            if self.row.severity is Severity.MUST or (strict and self.row.severity is Severity.SHOULD):
                raise RowFailed("\n\n".join(_in_words(finding) for finding in failures))
            pytest.xfail(f"{self.row.severity}: {failures[0].reason}")
        if accepted := [finding for finding in findings if finding.accepted]:
            pytest.xfail(f"accepted: {accepted[0].accepted}")
        if not any(finding.verdict is Verdict.PASS for finding in findings):
            reasons = dict.fromkeys(f"{finding.verdict.value}: {finding.reason}" for finding in findings)
            pytest.skip("; ".join(reasons) or "not tested")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The row, what was seen, and what to do, instead of a traceback."""
        if not isinstance(excinfo.value, RowFailed):
            return super().repr_failure(excinfo)
        row = self.row
        lines = [f"{row.severity} {row.id}: {row.title}", "", str(excinfo.value), "", f"Fix: {row.remedy}"]
        lines += [f"Met before: {row.incident}"] if row.incident else []
        return "\n".join([*lines, f"Source: {row.source}", f"Probed: {row.how}"])

    def reportinfo(self) -> tuple[str, None, str]:
        """The file, line and title that pytest shows: only the title exists, which is the requirement."""
        return "fleetsim", None, f"{self.row.id} {self.row.title}"


def _in_words(finding: Finding) -> str:
    where = "" if finding.dialect == "any" else f"in A2A {finding.dialect}: "
    shown = [text.splitlines() for text in finding.evidence[:EVIDENCE_MAX]]
    evidence = ["\n".join(f"    {line}" for line in lines) for lines in shown]
    return "\n\n".join([f"{where}{finding.reason}", *evidence])
