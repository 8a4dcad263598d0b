"""Every secret of one run is a marker that occurs nowhere else; no sink has one (T-17, T-41, I-16, U11).

A hub and its verbs in processes of their own with ``--debug``, agents that want keys, webhooks signed and not,
questions, failures, a wrong key, a crash. Searched are logs on both sides, standard output and error of every
verb, the ledger with its log, the journal, pictures of every screen, hub.json, and what errors say.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from fleetsim.agent import Agent, SkillContext, SkillFailed
from fleetsim.caller.webhooks import CallbackTokens
from fleetsim.cli.render import HIDDEN
from fleetsim.client import AgentClient, Credential
from fleetsim.dashboard.screenshot import take
from fleetsim.events.wire import from_wire
from fleetsim.hub.state import API_KEY_FILE, CALLBACK_KEYS_FILE, HUB_FILE, LEDGER_FILE, HubAddress, StateDir
from fleetsim.model.errors import FleetsimError
from fleetsim.runtime.real import running_runtime
from fleetsim.runtime.webhook import write_secret
from tests.cli.world import Shell

pytestmark = pytest.mark.sockets

KEYS_FILES = {API_KEY_FILE, CALLBACK_KEYS_FILE}


def marker(name: str) -> str:
    return f"canary-{name}-{os.urandom(12).hex()}"


@dataclass(frozen=True)
class Secrets:
    """The run's markers."""

    api_key: str
    bearer: str
    wrong: str
    hub_key: str
    masters: Mapping[int, bytes]

    @classmethod
    def fresh(cls) -> Secrets:
        masters = {n: marker(f"master{n}").encode() for n in (1, 2)}
        return cls(marker("apikey"), marker("bearer"), marker("wrong"), marker("hubkey"), masters)

    def environment(self) -> dict[str, str]:
        return {"SCOUT_API_KEY": self.api_key, "CLERK_BEARER": self.bearer, "WRONG_KEY": self.wrong}

    def write(self, state: Path) -> None:
        """The hub's key files, as an earlier run would have left them."""
        StateDir(state).open()
        keys = {str(n): base64.b64encode(key).decode() for n, key in self.masters.items()}
        for name, text in (
            (API_KEY_FILE, self.hub_key),
            (CALLBACK_KEYS_FILE, json.dumps({"current": 2, "keys": keys})),
        ):
            (state / name).write_text(text)
            (state / name).chmod(0o600)

    def needles(self, requests: Mapping[str, str]) -> dict[str, bytes]:
        """All that must not be found; ``requests`` are correlation ids and the agents they went to."""
        plain = {"api key": self.api_key, "bearer": self.bearer, "wrong key": self.wrong, "hub key": self.hub_key}
        found = {name: text.encode() for name, text in plain.items()}
        tokens = CallbackTokens(self.masters, current=2)
        for number, key in self.masters.items():
            found[f"master {number}"] = key
            found[f"master {number} in base64"] = base64.b64encode(key)
        for cid, agent in requests.items():
            for signed in (False, True):
                token = tokens.mint(agent, cid, signed=signed)
                found[f"token of {cid}, signed {signed}"] = token.encode()
                found[f"signature of {cid}, signed {signed}"] = token.partition(".")[2].encode()
            found[f"signing secret of {cid}"] = write_secret(tokens.signing_secret(agent, cid))[6:-2].encode()
        return found


def made(name: str, **options: object) -> Agent:
    agent = Agent(name, **options)  # type: ignore[arg-type]

    @agent.skill("echo")
    async def echo(task: SkillContext) -> str:
        await task.say("you ")
        return f"you said {task.text}"

    @agent.skill("ask")
    async def ask(task: SkillContext) -> str:
        return f"going with {await task.ask('which branch?')}"

    @agent.skill("fail")
    async def fail(task: SkillContext) -> str:
        raise SkillFailed("the disk is full")

    @agent.skill("crash")
    async def crash(task: SkillContext) -> str:
        raise RuntimeError("an error nobody expected")

    @agent.skill("slow")
    async def slow(task: SkillContext) -> str:
        await asyncio.sleep(3)
        return "at last"

    return agent


