"""``fleetsim tape record`` and ``play`` as a person runs them, on sockets."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fleetsim.agent.builtin import reference_agent
from fleetsim.client import AgentClient
from fleetsim.runtime.real import real_runtime

pytestmark = [pytest.mark.sockets, pytest.mark.slow]


@asynccontextmanager
async def tape(*words: str, said: list[str]) -> AsyncIterator[str]:
    argv = [sys.executable, "-m", "fleetsim", "tape", *words, "--port", "0"]
    process = await asyncio.create_subprocess_exec(*argv, stderr=subprocess.PIPE)
    assert process.stderr is not None
    try:
        yield (await process.stderr.readline()).decode().split()[-1]
    finally:
        process.send_signal(signal.SIGINT)
        said += (await process.communicate())[1].decode().splitlines()
    assert process.returncode == 0


async def texts(url: str, *sent: str) -> list[str]:
    async with AgentClient(url, runtime=real_runtime()) as client:
        return [(await client.send_task(text)).text for text in sent]


async def test_a_recorded_agent_is_played_without_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, said = tmp_path / "real.tape", list[str]()
    monkeypatch.setenv("SOME_API_KEY", "key-of-the-environment")
    async with reference_agent().serving() as url, tape("record", url, "--out", str(out), said=said) as at:
        told = await texts(at, "one Zq8vN2xLr7Tt4KmWb91Yc3Ds", "key-of-the-environment")
    async with tape("play", str(out), "--fast", said=said) as at:
        again = await texts(at, "one Zq8vN2xLr7Tt4KmWb91Yc3Ds", "***")
    assert told == ["one Zq8vN2xLr7Tt4KmWb91Yc3Ds", "key-of-the-environment"]
    assert again == [told[0], "***"]
    assert out.stat().st_mode & 0o777 == 0o600
    first, *rows = map(json.loads, out.read_text().splitlines())
    assert (first["tape"], first["agent"]) == (1, "reference")
    assert all(row["path"] in {"/a2a", "/.well-known/agent-card.json"} for row in rows)
    assert [line for line in said if "may be a secret" in line]


def test_an_existing_file_is_kept_and_an_agent_that_is_away_is_named(tmp_path: Path) -> None:
    out = tmp_path / "real.tape"
    for code, words in ((3, "127.0.0.1:9"), (2, "exists already")):
        argv = [
            sys.executable,
            "-m",
            "fleetsim",
            "tape",
            "record",
            "http://127.0.0.1:9",
            "--out",
            str(out),
            "--port",
            "0",
        ]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert (done.returncode, words in done.stderr) == (code, True), done.stderr
        out.touch()
