"""``fleetsim check --app``: runs the named agent in a separate process, and sees it from inside.

Most rows are probed over a port in real time; the check reads the agent's log and runs its garbage collector. Rows that
need hours run in a second process on virtual time, unless the agent uses something that virtual time lacks. The process
holds nothing of the report. It has no terminal and ends with the check, which kills it if necessary.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from msgspec import to_builtins

from fleetsim.check.agent_under_test import AgentLog, Options, Target
from fleetsim.check.evidence import Verdict
from fleetsim.check.listener import Listener
from fleetsim.check.needs import NEEDS_HOURS
from fleetsim.check.report import Finding, Report
from fleetsim.check.requirement import Requirement
from fleetsim.check.runner import Progress, run_check
from fleetsim.check.sections import REQUIREMENTS
from fleetsim.model.errors import ConfigError
from fleetsim.model.text import one_line
from fleetsim.runtime.address import LOOPBACK_NAMES
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.workers import Workers

log = logging.getLogger(__name__)

START_S = 60.0
HOURS_S = 120.0
STOP_S = 6.0
COLLECT_S = 10.0
LINE_BYTES_MAX = 4 * 1024 * 1024
WHERE_S = 1.0
LAST_WORDS_S = 2.0
LAST_LINES = 60

_PLACE = re.compile(r'\s*File "([^"]+)", line (\d+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class AppSpec:
    """Which agent to run: ``app`` is MODULE:ATTR, or MODULE:make() for one that is made.

    ``loggers`` are those it tells its deliveries by (all, and what it prints, if none is named), ``store`` names
    the container of its tasks, as ``app`` does. ``start_s`` and ``hours_s`` are the seconds its start and the
    rows on virtual time may take.
    """

    app: str
    loggers: tuple[str, ...] = ()
    store: str = ""
    start_s: float = START_S
    hours_s: float = HOURS_S


def _environment() -> dict[str, str]:
    """This process's, with no proxy in front of loopback: the agent's webhooks come to the check's own receiver."""
    theirs = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    direct = ",".join(filter(None, (theirs, *LOOPBACK_NAMES)))
    return {**os.environ, "no_proxy": direct, "NO_PROXY": direct}  # libraries differ in which of them they read


