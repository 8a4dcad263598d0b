"""Files and data on the command line: sent, listed, saved, by URL and through the hub."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fleetsim.agent import Agent, SkillContext
from fleetsim.model.limits import PARTS_BYTES_MAX
from fleetsim.model.task import DataPart, FilePart, TextPart
from tests.cli.world import Shell, answering

pytestmark = pytest.mark.sockets

BYTES = bytes(range(256)) * 40
DATA = {"who": "\N{WOMAN}\u200d\N{WOMAN}\u200d\N{GIRL}", "fa": "می\u200cخواهم", "x": ["\U0001d4b3", None, 2**53 + 1]}
HOSTILE = ("../../etc/passwd", "..", "", "n" * 300, "a\x00b", "a\nb", "in\u202evoice.exe", "CON", "taken", "linked")


def filer() -> Agent:
    agent = Agent("filer")

    @agent.skill("copy")
    async def copy(task: SkillContext) -> str:
        given = [part for part in task.message.parts if not isinstance(part, TextPart)]
        for at, part in enumerate(given):
            await task.attach(part, name=f"copy {at}")
        return f"{task.text or 'nothing said'}: {task.metadata.get('note')}"

    @agent.skill("hostile")
    async def hostile(task: SkillContext) -> str:
        for at, name in enumerate(HOSTILE):
            await task.attach(FilePart(raw=base64.b64encode(b"%d" % at).decode(), filename=name), name=str(at))
        await task.attach(FilePart(raw="not base64!", filename="broken"), name="broken")
        return "help yourself"

    @agent.skill("point")
    async def point(task: SkillContext) -> str:
        await task.attach(DataPart(data=DATA), name="data")
        await task.attach(FilePart(uri=task.text, filename="big.iso"), name="big")
        return "over there"

    return agent


@pytest_asyncio.fixture
async def url() -> AsyncIterator[str]:
    async with filer().serving() as found:
        yield found


def fleet_of(shell: Shell, url: str) -> None:
    shell.write("agents.yaml", f"agents:\n  - name: filer\n    url: {url}/a2a\n")
    (shell.home / "report.pdf").write_bytes(BYTES)
    shell.write("data.json", json.dumps(DATA, ensure_ascii=False))


def sent(*more: str) -> tuple[str, ...]:
    return ("--skill", "copy", "--file", "report.pdf", "--data", "@data.json", "--metadata", "note=\u200dhi", *more)


def check(row: Any) -> None:
    """The document of ``-o json`` contains exactly the sent text."""
    file, data = row["parts"]
    assert base64.b64decode(file["bytes"]) == BYTES
    assert (file["name"], file["mimeType"], file["sizeBytes"]) == ("report.pdf", "application/pdf", len(BYTES))
    assert (data["kind"], data["data"]) == ("data", DATA)
    assert row["partsTotal"] == 2


async def test_by_url_files_and_data_are_sent_listed_and_saved(shell: Shell, url: str) -> None:
    fleet_of(shell, url)
    done = await shell.arun("send", url, "look", *sent())
    assert (done.returncode, done.stdout) == (0, "look: \u200dhi\n"), done.stderr
    assert "  file 1: report.pdf, application/pdf, 10,240 bytes\n  data 2: copy 1," in done.stderr
    check(await asyncio.to_thread(shell.json, "send", url, *sent()))
    check(await asyncio.to_thread(shell.json, "send", url, "--a2a-version", "0.3", *sent()))
    check(await asyncio.to_thread(shell.json, "send", url, "--a2a-version", "0.1", *sent()))
    streamed = await shell.arun("send", url, "look", "--stream", "-o", "json", *sent())
    check(json.loads(streamed.stdout.splitlines()[-1]))
    saved = await shell.arun("send", url, "look", *sent("--out", "got"))
    assert saved.returncode == 0
    assert "saved as got/report.pdf" in saved.stderr
    assert (shell.home / "got" / "report.pdf").read_bytes() == BYTES
    assert json.loads((shell.home / "got" / "data-2.json").read_text("utf-8")) == DATA
    (command,) = [line for line in done.stderr.splitlines() if line.startswith("  next: ")]
    again = await shell.arun(*command.removeprefix("  next: fleetsim ").split(), "--out", "later")
    assert again.stdout == "later/report.pdf\nlater/data-2.json\n", again.stderr


async def test_through_the_hub_files_are_kept_listed_and_downloaded(shell: Shell, url: str) -> None:
    fleet_of(shell, url)
    with shell.up():
        done = await shell.arun("send", "filer", *sent())
        assert (done.returncode, done.stdout) == (0, "nothing said: \u200dhi\n"), done.stderr
        row = await asyncio.to_thread(shell.json, "send", "filer", *sent())
        check(row)
        cid = row["correlationId"]
    with shell.up():
        check(await asyncio.to_thread(shell.json, "task", "get", cid))
        (listed, *_) = (await asyncio.to_thread(shell.json, "task", "list"))["recent"]
        assert [part.get("bytes", part.get("data")) for part in listed["parts"]] == [None, None]
        got = await shell.arun("task", "get", cid)
        assert f"next: fleetsim task download {cid}" in got.stderr
        saved = await shell.arun("task", "download", cid)
        assert (saved.returncode, saved.stdout) == (0, f"{cid}/report.pdf\n{cid}/data-2.json\n"), saved.stderr
        one = await shell.arun("task", "download", cid, "--part", "2", "--out", "one")
        assert one.stdout == "one/data-2.json\n"
        none = await shell.arun("task", "download", cid, "--part", "7")
        assert (none.returncode, "no file or data 7" in none.stderr) == (2, True)
        assert (shell.home / cid / "report.pdf").read_bytes() == BYTES
        text = (shell.home / cid / "data-2.json").read_text("utf-8")
        assert json.loads(text) == DATA
        assert "\u200d" in text


async def test_files_with_hostile_names_are_saved_in_the_folder_and_replace_none(shell: Shell, url: str) -> None:
    fleet_of(shell, url)
    out = shell.home / "out"
    out.mkdir()
    (out / "taken").write_text("mine")
    (out / "linked").symlink_to(shell.home / "agents.yaml")
    before = {path for path in shell.home.rglob("*") if out not in path.parents}
    with shell.up():
        row = await asyncio.to_thread(shell.json, "send", "filer", "go", "--skill", "hostile")
        done = await shell.arun("task", "download", row["correlationId"], "--out", "out")
    assert done.returncode == 1
    assert "file 11: broken, 7 bytes: not saved" in done.stderr
    names = ["passwd", "file-2", "file-3", "n" * 200, "ab", "a b", "invoice.exe", "_CON", "taken (2)", "linked (2)"]
    assert [Path(line).name for line in done.stdout.splitlines()] == names
    assert [(out / name).read_text() for name in names] == [str(at) for at in range(len(names))]
    assert (out / "taken").read_text() == "mine"
    assert "name: filer" in (shell.home / "agents.yaml").read_text()
    made = {path for path in shell.home.rglob("*") if out not in path.parents} - before
    assert all("state" in path.parts for path in made), made


async def test_a_file_by_address_is_fetched_only_on_request_and_without_a_key(
    shell: Shell, url: str, tmp_path: Path
) -> None:
    calls: list[str] = []

    def serve(method: str, path: str, body: bytes) -> tuple[int, str, bytes]:
        calls.append(f"{method} {path}")
        return 200, "application/octet-stream", BYTES

    fleet_of(shell, url)
    async with answering(serve) as server:
        where = server.removeprefix("http://")
        with shell.up():
            row = await asyncio.to_thread(shell.json, "send", "filer", f"{server}/big", "--skill", "point")
            cid = row["correlationId"]
            listed = await shell.arun("task", "download", cid, "--out", "a")
            assert (listed.returncode, listed.stdout) == (0, "a/data-1.json\n")
            assert f"file 2: big.iso, at {server}/big: not fetched" in listed.stderr
            assert "next: the same with --remote --part 2" in listed.stderr
            inside = await shell.arun("task", "download", cid, "--out", "b", "--remote", "--part", "2")
            assert inside.returncode == 1
            assert f"--allow {where}" in inside.stderr
            assert not (shell.home / "b").exists()
            assert calls == []
            fetched = await shell.arun("task", "download", cid, "--out", "c", "--remote", "--allow", where)
            assert fetched.stdout == "c/data-1.json\nc/big.iso\n", fetched.stderr
    assert calls == ["GET /big"]
    assert (shell.home / "c" / "big.iso").read_bytes() == BYTES


async def test_an_unsendable_part_is_reported_before_any_request(shell: Shell, url: str) -> None:
    (shell.home / "big").write_bytes(bytes(PARTS_BYTES_MAX + 1))
    (shell.home / "half").write_bytes(bytes(PARTS_BYTES_MAX * 3 // 4))
    tries = {
        ("--file", "big"): "big is larger than 8,388,608 bytes (parts_bytes_max)",
        ("--file", "half", "--file", "half"): "at most 8,388,608 are taken (parts_bytes_max)",
        ("--file", "missing"): "'missing' does not exist",
        ("--file", "."): "is a directory",
        ("--data", "{"): "--data: not JSON",
        ("--data", '{"a": 1, "a": 2}'): "--data: JSON names a member twice",
        ("--data", "@missing"): "missing cannot be read",
        ("--data", "1", "--metadata", "note"): "--metadata: neither KEY=VALUE nor a JSON object",
        ("--data", "1", "--metadata", '{"a":'): "--metadata: not JSON",
        (): "nothing to send",
    }
    for options, says in tries.items():
        done = await shell.arun("send", url, *options)
        assert (done.returncode, says in done.stderr) == (2, True), (options, done.stderr)
