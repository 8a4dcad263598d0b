"""A person's way to a released server: ``fleetsim up --headless``, and every verb from a second process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks import Absent, expect, expect_shown, report
from script import FULL_TEXT, SCRIPT

VERB_S = 12.0
START_S = 20.0
LEAVE_S = 8.0
AGAIN_S = 0.1
AUTH = ("--bearer-env", "INTEROP_BEARER") if "INTEROP_BEARER" in os.environ else ()


@dataclass(frozen=True, slots=True)
class Said:
    """What a verb said."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.out)


@dataclass(frozen=True, slots=True)
class Desk:
    """A folder with an agents.yaml, in which the hub runs and the verbs are typed."""

    folder: Path
    url: str
    """The agent's."""

    def words(self, *verb: str) -> list[str]:
        return [sys.executable, "-m", "fleetsim", "--state", str(self.folder / "state"), *verb]

    async def verb(self, *verb: str, typed: str = "") -> Said:
        """Run one verb to its end; ``typed`` is its standard input."""
        process = await asyncio.create_subprocess_exec(
            *self.words(*verb),
            cwd=self.folder,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(VERB_S):
                out, err = await process.communicate(typed.encode())
        finally:
            if process.returncode is None:
                process.kill()
        return Said(process.returncode or 0, out.decode(), err.decode())

    async def json(self, *verb: str, code: int = 0) -> Any:
        """Run one verb for its JSON; the exit code must be as said."""
        said = await self.verb("-o", "json", *verb)
        expect(said.code, code, f"exit code of {' '.join(verb)} ({said.err.strip()})")
        return said.data

    async def ended(self, cid: str) -> Any:
        """One request, once it has ended."""
        return await self.json("task", "get", cid, "--wait")


@asynccontextmanager
async def running(url: str, port: str) -> AsyncIterator[Desk]:
    """A hub for the agent at ``url``, listening at ``port``, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="fleetsim-interop-") as name:
        desk = Desk(Path(name), url)
        await written(desk)
        with (desk.folder / "up.log").open("wb") as log:
            hub = await asyncio.create_subprocess_exec(
                *desk.words("up", "--headless", "--port", port),
                cwd=desk.folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            await started(desk, hub)
            yield desk
        finally:
            with suppress(ProcessLookupError):
                hub.terminate()
            try:
                async with asyncio.timeout(LEAVE_S):
                    await hub.wait()
            except TimeoutError:
                hub.kill()
                raise


async def written(desk: Desk) -> None:
    """The folder's files as ``fleetsim init`` makes them of the agent's card; the agent is called peer in them."""
    said = await desk.verb("init", desk.url, *AUTH)
    expect(said.code, 0, f"exit code of init ({said.err.strip()})")
    file = desk.folder / "agents.yaml"
    agents, names = re.subn(r"^  - name: .*$", "  - name: peer", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    expect(names, 1, "agents written")
    file.write_text(f"{agents}\nfleet:\n  poll_interval_s: 1\n", encoding="utf-8")


async def started(desk: Desk, hub: asyncio.subprocess.Process) -> None:
    """Wait until the hub answers and has read the agent's card."""
    async with asyncio.timeout(START_S):
        while hub.returncode is None:
            said = await desk.verb("-o", "json", "health")
            if said.code == 0 and [a for a in said.data["agents"] if a["health"] != "unknown"]:
                return
            await asyncio.sleep(AGAIN_S)
    raise AssertionError((desk.folder / "up.log").read_text(encoding="utf-8")[-300:])


async def init(desk: Desk) -> str:
    """The hub runs with what init wrote: the agent has its card's skills, and the ceremony waits."""
    (row,) = (await desk.json("ceremony", "list"))["ceremonies"]
    expect(row["enabled"], False, "the first ceremony is enabled")
    (agent,) = (await desk.json("health"))["agents"]
    expect(agent["health"], "up", "health at first")
    return f"a ceremony for {row['skill']}"


async def chat(desk: Desk) -> str:
    said = await desk.verb("chat", "peer", typed="complete gamma\n")
    expect((said.code, said.out.strip()), (0, SCRIPT["echo_prefix"] + "complete gamma"), "what was said")
    return "a turn through the hub"


async def url_card(desk: Desk) -> str:
    card = await desk.json("card", desk.url, *AUTH)
    if not card["name"] or not card["skills"]:
        raise AssertionError(f"a card of {card['name']!r} with skills {card['skills']}")
    return str(card["name"])


async def url_stream(desk: Desk) -> str:
    return await streamed(desk, desk.url, *AUTH)


async def send(desk: Desk) -> str:
    told = await desk.json("send", "peer", "complete alpha", "--exit-status")
    expect((told["state"], told["text"]), ("completed", SCRIPT["echo_prefix"] + "complete alpha"), "answer")
    return f"{told['durationMs']} ms"


async def stream(desk: Desk) -> str:
    return await streamed(desk, "peer")


async def streamed(desk: Desk, agent: str, *more: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *desk.words("send", agent, "stream beta", "--stream", *more),
        cwd=desk.folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    pieces, told = await asyncio.gather(read_pieces(process.stdout), read_pieces(process.stderr))
    said = "".join(pieces).strip()
    expect(await process.wait(), 0, "exit code")
    if said.startswith(SCRIPT["echo_prefix"]):
        raise Absent("answers in the reply")
    expect(said, FULL_TEXT, "standard output")
    enough = len(SCRIPT["chunks"]) // 2
    if len(pieces) >= enough:
        return "shown as it came, and once"
    words = {chunk.strip() for chunk in SCRIPT["chunks"]}
    if len([piece for piece in told if piece.strip() in words]) >= enough:
        return "told beside the answer as it came, for the agent says it in statuses"
    raise AssertionError(f"not as it came, but in {len(pieces)} piece(s)")


async def read_pieces(output: asyncio.StreamReader | None) -> list[str]:
    """The output of a process with these words, as it comes."""
    assert output is not None
    pieces: list[str] = []
    while piece := await output.read(1024):
        pieces.append(piece.decode())
    return [piece for piece in pieces if piece.strip()]


async def fail(desk: Desk) -> str:
    told = await desk.json("send", "peer", "fail please", "--exit-status", code=1)
    expect(told["state"], "failed", "state")
    return str(told["reason"])


async def ask(desk: Desk) -> str:
    cid = (await desk.json("send", "peer", "ask", "--async"))["correlationId"]
    while not (questions := (await desk.json("inbox", "list"))["questions"]):
        row = await desk.json("task", "get", cid)
        if not row["open"]:
            raise Absent(f"never asks: {row['kind']}")
    expect_shown(questions[0]["question"])
    await desk.json("inbox", "reply", questions[0]["questionId"], "blue")
    row = await desk.ended(cid)
    expect((row["kind"], row["text"]), ("completed", SCRIPT["answer_prefix"] + "blue"), "outcome")
    return f"answered through the inbox, via {row['via']}"


async def cancel(desk: Desk) -> str:
    cid = (await desk.json("send", "peer", "slow", "--async"))["correlationId"]
    while True:
        row = await desk.json("task", "get", cid)
        if row["taskId"] or not row["open"]:
            break
    if row["open"]:
        await desk.json("task", "cancel", cid)
        row = await desk.ended(cid)
    if row["kind"] == "completed":
        raise Absent("the task ended before the cancel")
    expect((row["kind"], row["success"]), ("canceled", False), "outcome")
    return f"via {row['via']}"


async def health(desk: Desk) -> str:
    (agent,) = (await desk.json("health"))["agents"]
    expect(agent["totalOutcomes"], 6, "outcomes of the lane")
    expect(agent["kinds"].get("failed"), 1, "failures")
    if agent["health"] == "down":
        raise AssertionError(f"down: {agent['why']}")
    return f"{agent['kinds']}, success rate {agent['successRate']}"


async def main(url: str, port: str) -> None:
    async with running(url, port) as desk:
        for op, check in {
            "hub-init": init,
            "hub-send": send,
            "hub-stream": stream,
            "hub-fail": fail,
            "hub-ask": ask,
            "hub-cancel": cancel,
            "hub-chat": chat,
            "hub-health": health,
            "url-card": url_card,
            "url-stream": url_stream,
        }.items():
            await report(op, check(desk))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