class AppProcess:
    """An agent's process, seen from the parent. ``url`` is its address, ``code`` its exit code if it has ended.

    Use as ``async with``: entering starts it and gives it its job, leaving kills it with all it started. With
    ``hours``, it probes these rows on virtual time.
    """

    def __init__(self, spec: AppSpec, hours: dict[str, Any] | None = None) -> None:
        self.spec = spec
        self.url = ""
        self.log = AgentLog()
        self.printed: deque[str] = deque(maxlen=LAST_LINES)
        self.code: int | None = None
        self.failed = ""
        self._job = {"app": spec.app, "loggers": spec.loggers or [""], "store": spec.store, "virtual": hours}
        self._messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._ended, self._collected, self._killed = asyncio.Event(), asyncio.Event(), False
        self._stopping = False
        self._workers = Workers("check")

    async def __aenter__(self) -> AppProcess:
        ours, its = socket.socketpair()
        with its:
            # Not from the working folder: what lies there must not stand before what fleetsim itself imports.
            # Unbuffered: its output arrives at once, and is complete even if it ends the process.
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-u", "-m", "fleetsim.check.app_child", str(its.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=_environment(),
                pass_fds=(its.fileno(),),
                start_new_session=True,
            )
        self._reader, self._writer = await asyncio.open_connection(sock=ours, limit=LINE_BYTES_MAX)
        self._reading = self._workers.start(self._read_output(), name=f"output of {self.spec.app}")
        self._listening = self._workers.start(self._listen(), name=f"line to {self.spec.app}")
        self._send(**self._job)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.url and not self._ended.is_set():
            self._stopping = True
            self._send(ask="stop")  # its lifespan may end in peace
            await asyncio.wait([self._listening], timeout=STOP_S)
        self._killed = True
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._writer.close()
        await self._process.wait()
        await self._workers.close()

    async def next(self, seconds: float) -> dict[str, Any] | None:
        """The next message; None if its process ended (``code``) or the time is over."""
        async with asyncio.TaskGroup() as group:
            message, ending = group.create_task(self._messages.get()), group.create_task(self._ended.wait())
            await asyncio.wait([message, ending], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            message.cancel()
            ending.cancel()
        if not message.cancelled():
            return message.result()
        return None if self._messages.empty() else self._messages.get_nowait()

    async def where(self) -> str:
        """The current source line of its process, in the agent's own folder if possible; empty if unknown."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGUSR1)
        await asyncio.wait([self._listening], timeout=WHERE_S)
        places = [found for line in self.printed if (found := _PLACE.match(line)) and "<frozen" not in found[1]]
        own = [found for found in places if found[1].startswith(os.getcwd() + os.sep)]
        return next((f"{os.path.basename(found[1])}, line {found[2]}" for found in own or places), "")

    async def collect(self) -> None:
        """Collect the garbage of the agent's process."""
        self._collected.clear()
        self._send(ask="collect")
        with suppress(TimeoutError):
            async with asyncio.timeout(COLLECT_S):
                await self._collected.wait()

    def _send(self, **message: Any) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")

    async def _listen(self) -> None:
        with suppress(ValueError, OSError):  # a line that is too long or none of ours: the process has gone wrong
            async for line in self._reader:
                message = json.loads(line)
                if "log" in message:
                    self.log.add(str(message["log"]))
                elif "collected" in message:
                    self._collected.set()
                else:
                    self.failed = one_line(str(message.get("failed", "")), 500)
                    self._messages.put_nowait(message)
        code = await self._process.wait()
        # Wait for its last output, but not for ever: its child processes may hold the pipe open.
        await asyncio.wait([self._reading], timeout=LAST_WORDS_S)
        self.code = None if self._killed or (self._stopping and code == 0) else code
        self._ended.set()

    async def _read_output(self) -> None:
        assert self._process.stdout is not None
        left = b""
        while chunk := await self._process.stdout.read(65_536):
            *lines, left = (left + chunk).split(b"\n")
            left = left[-65_536:]
            for line in lines:
                text = one_line(line.decode("utf-8", "replace"), 1_000)
                self.printed.append(text)
                log.debug("%s printed: %s", self.spec.app, text)
                if not self.spec.loggers:
                    self.log.add_printed(text)


async def check_app_process(
    spec: AppSpec,
    target: Target,
    runtime: Runtime,
    *,
    listener: Listener | None = None,
    options: Options | None = None,
    requirements: Iterable[Requirement] | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda _text: None,
) -> Report:
    """Run an agent and check it. ``target`` has paths instead of addresses. ``say`` is called with each stage. Raises
    ConfigError, with its output and the next step, if the agent cannot be run; else as ``discover``.
    """
    options = options or Options()
    say(f"starting {spec.app}")
    async with running_app(spec) as process:
        report = await run_check(
            target.at(process.url),
            runtime,
            listener=listener,
            options=replace(options, inside=process),
            requirements=requirements,
            progress=progress,
        )
    report = replace(report, url=f"{spec.app}{target.url}")
    if process.code is not None:
        report = replace(report, note=_ended(process))
    hours = [finding for finding in report.findings if finding.reason == NEEDS_HOURS]
    if not hours:
        return report
    say(f"probing {spec.app} over hours of virtual time")
    probed = await _over_hours(spec, target, options, report, hours)
    return replace(report, findings=tuple(probed.get(finding.key, finding) for finding in report.findings))


@asynccontextmanager
async def running_app(spec: AppSpec) -> AsyncIterator[AppProcess]:
    """Serve an agent on a free port of the loopback address. Raises ConfigError."""
    async with AppProcess(spec) as process:
        message = await process.next(spec.start_s)
        if message is None and process.code is None:
            where = await process.where()
            raise ConfigError(
                f"{spec.app} was not up within {spec.start_s:g} s{where and f'; it is at {where}'}",
                hint="what serves or waits belongs below if __name__ == '__main__', or into the lifespan",
            )
        if message is None:
            last = f"; the last it printed: {process.printed[-1]}" if process.printed else ""
            raise ConfigError(
                f"{spec.app} ended the process before it was up (exit code {process.code}){one_line(last, 300)}",
                hint=f"see what it does by itself: python -m uvicorn {spec.app}",
            )
        if "up" not in message:
            raise ConfigError(
                one_line(str(message.get("failed")), 500), hint=one_line(str(message.get("hint", "")), 300)
            )
        process.url = str(message["up"])
        yield process


async def _over_hours(
    spec: AppSpec, target: Target, options: Options, report: Report, hours: list[Finding]
) -> dict[str, Finding]:
    """The findings of the rows that need hours, by their keys."""
    asked = {
        "rows": list(dict.fromkeys(finding.requirement.id for finding in hours)),
        "target": to_builtins(replace(target, dialects=report.dialects)),
        "hints": to_builtins(options.hints),
        "side_effects": options.side_effects,
        "seed": options.seed,
    }
    findings: dict[str, Finding] = {}
    why = ""
    async with AppProcess(spec, asked) as process:
        clock = asyncio.get_running_loop().time
        end = clock() + spec.hours_s
        while not why:
            message = await process.next(max(end - clock(), 0.0))
            if message is None:
                took = f"it did not come to an end there within {spec.hours_s:g} s"
                why = took if process.code is None else f"there its process ended (exit code {process.code})"
            elif "over" in message:
                break
            elif "finding" in message:
                one = Finding(
                    requirement=REQUIREMENTS[str(message["finding"])],
                    dialect=str(message["dialect"]),
                    verdict=Verdict(message["verdict"]),
                    reason=str(message["reason"]),
                    evidence=tuple(map(str, message["evidence"])),
                    seconds=float(message["seconds"]),
                    lost=bool(message["lost"]),
                )
                findings[one.key] = one
            else:
                why = one_line(str(message.get("reached") or message.get("failed")), 300)
    untold = f"needs hours, which pass on virtual time alone, and {why or 'there it was not probed'}"
    lost = {finding.key: replace(finding, reason=one_line(untold, 400)) for finding in hours}
    return lost if why else {**lost, **findings}


def _ended(process: AppProcess) -> str:
    last = f"; the last it printed: {process.printed[-1]}" if process.printed else ""
    how = process.failed or f"exit code {process.code}"
    return one_line(f"the agent's process ended during the check ({how}){last}", 400)
