"""``fleetsim check --app``: agents by other authors, run by the check and observed from inside."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetsim.check.agent_under_test import Hint, Options, Target, holds
from fleetsim.check.app_parent import AppSpec, check_app_process
from fleetsim.check.evidence import Verdict
from fleetsim.check.listener import socket_listener
from fleetsim.check.report import Report
from fleetsim.check.runner import select
from fleetsim.cli.main import Exit
from fleetsim.model.errors import ConfigError
from fleetsim.runtime.real import running_runtime
from tests.check.test_check_cli import called

pytestmark = pytest.mark.sockets

AGENTS = Path(__file__).parent / "agents"
INSIDE = ("H-01", "H-02", "H-06", "H-07", "H-08")
SLOW = {"slow": Hint(None, "slow")}
HANGS = "below if __name__ == '__main__', or into the lifespan"
PASS, FAIL, NOT_TESTED = Verdict.PASS, Verdict.FAIL, Verdict.NOT_TESTED


@pytest.fixture(autouse=True)
def _in_their_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(AGENTS)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # few have it set; it keeps printed lines from coming late


async def checked(
    app: str, *rows: str, path: str = "", met: Callable[..., None] = lambda *_: None, **spec: object
) -> Report:
    async with running_runtime(seed=0) as runtime, socket_listener() as listener:
        return await check_app_process(
            AppSpec(app=app, **spec),
            Target(url=path),
            runtime,
            listener=listener,
            options=Options(hints=SLOW, patience_s=5),
            requirements=select(rows),
            progress=met,
        )


def verdicts(report: Report) -> dict[str, Verdict]:
    return {finding.requirement.id: finding.verdict for finding in report.findings}


def processes() -> list[str]:
    """The command lines of the agents' running processes."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if "fleetsim.check.app_child" in words and _parent(folder) == os.getpid():
            found.append(" ".join(words))
    return found


def _parent(folder: Path) -> int:
    return int((folder / "stat").read_text().rpartition(")")[2].split()[1])


# Rows that only ``--app`` can check.


async def test_an_agent_by_another_author_passes_the_rows_that_need_app() -> None:
    report = await checked("plain:app", *INSIDE, store="plain:TASKS")
    assert verdicts(report) == dict.fromkeys(INSIDE, PASS)
    assert report.url == "plain:app"
    assert processes() == []


@pytest.mark.parametrize(
    ("app", "row"),
    [
        ("plain:leaks()", "H-01"),
        ("plain:hides()", "H-01"),
        ("plain:evicts_work()", "H-02"),
        ("plain:silent()", "H-06"),
        ("plain:chatty()", "H-07"),
        ("plain:weak()", "H-08"),
    ],
)
async def test_an_agent_that_breaks_a_row_that_needs_app_is_detected(app: str, row: str) -> None:
    assert verdicts(await checked(app, row, store="plain:TASKS")) == {row: FAIL}


async def test_an_agent_that_uses_threads_is_not_tested_on_virtual_time() -> None:
    report = await checked("plain:threaded()", "H-01", "H-02", "H-06")
    assert verdicts(report) == {"H-01": NOT_TESTED, "H-02": NOT_TESTED, "H-06": PASS}
    assert "it uses threads (plain-metrics)" in report.finding("H-01").reason


async def test_an_agent_that_dials_out_is_not_tested_on_virtual_time() -> None:
    (found,) = (await checked("plain:outgoing()", "H-01")).findings
    assert found.verdict is NOT_TESTED
    assert "outside of the process (create_connection)" in found.reason


async def test_an_agent_may_log_its_requests() -> None:
    (found,) = (await checked("plain:noisy()", "H-07")).findings
    assert found.verdict is PASS


async def test_an_agents_webhooks_bypass_the_proxy_of_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "example.org")
    (found,) = (await checked("plain:app", "H-06")).findings
    assert found.verdict is PASS, found.reason


async def test_deliveries_on_stderr_at_info_are_seen_unless_a_logger_is_named() -> None:
    (found,) = (await checked("plain:printing()", "H-06")).findings
    assert found.verdict is PASS
    (found,) = (await checked("plain:printing()", "H-06", loggers=("plain.push",))).findings
    assert found.verdict is FAIL


async def test_only_the_named_loggers_are_read() -> None:
    (found,) = (await checked("plain:app", "H-06", loggers=("plain",))).findings
    assert found.verdict is PASS
    (found,) = (await checked("plain:app", "H-06", loggers=("plain.work",))).findings
    assert found.verdict is FAIL


async def test_an_agent_that_never_retries_does_not_fail_the_row_of_the_collector() -> None:
    (found,) = (await checked("plain:once()", "H-08")).findings
    assert found.verdict is NOT_TESTED
    assert "P-27" in found.reason


async def test_a_skill_that_ends_soon_leaves_the_eviction_of_work_untested() -> None:
    async with running_runtime(seed=0) as runtime:
        report = await check_app_process(
            AppSpec(app="plain:app"),
            Target(url=""),
            runtime,
            options=Options(hints={"slow": Hint(None, "quick")}),
            requirements=select(["H-02"]),
        )
    assert report.finding("H-02").verdict is NOT_TESTED
    assert "ends by itself" in report.finding("H-02").reason


# Applications that cannot be run.


