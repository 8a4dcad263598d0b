"""The agent that ``fleetsim agent new NAME`` writes: twenty lines that run, and a test."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fleetsim.model.errors import ConfigError

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,40}", re.ASCII)

_AGENT = '''\
"""{title}: an A2A agent. Run it with ``python {module}.py``."""

from fleetsim.agent import Agent, SkillContext, SkillFailed

agent = Agent("{name}", description="Greets people")


@agent.skill("greet", examples=["/greet Ada"])
async def greet(task: SkillContext) -> str:
    """Greets whoever is named, and asks if nobody is."""
    name = task.text.strip() or await task.ask("Who shall I greet?")
    if name.lower() == "nobody":
        raise SkillFailed("there is nobody to greet")
    await task.status(f"looking for {{name}}")
    return f"Hello {{name}}!"


if __name__ == "__main__":
    agent.serve(port=9000)
'''

_TEST = '''\
"""Tests of {name}, in this process and without a socket."""

import asyncio

from {module} import agent

from fleetsim.client import AgentClient, SentTask
from fleetsim.testbed.network import in_process


async def asked(text: str) -> SentTask:
    async with in_process(agent.app()) as transport, AgentClient("http://{name}", transport=transport) as client:
        return await client.send_task(text)


def test_it_greets_by_name() -> None:
    assert asyncio.run(asked("Ada")).text == "Hello Ada!"


def test_it_asks_when_nobody_is_named() -> None:
    assert asyncio.run(asked(" ")).waiting


def test_it_fails_with_the_reason() -> None:
    assert asyncio.run(asked("nobody")).error == "there is nobody to greet"
'''


def files_for(name: str) -> Mapping[str, str]:
    """File name to content for a new agent. Raises ConfigError for a name that cannot be a module's."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name for an agent", hint="lower-case letters, digits, - and _; e.g. greeter")
    module = name.replace("-", "_")
    words = {"name": name, "module": module, "title": name.replace("-", " ").replace("_", " ").capitalize()}
    return {f"{module}.py": _AGENT.format(**words), f"test_{module}.py": _TEST.format(**words)}
