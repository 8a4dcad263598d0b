"""The answers of the hub's API: each operation writes the JSON of ``answers.txt``, byte for byte.

After an addition, write the file again: ``UPDATE_GOLDEN=1 python -m pytest tests/hub/test_answers.py``.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fleetsim.agent import Agent, Effect, SkillContext
from fleetsim.hub.endpoints import ENDPOINTS, ResponseMode, endpoints_at
from fleetsim.model.task import DataPart, FilePart
from fleetsim.request.limits import Limit
from tests.hub.local_hub import FOLDER, KEY, LocalHub, local_hub, worker
from tests.hub.test_agent_keys import ENV, QUINN
from tests.hub.test_ceremony_api import SWEEP
from tests.hub.test_hub_channels import OPS
from tests.hub.test_hub_data_questions import FORM

GOLDEN = Path(__file__).with_name("answers.txt")
CHANGING = (
    (re.compile(r"\b[0-9a-f]{8}-0000-4000-8000-[0-9a-f]{12}\b|\bq-[0-9a-f]{24}\b|(?<=prefix=)\w+"), "ID"),
    (re.compile(r"\b2026-01-0\dT[0-9:.]+"), "2026-01-01T"),
    (re.compile(r'(?<="(?:seq)":)\d+|(?<="(?:lastSeq)":)\d+|(?<="via":)"\w+"|(?<="channels":){[^}]*}'), "…"),
    (re.compile(r'"version":"' + re.escape(version("fleetsim"))), '"version":"VERSION'),
)
"""Values that depend on the ways of a request, and on the day of a release."""


def clerk() -> Agent:
    """An agent whose skills declare, attach, ask for data, and may be stopped."""
    agent = worker("clerk", push_notifications=False)

    @agent.skill("file", effects=(Effect(domain="board", path="bugs", delta=-1.0, confidence=0.9),))
    async def file(task: SkillContext) -> str:
        await task.attach(FilePart(raw="aGVsbG8=", filename="a.txt", media_type="text/plain"), name="report")
        await task.attach(FilePart(uri="https://x.example/b.pdf"), DataPart(data={"a": [1, None]}), name="more")
        return "filed"

    @agent.skill("form")
    async def form(task: SkillContext) -> str:
        await task.attach(DataPart(data=FORM), name="form")
        return (await task.ask_message("how much?")).text

    @agent.skill("slow", hitl="veto")
    async def slow(task: SkillContext) -> str:
        await asyncio.sleep(600)
        return "too late"

    return agent


class Caller:
    """Calls the hub, and keeps each answer as a line with its operation."""

    def __init__(self, t: LocalHub) -> None:
        self.t = t
        self.lines: list[str] = []
        self.operations = set[str]()

    async def __call__(self, method: str, path: str, body: Any = None, *, key: str = KEY) -> Any:
        reply = await self.t.http(method, path, json.dumps(body or {}).encode() if method == "POST" else b"", key=key)
        self.operations.add(endpoints_at(path.partition("?")[0])[method].name)
        text = reply.body.decode()
        if path.startswith("/api/wire?task="):
            text = str([list(row) for row in json.loads(text)["data"][:1]])
        for pattern, name in CHANGING:
            text, path = pattern.sub(name, text), pattern.sub(name, path)
        self.lines.append(f"{method} {path} {reply.status}{' agent' if key == QUINN else ''}\n  {text}\n")
        assert reply.status < 300 or path == "/api/tasks/nope"
        return json.loads(reply.body).get("data")

    async def get(self, *paths: str, key: str = KEY) -> Any:
        answers = [await self("GET", path, key=key) for path in paths]
        return answers[-1]

    async def ask(self, agent: str, skill: str, **more: Any) -> str:
        body = {"text": f"please {skill}", "targets": [agent], "skill": skill, **more}
        accepted = await self("POST", "/api/requests", body)
        await asyncio.sleep(5)
        return str(accepted["correlationIds"][0])


async def call_everything(call: Caller) -> None:
    await call.get("/health", "/health?challenge=0123456789abcdef", "/healthz", "/readyz", "/api/inbox", "/api/tasks")
    await call.get("/api/wire?agent=clerk", "/api/agents", "/api/agent-health", "/api/health")
    await call("POST", "/api/agents/quinn/refresh")
    echoed, failed = await call.ask("quinn", "echo", metadata={"a": 1}), await call.ask("quinn", "fail")
    filed = await call.ask("clerk", "file", parts=[{"kind": "data", "data": {"b": 2}}, {"kind": "text", "text": "x"}])
    await call.get(f"/api/wire?task={filed}")
    pondered, formed = await call.ask("quinn", "ponder"), await call.ask("clerk", "form")
    asked, stopped = await call.ask("quinn", "ask"), await call.ask("clerk", "slow")
    for cid in (echoed, failed, filed, pondered, formed, asked):
        await call.get(f"/api/tasks/{cid}", f"/api/a2a/task/{cid}")
    questions = (await call.get("/api/tasks", f"/api/ids?prefix={asked[:6]}", "/api/tasks/nope", "/api/inbox"))[
        "questions"
    ]
    for question in questions:
        await call.get(f"/api/inbox/{question['questionId']}")
    await call.get("/api/hitl/pending", "/api/hitl-queue")
    await call("POST", f"/api/tasks/{stopped}/veto", {"by": "ana"})
    await call("POST", f"/api/tasks/{pondered}/cancel")
    of = {question["correlationId"]: question["questionId"] for question in questions}
    await call("POST", f"/api/inbox/{of[asked]}/answer", {"text": "main"})
    data = [{"kind": "data", "data": {"amount": 3}}]
    await call("POST", "/api/hitl/respond", {"correlationId": formed, "decision": "modify", "parts": data})
    await asyncio.sleep(5)
    for cid in (asked, formed, stopped):
        await call.get(f"/api/tasks/{cid}", f"/api/a2a/task/{cid}")
    await call("POST", "/api/a2a/chat", {"agent": "quinn", "message": "hi", "skill": "echo"})
    await call("POST", "/api/a2a/chat", {"agent": "quinn", "message": "hi", "skill": "echo", "done": True})
    await call("POST", "/api/a2a/chat", {"agent": "quinn", "message": "hi", "skill": "ponder", "waitMs": 0})
    await call("POST", "/api/a2a/delegate", {"agent": "quinn", "skill": "fail", "message": "hi"})
    sweep = f"/api/ceremonies/{SWEEP['id']}"
    await call("POST", "/api/ceremonies/create", SWEEP, key=QUINN)
    await call("POST", f"{sweep}/update", {"description": "sweeps", "targets": ["quinn", "nobody"]})
    await call("POST", f"{sweep}/run", {"dryRun": True})
    await call("POST", f"{sweep}/run")
    await call("POST", "/publish", {"topic": "message.inbound.slack.c", "payload": {"content": "x", "skill": "echo"}})
    await call("POST", "/publish", {"topic": "ceremony.once.execute", "payload": {}})
    await asyncio.sleep(5)
    await call.get(f"{sweep}/runs", "/api/ceremonies", "/api/ceremonies/errors")
    await call.get(f"{sweep}/runs", "/api/ceremonies", "/api/agents", "/api/whoami", key=QUINN)
    await call("POST", f"{sweep}/delete")
    await call("POST", "/api/channels/ops/test")
    await call.get("/api/limits")
    await call("POST", "/api/limits/daily/raise", {"amount": 2})
    await call.get("/api/channels", "/api/skills?text=bug&domain=board", "/api/skills?limit=2", "/api/outcomes?limit=2")
    await call.get(
        "/api/health?window=600", "/api/agent-fleet-health", "/api/whoami", "/api/journal?limit=4", "/api/audit?limit=9"
    )
    await call.get("/api/retries?kind=failed&agent=quinn&window=600")
    await call("POST", f"/api/tasks/{failed}/retry", {"mayRepeat": True})


async def test_every_operation_answers_as_before() -> None:
    once = "id: once\nname: Once\nonce: true\nat: 2030-01-01T00:00\nskill: echo\ntargets: [quinn]\n"
    async with local_hub(worker(), clerk(), ceremony=once, agent_keys=ENV, channels=[OPS]) as t:
        t.files.put(FOLDER / "bad.yaml", "id: bad\nname: 1\n")
        await asyncio.sleep(10)
        t.hub.fleet.limits.limits = {"daily": Limit(usd=5.0, agent="quinn")}
        call = Caller(t)
        await call_everything(call)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text("".join(call.lines))
    assert "".join(call.lines).splitlines() == GOLDEN.read_text().splitlines()
    typed = {endpoint.name for endpoint in ENDPOINTS if endpoint.shape in {ResponseMode.ENVELOPE, ResponseMode.BARE}}
    assert typed - call.operations == {"openapi", "agent_card", "agent_card_of_before", "callback", "state"}
