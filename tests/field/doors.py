"""The doors of fleetsim behind one interface, and a fleet to try them on: a real hub with its ledger on disk.

Each door holds a conversation with an agent like its users: the command line follows the commands that it
prints, the others make the calls that their pages describe.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from subprocess import CompletedProcess
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import CallToolResult
from msgspec import convert

from fleetsim.api.part_rows import PartFacts, body_part, read_part_row
from fleetsim.cli.ask import reply_command
from fleetsim.cli.controls import HubControls
from fleetsim.client import AgentClient, HubClient, SentTask
from fleetsim.dashboard.view import ViewBuilder
from fleetsim.fleet.config import parse_fleet
from fleetsim.hub.hub import Hub
from fleetsim.hub.server import running_hub
from fleetsim.hub.state import StateDir
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.model.parts import ListedPart
from fleetsim.model.task import DataPart, FilePart, Part
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.real import running_runtime
from tests.cli.world import Shell

Turn: TypeAlias = str | tuple[Part, ...]
STATES = {0: "completed", 1: "failed", 7: "input-required"}
"""By the exit status that ``--exit-status`` gives."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The result of one turn at a door. ``files`` by name; ``data`` in order; ``text`` is the reason of a failure."""

    state: str
    text: str
    files: Mapping[str, bytes]
    data: tuple[Any, ...]
    context_id: str
    warnings: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Fleet:
    """A running hub, its agents' addresses by name, and a shell whose commands find it."""

    hub: Hub
    runtime: Runtime
    shell: Shell
    urls: Mapping[str, str]
    dialect: str | None
    admin: HubClient
    session: ClientSession


@asynccontextmanager
async def running_fleet(
    home: Path, urls: Mapping[str, str], *, dialect: str | None = None, keys: Mapping[str, str] = MappingProxyType({})
) -> AsyncIterator[Fleet]:
    """A hub for these agents, called in ``dialect`` or as their cards say, and an MCP session with it. ``keys`` are
    further keys of agents by name, as agents.yaml has them."""
    shell = Shell(home)
    # Each command holds a thread while it runs, also while it waits for a late reply.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(64))
    wire = f", wire: '{dialect}'" if dialect else ""
    more = {name: f", {keys[name]}" if name in keys else "" for name in urls}
    rows = "".join(f"  - {{name: {name}, url: '{url}'{wire}{more[name]}}}\n" for name, url in urls.items())
    shell.write("agents.yaml", f"agents:\n{rows}")
    state = StateDir(home / "state").open()
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(running_runtime(seed=1))
        config = parse_fleet(f"agents:\n{rows}", env=os.environ)
        ledger = await stack.enter_async_context(open_ledger(state.ledger_path, clock=runtime.clock))
        hub = await stack.enter_async_context(running_hub(config, runtime, ledger, state=state))
        async with asyncio.timeout(60), hub.events.subscribe(after_seq=0) as heard:
            while any(view.tried_at is None for view in hub.broker.views()):
                await heard.next_batch()
        command = ["-m", "fleetsim", "mcp", "--admin"]
        env = {
            **shell.environment(),
            "WORKSTACEAN_URL": hub.url or "",
            "WORKSTACEAN_API_KEY": hub.keys.api_key,
        }
        log = stack.enter_context((home / "mcp.log").open("w", encoding="utf-8"))
        server = StdioServerParameters(command=sys.executable, args=command, env=env)
        reading, writing = await stack.enter_async_context(stdio_client(server, errlog=log))
        session = await stack.enter_async_context(ClientSession(reading, writing))
        await session.initialize()
        admin = HubClient(hub.url, api_key=hub.keys.api_key, runtime=runtime)
        yield Fleet(hub=hub, runtime=runtime, shell=shell, urls=urls, dialect=dialect, admin=admin, session=session)


def _contents(parts: Sequence[ListedPart]) -> dict[str, Any]:
    """The ``files`` and ``data`` of a Reply."""
    return {
        "files": {str(part.name): base64.b64decode(part.raw or "") for part in parts if part.kind == "file"},
        "data": tuple(part.data for part in parts if part.kind == "data"),
    }


