"""The state file: after a restart it has every reported task, and running tasks have failed with the reason."""

from __future__ import annotations

import asyncio
import gc
import json
import sqlite3
import stat
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fleetsim.agent import Agent, AgentLimits, Skill, SkillContext, SkillRejected, skill
from fleetsim.agent.agent import Engine, build_app
from fleetsim.agent.builtin import builtin_skills
from fleetsim.agent.durable import StateUnwritable, TaskFile
from fleetsim.agent.operations import Operations
from fleetsim.agent.tasks import ANYONE, Record
from fleetsim.model.errors import ConfigError
from fleetsim.model.task import Task, TaskState, TaskStatus
from fleetsim.runtime.failpoints import installed
from fleetsim.testbed.network import MemoryNetwork
from fleetsim.testbed.runtime import virtual_runtime
from tests.agent.environment import HOOK, URL, Env, Hook, sent, sent_v1

pytestmark = pytest.mark.sockets  # the file has a thread, which virtual time would overtake


@contextmanager
def at(point: str, does: Callable[[], object]) -> Iterator[None]:
    """Call ``does`` whenever the file's thread reaches ``point``."""

    def reached(name: str) -> None:
        if name == point:
            does()

    with installed(reached):
        yield


def full() -> None:
    raise sqlite3.OperationalError("database or disk is full")


@asynccontextmanager
async def running(path: Path, *, run: int = 1, **options: Any) -> AsyncIterator[Env]:
    network = MemoryNetwork()
    network.addresses["hook"] = ("10.0.0.9",)
    runtime = virtual_runtime(run, network, name=f"agent{run}")
    made = {"skills": builtin_skills(), "allow_webhook": ("10.0.0.9/32:8080",), "state": path, **options}
    engine = Agent("reference", runtime=runtime, **made).engine()
    hook = Hook()
    network.mount(URL, build_app(engine))
    network.mount(HOOK, hook)
    async with network:
        yield Env(network=network, engine=engine, hook=hook, runtime=runtime)


def kept(task_id: str) -> Record:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    task = Task(task_id=task_id, context_id="c", status=TaskStatus(state=TaskState.COMPLETED, timestamp=now))
    return Record(
        key=("ada", task_id),
        task=task,
        skill="s",
        dialect="1.0",
        created_at=now,
        updated_at=now,
    )


def kept_now(key: tuple[str, str]) -> Record:
    return kept(key[1])