@asynccontextmanager
async def agents(secrets: Secrets, hub_port: int) -> AsyncIterator[dict[str, str]]:
    """Running agents that want keys, by name."""
    allowed = [f"127.0.0.1:{hub_port}"]
    async with AsyncExitStack() as stack:
        urls = {
            "scout": made("scout", api_key=secrets.api_key, allow_webhook=allowed),
            "clerk": made("clerk", bearer=secrets.bearer, allow_webhook=allowed),
        }
        yield {name: await stack.enter_async_context(agent.serving()) for name, agent in urls.items()}


def fleet_file(urls: Mapping[str, str], hub_port: int) -> str:
    scout, clerk = urls["scout"], urls["clerk"]
    return (
        "fleet: {poll_interval_s: 1}\nagents:\n"
        f"  - {{name: scout, url: {scout}/a2a, apiKeyEnv: SCOUT_API_KEY, push: inline, signed: true}}\n"
        f"  - {{name: clerk, url: {clerk}/a2a, auth: {{scheme: bearer, credentialsEnv: CLERK_BEARER}}, push: set, "
        f"streaming: false}}\n"
        f"  - {{name: denied, url: {scout}/a2a, apiKeyEnv: WRONG_KEY, skills: [echo]}}\n"
        f"  - {{name: dead, url: 'http://127.0.0.1:9/a2a', apiKeyEnv: WRONG_KEY, skills: [echo]}}\n"
    )