class Door(ABC):
    """One way to reach an agent. ``absent`` names the capabilities that a door does not have, each with its reason."""

    name: ClassVar[str]
    absent: ClassVar[Mapping[str, str]] = {}
    races: ClassVar[bool] = False
    """Whether a question and its answer race here, so that one run shows little."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    @abstractmethod
    async def converse(self, agent: str, skill: str, *turns: Turn) -> list[Reply]:
        """Hold a conversation. A turn after a question answers it; another turn continues the conversation."""

    async def cancel(self, agent: str, skill: str) -> str:
        """Start work, cancel it, and return its last state."""
        raise AssertionError(f"{self.name} cannot cancel {skill} at {agent}")


class UrlDoor(Door):
    """``fleetsim send URL``, continued by the commands that it prints; files are saved with ``--out``."""

    name = "url"
    absent: ClassVar[Mapping[str, str]] = {}
    options: ClassVar[tuple[str, ...]] = ()
    _folders = count(1)

    def target(self, agent: str) -> str:
        return self.fleet.urls[agent]

    @property
    def version(self) -> list[str]:
        return ["--dialect", self.fleet.dialect] if self.fleet.dialect else []

    def task_options(self, agent: str) -> list[str]:
        """The arguments with which ``fleetsim task`` finds a task of this door."""
        return ["--agent", self.target(agent), *self.version]

    async def converse(self, agent: str, skill: str, *turns: Turn) -> list[Reply]:
        send = ["send", self.target(agent), "--skill", skill, *self.version, *self.options]
        replies: list[Reply] = []
        command = send
        for number, turn in enumerate(turns, 1):
            reply, task_id, answer = await self._say(agent, command, turn)
            if task_id and not answer and len(turns) > 1 and "--task-id" not in command:
                reply = replace(reply, context_id=await self._context(agent, task_id))
            command = answer or ([*send, "--context-id", reply.context_id] if number < len(turns) else [])
            replies.append(reply)
        return replies

    async def _say(self, agent: str, command: list[str], turn: Turn) -> tuple[Reply, str, list[str]]:
        """The reply to one turn, the task's id, and the command for the answer if the agent asks."""
        out = self.fleet.shell.home / f"out-{next(self._folders)}"
        given: list[str] = ["-"] if isinstance(turn, str) else []
        for part in () if isinstance(turn, str) else turn:
            if isinstance(part, FilePart):
                path = out.with_suffix(".in") / str(part.filename)
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(base64.b64decode(part.raw or ""))
                given += ["--file", str(path)]
            elif isinstance(part, DataPart):
                given += ["--data", json.dumps(part.data)]
        stdin = turn if isinstance(turn, str) else ""
        done = await self.run(agent, [*command, *given], stdin, out)
        assert done.returncode in STATES, (done.args, done.stdout[:500], done.stderr[:2000])
        assert done.stdout.endswith("\n") or not done.stdout, "stdout ends with a whole line"
        assert not (done.returncode == 1 and done.stdout), ("the reason of a failure goes to stderr", done.stdout)
        lines = done.stderr.splitlines()
        (task_id,) = re.findall(r"\(task ([^)\s]+)\)", done.stderr) or [""]
        saved = {path.name: path.read_bytes() for path in sorted(out.iterdir())} if out.is_dir() else {}
        data = [name for name in sorted(saved) if name.startswith("data-")]
        asks = [line for line in lines if line.startswith("  next: fleetsim ") and done.returncode == 7]
        words = shlex.split(asks[-1].removeprefix("  next: fleetsim ")) if asks else []
        reply = Reply(
            state=STATES[done.returncode],
            text=done.stderr if done.returncode == 1 else done.stdout.removesuffix("\n"),
            files={name: content for name, content in saved.items() if name not in data},
            data=tuple(json.loads(saved[name]) for name in data),
            context_id="",
            warnings=tuple(line for line in lines if line.startswith("warning: ")),
        )
        return reply, task_id, [word for word in words if word not in {"your answer", "--data", "{…}"}]

    async def run(self, agent: str, command: list[str], stdin: str, out: Path) -> CompletedProcess[str]:
        options = [] if "--stream" in command else self.options
        return await self.fleet.shell.arun(*command, *options, "--exit-status", "--out", str(out), stdin=stdin)

    async def _context(self, agent: str, task_id: str) -> str:
        done = await self.fleet.shell.arun("task", "get", task_id, *self.task_options(agent), "-o", "json")
        return str(json.loads(done.stdout)["contextId"])

    async def cancel(self, agent: str, skill: str) -> str:
        command = ["send", self.target(agent), "go", "--skill", skill, *self.version, "--async", "-o", "json"]
        begun = json.loads((await self.fleet.shell.arun(*command)).stdout)
        task_id, options = begun["correlationId"] or begun["taskId"], self.task_options(agent)
        canceled = await self.fleet.shell.arun("task", "cancel", task_id, *options)
        assert canceled.returncode == 0, canceled.stderr
        shown = await self.fleet.shell.arun("task", "get", task_id, *options, "--wait", "-o", "json")
        return str(json.loads(shown.stdout)["state"])