async def test_a_failed_write_is_undone_and_repeated_with_the_rest(tmp_path: Path) -> None:
    file = TaskFile(tmp_path / "s.db", kept_now)
    await file.open()
    await file.close()
    with sqlite3.connect(tmp_path / "s.db", isolation_level=None) as other:
        other.execute(
            "CREATE TRIGGER no BEFORE INSERT ON tasks WHEN NEW.task_id = 'b' BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
    other.close()
    file = TaskFile(tmp_path / "s.db", kept_now)
    await file.open()
    for name in "abc":
        file.note(("ada", name))
    with pytest.raises(StateUnwritable):
        await file.flush()
    file.forget(("ada", "b"))
    file.note(("ada", "d"))
    await file.flush()
    await file.close()
    again = TaskFile(tmp_path / "s.db", kept_now)
    assert {record.task_id for record in await again.open()} == {"a", "c", "d"}
    await again.close()


async def test_a_failed_write_without_a_waiter_is_repeated_and_logs_no_lost_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = TaskFile(tmp_path / "s.db", kept_now)
    await file.open()
    file.note(("ada", "a"))
    with at("agent.before_write", full):
        waiting = asyncio.ensure_future(file.flush())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.sleep(0.1)
    del waiting
    gc.collect()
    assert caplog.records == []
    await file.close()
    again = TaskFile(tmp_path / "s.db", kept_now)
    assert [record.task_id for record in await again.open()] == ["a"]
    await again.close()


async def test_all_waiters_that_came_during_a_write_share_the_next_one(tmp_path: Path) -> None:
    file = TaskFile(tmp_path / "s.db", kept_now)
    await file.open()
    writes: list[int] = []
    go_on = threading.Event()

    def wait() -> None:
        writes.append(len(writes))
        go_on.wait(10)

    async def keep(name: str) -> None:
        file.note(("ada", name))
        await file.flush(("ada", name))
        file.note(("ada", name))  # written later without a waiter

    with at("agent.before_write", wait):
        first = asyncio.ensure_future(keep("first"))
        await asyncio.sleep(0)
        others = [asyncio.ensure_future(keep(str(at))) for at in range(20)]
        await asyncio.sleep(0)
        await file.flush(("ada", "unknown"))
        assert not any(other.done() for other in others)
        go_on.set()
        await asyncio.gather(first, *others)
        assert len(writes) == 2
    await file.close()


@pytest.mark.parametrize("gone", [False, True])
async def test_a_change_without_a_waiter_is_written(tmp_path: Path, gone: bool) -> None:
    file = TaskFile(tmp_path / "s.db", kept_now)
    await file.open()
    file.note(("ada", "a"))
    await file.flush()
    loop, written = asyncio.get_running_loop(), asyncio.Event()
    with at("agent.after_write", lambda: loop.call_soon_threadsafe(written.set)):
        keeping = asyncio.ensure_future(file.keep_writing())
        await asyncio.sleep(0)  # it has read the notes of the earlier process
        if gone:
            file.forget(("ada", "a"))
        else:
            file.note(("ada", "b"))
        async with asyncio.timeout(10):
            await written.wait()
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
    await file.close()
    again = TaskFile(tmp_path / "s.db", kept_now)
    assert {record.task_id for record in await again.open()} == (set() if gone else {"a", "b"})
    await again.close()


async def test_no_webhook_reports_a_state_that_is_not_on_the_disk(tmp_path: Path) -> None:
    push = {"configuration": {"pushNotificationConfig": {"url": f"{HOOK}/x", "token": "t"}}}
    async with running(tmp_path / "s.db", send_wait_s=0) as env:
        task = await env.call("message/send", {**sent("10", skill="slow"), **push})
        go_on = threading.Event()
        with at("agent.before_write", lambda: go_on.wait(10)):
            await asyncio.sleep(20)
            assert env.engine.store.state((ANYONE, task["id"])) is TaskState.COMPLETED
            assert "completed" not in env.hook.states
            go_on.set()
        (note,) = env.engine.store.keepers
        for _ in range(3):
            await note.__self__.flush()  # type: ignore[attr-defined]
            await asyncio.sleep(1)
        assert env.hook.states[-1] == "completed"


async def test_finished_tasks_can_be_read_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db") as env:
        frames = await env.frames("message/stream", sent("abc", skill="estimate"))
        task_id = frames[0]["id"]
        before = await env.call("tasks/get", {"id": task_id})
        before_v1 = await env.call("GetTask", {"id": task_id})
    async with running(tmp_path / "s.db", run=2) as env:
        assert await env.call("tasks/get", {"id": task_id}) == before
        assert await env.call("GetTask", {"id": task_id}) == before_v1
        assert await env.refused("tasks/cancel", {"id": task_id}) == -32002
        frames = await env.frames("tasks/resubscribe", {"id": task_id})
        assert [f["kind"] for f in frames] == ["task", "artifact-update", "status-update"]


async def test_running_tasks_have_failed_after_a_crash_and_their_webhooks_report_it(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db") as env:
        push = {"configuration": {"pushNotificationConfig": {"url": f"{HOOK}/x", "token": "t"}}}
        task = await env.call("message/send", {**sent("500", skill="slow"), **push})
        asked = (await env.call("SendMessage", sent_v1("", skill="ask")))["task"]
        await asyncio.sleep(0.1)
        keeper = next(keep for keep in env.engine.store.keepers)
        env.engine.store.keepers.remove(keeper)  # from here on no write reaches the file
    async with running(tmp_path / "s.db", run=2) as env:
        for task_id in (task["id"], asked["id"]):
            found = await env.call("tasks/get", {"id": task_id})
            assert found["status"]["state"] == "failed"
            assert "restarted" in found["status"]["message"]["parts"][0]["text"]
        await asyncio.sleep(0.2)
        assert env.hook.states == ["failed"]
        assert env.hook.headers[0]["authorization"] == "Bearer t"


@skill
async def survey(task: SkillContext) -> str:
    """Asks a question; a skill with the tag ``again`` refuses to resume its old question."""
    if "again" in task.skill.tags:
        raise SkillRejected(f"{task.skill.skill_id}: not {task.text} again")
    return await task.ask("which?")


def surveys(*tags: str) -> list[Skill]:
    return [replace(survey, skill_id=name, tags=tags) for name in ("first", "second")]


@pytest.mark.parametrize("dialect", ["0.1", "0.3"])
async def test_an_agent_that_resumes_starts_the_same_skill_with_the_same_message_again(
    tmp_path: Path, dialect: str
) -> None:
    """Without a resume, the task ends as its own dialect says."""
    older = {"id": "t", "message": {"role": "user", "parts": [{"type": "text", "text": "stay"}]}}
    method = "tasks/send" if dialect == "0.1" else "message/send"
    params = {**(older if dialect == "0.1" else sent("stay")), "metadata": {"skillHint": "second"}}
    async with running(tmp_path / "s.db", skills=surveys(), resumes=True) as env:
        task_id = (await env.call(method, params))["id"]
        await asyncio.sleep(0.1)
        assert (await env.call("tasks/get", {"id": task_id}))["status"]["state"] == "input-required"
    async with running(tmp_path / "s.db", run=2, skills=surveys("again"), resumes=True) as env:
        await asyncio.sleep(0.1)
        found = await env.call("tasks/get", {"id": task_id})
        assert found["status"]["state"] == ("failed" if dialect == "0.1" else "rejected")
        assert found["status"]["message"]["parts"][0]["text"] == "second: not stay again"


@pytest.mark.parametrize(
    ("role", "skills", "state", "text"),
    [
        ("user", 2, "input-required", "which?"),
        ("user", 1, "failed", "the task cannot be taken up again"),  # the skill of this task no longer exists
        ("agent", 2, "failed", "the task cannot be taken up again"),  # no skill asked for anything
    ],
)
async def test_a_task_that_cannot_be_resumed_fails_with_that_reason(
    tmp_path: Path, role: str, skills: int, state: str, text: str
) -> None:
    async with running(tmp_path / "s.db", skills=surveys(), resumes=True) as env:
        task_id = (await env.call("message/send", sent("stay", skill="second", role=role)))["id"]
        await asyncio.sleep(0.1)
    async with running(tmp_path / "s.db", run=2, skills=surveys()[:skills], resumes=True) as env:
        await asyncio.sleep(0.1)
        status = (await env.call("tasks/get", {"id": task_id}))["status"]
        assert (status["state"], status["message"]["parts"][0]["text"]) == (state, text)


async def test_only_a_task_that_is_in_the_file_is_acknowledged(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db") as env:
        task = await env.call("message/send", sent("500", skill="slow"))
        # Another process could not read the file, so the test reads a copy.
        for name in ("s.db", "s.db-wal"):
            (tmp_path / f"copy-{name}").write_bytes((tmp_path / name).read_bytes())
        connection = sqlite3.connect(tmp_path / "copy-s.db")
        (tmp_path / "copy-s.db-wal").exists()
        rows = connection.execute("SELECT task_id FROM tasks").fetchall()
        connection.close()
        assert rows == [(task["id"],)]


async def test_a_file_that_cannot_be_written_stops_new_work_until_it_can(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db") as env:
        await env.call("message/send", sent("x", skill="echo"))
        await asyncio.sleep(0.1)
        with at("agent.before_write", full):
            answer = await env.raw("POST", "/a2a", env.envelope("message/send", sent("x", skill="echo", messageId="2")))
            assert answer.status == 503
            assert json.loads(answer.body)["error"]["code"] == -32000
            count = len(env.engine.store)
            assert (await env.raw("POST", "/a2a", env.envelope("message/send", sent("x", messageId="3")))).status == 503
            assert len(env.engine.store) == count
        await env.call("message/send", sent("x", skill="echo", messageId="4"))


@pytest.mark.parametrize("how", ["message/send", "message/stream", "blocking", "hung up"])
async def test_a_task_with_a_failed_first_write_is_gone_and_its_skill_never_ran(tmp_path: Path, how: str) -> None:
    ran = []

    @skill
    async def work(task: SkillContext) -> str:
        ran.append(task.text)
        return "done"

    async with running(tmp_path / "s.db", skills=[work]) as env:
        await env.call("message/send", {**sent("first"), "configuration": {"blocking": True}})
        await asyncio.sleep(0.1)
        hung = threading.Event()

        def refuse() -> None:
            if how == "hung up":
                hung.wait(10)
            full()

        with at("agent.before_write", refuse):
            push = {"pushNotificationConfig": {"url": f"{HOOK}/x"}, "blocking": how == "blocking"}
            params = {**sent("second"), "configuration": push}
            if how == "hung up":
                asking = asyncio.get_running_loop().create_task(env.call("message/send", params))
                await asyncio.sleep(0.1)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
                hung.set()
            else:
                method = how if "/" in how else "message/send"
                answer = await env.raw("POST", "/a2a", env.envelope(method, params))
                assert answer.status == (200 if how == "message/stream" else 503), "a stream says it in its one event"
                assert b"cannot keep its state" in answer.body
            await asyncio.sleep(0.2)
            assert ran == ["first"]
            assert env.hook.bodies == []
            assert len(env.engine.store) == 1
        await asyncio.sleep(1.2)  # the waiting change is written at the next attempt
        await env.call("message/send", {**sent("third"), "configuration": {"blocking": True}})
        assert ran == ["first", "third"]
    async with running(tmp_path / "s.db", run=2) as env:
        assert len(env.engine.store) == 2


async def test_evicted_tasks_leave_the_file(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", limits=AgentLimits(terminal_ttl_s=0.0)) as env:
        await env.frames("message/stream", sent("x", skill="echo"))
        assert env.engine.store.forget()
        assert len(env.engine.store) == 0
    async with running(tmp_path / "s.db", run=2) as env:
        assert len(env.engine.store) == 0


async def test_an_agent_that_fails_to_start_releases_its_file(tmp_path: Path) -> None:
    def broken(_inner: Operations) -> Operations:
        raise ZeroDivisionError

    settings = Agent("x", skills=builtin_skills(), state=tmp_path / "s.db", interceptors=[broken]).settings
    with pytest.raises(ZeroDivisionError):
        await Engine(settings, virtual_runtime()).start()
    file = TaskFile(tmp_path / "s.db", kept_now)
    assert await file.open() == ()
    await file.close()


async def test_the_file_is_readable_by_its_owner_only_and_locked_by_one_process(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db"):
        assert stat.S_IMODE((tmp_path / "s.db").stat().st_mode) == 0o600
        with pytest.raises(ConfigError):
            await TaskFile(tmp_path / "s.db", kept_now).open()


@pytest.mark.parametrize("content", [b"not a database at all" * 50, None])
async def test_a_foreign_file_is_refused_and_unchanged(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "s.db"
    if content is None:
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE other (x)")
        connection.close()
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    with pytest.raises(ConfigError):
        await TaskFile(path, kept_now).open()
    assert path.read_bytes() == before


async def test_a_damaged_row_is_skipped_and_the_rest_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with running(path) as env:
        frames = await env.frames("message/stream", sent("x", skill="echo"))
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO tasks VALUES ('anyone', 'bad', x'7b7d')")
    connection.close()
    async with running(path, run=2) as env:
        assert [record.task_id for record in [env.engine.store.read(("anyone", frames[0]["id"]))]]
        assert len(env.engine.store) == 1
