# mypy: ignore-errors
"""An A2A 1.0 agent by another author: Starlette, httpx, ``time.time`` and a dict of tasks.

It uses nothing of fleetsim. ``make`` makes one that keeps the promises which only ``--app`` can check; each of the
other functions makes one that breaks a promise.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import threading
import time
import uuid
import weakref
from datetime import UTC, datetime

import httpx
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

log = logging.getLogger("plain.push")
TTL_S = 3600
TASKS: dict[str, dict] = {}
"""The store of the agent that ``make`` made last."""


class Plain:
    """The agent; the flags select its faults."""

    def __init__(self, *faults: str) -> None:
        self.faults = faults
        self.tasks = TASKS
        self.configs: dict[str, list[dict]] = {}
        self.running: set[asyncio.Task] = set()

    @contextlib.asynccontextmanager
    async def lifespan(self, app):
        print("the plain agent is up")
        if "thread" in self.faults:
            threading.Thread(target=time.sleep, args=(0.01,), name="plain-metrics", daemon=True).start()
        self.begin(self.sweep())
        yield {}
        for task in list(self.running):
            task.cancel()

    def begin(self, work):
        task = asyncio.get_running_loop().create_task(work)
        self.running.add(task)
        task.add_done_callback(self.running.discard)

    async def sweep(self):
        while True:
            await asyncio.sleep(60)
            if "leaks" in self.faults:
                continue
            for task_id, record in list(self.tasks.items()):
                old = time.time() - record["at"] > TTL_S
                ended = record["state"] in ("COMPLETED", "FAILED", "CANCELED")
                if old and (ended or "evicts-work" in self.faults):
                    if "hides" in self.faults:
                        record["hidden"] = True
                    else:
                        del self.tasks[task_id]

    def shown(self, task_id):
        record = self.tasks[task_id]
        status = {"state": f"TASK_STATE_{record['state']}", "timestamp": record["when"]}
        task = {"id": task_id, "contextId": record["context"], "status": status}
        if record["state"] == "COMPLETED":
            part = {"text": record["text"]}
            task["artifacts"] = [{"artifactId": f"{task_id}-1", "name": "answer", "parts": [part]}]
        return task

    async def move(self, task_id, state):
        self.tasks[task_id].update(state=state, at=time.time(), when=datetime.now(UTC).isoformat())
        for config in self.configs.get(task_id, []):
            await self.deliver(task_id, config, state)

    async def deliver(self, task_id, config, state):
        headers = {}
        if token := config.get("token"):
            headers["X-A2A-Notification-Token"] = token
        body = json.dumps({"task": self.shown(task_id)})
        if await self.attempt(task_id, config, headers, body, state) < 500:
            return
        if "weak" in self.faults:
            asyncio.get_running_loop().create_task(self.retry_weakly(task_id, config, headers, body, state))
        else:
            self.begin(self.retry(task_id, config, headers, body, state))

    async def attempt(self, task_id, config, headers, body, state):
        async with httpx.AsyncClient() as client:
            answer = await client.post(config["url"], content=body, headers=headers, follow_redirects=False)
        told = log.debug if "silent" in self.faults else log.info
        told("webhook for task %s, %s: HTTP %s", task_id, state.lower(), answer.status_code)
        if "chatty" in self.faults:
            log.info("sent %s with %s", body, headers)
        return answer.status_code

    async def retry(self, *delivery):
        for delay in (1, 3, 9):
            await asyncio.sleep(delay)
            if await self.attempt(*delivery) < 500:
                return

    async def retry_weakly(self, *delivery):
        loop = asyncio.get_running_loop()
        waking = loop.create_future()
        loop.call_later(1, lambda weak: weak() and weak().set_result(None), weakref.ref(waking))
        await waking
        await self.attempt(*delivery)

    async def work(self, task_id, text):
        await self.move(task_id, "WORKING")
        if text == "slow":
            await asyncio.sleep(24 * 3600)
        self.tasks[task_id]["text"] = f"you said {text}"
        await self.move(task_id, "COMPLETED")

    def send(self, params):
        message = params["message"]
        task_id = str(uuid.uuid4())
        context = message.get("contextId") or str(uuid.uuid4())
        when = datetime.now(UTC).isoformat()
        self.tasks[task_id] = {"state": "SUBMITTED", "context": context, "at": time.time(), "text": "", "when": when}
        inline = params.get("configuration", {}).get("taskPushNotificationConfig")
        if inline:
            self.configs[task_id] = [inline]
        self.begin(self.work(task_id, message["parts"][0].get("text", "")))
        return {"task": self.shown(task_id)}

    async def card(self, request):
        origin = f"{request.url.scheme}://{request.url.netloc}"
        return JSONResponse(
            {
                "name": "Plain",
                "description": "Written by somebody else",
                "version": "1",
                "supportedInterfaces": [
                    {"url": f"{origin}/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
                ],
                "capabilities": {"streaming": False, "pushNotifications": True},
                "defaultInputModes": ["text/plain"],
                "defaultOutputModes": ["text/plain"],
                "skills": [{"id": "talk", "name": "Talk", "description": "Talks", "tags": []}],
            }
        )

    async def rpc(self, request):
        asked = await request.json()
        params = asked.get("params") or {}
        found = self.tasks.get(str(params.get("id") or params.get("taskId")), {})
        unknown = {"error": {"code": -32001, "message": "Task not found"}}
        match asked.get("method"):
            case "SendMessage":
                answer = {"result": self.send(params)}
            case "GetTask":
                answer = {"result": self.shown(params["id"])} if found and "hidden" not in found else unknown
            case "CreateTaskPushNotificationConfig" if found:
                self.configs.setdefault(params["taskId"], []).append(params)
                answer = {"result": {**params, "id": params.get("id", "1")}}
            case "CreateTaskPushNotificationConfig":
                answer = unknown
            case _:
                answer = {"error": {"code": -32601, "message": "Method not found"}}
        return JSONResponse({"jsonrpc": "2.0", "id": asked.get("id"), **answer})


def make(*faults):
    """The application."""
    return made_of(Plain(*faults))


def made_of(agent):
    """The application of an agent."""
    routes = [Route("/.well-known/agent-card.json", agent.card), Route("/rpc", agent.rpc, methods=["POST"])]
    return Starlette(routes=routes, lifespan=agent.lifespan)


app = make()


def leaks():
    """Never evicts a task."""
    return make("leaks")


def hides():
    """Reports an old task as unknown, and keeps it."""
    return make("hides")


def evicts_work():
    """Evicts tasks by age alone."""
    return make("evicts-work")


def silent():
    """Logs deliveries at DEBUG."""
    return make("silent")


def chatty():
    """Logs the body of its deliveries."""
    return make("chatty")


def weak():
    """Forgets deliveries that wait for a retry."""
    return make("weak")


def threaded():
    """Starts a thread."""
    return make("thread")


async def made_later():
    """Makes the application in a coroutine."""
    return make()


def noisy():
    """Prints a lot, and logs its requests, which is allowed."""

    class Noisy(Plain):
        def send(self, params):
            print(f"\x1b[31masked: {params['message']}\x1b[0m" * 20)
            logging.getLogger("plain.work").info("asked: %s", params["message"]["parts"][0].get("text"))
            return super().send(params)

    return made_of(Noisy())


def printing():
    """Reports its deliveries on stderr with a logger that is not Python's."""

    class Printing(Plain):
        async def attempt(self, task_id, config, headers, body, state):
            status = await super().attempt(task_id, config, headers, body, state)
            print(f"2026-01-01 | INFO     | push - task={task_id} state={state.lower()} status={status}", flush=True)
            return status

    return made_of(Printing("silent"))


def once():
    """Tries each delivery once."""

    class Once(Plain):
        async def retry(self, *delivery):
            pass

    return made_of(Once())


def outgoing():
    """Calls another host when it starts."""

    class Outgoing(Plain):
        @contextlib.asynccontextmanager
        async def lifespan(self, app):
            with contextlib.suppress(OSError):
                await asyncio.open_connection("127.0.0.1", 9)
            async with super().lifespan(app) as state:
                yield state

    return made_of(Outgoing())


def holding():
    """Keeps a connection to the listener at ``PLAIN_DOOR`` open, and writes to it at each request."""

    class Holding(Plain):
        def send(self, params):
            door.send(b"asked\n")
            for _ in range(20_000):  # so that bytes are always on their way when the other end is killed
                log.info("x" * 500)
            return super().send(params)

    door = socket.socket(socket.AF_UNIX)
    door.connect(os.environ["PLAIN_DOOR"])
    return made_of(Holding())