class StreamDoor(UrlDoor):
    """``fleetsim send URL --stream``."""

    name = "stream"
    options = ("--stream",)


class HubDoor(UrlDoor):
    """``fleetsim send NAME`` through the running hub."""

    name = "hub"

    def target(self, agent: str) -> str:
        return agent

    @property
    def version(self) -> list[str]:
        return []

    def task_options(self, agent: str) -> list[str]:
        return []

    async def run(self, agent: str, command: list[str], stdin: str, out: Path) -> CompletedProcess[str]:
        if command[0] == "send":
            return await super().run(agent, command, stdin, out)
        answered = await self.fleet.shell.arun(*command, stdin=stdin)
        assert answered.returncode == 0, answered.stderr
        (follow,) = re.findall(r"see: fleetsim (.+)", answered.stderr)
        done = await self.fleet.shell.arun(*follow.split(), "--exit-status", "-o", "json")
        row = json.loads(done.stdout)
        text = row.get("reason") if done.returncode == 1 else row["text"]
        asks = reply_command(row["questionId"], data=row["asksForData"]) if done.returncode == 7 else ""
        told = [f"(task {row['correlationId']})", *(f"warning: {line}" for line in row["warnings"])]
        told += [f"  next: {asks}"] if asks else [str(text)] if done.returncode == 1 else []
        stdout = "" if done.returncode == 1 else f"{text}\n"
        return CompletedProcess(done.args, done.returncode, stdout, "\n".join(told))


class HubStreamDoor(HubDoor):
    """``fleetsim send NAME --stream``."""

    name = "hub-stream"
    options = ("--stream",)

    async def run(self, agent: str, command: list[str], stdin: str, out: Path) -> CompletedProcess[str]:
        return await super().run(agent, command, stdin, out)


class ChatDoor(Door):
    """``fleetsim chat NAME`` with its turns piped in."""

    name = "chat"
    races = True
    absent: ClassVar[Mapping[str, str]] = {
        "files": "chat takes lines of text; send takes files and data",
        "data question": "chat takes lines of text; inbox reply takes data",
        "cancel": "Ctrl-C leaves the work running and names the command that shows it",
    }

    def command(self, agent: str) -> list[str]:
        return ["chat", agent]

    async def converse(self, agent: str, skill: str, *turns: Turn) -> list[Reply]:
        lines = "".join(f"{turn}\n" for turn in turns)
        done = await self.fleet.shell.arun(*self.command(agent), "--skill", skill, "-o", "json", stdin=lines)
        assert done.returncode == 0, done.stderr
        return [
            Reply(
                state=row["state"],
                text=row["text"],
                context_id=row["contextId"] or "",
                warnings=tuple(row["warnings"]),
                **_contents([read_part_row(convert(part, PartFacts)) for part in row["parts"]]),
            )
            for row in map(json.loads, done.stdout.splitlines())
        ]


class DirectChatDoor(ChatDoor):
    """``fleetsim chat URL``."""

    name = "chat-url"
    races = False
    absent: ClassVar[Mapping[str, str]] = {
        **ChatDoor.absent,
        "data question": "chat takes lines of text; send --task-id takes data",
    }

    def command(self, agent: str) -> list[str]:
        return ["chat", self.fleet.urls[agent], *(["--dialect", self.fleet.dialect] if self.fleet.dialect else [])]


