"""The process that an agent runs in for ``fleetsim check --app``. ``app_parent`` starts it and holds the other end.

It imports one agent as a server would, and exchanges lines of JSON with its parent. It either serves the agent with
uvicorn on a free port in real time, or probes the rows that need hours, with every clock of the process on virtual
time. The agent may end this process, hang in it or print anything: only findings leave it, and the parent kills it at
the end.
"""

from __future__ import annotations

import asyncio
import difflib
import faulthandler
import gc
import importlib
import inspect
import json
import logging
import os
import re
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, NoReturn

WORD = r"[A-Za-z_]\w*(?:\(\))?"
SPEC = re.compile(rf"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):({WORD}(?:\.{WORD})*)")
GRACEFUL_S = 3
ORIGIN = "http://127.0.0.1:9000"
"""Where the agent is on virtual time."""


class CannotRun(Exception):
    """The agent cannot be run; the text says why, ``hint`` is the next step."""

    def __init__(self, text: str, hint: str) -> None:
        super().__init__(text)
        self.hint = hint


class ParentLine:
    """The connection to the parent process. Lines are JSON objects."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.set_inheritable(False)
        self._lines = self._socket.makefile("rb")
        self._lock = threading.Lock()

    def send(self, **message: Any) -> None:
        """Send one message; ignores that the parent has gone."""
        with self._lock, suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def read(self) -> dict[str, Any]:
        """The next line. Ends the process if the parent has gone."""
        line = b""
        with suppress(OSError):  # the other end was killed while something was on its way to it
            line = self._lines.readline()
        if not line:
            os._exit(0)
        message: dict[str, Any] = json.loads(line)
        return message

    def fail(self, text: str, hint: str) -> NoReturn:
        """Report why the agent cannot run, and end the process."""
        self.send(failed=text, hint=hint)
        os._exit(1)


def main(fd: int) -> NoReturn:
    """Do the job of the first line, and end the process even if threads of the agent still run."""
    parent = ParentLine(fd)
    job = parent.read()
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    stop: list[Callable[[], None]] = []
    threading.Thread(target=follow_commands, args=(parent, stop), name="fleetsim", daemon=True).start()
    sys.path.insert(0, os.getcwd())
    try:
        if job["virtual"] is None:
            _serve(parent, job, stop)
        else:
            _skip_hours(parent, job)
    except CannotRun as error:
        parent.fail(str(error), error.hint)
    except BaseException as error:  # noqa: BLE001 - any error of the agent is reported
        hint = f"run it by itself first: python -m uvicorn {job['app']}"
        parent.fail(f"{job['app']} ended with {_in_one_line(error)}", hint)
    os._exit(0)


def follow_commands(parent: ParentLine, stop: list[Callable[[], None]]) -> NoReturn:
    """Execute the parent's commands at any time; ends the process if the parent has gone."""
    while True:
        command = parent.read()["ask"]
        if command == "collect":
            gc.collect()
            parent.send(collected=True)
        elif command == "stop" and stop:
            stop[0]()


# The agent.


def load(spec: str) -> Any:
    """The object that ``MODULE:ATTR`` names; ``()`` behind a name calls it. Raises CannotRun."""
    fits = SPEC.fullmatch(spec)
    if fits is None or fits[1].endswith(".py"):
        raise CannotRun(*_no_spec(spec))
    module = _imported(fits[1])
    found, so_far = module, fits[1]
    for number, word in enumerate(fits[2].split(".")):
        name = word.removesuffix("()")
        if not hasattr(found, name):
            names = [word for word in vars(found) if not word.startswith("_")] if inspect.ismodule(found) else []
            usual = [word for word in ("app", "agent", "application") if word in names]
            near = difflib.get_close_matches(name, names, n=1) or usual
            hint = (
                f"perhaps --app {fits[1]}:{near[0]}" if near else "name the ASGI application, or what makes it: make()"
            )
            raise CannotRun(f"{so_far} has no {name!r}", hint)
        found, so_far = getattr(found, name), f"{so_far}{'.' if number else ':'}{word}"
        if word != name:
            try:
                found = found()
            except BaseException as error:
                hint = "it is called without arguments" if isinstance(error, TypeError) else f"call {so_far} by itself"
                raise CannotRun(f"{so_far} raised {_in_one_line(error)}", hint) from error
    return found


