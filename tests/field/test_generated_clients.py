"""Clients that released generators make from the hub's OpenAPI document: they send, wait, answer and list
(``make clients``).
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fleetsim.hub.openapi import document
from tests.field.doors import Fleet, running_fleet
from tests.hub.local_hub import worker

pytestmark = pytest.mark.interop

PROGRAMS = Path(__file__).parent / "clients"
EXPECTED = ["which branch?", True, "completed", "going with main", "up", True]


@asynccontextmanager
async def hub_of_quinn(home: Path) -> AsyncIterator[Fleet]:
    async with worker().serving() as agent, running_fleet(home, {"quinn": f"{agent}/a2a"}) as fleet:
        yield fleet


async def run(*command: str | Path, folder: Path) -> str:
    """Run a program to its end; returns what it printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    program = await asyncio.create_subprocess_exec(
        *map(str, command), cwd=folder, env={**os.environ, "PATH": path}, stdout=-1, stderr=-2
    )
    printed, _ = await program.communicate()
    assert program.returncode == 0, printed.decode()
    return printed.decode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "openapi.json").write_text(json.dumps(document()))
    return tmp_path


async def test_a_client_of_openapi_typescript_compiles_and_works(folder: Path) -> None:
    shutil.copytree(PROGRAMS, folder, dirs_exist_ok=True, symlinks=True)
    tools = folder / "node_modules" / ".bin"
    await run(
        tools / "openapi-typescript", "openapi.json", "-o", "schema.d.ts", "--default-non-nullable=false", folder=folder
    )
    await run(tools / "tsc", "--strict", "--module", "nodenext", "--target", "es2022", "client.ts", folder=folder)
    async with hub_of_quinn(folder) as fleet:
        printed = await run("node", "client.js", fleet.hub.url or "", fleet.hub.keys.api_key, folder=folder)
    assert json.loads(printed) == EXPECTED


async def test_a_client_of_openapi_python_client_works(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--path", "openapi.json", "--meta", "none", "--output-path", "hub_made", "--fail-on-warning")
    await run("openapi-python-client", "generate", *options, folder=folder)
    monkeypatch.syspath_prepend(folder)
    made: Any = importlib.import_module("hub_made")
    models: Any = importlib.import_module("hub_made.models")

    async def call(name: str, *path: str, **more: Any) -> Any:
        operation: Any = importlib.import_module(f"hub_made.api.default.{name}")
        return (await operation.asyncio(*path, client=client, **more)).data

    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(hub_of_quinn(folder))
        made_client = made.AuthenticatedClient(
            fleet.hub.url, fleet.hub.keys.api_key, prefix="", auth_header_name="X-API-Key"
        )
        client = await stack.enter_async_context(made_client)
        body = models.RequestBody(text="go", skill="ask", targets=["quinn"])
        (cid,) = (await call("request", body=body)).correlation_ids
        asked = await call("task", cid, wait=30)
        (question,) = (await call("inbox")).questions
        taken = await call("reply", asked.question_id, body=models.AnswerBody(text="main"))
        ended = await call("task", cid, wait=30)
        (agent,) = (await call("health")).agents
        listed = cid in [row.correlation_id for row in (await call("tasks")).recent]
    words = [question.question, taken.question_id == asked.question_id, ended.state, ended.text]
    assert [*words, agent.health.value, listed] == EXPECTED
