"""How far one piece of work walks through the code: modules, functions, and hand-overs from one module to another.

On virtual time and the network in memory, so that the same code gives the same figures. A walk is each call and each
resumption of a function of ours, in order, between the two moments that a row names, except those of ``SKIPPED``. A
hand-over is two of them in a row in different modules. Nothing else runs in the process, and its agents are not ours.
``python -m tests.bench.walks --row outcome --show``
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import fleetsim
from fleetsim.client import AgentClient
from fleetsim.model.work import Outcome, OutcomeKind
from fleetsim.runtime.ports import Request
from fleetsim.testbed import run
from fleetsim.testbed.asgi import App, Message, Receive, Scope, Send
from tests.bench.sides import TEXT, card, chunk, send_body, task, update
from tests.dashboard.driver import showing
from tests.hub.local_hub import KEYS, LocalHub, local_hub, worker
from tests.recorded import recorded

HOME = str(Path(fleetsim.__file__).parent) + "/"
SKIPPED = ("testbed/",)
"""What stands for network and clock."""

QUIET_S = 60.0
"""Virtual seconds after which nothing of an earlier piece of work, or of a start, is under way any more."""


@dataclass
class Walk:
    """Calls in order, as (module, function)."""

    calls: list[tuple[str, str]] = field(default_factory=list)

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Record the calls made meanwhile."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def begin(self) -> None:
        sys.setprofile(self._note)

    def end(self) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(HOME):
            module = path.removeprefix(HOME).removesuffix(".py")
            if not module.startswith(SKIPPED):
                self.calls.append((module, frame.f_code.co_qualname))

    @property
    def modules(self) -> list[str]:
        """In the order they were come to."""
        return list(dict.fromkeys(module for module, _ in self.calls))

    @property
    def hand_overs(self) -> Counter[tuple[str, str]]:
        return Counter((a, b) for (a, _), (b, _) in itertools.pairwise(self.calls) if a != b)

    def __str__(self) -> str:
        functions, hand_overs = len(set(self.calls)), self.hand_overs.total()
        return f"{len(self.modules):3} modules  {functions:4} functions  {hand_overs:5} hand-overs"


class Doors:
    """In front of our applications: follows the next request to one of them until its answer's status is known."""

    def __init__(self) -> None:
        self._waiting: Walk | None = None

    def next(self) -> Walk:
        self._waiting = Walk()
        return self._waiting

    def door(self, app: App) -> App:
        async def open_(scope: Scope, receive: Receive, send: Send) -> None:
            walk, self._waiting = (self._waiting, None) if scope["type"] == "http" else (None, self._waiting)
            if walk is None:
                await app(scope, receive, send)
                return

            async def told(message: Message) -> None:
                walk.end()
                await send(message)

            walk.begin()
            await app(scope, receive, told)

        return open_


async def peer(scope: Scope, receive: Receive, send: Send) -> None:
    """A scripted agent that answers with four events at once, or with a task that keeps working."""
    body = (await receive()).get("body", b"") if scope["type"] == "http" else b""
    host = dict(scope.get("headers", ())).get(b"host", b"").decode()
    if scope["type"] == "lifespan":
        for _ in range(2):
            await send({"type": f"{(await receive())['type']}.complete"})
        return
    said = json.loads(body) if body else {}
    if said.get("method") == "message/stream":
        await send(_start(b"text/event-stream"))
        name = f"t-{said['id']}"
        events = (task("submitted", name), update("working", name), chunk(name, append=False))
        for result in (*events, update("completed", name, final=True)):
            data = json.dumps({"jsonrpc": "2.0", "id": said["id"], "result": result}).encode()
            await send({"type": "http.response.body", "body": b"data: " + data + b"\n\n", "more_body": True})
        await send({"type": "http.response.body"})
        return
    streams = host.startswith("streamed")
    own = card("streamed" if streams else "slow", host) | {"url": f"http://{host}/a2a"}
    asked = said.get("params", {}).get("id")
    state = "completed" if streams else "working"
    answer = {"jsonrpc": "2.0", "id": said.get("id"), "result": task(state, asked or f"t-{said.get('id')}")}
    await send(_start(b"application/json"))
    await send({"type": "http.response.body", "body": json.dumps(answer if said else own).encode()})


def _start(kind: bytes) -> Message:
    return {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]}


# ------------------------------------------------------------------ the walks


@asynccontextmanager
async def hub(name: str) -> AsyncIterator[tuple[LocalHub, Doors]]:
    """A hub that has warmed up, and a peer of that name."""
    doors = Doors()
    async with local_hub(peers={name: peer}, entries={name: {"push": "off"}}, door=doors.door) as t:
        await asyncio.sleep(QUIET_S)
        if name == "streamed":  # the first time some things are made that are then kept
            await ended(t, await asked(t, name))
            await asyncio.sleep(QUIET_S)
        yield t, doors


