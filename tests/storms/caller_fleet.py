"""Real agents in a process of their own, that write down what they really did: the truth a caller is held to.

One line per thing done, appended in one system call, keyed by the correlation id the caller sent along.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import threading
from collections import Counter, defaultdict
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from fleetsim.agent import Agent, AgentLimits, SkillContext
from fleetsim.agent.store import Store
from fleetsim.caller.fleet import AgentEntry

WAYS: dict[str, dict[str, Any]] = {
    "quinn": {},
    "ava": {"wire": "0.3", "push": "inline"},
    "rex": {"wire": "0.3", "push": "off", "streaming": False},
    "olly": {"wire": "0.1", "push": "set", "streaming": False},
}
"""Agents by name, and how the caller is told to reach them: every dialect, every channel."""


@dataclass
class Truth:
    """What the agents did, by correlation id: how often they began, what they said, which answers they got."""

    begun: Counter[str] = field(default_factory=Counter)
    said: dict[str, str] = field(default_factory=dict)
    answers: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def read(cls, path: Path) -> Truth:
        """From the agents' own file."""
        truth = cls()
        for line in path.read_text().splitlines() if path.exists() else ():
            what, cid, text = json.loads(line)
            if what == "begin":
                truth.begun[cid] += 1
            elif what == "answer":
                truth.answers[cid].append(text)
            else:
                truth.said[cid] = text
        return truth


def truthful(name: str, path: Path, hub_port: int) -> Agent:
    """An agent whose skills tell ``path`` what they do."""
    agent = Agent(name, allow_webhook=[f"127.0.0.1:{hub_port}"])
    rng = random.Random(name)
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def tell(task: SkillContext, what: str, text: str = "") -> str:
        os.write(out, (json.dumps([what, str(task.metadata.get("correlationId")), text]) + "\n").encode())
        return text

    @agent.skill("echo")
    async def echo(task: SkillContext) -> str:
        tell(task, "begin")
        return tell(task, "end", f"you said {task.text}")

    @agent.skill("work")
    async def work(task: SkillContext) -> None:
        tell(task, "begin")
        said = ""
        for word in ("one ", "two ", "three"):
            await asyncio.sleep(rng.choice((0.01, 0.1, 0.8)))
            await task.say(word)
            said += word
        tell(task, "end", said)

    @agent.skill("ask")
    async def ask(task: SkillContext) -> str:
        tell(task, "begin")
        given = [tell(task, "answer", await task.ask(question)) for question in ("which?", "sure?")]
        return tell(task, "end", " and ".join(given))

    return agent


def own_threads() -> int:
    """Threads of this process, but for those of pools: these start when first needed, up to the pool's size."""
    pools = ("fleetsim-resolver", "asyncio_", "ThreadPoolExecutor")
    return sum(not thread.name.startswith(pools) for thread in threading.enumerate())


def _held() -> dict[str, int]:
    """What this process keeps: tasks of the agents, coroutines and threads."""
    gc.collect()
    return {
        "tasks": sum(len(thing) for thing in gc.get_objects() if type(thing) is Store),
        "coroutines": len(asyncio.all_tasks()),
        "threads": own_threads(),
    }


async def _serve(path: Path, hub_port: int, limits: AgentLimits | None, report: int, ask: int) -> None:
    def say(what: dict[str, Any]) -> None:
        os.write(report, (json.dumps(what) + "\n").encode())

    async with AsyncExitStack() as stack:
        urls = {}
        for name in WAYS:
            agent = truthful(name, path, hub_port)
            agent = agent if limits is None else agent.replace(limits=limits)
            urls[name] = await stack.enter_async_context(agent.serving())
        say(urls)
        while await asyncio.get_running_loop().run_in_executor(None, os.read, ask, 1):
            say(_held())


@dataclass
class Agents:
    """The agents' process. Use as ``with``: it ends with the parent, whatever happens to it."""

    path: Path
    hub_port: int
    limits: AgentLimits | None = None
    entries: tuple[AgentEntry, ...] = ()
    pid: int = 0
    hold: int = -1
    said: IO[str] | None = None

    def __enter__(self) -> Agents:
        reading, writing = os.pipe()
        ask, self.hold = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.hold)
            os.close(reading)
            try:
                asyncio.run(_serve(self.path, self.hub_port, self.limits, writing, ask))
            finally:
                os._exit(0)
        os.close(writing)
        os.close(ask)
        self.said = os.fdopen(reading)
        urls = json.loads(self.said.readline())
        self.entries = tuple(AgentEntry(name=n, url=f"{urls[n]}/a2a", **way) for n, way in WAYS.items())
        return self

    def held(self) -> dict[str, int]:
        """What the agents' process keeps, by its own word. Blocks until it answers."""
        assert self.said is not None
        os.write(self.hold, b"?")
        found: dict[str, int] = json.loads(self.said.readline())
        return found

    def __exit__(self, *_: object) -> None:
        os.close(self.hold)
        if self.said is not None:
            self.said.close()
        os.waitpid(self.pid, 0)