def _no_spec(spec: str) -> tuple[str, str]:
    path = re.fullmatch(r"(?:\./)?([\w/]+)\.py(:.*)?", spec)
    suggestion = (
        f"{path[1].replace('/', '.')}{path[2] or ':app'}"
        if path
        else f"{spec}:app"
        if re.fullmatch(r"[\w.]+", spec)
        else ""
    )
    return f"{spec} is no MODULE:ATTR", f"perhaps --app {suggestion}" if suggestion else "e.g. --app my_agent:app"


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            hint = f"run this in the folder that {name.partition('.')[0]} lies in, or set PYTHONPATH"
        else:
            hint = f"install it beside fleetsim, in the environment of the agent (python -m pip install {error.name})"
        raise CannotRun(f"{name} cannot be imported: {_in_one_line(error)}", hint) from error
    except SystemExit as error:
        hint = "put what only a program shall do below: if __name__ == '__main__'"
        raise CannotRun(f"{name} ends the program when it is imported: {_in_one_line(error)}", hint) from error
    except BaseException as error:
        raise CannotRun(
            f"{name} cannot be imported: {_in_one_line(error)}", f"python -c 'import {name}' shows more"
        ) from error


async def application(spec: str, found: Any) -> Any:
    """The ASGI application that the object is or makes. Raises CannotRun."""
    if inspect.isawaitable(found):
        found = await found
    if hasattr(found, "wsgi_app"):
        raise CannotRun(f"{spec} is a WSGI application", "fleetsim runs ASGI: wrap it, e.g. with a2wsgi.WSGIMiddleware")
    required = [
        parameter
        for parameter in (inspect.signature(found).parameters.values() if inspect.isfunction(found) else ())
        if parameter.default is parameter.empty
        and parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}
    ]
    if inspect.isfunction(found) and not required:
        raise CannotRun(f"{spec} takes no request", f"if it makes the application: --app '{spec}()'")
    if not callable(found):
        makers = [name for name in ("build", "app", "asgi", "to_a2a", "to_app") if hasattr(found, name)]
        hint = f"perhaps --app '{spec}.{makers[0]}()'" if makers else "name the ASGI application itself"
        raise CannotRun(f"{spec} is a {type(found).__name__}, and no ASGI application", hint)
    return found


def store(spec: str) -> object:
    """The named store; None without a name. Raises CannotRun."""
    from fleetsim.check.agent_under_test import is_store

    if not spec:
        return None
    try:
        found = load(spec)
    except CannotRun as error:
        raise CannotRun(f"--store: {error}", error.hint.replace("--app", "--store")) from None
    if not is_store(found):
        hint = f"name the mapping that holds tasks by id, e.g. --store {spec}.tasks"
        raise CannotRun(f"--store {spec} is a {type(found).__name__}", hint)
    return found


def _in_one_line(error: BaseException) -> str:
    """An error in one line, and where in the agent it came from."""
    text = " ".join(str(error).split())[:300]
    not_its = (__file__, "<frozen", f"{os.sep}importlib{os.sep}")
    places = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in places if not any(part in frame.filename for part in not_its)]
    where = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    if isinstance(error, SyntaxError):
        where = ""
    return f"{type(error).__name__}{': ' if text else ''}{text}{where}"


# In real time, on a port.


def _serve(parent: ParentLine, job: dict[str, Any], stop: list[Callable[[], None]]) -> None:
    from fleetsim.check.agent_under_test import AgentLog, capturing_logs, let_info_through

    class SentToParent(AgentLog):
        def add(self, line: str) -> None:
            parent.send(log=line)

    def up(url: str) -> None:
        let_info_through(*job["loggers"])  # the start-up may have set its levels
        parent.send(up=url)

    with capturing_logs(SentToParent(), *job["loggers"]):
        named = load(job["app"])
        store(job["store"])
        asyncio.run(_serve_app(job["app"], named, up, stop))


