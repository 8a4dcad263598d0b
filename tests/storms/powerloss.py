"""Cut the power at any moment of a recorded run, and open the ledger that is left.

A run of the real ledger is recorded down to every write, truncate, sync and delete. An image is the files
as the disk may hold them after a cut: everything up to each file's last sync, and of the later writes
none, a torn beginning, or any part in any order. Every image must open, and contain every call that was
acknowledged before the cut, then possibly some that were under way, in order, and nothing else.

The control is the same with ``synchronous = NORMAL``: it must lose calls, or the test proves nothing.
``python -m tests.storms.powerloss --images 600``
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fleetsim.ledger import Ledger
from fleetsim.ledger.sqlite import SqliteLedger, open_ledger
from fleetsim.ledger.sqlite.file import head_path
from fleetsim.ledger.sqlite.storage import ThreadedStorage
from fleetsim.model.errors import ConfigError
from fleetsim.runtime.failpoints import installed
from fleetsim.testbed.runtime import VirtualClock
from tests.ledger.ledger_model import Model, read_all
from tests.ledger.ledgers import opener
from tests.storms.sqlite_vfs import Disk, Step
from tests.storms.work import LIMITS, Call, calls, names

MODES = ("nothing", "torn", "any order")
SECTOR = 512
NAME = "ledger.db"


@dataclass
class Recording:
    """Operations that reached the disk, the moments at which calls began and were acknowledged, the calls in order."""

    steps: list[Step]
    calls: list[Call]
    views: list[dict[str, object]]
    """The content that the ledger must have after the first n calls."""


async def record(folder: Path, synchronous: str, count: int, seed: int) -> Recording:
    """Make ``count`` calls, eight at a time, with a clean stop and start in the middle."""
    disk, played = Disk(folder), list(itertools.islice(calls(seed), count))
    path = folder / NAME
    # Small rounds of the log, so that the recording contains many checkpoints and restarts of it.
    opened = opener(path, f"synchronous = {synchronous}", "wal_autocheckpoint = 30", one_connection=False)

    def on_fault(point: str) -> None:
        if point == "ledger.after_commit":
            disk.steps.append(Step("head", "", data=head_path(path).read_bytes()))
        elif point == "ledger.folder_synced":
            disk.steps.append(Step("folder", ""))

    with disk.installed(), installed(on_fault):
        for half in (played[: count // 2], played[count // 2 :]):
            async with SqliteLedger(ThreadedStorage(opened, pending_max=LIMITS.pending_max), LIMITS) as ledger:
                todo = iter(half)
                await asyncio.gather(*(_worker(ledger, disk, todo) for _ in range(8)))
    model, views = Model(LIMITS), []
    for call in played:
        views.append(model.view())
        model.apply(call.method, *call.args)
    return Recording(disk.steps, played, [*views, model.view()])


async def _worker(ledger: Ledger, disk: Disk, todo: object) -> None:
    for call in todo:  # type: ignore[attr-defined]
        disk.note("begin")
        await call.on(ledger)
        disk.note("done")


@dataclass
class DiskFile:
    """One file as the disk may hold it: its synced content, and the later writes."""

    synced: bytearray = field(default_factory=bytearray)
    since: list[Step] = field(default_factory=list)

    def sync(self) -> None:
        for step in self.since:
            apply(self.synced, step)
        self.since.clear()

    def after_a_cut(self, mode: str, rng: random.Random) -> bytes:
        content = bytearray(self.synced)
        if mode == "torn":
            whole = rng.randrange(len(self.since) + 1)
            for step in self.since[:whole]:
                apply(content, step)
            if whole < len(self.since):
                apply(content, torn(self.since[whole], rng))
        elif mode == "any order":
            for step in rng.sample(self.since, rng.randrange(len(self.since) + 1)):
                apply(content, torn(step, rng) if rng.random() < 0.2 else step)
        return bytes(content)


def apply(content: bytearray, step: Step) -> None:
    if step.what == "truncate":
        del content[step.offset :]
        return
    if len(content) < step.offset:
        content.extend(bytes(step.offset - len(content)))
    content[step.offset : step.offset + len(step.data)] = step.data


def torn(step: Step, rng: random.Random) -> Step:
    """A write of which only the first sectors reached the disk."""
    if step.what != "write" or len(step.data) <= SECTOR:
        return step
    kept = SECTOR * rng.randrange(1, -(-len(step.data) // SECTOR))
    return Step("write", step.file, step.offset, step.data[:kept])


def image(steps: Sequence[Step], mode: str, rng: random.Random, target: Path) -> tuple[int, int]:
    """Write the files of a cut after ``steps``; returns the calls acknowledged and the calls begun by then. They
    replace those in ``target``. The ledger keeps its inode there, or it would count as a copy. A deleted file may come
    back until its folder is synced; the witness may be any that was written."""
    files: dict[str, DiskFile] = {}
    ghosts: dict[str, DiskFile] = {}
    heads, done, begun = [b""], 0, 0
    for step in steps:
        if step.what == "note":
            done, begun = done + (step.file == "done"), begun + (step.file == "begin")
        elif step.what == "head":
            heads.append(step.data)
        elif step.what == "folder":
            ghosts.clear()
        elif step.what == "sync":
            files.setdefault(step.file, DiskFile()).sync()
        elif step.what == "delete":
            ghosts[step.file] = files.pop(step.file, DiskFile())
        elif step.what in {"write", "truncate"}:
            files.setdefault(step.file, DiskFile()).since.append(step)
    for old in target.iterdir():
        if old.name != NAME:
            old.unlink()
    if rng.random() < 0.5:
        files = {**ghosts, **files}
    for name, file in files.items():
        (target / name).write_bytes(file.after_a_cut(mode, rng))
    head_path(target / NAME).write_bytes(rng.choice([heads[-1], heads[-1], rng.choice(heads)]))
    return done, begun


async def judge(folder: Path, recording: Recording, done: int, begun: int) -> str:
    """The result of an image: "kept", or its problem."""
    try:
        clock = VirtualClock()
        ledger = open_ledger(folder / NAME, clock=clock, storage="inline", limits=LIMITS)
        async with ledger:
            found = await read_all(ledger, names(len(recording.calls)))
    except ConfigError as error:
        return f"refused:{str(error).partition(NAME)[2]}"
    if found in recording.views[done : begun + 1]:
        return "kept"
    if found in recording.views:
        return "lost acknowledged calls"
    return "neither before nor after any call"


def cuts(recording: Recording, rng: random.Random, count: int) -> list[int]:
    """Moments spread over the run from the first acknowledgement on; the ones before a sync twice as often."""
    first = next(n for n, step in enumerate(recording.steps) if step.file == "done")
    before_sync = [n for n, step in enumerate(recording.steps) if step.what == "sync" and n > first]
    return [
        rng.choice(before_sync) if rng.random() < 0.3 else rng.randrange(first, len(recording.steps) + 1)
        for _ in range(count)
    ]


def storm(synchronous: str, images: int, count: int, seed: int, *, witness: bool = True) -> Counter[str]:
    """Record once, then check ``images`` images; returns the result of each. ``witness`` false takes that file away."""
    rng, told = random.Random(seed), Counter[str]()
    base = Path(tempfile.mkdtemp(prefix="powerloss-"))
    try:
        recording = asyncio.run(record(base / "run", synchronous, count, seed))
        for n, cut in enumerate(cuts(recording, rng, images)):
            target = base / "run"
            done, begun = image(recording.steps[:cut], MODES[n % len(MODES)], rng, target)
            if not witness:
                head_path(target / NAME).unlink()
            told[asyncio.run(judge(target, recording, done, begun))] += 1
    finally:
        shutil.rmtree(base)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    each = options.images // options.seeds
    full, normal = Counter[str](), Counter[str]()
    for seed in range(options.seeds):
        full += storm("FULL", each, options.calls, seed)
        normal += storm("NORMAL", each, options.calls, seed, witness=False)
    print(f"power loss, synchronous = FULL: {full.total()} images: {dict(full)}")
    print(f"control, synchronous = NORMAL: {normal.total()} images: {dict(normal)}")
    if set(full) != {"kept"}:
        raise SystemExit("an acknowledged call was lost, or a good image refused")
    if not normal["lost acknowledged calls"]:
        raise SystemExit("the control lost nothing: this test is blind")


if __name__ == "__main__":
    main()
