"""A file is loaded once its content has settled: its digest counts, and its time does not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fleetsim.fleet.config import FleetFile
from fleetsim.fleet.settings import FleetConfig
from fleetsim.runtime.files import LOOK_EVERY_S, SETTLE_S, Changes, FileWatch
from fleetsim.runtime.ports import FileStamp
from fleetsim.testbed.runtime import MemoryFiles

A, B, C = (Path(f"{name}.yaml") for name in "abc")
AGENTS = Path("agents.yaml")
GOOD = "agents:\n  - {name: a, url: 'http://a'}\n"


class Folder:
    """Files with the digests of their content; ``edit`` changes them during a listing."""

    def __init__(self, **files: str) -> None:
        self.files = {Path(f"{name}.yaml"): digest for name, digest in files.items()}
        self.watch = FileWatch(self._listing)

    async def _listing(self) -> list[FileStamp]:
        return [FileStamp(path=path, digest=digest) for path, digest in self.files.items()]

    def edit(self, after_s: float, path: Path, digest: str | None) -> None:
        def now() -> None:
            if digest is None:
                del self.files[path]
            else:
                self.files[path] = digest

        asyncio.get_running_loop().call_later(after_s, now)


def clock_s() -> float:
    return asyncio.get_running_loop().time()


async def test_at_the_first_look_every_file_is_new_at_once() -> None:
    folder = Folder(c="3", a="1", b="2")
    assert await folder.watch.look() == Changes(changed=(A, B, C))
    assert clock_s() == 0


async def test_later_a_file_is_new_once_its_changed_content_has_settled() -> None:
    folder = Folder(a="1", b="2")
    await folder.watch.look()
    assert await folder.watch.look() == Changes()
    assert clock_s() == 0, "nothing changed, nothing to wait for"
    folder.files |= {C: "3", B: "22"}
    assert await folder.watch.look() == Changes(changed=(B, C))
    assert clock_s() == SETTLE_S
    assert await folder.watch.look() == Changes()


async def test_a_file_that_is_still_being_written_waits_for_the_next_look() -> None:
    folder = Folder(a="1", b="2")
    await folder.watch.look()
    folder.files |= {A: "half", B: "22", C: "3"}
    folder.edit(SETTLE_S / 2, A, "whole")
    folder.edit(SETTLE_S / 2, C, None)
    assert await folder.watch.look() == Changes(changed=(B,))
    assert await folder.watch.look() == Changes(changed=(A,))


async def test_a_removed_file_is_reported_once_and_is_new_when_it_returns() -> None:
    folder = Folder(a="1", b="2", c="3")
    await folder.watch.look()
    folder.files = {B: "2"}
    assert await folder.watch.look() == Changes(gone=(A, C))
    assert await folder.watch.look() == Changes()
    folder.files[A] = "1"
    assert await folder.watch.look() == Changes(changed=(A,))


def test_a_settled_file_takes_effect_within_five_seconds() -> None:
    assert LOOK_EVERY_S + 2 * SETTLE_S <= 5


# ---------------------------------------------------------------------- agents.yaml


def held(text: str | None = GOOD) -> tuple[MemoryFiles, FleetFile]:
    files = MemoryFiles({} if text is None else {AGENTS: text})  # type: ignore[dict-item]
    return files, FleetFile(files, AGENTS, FleetConfig(agents=()), env={"KEY": "secret"})


def names(file: FleetFile) -> list[str]:
    return [agent.name for agent in file.config.agents]


async def test_a_good_file_is_loaded_once() -> None:
    files, file = held()
    assert (await file.poll(), names(file), file.problem) == (True, ["a"], "")
    assert not await file.poll()
    files.put(AGENTS, GOOD + "# a comment\n")
    assert not await file.poll(), "other text, the same fleet"
    files.put(AGENTS, GOOD.replace("http://a", "http://a', apiKeyEnv: 'KEY"))
    assert await file.poll()
    assert file.config.agents[0].credentials
    assert file.config.agents[0].enabled, "the credential is looked up in the environment it was given"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("agents: [\n", "agents.yaml:"),
        ("", "one mapping"),
        (
            "agents: []\n",
            "agents.yaml: names no agent (stop the hub to be without agents, or set enabled: false)",
        ),
        (None, "agents.yaml: no such file"),
    ],
)
async def test_a_broken_empty_or_missing_file_leaves_the_last_good_one_in_effect(text: str | None, says: str) -> None:
    files, file = held()
    await file.poll()
    if text is None:
        await files.remove(AGENTS)
    else:
        files.put(AGENTS, text)
    assert await file.poll()
    assert says in file.problem
    assert names(file) == ["a"]
    assert not await file.poll(), "it is told once"
    files.put(AGENTS, GOOD)
    assert (await file.poll(), names(file), file.problem) == (True, ["a"], "")


async def test_a_file_missing_at_the_first_look_is_reported_once() -> None:
    files, file = held(None)
    assert await file.poll()
    assert file.problem is not None
    assert file.problem.startswith("agents.yaml: ")
    assert not await file.poll()
    files.put(AGENTS, GOOD)
    assert (await file.poll(), names(file), file.problem) == (True, ["a"], "")


async def test_a_file_replaced_by_rename_is_never_reported_missing() -> None:
    files, file = held()
    await file.poll()
    await files.remove(AGENTS)
    asyncio.get_running_loop().call_later(SETTLE_S / 2, files.put, AGENTS, GOOD.replace("//a", "//b"))
    assert not await file.poll()
    assert file.problem == ""
    assert await file.poll()
    assert file.config.agents[0].url == "http://b"