async def _serve_app(spec: str, named: Any, up: Callable[[str], None], stop: list[Callable[[], None]]) -> None:
    # Plain uvicorn, not the server of our own agent: the check judges the agent together with a usual server.
    import uvicorn

    from fleetsim.runtime.server import listen

    class Served(uvicorn.Server):
        def capture_signals(self) -> Any:
            return nullcontext()

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                up(f"http://127.0.0.1:{listener.getsockname()[1]}")

    app = await application(spec, named)
    start_errors = _StartErrors()
    logging.getLogger("uvicorn.error").addHandler(start_errors)
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=GRACEFUL_S)
    listener = listen("127.0.0.1", 0)
    server = Served(config)
    stop.append(lambda: setattr(server, "should_exit", True))
    with suppress(SystemExit):  # uvicorn's way to say that the start-up failed
        await server.serve(sockets=[listener])
    if not server.started:
        raise CannotRun(
            f"{spec} did not start: {start_errors.last or 'its lifespan failed'}", "its lifespan raised that"
        )


class _StartErrors(logging.Handler):
    """The last error that uvicorn logged about a failed lifespan."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        lines = [line.strip() for line in record.getMessage().splitlines() if line.strip()]
        if lines and "startup failed" not in lines[-1]:
            self.last = lines[-1]


# On virtual time.


def _skip_hours(parent: ParentLine, job: dict[str, Any]) -> None:
    from fleetsim.testbed.clocks import Clocks

    clocks = Clocks()
    clocks.install()
    begin = threading.Thread.start

    def report_thread(thread: threading.Thread) -> None:
        parent.send(reached=f"it uses threads ({thread.name})")
        begin(thread)

    threading.Thread.start = report_thread  # type: ignore[method-assign, assignment]

    from msgspec import convert

    from fleetsim.check.agent_under_test import Hint, Options, Target, holds
    from fleetsim.check.runner import run_check
    from fleetsim.check.sections import REQUIREMENTS
    from fleetsim.testbed.loop import VirtualLoop
    from fleetsim.testbed.network import MemoryNetwork
    from fleetsim.testbed.runtime import virtual_runtime

    check = job["virtual"]
    named = load(job["app"])
    tasks = store(job["store"])
    loop = VirtualLoop(seed=check["seed"], start=clocks.start)
    clocks.follow(loop)

    async def story() -> None:
        app = await application(job["app"], named)
        network = MemoryNetwork(seed=check["seed"])
        network.mount(ORIGIN, app)
        async with network:
            report = await run_check(
                convert(check["target"], Target).at(ORIGIN),
                virtual_runtime(check["seed"], network, start=clocks.start, name="checker"),
                options=Options(
                    hints=convert(check["hints"], dict[str, Hint]),
                    side_effects=check["side_effects"],
                    virtual=True,
                    held=None if tasks is None else partial(holds, tasks),
                    seed=check["seed"],
                ),
                requirements=[REQUIREMENTS[row_id] for row_id in check["rows"]],
            )
            if loop.reached:
                parent.send(reached=_outside(loop.reached))
            for finding in report.findings:
                parent.send(
                    finding=finding.requirement.id,
                    dialect=finding.dialect,
                    verdict=finding.verdict.value,
                    reason=finding.reason,
                    evidence=finding.evidence,
                    seconds=finding.seconds,
                    lost=finding.lost,
                )
            parent.send(over=True)
            os._exit(0)  # the loop would wait for the agent's tasks

    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(story())
    except BaseException as error:  # noqa: BLE001 - an agent on virtual time may end in any way
        parent.send(reached=_outside(loop.reached) if loop.reached else f"there it ended with {_in_one_line(error)}")


def _outside(name: str) -> str:
    threads = name in {"run_in_executor", "getaddrinfo", "getnameinfo"}
    return f"it uses threads ({name})" if threads else f"it reaches outside of the process ({name})"


if __name__ == "__main__":
    main(int(sys.argv[1]))