async def asked(t: LocalHub, name: str) -> str:
    """``POST /api/requests``; the request's id."""
    body = json.dumps({"text": TEXT, "skill": name, "targets": [name]}).encode()
    reply = await t.http("POST", "/api/requests", body)
    assert reply.status == 202, reply
    (cid,) = json.loads(reply.body)["data"]["correlationIds"]
    return str(cid)


async def ended(t: LocalHub, cid: str) -> Outcome:
    outcome = await t.hub.tracker.wait(cid)
    assert outcome.kind is OutcomeKind.COMPLETED, outcome
    return outcome


async def request() -> Walk:
    async with hub("streamed") as (t, doors):
        walk = doors.next()
        await ended(t, await asked(t, "streamed"))
        return walk


async def outcome() -> Walk:
    async with hub("streamed") as (t, _):
        cid, walk = await asked(t, "streamed"), Walk()
        with walk.followed():
            await ended(t, cid)
        return walk


async def webhook() -> Walk:
    async with hub("slow") as (t, doors):
        for _ in range(2):  # the first makes what is then kept
            cid = await asked(t, "slow")
            await asyncio.sleep(1)
            track = t.hub.tracker.track(cid)
            assert track is not None
            assert track.task is not None
            told = update("completed", track.task.task_id, final=True)
            headers = {"authorization": f"Bearer {KEYS.tokens().mint('slow', cid)}"}
            walk = doors.next()
            reply = await t.http("POST", f"/api/a2a/callback/{cid}", json.dumps(told).encode(), headers, key="")
            assert reply.status == 200, reply
            await asyncio.sleep(QUIET_S)
        return walk


async def agent() -> Walk:
    doors = Doors()
    async with local_hub(worker(), door=doors.door) as t:
        head = {"content-type": "application/json"}
        await asyncio.sleep(QUIET_S)
        for number in range(2):
            body = send_body("message/send", f"r{number}", "echo")
            sent = Request(method="POST", url="http://quinn.example:8000/a2a", headers=head, body=body)
            walk = doors.next()
            reply = await t.runtime.transport.exchange(sent)
            assert json.loads(reply.body)["result"]["status"]["state"] == "submitted", reply
            await asyncio.sleep(QUIET_S)
        return walk


async def client() -> Walk:
    async with hub("slow") as (t, _), AgentClient("http://slow.example:8000/a2a", runtime=t.runtime) as ours:
        await ours.send_task(TEXT, wait=False)
        walk = Walk()
        with walk.followed():
            await ours.send_task(TEXT, wait=False)
        return walk


async def draw() -> Walk:
    return await _drawn(heard=False)


async def redraw() -> Walk:
    return await _drawn(heard=True)


async def _drawn(*, heard: bool) -> Walk:
    """A draw of the tasks screen, after a word of the task under the cursor, or with nothing new."""
    async with showing() as ui:
        ui.app.show_screen("tasks")
        await ui.settle()
        row = next(row for row in ui.app.view.tasks if row.state == "working")
        ui.main.select(row.correlation_id)
        await ui.settle()
        if heard:
            said = {"correlation_id": row.correlation_id, "agent": row.agent, "skill": row.skill}
            about = {"type": "artifact", "text": "more ", "append": True, "artifactId": "a"}
            ui.feed.say(recorded("agent.chat.inbound", about, seq=99_999, at=ui.clock.now(), **said))
            await ui.feed.heard()
        walk = Walk()
        with walk.followed():
            ui.app.draw()
            await ui.pilot.pause()
        return walk


ROWS: dict[str, tuple[str, Callable[[], Awaitable[Walk]]]] = {
    "request": ("POST /api/requests to 202", request),
    "outcome": ("accepted to outcome, a stream of four events", outcome),
    "webhook": ("webhook to 200", webhook),
    "agent": ("JSON-RPC send to submitted, our agent", agent),
    "client": ("a text to a task, our client", client),
    "draw": ("one draw of the dashboard's tasks screen", draw),
    "redraw": ("the same, after a word of the task under the cursor", redraw),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", choices=ROWS, help="one row alone")
    parser.add_argument("--show", action="store_true", help="the modules in order, and the commonest hand-overs")
    options = parser.parse_args()
    for name in [options.row] if options.row else ROWS:
        about, follow = ROWS[name]
        walk = run(lambda follow=follow: follow(), strict=False)  # type: ignore[misc]
        print(f"  {name:8} {walk}  {about}", flush=True)
        if options.show:
            print("    " + " > ".join(walk.modules))
            print("".join(f"    {count:5} {a} > {b}\n" for (a, b), count in walk.hand_overs.most_common(20)))


if __name__ == "__main__":
    main()
