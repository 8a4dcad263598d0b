"""``make mutation``: small wrong edits of our code, and whether a test fails for each. Run by hand before a release.

    make mutation SAMPLE=100 SEED=1     a sample; the same seed draws the same edits
    make mutation ONLY=agent/store      every edit whose key contains this text

Each edit is written into a copy of the tree. The tests of its package then run, those named like the module first,
until one fails. The survivors are printed: for each, write the test that fails, or see that none can.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutation.mutants import Mutant, files_of, mutants_of

TOP = Path(__file__).resolve().parents[2]
TESTS = {
    "agent": ("agent",),
    "caller": ("caller", "hub"),
    "fleet": ("fleet", "hub"),
    "request": ("request", "caller", "hub"),
    "runtime": ("runtime", "client", "agent"),
    "tape": ("tape",),
    "wire": ("wire", "client"),
}
"""Package: the folders of tests that run against its edits, in this order."""
SAMPLE = 100
WALL_S_MAX = 900.0
"""An edit whose tests take longer counts as noticed: it waits for ever."""


def sample(every: Iterable[Mutant], size: int | None, seed: int, *, only: str = "") -> list[Mutant]:
    """The first ``size`` edits (None: all) in the order of the seed, of those whose key contains ``only``."""
    return sorted((m for m in every if only in m.key), key=lambda mutant: mutant.rank(seed))[:size]


def paths_of_tests(file: str) -> list[str]:
    """The tests for a module: files named like it, then the folders of its package."""
    folders = [f"tests/{folder}" for folder in TESTS[file.split("/")[1]]]
    stem = Path(file).stem
    near = [path for folder in folders for path in sorted((TOP / folder).glob("test_*.py")) if stem in path.stem]
    return [*(path.relative_to(TOP).as_posix() for path in near), *folders]


def noticed_by(mutant: Mutant, tree: Path) -> str | None:
    """The test that fails with the edit, or None if all pass."""
    path = tree / mutant.file
    source = path.read_bytes()
    path.write_bytes(mutant.applied(source))
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "-m", "not interop", f"--basetemp={tree}/tmp"]
    session = subprocess.Popen(
        [*command, *paths_of_tests(mutant.file)],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "CI": "true", "STORM_SEEDS": "40"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = session.communicate(timeout=WALL_S_MAX)
    except subprocess.TimeoutExpired:
        return "the time limit"
    finally:
        path.write_bytes(source)
        if session.poll() is None:
            os.killpg(session.pid, signal.SIGKILL)
            session.wait()
    if session.returncode == 0:
        return None
    return next((line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))), "the collection")


def survivors_of(mutants: Sequence[Mutant]) -> list[Mutant]:
    """The edits that no test noticed, tried one after the other in a copy of the tree."""
    survivors = []
    with tempfile.TemporaryDirectory(prefix="fleetsim-mutation-") as folder:
        tree = Path(folder, "tree")
        shutil.copytree(TOP, tree, ignore=shutil.ignore_patterns(".*", "__pycache__", "interop", "node_modules"))
        for mutant in mutants:
            test = noticed_by(mutant, tree)
            verdict = f"noticed  {mutant.key}  ({test})" if test else f"SURVIVED {mutant.key}  (line {mutant.line})"
            print(verdict, flush=True)
            if test is None:
                survivors.append(mutant)
    return survivors


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make mutation", description=__doc__.split("\n\n")[0])
    parser.add_argument("--sample", type=int, help=f"the number of edits ({SAMPLE}; with --only: all)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (1)")
    parser.add_argument("--only", default="", help="only edits whose key contains this text")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="copies that run at once (one per core)")
    given = parser.parse_args(words)
    every = [mutant for file in files_of(TOP) for mutant in mutants_of(file, (TOP / file).read_bytes())]
    size = given.sample or (None if given.only else SAMPLE)
    chosen = sample(every, size, given.seed, only=given.only)
    with ThreadPoolExecutor(given.jobs) as pool:
        parts = list(pool.map(survivors_of, (chosen[number :: given.jobs] for number in range(given.jobs))))
    survivors = sum(len(part) for part in parts)
    print(f"{len(chosen) - survivors} of {len(chosen)} edits noticed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