class ApiDoor(Door):
    """``POST /api/requests``, ``GET /api/tasks/{id}`` and ``POST /api/inbox/{id}/answer``."""

    name = "api"
    races = True

    async def converse(self, agent: str, skill: str, *turns: Turn) -> list[Reply]:
        row: Any = {}
        replies = []
        for turn in turns:
            text = turn if isinstance(turn, str) else ""
            parts = [] if isinstance(turn, str) else [body_part(part) for part in turn]
            if row.get("questionId"):
                await self.answer(row["questionId"], text, parts)
                correlation_id = row["correlationId"]
            else:
                context = {"contextId": row["contextId"]} if row else {"conversation": True}
                body = {"targets": [agent], "skill": skill, "text": text, "parts": parts, **context}
                (correlation_id,) = await self.fleet.admin.submit(body)
            row = (await self.fleet.admin.follow_task(correlation_id, timeout_s=None).end()).row or {}
            replies.append(await self.reply(row))
        return replies

    async def answer(self, question_id: str, text: str, parts: Sequence[Mapping[str, Any]]) -> None:
        await self.fleet.admin.answer(question_id, text, parts=parts)

    async def reply(self, row: Any) -> Reply:
        asks = bool(row.get("questionId"))
        return Reply(
            state="input-required" if asks else row["state"],
            text=row["text"] if asks or row.get("success") else row.get("reason") or "",
            context_id=row.get("contextId") or "",
            warnings=tuple(row["warnings"]),
            **_contents([read_part_row(convert(part, PartFacts)) for part in row["parts"]]),
        )

    async def stop(self, correlation_id: str) -> None:
        await self.fleet.admin.cancel(correlation_id)

    async def cancel(self, agent: str, skill: str) -> str:
        (correlation_id,) = await self.fleet.admin.submit({"targets": [agent], "skill": skill, "text": "go"})
        while not (await self.fleet.admin.task(correlation_id))["taskId"]:  # noqa: ASYNC110 - in another process
            await asyncio.sleep(0.05)
        await self.stop(correlation_id)
        return (await self.fleet.admin.follow_task(correlation_id, timeout_s=None).end()).state


class DashboardDoor(ApiDoor):
    """The content and the actions of the screens over a hub. They cannot send a request; the API does that for them."""

    name = "dashboard"
    absent: ClassVar[Mapping[str, str]] = {"files": "the screens list files and data; task download saves them"}

    async def answer(self, question_id: str, text: str, parts: Sequence[Mapping[str, Any]]) -> None:
        await HubControls(self.fleet.hub).answer(question_id, text or json.dumps(parts[0]["data"]))

    async def stop(self, correlation_id: str) -> None:
        await HubControls(self.fleet.hub).cancel(correlation_id)

    async def reply(self, row: Any) -> Reply:
        """The row of the Tasks screen, and the whole text that its page opens."""
        correlation_id, asks = row["correlationId"], bool(row.get("questionId"))
        hub, builder = self.fleet.hub, ViewBuilder()
        builder.fold_all(hub.events.recent(limit=100_000))
        shown = builder.detail(correlation_id)
        assert shown is not None
        whole = await HubControls(hub).text(correlation_id)
        if asks:
            question = builder.snapshot(hub.runtime.clock.now()).question(row["questionId"])
            assert question is not None
            assert whole.text.startswith(question.text)
        return Reply(
            state=shown.row.state,
            text=whole.text if asks or row.get("success") else shown.row.reason,
            files={},
            data=(),
            context_id=row.get("contextId") or "",
            warnings=tuple(row["warnings"]),
        )


class HubClientDoor(Door):
    """``HubClient.chat_with_agent`` and ``wait_for_task``."""

    name = "hub-client"
    races = True

    async def converse(self, agent: str, skill: str, *turns: Turn) -> list[Reply]:
        context_id = task_id = None
        replies = []
        for turn in turns:
            said: dict[str, Any] = {"context_id": context_id, "task_id": task_id, "skill": skill}
            text = turn if isinstance(turn, str) else ""
            if not isinstance(turn, str):
                said["parts"] = turn
            response = await self.fleet.admin.chat_with_agent(agent, text, **said)
            if response.status == "working":
                response = await self.fleet.admin.wait_for_task(response.correlation_id)
            asks = response.status == "input-required"
            context_id, task_id = response.context_id, response.task_id if asks else None
            replies.append(
                Reply(
                    state="input-required" if asks else response.task_state,
                    text=response.text if asks or response.success else response.error or "",
                    context_id=context_id or "",
                    warnings=response.warnings,
                    **_contents(response.parts),
                )
            )
        return replies

    async def cancel(self, agent: str, skill: str) -> str:
        correlation_id = await self.fleet.admin.delegate(agent, skill, "go")
        while not (await self.fleet.admin.chat_task(correlation_id)).task_id:  # noqa: ASYNC110 - in another process
            await asyncio.sleep(0.05)
        await self.fleet.admin.cancel(correlation_id)
        return (await self.fleet.admin.wait_for_task(correlation_id)).task_state