@pytest.mark.parametrize(
    ("app", "says", "hint"),
    [
        ("plain:ap", "plain has no 'ap'", "--app plain:app"),
        ("plain.py:app", "no MODULE:ATTR", "--app plain:app"),
        ("plain", "no MODULE:ATTR", "--app plain:app"),
        ("plain:make", "takes no request", "--app 'plain:make()'"),
        ("nowhere:app", "No module named 'nowhere'", "the folder that nowhere lies in"),
        ("hopeless:number", "is a int, and no ASGI application", "name the ASGI application"),
        ("hopeless:server", "is a Server, and no ASGI application", "'hopeless:server.build()'"),
        ("hopeless:flask", "is a WSGI application", "wrap it"),
        ("hopeless:raises()", "RuntimeError: no model today and not tomorrow (hopeless.py, line", "by itself"),
        ("hopeless:exits()", "SystemExit: not today", "by itself"),
        ("hopeless:dies()", "exit code 3); the last it printed: I cannot go on", "uvicorn hopeless:dies()"),
        ("hopeless:no_start()", "did not start: RuntimeError: no database", "lifespan"),
    ],
)
async def test_an_agent_that_cannot_be_run_is_one_line(app: str, says: str, hint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        await checked(app, "E-01")
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert hint in (refused.value.hint or "")
    assert processes() == []


@pytest.mark.parametrize(
    ("source", "says", "hint"),
    [
        ("import nowhere_to_be_found", "No module named 'nowhere_to_be_found'", "pip install nowhere_to_be_found"),
        ("def broken(:", "SyntaxError", "import one_of_mine"),
        ("import sys\nsys.exit(2)", "ends the program when it is imported: SystemExit: 2", "__main__"),
        ("import threading\nthreading.Event().wait()", "it is at one_of_mine.py, line 2", HANGS),
        ("while True:\n    pass", "was not up within 2 s; it is at one_of_mine.py, line", HANGS),
    ],
)
async def test_a_module_that_cannot_be_imported_is_one_line(
    source: str, says: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one_of_mine.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refused:
        await checked("one_of_mine:app", "E-01", start_s=2.0 if hint == HANGS else 20.0)
    assert says in str(refused.value)
    assert hint in (refused.value.hint or "")
    assert processes() == []


@pytest.mark.parametrize(("store", "says"), [("plain:TASK", "no 'TASK'"), ("plain:TTL_S", "is a int")])
async def test_a_wrong_store_is_an_error(store: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        await checked("plain:app", "H-01", store=store)


async def test_an_agent_that_ends_in_the_middle_leaves_a_report_with_that_note() -> None:
    report = await checked("hopeless:dies_at_work()", "E-0*", "H-01")
    assert "exit code 9" in report.note
    assert "a fatal mistake" in report.note
    assert report.could_not_tell
    assert processes() == []


# As a person runs it.


async def test_one_command_checks_an_application_and_hides_its_output(capfd: pytest.CaptureFixture[str]) -> None:
    assert await called("check", "--app", "plain:noisy()", "--only", "H-0[67]", "--only", "M-01") == Exit.OK
    told = capfd.readouterr()
    assert told.out.startswith("PASSED: ")
    assert "asked:" not in told.out + told.err
    assert "the plain agent is up" not in told.out + told.err
    assert "plain:noisy()" in told.out


async def test_the_json_report_names_the_agent_and_stdout_has_nothing_else(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert await called("-o", "json", "check", "--app", "plain:made_later()", "--only", "H-06") == Exit.OK
    assert json.loads(capfd.readouterr().out)["url"] == "plain:made_later()"


async def test_an_agent_that_cannot_be_run_is_a_usage_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert await called("check", "--app", "plain:ap") == Exit.USAGE
    told = capfd.readouterr()
    assert told.err == "error: plain has no 'ap'\n  next: perhaps --app plain:app\n"
    assert told.out == ""


@pytest.mark.parametrize(
    "words",
    [
        ["check", "--app", "plain:app", "http://127.0.0.1:1"],
        ["check", "--app", ""],
        ["check", "http://127.0.0.1:1", "--store", "plain:TASKS"],
        ["check", "http://127.0.0.1:1", "--logger", "plain"],
    ],
)
async def test_options_that_exclude_each_other_are_refused(words: list[str]) -> None:
    assert await called(*words) == Exit.USAGE


async def test_a_path_beside_the_app_is_that_of_its_endpoint() -> None:
    report = await checked("plain:app", "M-01", path="/rpc")
    assert verdicts(report) == {"M-01": PASS}
    assert report.endpoints["1.0"].endswith("/rpc")


async def test_a_cancelled_check_leaves_no_process() -> None:
    met = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        worker = group.create_task(checked("plain:app", "C-01", "P-34", met=lambda *_: met.set()))
        await met.wait()
        assert len(processes()) == 1
        worker.cancel()
    assert processes() == []


# The store.


def test_a_task_is_found_in_every_form_of_store() -> None:
    class Record:
        id = "t-1"

    for store in ({"t-1": 1}, {"owner": {"t-1": 1}}, {"t-1"}, [Record()], [{"id": "t-1"}], {"owner": [Record()]}):
        assert holds(store, "t-1"), store
        assert not holds(store, "t-2"), store
    assert not holds({"a": {"b": {"c": {"t-1": 1}}}}, "t-1")


async def test_the_agents_process_ends_with_a_check_that_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a session of its own, so no terminal ends it. Its agent keeps a connection here open while it lives."""
    held: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
    held = asyncio.get_running_loop().create_future()
    door = tmp_path / "door"
    monkeypatch.setenv("PLAIN_DOOR", str(door))
    words = (sys.executable, "-m", "fleetsim", "check", "--app", "plain:holding()", "--only", "P-34")
    quiet = asyncio.subprocess.DEVNULL
    server = await asyncio.start_unix_server(lambda *both: held.set_result(both), door)
    async with server, asyncio.timeout(50):
        check = await asyncio.create_subprocess_exec(*words, stdout=quiet, stderr=quiet)
        reader, writer = await held
        await reader.readline()
        check.kill()
        await check.wait()
        assert await reader.read() in {b"", b"asked\n"}
        writer.close()
