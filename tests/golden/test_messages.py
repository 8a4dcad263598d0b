"""The messages that users meet most, each in one place: ``messages.txt``.

Other tests check the exit status, code, field or place. After a message was improved, write the file again:
``UPDATE_GOLDEN=1 python -m pytest tests/golden``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fleetsim import testbed
from fleetsim.cli.main import main
from fleetsim.client import AgentClient, HubClient
from fleetsim.model.errors import FleetsimError
from fleetsim.wire.dialect import dialect
from tests.hub.local_hub import ready_hub, worker
from tests.hub.test_agent_keys import ENV, QUINN

GOLDEN = Path(__file__).with_name("messages.txt")

AGENTS = "agents:\n  - name: quinn\n    url: http://quinn.example:8000\n"
COMMANDS: dict[str, tuple[str, str]] = {
    "unknown verb": ("nop", ""),
    "missing argument": ("agent new", ""),
    "no hub": ("health", ""),
    "no fleet file": ("up --headless", ""),
    "unknown key of agents.yaml": ("up --headless", AGENTS.replace("url", "urll")),
    "wrong kind in agents.yaml": ("up --headless", AGENTS + "    skills: echo\n"),
    "two agents of one name": ("up --headless", AGENTS + "  - {name: quinn, url: 'http://h'}\n"),
    "unknown agent": ("send quin hi", AGENTS),
    "connection refused": ("send http://127.0.0.1:1 hi", ""),
    "unknown scenario": ("sim quiet-dya", ""),
    "missing recording": ("dashboard --replay gone.jsonl", ""),
    "existing file": ("init", AGENTS),
}
REQUESTS: dict[str, tuple[str, Any]] = {
    "nothing to do": ("/api/requests", {}),
    "unknown key of a body": ("/api/requests", {"text": "x", "skil": "echo"}),
    "wrong kind in a body": ("/api/requests", {"text": "x", "targets": "quinn"}),
    "too small a number": ("/api/requests", {"text": "x", "timeoutMs": 0}),
    "no target": ("/api/requests", {"text": "x"}),
    "unknown skill": ("/api/requests", {"text": "x", "skill": "ech"}),
    "unknown target": ("/api/requests", {"text": "x", "targets": ["quin"]}),
    "target without the skill": ("/api/requests", {"text": "x", "targets": ["quinn"], "skill": "sing"}),
    "part of an unknown kind": ("/api/requests", {"text": "x", "parts": [{"kind": "image"}]}),
    "part with a bad file": ("/api/requests", {"text": "x", "parts": [{"kind": "file", "bytes": "not base64!"}]}),
    "unknown task": ("/api/tasks/nope/cancel", {}),
    "closed question": ("/api/inbox/nope/answer", {"text": "x"}),
    "blank answer": ("/api/inbox/nope/answer", {"text": " "}),
    "incomplete ceremony": ("/api/ceremonies/create", {"id": "a"}),
    "bad schedule": ("/api/ceremonies/create", {"id": "a", "name": "A", "schedule": "61 * * * *", "skill": "echo"}),
    "bad ceremony id": ("/api/ceremonies/create", {"id": "a/b", "name": "A", "schedule": "@daily", "skill": "echo"}),
    "unknown ceremony": ("/api/ceremonies/nope/run", {}),
}
CALLS: dict[str, Callable[[], object]] = {
    "no key for the hub": lambda: HubClient().ceremonies_sync(),
    "not the URL of a hub": lambda: HubClient("ftp://x", api_key=QUINN),
    "not the URL of an agent": lambda: AgentClient("ftp://x"),
    "unknown dialect": lambda: dialect("2.0"),
}


def command(words: str, fleet: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The stderr of a command, after its exit status."""
    for path in folder.iterdir():
        path.unlink() if path.is_file() else None
    if fleet:
        (folder / "agents.yaml").write_text(fleet)
    with pytest.raises(SystemExit) as end:
        main(["--state", str(folder / "state"), *words.split()])
    return f"exit status {end.value.code}\n{capsys.readouterr().err.replace(str(folder), '.')}"


async def responses() -> Mapping[str, str]:
    """The status and the error of each request to the hub's API."""
    async with ready_hub(worker(), agent_keys=ENV) as t:
        replies = {
            name: await t.http("POST", path, json.dumps(body).encode()) for name, (path, body) in REQUESTS.items()
        }
    bodies = {name: json.loads(reply.body) for name, reply in replies.items()}
    return {
        name: "\n".join(
            [f"{reply.status} {bodies[name]['code']}", bodies[name]["error"], bodies[name].get("hint") or ""]
        )
        for name, reply in replies.items()
    }


def error_of(call: Callable[[], object]) -> str:
    with pytest.raises(FleetsimError) as error:
        call()
    return f"{type(error.value).__name__}\n{error.value}\n{error.value.hint or ''}"


@pytest.mark.sockets
def test_the_documented_messages_are_those_of_the_golden_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORKSTACEAN_API_KEY", raising=False)
    messages = {
        **{name: command(words, fleet, tmp_path, capsys) for name, (words, fleet) in COMMANDS.items()},
        **{name: error_of(call) for name, call in CALLS.items()},
        **testbed.run(responses),
    }
    blocks = [f"[{name}]\n" + "\n".join(filter(None, said.splitlines())) for name, said in messages.items()]
    text = "\n\n".join(blocks) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert GOLDEN.read_text().split("\n\n") == text.split("\n\n")