class PythonDoor(Door):
    """``AgentClient.follow``; an answer is given by ``ask``."""

    name = "python"

    async def converse(self, agent: str, skill: str, *turns: Turn) -> list[Reply]:
        left, replies = list(turns), []

        async def ask(task: SentTask) -> str | tuple[Part, ...] | None:
            replies.append(self._reply(task))
            return left.pop(0) if left else None

        async with AgentClient(
            self.fleet.urls[agent], runtime=self.fleet.runtime, dialect=self.fleet.dialect
        ) as client:
            context_id = None
            while left:
                turn = left.pop(0)
                text, parts = (turn, ()) if isinstance(turn, str) else ("", turn)
                done = await client.follow(text, parts=parts, skill=skill, context_id=context_id, ask=ask).end()
                if not done.waiting:
                    replies.append(self._reply(done))
                context_id = done.context_id or None
        return replies

    def _reply(self, task: SentTask) -> Reply:
        text = task.error or "" if task.done and task.state != "completed" else task.text
        told = {"context_id": task.context_id, "warnings": task.warnings}
        return Reply(state=task.state, text=text, **told, **_contents(task.parts))

    async def cancel(self, agent: str, skill: str) -> str:
        async with AgentClient(
            self.fleet.urls[agent], runtime=self.fleet.runtime, dialect=self.fleet.dialect
        ) as client:
            begun = await client.follow("go", skill=skill, stream=False).first()
            await client.cancel(begun.id)
            return (await client.follow_task(begun.id).end()).state


class McpDoor(Door):
    """The tools of ``fleetsim mcp``, called by the official SDK's client on standard input and output."""

    name = "mcp"
    races = True

    async def converse(self, agent: str, skill: str, *turns: Turn) -> list[Reply]:
        ids: dict[str, Any] = {}
        replies = []
        for turn in turns:
            said = {"agent": agent, "skill": skill, **ids}
            said |= {"message": turn} if isinstance(turn, str) else {"parts": [body_part(part) for part in turn]}
            row = await self._call("chat_with_agent", said)
            while row["status"] == "working":
                row = await self._call("wait_for_task", {"correlationId": row["correlationId"]})
            asks = row["status"] == "input-required"
            ids = {key: row[key] for key in ("contextId", "taskId") if row.get(key) and (asks or key == "contextId")}
            content = row.pop("content")
            text, at = row["response"], {"correlationId": row["correlationId"]}
            while row.get("nextOffset"):
                row = await self._call("wait_for_task", {**at, "offset": row["nextOffset"]})
                text += row["response"]
            files: dict[str, bytes] = {}
            for part in row.get("parts", ()):
                if part["kind"] == "file":
                    whole = await self._call("wait_for_task", {**at, "part": part["index"]})
                    files[part["name"]] = base64.b64decode(whole["content"][1].resource.blob)
            replies.append(
                Reply(
                    state="input-required" if asks else "completed" if row["success"] else "failed",
                    text=text if asks or row["success"] else content[0].text,
                    files=files,
                    data=tuple(part["data"] for part in row.get("parts", ()) if part["kind"] == "data"),
                    context_id=row.get("contextId") or "",
                    warnings=tuple(row.get("warnings", ())),
                )
            )
        return replies

    async def _call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The structured content of a result, and its blocks as ``content``."""
        result = await self.fleet.session.call_tool(tool, arguments)
        assert isinstance(result, CallToolResult)
        assert result.structured_content is not None, result.content
        return {**result.structured_content, "content": result.content}

    async def cancel(self, agent: str, skill: str) -> str:
        at = {
            "correlationId": (await self._call("delegate", {"agent": agent, "skill": skill, "message": "go"}))[
                "correlationId"
            ]
        }
        while not (await self._call("wait_for_task", {**at, "waitSeconds": 0})).get("taskId"):  # noqa: ASYNC110 - in another process
            await asyncio.sleep(0.05)
        await self._call("cancel_task", at)
        ended = await self._call("wait_for_task", at)
        return "canceled" if "cancel" in ended["content"][0].text else str(ended["status"])


DOORS: tuple[type[Door], ...] = (
    UrlDoor,
    StreamDoor,
    HubDoor,
    HubStreamDoor,
    ChatDoor,
    DirectChatDoor,
    ApiDoor,
    DashboardDoor,
    HubClientDoor,
    PythonDoor,
    McpDoor,
)