@contextmanager
def hub(shell: Shell, port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """``fleetsim up --debug``, its standard error in a file."""
    with log.open("ab") as stderr:
        command = shell.command("up", "--headless", "--debug", "--port", str(port))
        process = subprocess.Popen(
            command, cwd=shell.home, env=shell.environment(), stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=60)
            finally:
                process.kill()
                process.wait()


async def announced(state: Path) -> HubAddress:
    async with asyncio.timeout(30):
        while True:
            found = await asyncio.to_thread(StateDir(state).find)
            if found is not None:
                return found
            await asyncio.sleep(0.1)


async def verbs(shell: Shell, urls: Mapping[str, str]) -> list[str]:
    """Run a person's commands, good and bad. Returns all their output."""
    lines = [
        ("send", "scout", "hello", "--skill", "echo", "--debug"),
        ("send", "clerk", "hello", "--skill", "echo", "--stream"),
        ("send", "scout", "x", "--skill", "crash", "-o", "json"),
        ("send", "clerk", "x", "--skill", "slow"),
        ("send", "denied", "x", "--skill", "echo", "--debug"),
        ("send", "dead", "x", "--skill", "echo", "--async"),
        ("send", "nobody", "x"),
        ("send", "clerk", "hi", "--skill", "ask", "--exit-status"),
        ("send", urls["scout"], "direct", "--skill", "echo", "--api-key-env", "SCOUT_API_KEY", "--debug"),
        ("send", urls["scout"], "direct", "--api-key-env", "WRONG_KEY", "--debug", "-o", "json"),
        ("card", urls["clerk"], "--bearer-env", "CLERK_BEARER"),
        ("inbox", "list", "-o", "json"),
        ("task", "list", "--debug"),
        ("health",),
        ("--nosuch",),
    ]
    said = []
    for line in lines:
        done = await shell.arun(*line)
        said.append(f"$ {' '.join(line)}\n{done.stdout}\n{done.stderr}")
    return said


def hits(needles: Mapping[str, bytes], sinks: Mapping[str, bytes]) -> list[str]:
    return [f"{name} in {where}" for where, data in sinks.items() for name, needle in needles.items() if needle in data]


def files_of(home: Path) -> dict[str, bytes]:
    """Every file the run left, but for those that are there to keep keys."""
    return {
        str(path.relative_to(home)): path.read_bytes()
        for path in sorted(home.rglob("*"))
        if path.is_file() and path.name not in KEYS_FILES
    }


async def provoked(secrets: Secrets, urls: Mapping[str, str], runtime: object) -> str:
    """The texts of errors, values and handles of the library."""
    said = [repr(secrets.masters.keys())]
    for scheme, secret in (("apiKey", secrets.wrong), ("bearer", secrets.wrong), ("apiKey", f"{secrets.wrong}\n")):
        credential = Credential.of(scheme, secret)  # type: ignore[arg-type]
        client = AgentClient(urls["scout"], runtime=runtime, credential=credential)  # type: ignore[arg-type]
        said += [repr(credential), repr(client)]
        try:
            await client.send_task("x")
        except FleetsimError as error:
            said += [repr(error), str(error), str(error.hint), str(error.__cause__)]
    return "\n".join(said)


async def test_no_secret_of_a_whole_run_is_in_any_sink(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, free_port: int
) -> None:
    secrets = Secrets.fresh()
    shell = Shell(tmp_path, env=secrets.environment())
    state, log, port = tmp_path / "state", tmp_path / "hub-stderr.txt", free_port
    secrets.write(state)
    caplog.set_level(logging.DEBUG)
    sinks: dict[str, bytes] = {}
    async with agents(secrets, port) as urls, running_runtime(seed=1) as runtime:
        shell.write("agents.yaml", fleet_file(urls, port))
        with hub(shell, port, log):
            remote = (await announced(state)).client(runtime)
            sinks["terminal"] = "\n".join(await verbs(shell, urls)).encode()
            (question,) = (await remote.get("/inbox"))["questions"]
            await remote.answer(question["questionId"], "main")
            await remote.task(question["correlationId"], wait_s=10)
            journal = await remote.get("/journal", limit=1_000)
            sinks["journal"] = json.dumps(journal).encode()
            sinks |= {f"live {name}": data for name, data in files_of(tmp_path).items()}
            sinks["errors"] = (await provoked(secrets, urls, runtime)).encode()
    sinks |= files_of(tmp_path)
    events = tuple(event for row in journal if (event := from_wire(row)) is not None)
    for screen in ("fleet", "tasks", "inbox", "ceremonies", "events"):
        sinks[f"picture of {screen}"] = (await take(events, screen=screen)).encode()
    sinks["log of the agents"] = caplog.text.encode()

    requests = {e.correlation_id: e.agent for e in events if e.correlation_id and e.agent}
    assert set(requests.values()) == {"scout", "clerk", "denied", "dead"}, "every kind of request was made"
    assert sum(e.topic == "agent.push.accepted" for e in events) >= 3, "webhooks came with tokens"
    assert [e for e in events if e.topic == "agent.push.rejected"] == []
    assert {f"live state/{LEDGER_FILE}", f"live state/{LEDGER_FILE}-wal", f"live state/{HUB_FILE}"} <= set(sinks)
    assert all(sinks[name] for name in ("terminal", "journal", "errors", "log of the agents", log.name))
    needles = secrets.needles(requests)
    print(f"{len(needles)} secrets, {len(sinks)} sinks, {sum(map(len, sinks.values())):,} bytes")
    assert hits(needles, sinks) == []
    assert HIDDEN.encode() not in sinks[log.name] + sinks["terminal"], "the second line had nothing left to do"


def test_a_secret_in_a_sink_would_be_seen() -> None:
    secrets = Secrets.fresh()
    needles = secrets.needles({"c-1": "scout"})
    assert len(needles) == 4 + 4 + 5
    for name, needle in needles.items():
        assert f"{name} in log" in hits(needles, {"log": b"before " + needle + b" after"})
    assert hits(needles, {"log": b"nothing"}) == []
