"""``make mutation``: small wrong edits of the caller, agent, wire and runtime, and whether a test notices each.

    make mutation SAMPLE=400 SEED=1            a seeded sample; the same edits again for the same seed
    make mutation ONLY=agent/store             every edit of the functions or files whose key holds this
    make mutation ONLY=agent/ SAMPLE=100       a sample of those
    make mutation AGAIN=1                      those that survived the last time

First, which test runs which line is mapped (``reach.py``) and kept in ``.mutation/``; later runs follow the lines.
Then each edit is planted in a copy of the tree, and the tests that run its line are run against it, the nearest and
cheapest first, until one fails (``worker.py``).

``survivors.txt`` lists the edits that nothing can or need notice, each with its reason. The share is noticed / (all -
those that survived and are listed); ends with 1 if it is below 95 of a hundred. Both shares are printed, this and that
of all edits, and the listed ones that were noticed after all. A listed key that names no edit any more is an error.

A test that reaches its limit counts as a failure only if it ends far below it, at that moment, without the edit.
No tool in use fits: they edit functions alone or start an interpreter for each edit, and know no seeded sample.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tests.mutation.mutants import Mutant, files_of, mutants_of

TOP = Path(__file__).resolve().parents[2]
KEPT = TOP / ".mutation"
SURVIVORS = Path(__file__).with_name("survivors.txt")
PAGES = ("house/test_limits.py", "house/test_generated_pages.py")
"""They hold every number that is published against its page, and are asked last about what runs at import."""
TESTS = ("wire", "runtime", "agent", "caller", "client", "model", "hub", *PAGES)
"""The folders and files whose tests are asked. Others judge the sources as text, or run processes of their own."""
QUICK_FILES = tuple(f"fleetsim/{room}/" for room in ("wire", "runtime", "agent", "caller/step"))
QUICK_TESTS = (
    *("wire", "runtime", "client", "agent", *PAGES),
    *sorted(
        f"caller/{path.name}"
        for path in (TOP / "tests" / "caller").glob("test_step*.py")
        if not path.stem.endswith(("_machine", "_storm"))
    ),
)
"""A part whose tests take a minute in all, for a sample at every submission: the long machines are left out."""
SHARE_MIN = 0.95
TESTS_S_MAX, TESTS_MAX = 20.0, 400
"""Processor seconds and number of tests for one edit."""
WALL_MAX_S = 600.0
CALM = 3.0
"""So many times faster than its limit must a test end without the edit, for its limit to say anything."""
FEWER = {"STORM_SEEDS": "40"}
"""The long machines say little more of one edit after more examples."""
COMMON = ("-q", "-p", "no:xdist", "-o", "timeout=0", "-m", "not interop")


@dataclass(frozen=True, slots=True)
class Test:
    """What the map knows of one test: its cost, whether it uses the machine's own clock, the lines it runs."""

    name: str
    cost_s: float
    real: bool
    lines: dict[str, int]
    size: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one edit fared."""

    mutant: Mutant
    killed: bool
    how: str
    tests: int = 0


# ---------------------------------------------------------------------- the map


@dataclass(frozen=True, slots=True)
class Reach:
    """The tests, and the lines that run outside of any: when a module is imported."""

    tests: dict[str, Test]
    outside: dict[str, int]


def reached(folders: Sequence[str], jobs: int, *, anew: bool = False) -> Reach:
    """The map. Test files that changed are run again; where sources did, the lines known before are followed.

    A line that changed itself has the tests of those it took the place of. ``anew`` runs every test again.
    """
    KEPT.mkdir(exist_ok=True)
    store = KEPT / "reach.json"
    sources = {file: (TOP / file).read_text(encoding="utf-8") for file in files_of(TOP)}
    files = _fingerprints(folders)
    known: dict[str, Any] = {"sources": {}, "files": {}, "tests": {}, "outside": {}}
    if store.exists() and not anew:
        known = json.loads(store.read_text())
        _follow(known, sources)
    old = [file for file, mark in files.items() if known["files"].get(file) != mark]
    if old:
        print(f"mapping which lines {len(old)} test files run ...", flush=True)
        known["tests"] = {name: told for name, told in known["tests"].items() if _file(name) not in {*old}}
        for part in _mapped(old, jobs):
            known["tests"] |= part["tests"]
            for file, bits in part["outside"].items():
                known["outside"][file] = f"{int(bits, 16) | int(known['outside'].get(file, '0'), 16):x}"
        for name in sorted(name for name, told in known["tests"].items() if not told["ok"]):
            print(f"  not asked, since it did not pass without an edit: {name}", flush=True)
        known["files"] |= files
    store.write_text(json.dumps(known | {"sources": sources}))
    tests = {name: _test(name, told) for name, told in known["tests"].items() if told["ok"] and _file(name) in files}
    return Reach(tests, {file: int(bits, 16) for file, bits in known["outside"].items()})


def _follow(known: dict[str, Any], sources: dict[str, str]) -> None:
    """Move what is known of each line to where the line is now."""
    moves = {
        file: _moves(before.splitlines(), sources[file].splitlines())
        for file, before in known["sources"].items()
        if sources.get(file, before) != before
    }
    for lines in (known["outside"], *(told["lines"] for told in known["tests"].values())):
        for file in moves.keys() & lines.keys():
            lines[file] = f"{_moved(int(lines[file], 16), moves[file]):x}"


def _moves(before: list[str], now: list[str]) -> list[tuple[int, int]]:
    """(bits of lines before, bits of lines now), from 1: an equal line to itself, others block by block."""
    found = []
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, before, now, autojunk=False).get_opcodes():
        if tag == "equal":
            found += [(1 << i + 1, 1 << i - i1 + j1 + 1) for i in range(i1, i2)]
        elif j1 < j2:
            around = (i1, i2) if i1 < i2 else (max(i1 - 1, 0), i1 + 1)
            found.append((_bits((around[0] + 1, around[1])), _bits((j1 + 1, j2))))
    return found


def _moved(bits: int, moves: list[tuple[int, int]]) -> int:
    now = 0
    for before, becomes in moves:
        now |= becomes if bits & before else 0
    return now


def _file(test: str) -> str:
    return test.split("::")[0]


def _fingerprints(folders: Sequence[str]) -> dict[str, str]:
    """One of each test file that is asked."""
    tests = [path for path in sorted((TOP / "tests").rglob("test_*.py")) if "interop" not in path.parts]
    asked = tuple(folder if folder.endswith(".py") else f"{folder}/" for folder in folders)
    return {
        path.relative_to(TOP).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in tests
        if path.relative_to(TOP / "tests").as_posix().startswith(asked)
    }


def _mapped(files: Sequence[str], jobs: int) -> list[dict[str, Any]]:
    with copied() as tree:
        (tree / "reach").mkdir()
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.mutation.reach", "-o", "timeout=600"]
        command += ["-m", "not interop", "-n", str(jobs), "--dist", "worksteal", f"--basetemp={tree}/tmp", *files]
        environment = _environment(tree, FLEETSIM_REACH=str(tree / "reach"))
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
        parts = [json.loads(part.read_text()) for part in sorted((tree / "reach").glob("*.json"))]
        if done.returncode not in {0, 1} or not parts:
            raise SystemExit(f"the map could not be made:\n{done.stdout[-3000:]}\n{done.stderr[-2000:]}")
        return parts


def _test(name: str, told: dict[str, Any]) -> Test:
    lines = {file: int(bits, 16) for file, bits in told["lines"].items()}
    return Test(name, told["cpu_s"], told["sockets"], lines, sum(bits.bit_count() for bits in lines.values()) or 1)


# ---------------------------------------------------------------------- which tests are asked


class Chooser:
    """Which tests may notice an edit, the nearest and cheapest first."""

    def __init__(self, reach: Reach, tree: Path) -> None:
        self.tests, self.tree, self._outside = reach.tests, tree, reach.outside
        self._by_file: dict[str, list[Test]] = defaultdict(list)
        for test in reach.tests.values():
            for file in test.lines:
                self._by_file[file].append(test)
        self._mentions: dict[str, dict[str, int]] | None = None
        self.killers: dict[str, list[str]] = defaultdict(list)

    def chosen(self, mutant: Mutant) -> tuple[list[Test], bool]:
        """The tests, and whether the edit is seen only by a process that imports it."""
        bits = _bits(mutant.lines)
        running = self._running(mutant.file, bits)
        imported = mutant.outermost is None or (not running and bool(self._outside.get(mutant.file, 0) & bits))
        if imported:
            running = self._naming(mutant) or self._by_file[mutant.file] or list(self.tests.values())
        first = [name for name in self.killers[f"{mutant.file} {mutant.scope}"] if name in self.tests]
        order = sorted({test.name for test in running}, key=lambda name: self._far(self.tests[name], mutant.file))
        taken, spent_s = [], 0.0
        for name in dict.fromkeys([*(n for n in first if n in order), *order]):
            test = self.tests[name]
            if taken and (spent_s + test.cost_s > TESTS_S_MAX or len(taken) >= TESTS_MAX):
                continue
            spent_s += test.cost_s
            taken.append(test)
        if imported:  # each file of tests costs its import
            files = list(dict.fromkeys(_file(test.name) for test in taken))[:8]
            taken = [test for test in taken if _file(test.name) in files]
            taken += [test for name, test in self.tests.items() if _file(name).removeprefix("tests/") in PAGES]
        return taken, imported

    def _running(self, file: str, bits: int) -> list[Test]:
        return [test for test in self._by_file[file] if test.lines[file] & bits]

    @staticmethod
    def _far(test: Test, file: str) -> float:
        """A test that does little else, and is quick, is near."""
        near = test.lines[file].bit_count() / test.size if file in test.lines else 0.01
        return (0.05 + test.cost_s) / near

    def _naming(self, mutant: Mutant) -> list[Test]:
        """Tests that run a line which names what the statement defines."""
        if self._mentions is None:
            self._mentions = _mentions(self.tree)
        found: dict[str, Test] = {}
        for name in mutant.names:
            for file, bits in self._mentions.get(name, {}).items():
                found |= {test.name: test for test in self._running(file, bits)}
        return list(found.values())


def _bits(lines: tuple[int, int]) -> int:
    first, last = lines
    return ((1 << (last - first + 1)) - 1) << first


def _mentions(tree: Path) -> dict[str, dict[str, int]]:
    """Name: file: the lines, as bits, that read it or hand it over by keyword."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for file in files_of(tree):
        for node in ast.walk(ast.parse((tree / file).read_bytes())):
            match node:
                case ast.Name(id=name) | ast.Attribute(attr=name):
                    found[name][file] |= 1 << node.lineno
                case ast.keyword(arg=str(name)):
                    found[name][file] |= 1 << node.value.lineno
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    found[name][file] |= _bits((node.body[0].lineno, node.body[-1].end_lineno or node.lineno))
                case _:
                    pass
    return found


# ---------------------------------------------------------------------- one copy and its warm session


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of the tree, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="fleetsim-mutation-") as folder:
        tree = Path(folder, "tree")
        left = shutil.ignore_patterns(".*", "__pycache__", "interop", "node_modules", "demo-report")
        shutil.copytree(TOP, tree, ignore=left)
        yield tree


def _environment(tree: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree), "CI": "true", "PYTHONHASHSEED": "0", **FEWER, **more}


class Bench:
    """One copy of the tree with a session that has collected its tests."""

    def __init__(self, tree: Path, folders: Sequence[str]) -> None:
        self.tree, self._folders = tree, folders
        self._start()

    def _start(self) -> None:
        jobs, self._jobs = os.pipe()
        answers, written = os.pipe()
        self._answers = os.fdopen(answers)
        command = [
            sys.executable,
            "-m",
            "pytest",
            *COMMON,
            "-p",
            "tests.mutation.worker",
            f"--basetemp={self.tree}/tmp",
        ]
        with self._log.open("w") as log:
            self._session = subprocess.Popen(
                [*command, *(f"tests/{folder}" for folder in self._folders)],
                cwd=self.tree,
                env=_environment(self.tree, FLEETSIM_JOBS=str(jobs), FLEETSIM_ANSWERS=str(written)),
                pass_fds=(jobs, written),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        os.close(jobs)
        os.close(written)
        ready = json.loads(self._answers.readline() or "{}")
        if not ready.get("ready") or ready["broken"]:
            raise SystemExit(f"the tests could not be collected:\n{self._log.read_text()[-3000:]}")

    @property
    def _log(self) -> Path:
        return self.tree.parent / "session.txt"

    def close(self) -> None:
        """End the session."""
        os.close(self._jobs)
        self._session.wait()
        self._answers.close()

    def ask(self, mutant: Mutant | None, tests: Sequence[Test], *, imported: bool) -> dict[str, Any]:
        """Run the tests against the edit (None: against none)."""
        job: dict[str, Any] = {
            "file": "",
            "tests": [test.name for test in tests],
            "costs": {test.name: test.cost_s for test in tests},
            "wall_max_s": WALL_MAX_S,
        }
        if mutant is None:
            answer = {"unfit": ""} if imported else self._told(job)
            return self._alone(job) if "unfit" in answer else answer
        path = self.tree / mutant.file
        before, was = path.read_bytes(), path.stat()
        after = mutant.applied(before)
        path.write_bytes(after)
        try:
            if not imported:
                edit = {"file": mutant.file, "before": before.decode(), "after": after.decode()}
                answer = self._told(job | edit)
                if "unfit" not in answer:
                    return answer
            return self._alone(job)
        finally:
            path.write_bytes(before)
            os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))

    def _told(self, job: dict[str, Any]) -> dict[str, Any]:
        os.write(self._jobs, json.dumps(job).encode() + b"\n")
        line = self._answers.readline()
        if not line:
            print(f"the session ended and is started again:\n{self._log.read_text()[:3000]}", flush=True)
            self.close()
            self._start()
            return {"unfit": "the session ended"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _alone(self, job: dict[str, Any]) -> dict[str, Any]:
        """In a process of its own, which imports the file as it is now."""
        reader, writer = os.pipe()
        files = sorted({_file(name) for name in job["tests"]})
        command = [sys.executable, "-B", "-m", "pytest", *COMMON, "-p", "tests.mutation.worker"]
        process = subprocess.Popen(
            [*command, f"--basetemp={self.tree}/tmp-alone", *files],
            cwd=self.tree,
            env=_environment(self.tree, FLEETSIM_JOB=json.dumps(job), FLEETSIM_ANSWERS=str(writer)),
            pass_fds=(writer,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(writer)
        answer: dict[str, Any] = {"at": None, "failed": None, "why": "", "cpu_s": 0.0, "stopped": False, "died": False}
        try:
            process.wait(WALL_MAX_S)
        except subprocess.TimeoutExpired:
            answer["stopped"] = True
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        with os.fdopen(reader) as told:
            for line in told.read().splitlines():
                answer.update(json.loads(line))
        answer["stopped"] = answer["stopped"] or -code in {signal.SIGALRM, signal.SIGVTALRM}
        answer["died"] = not answer["stopped"] and not answer["failed"] and code != 0
        return answer


# ---------------------------------------------------------------------- a verdict


def judged(bench: Bench, chooser: Chooser, mutant: Mutant) -> Verdict:
    """Plant one edit and ask its tests; what could be the machine's doing is asked again without the edit."""
    tests, imported = chooser.chosen(mutant)
    doubted: set[str] = set()
    while True:
        asked = [test for test in tests if test.name not in doubted]
        if not asked:
            return Verdict(mutant, False, "no test runs it")
        answer = bench.ask(mutant, asked, imported=imported)
        name = answer["failed"] or answer["at"]
        if answer["died"] and not answer["failed"]:
            return Verdict(mutant, True, f"ends the process at {name or 'the import'}", len(asked))
        if not answer["failed"] and not answer["stopped"]:
            how = f"no failure in {len(asked)} tests"
            return Verdict(mutant, False, how + (f", {len(doubted)} left out" if doubted else ""), len(asked))
        test = chooser.tests.get(name or "")
        if test is None:
            return Verdict(mutant, True, f"fails: {name}", len(asked))
        if answer["stopped"] or test.real or "Timeout" in answer["why"]:
            calm = replaced_limits(test, CALM) if answer["stopped"] else test
            without = bench.ask(None, [calm], imported=imported)
            if without["failed"] or without["stopped"] or without["died"]:
                doubted.add(test.name)
                continue
        chooser.killers[f"{mutant.file} {mutant.scope}"] = [
            test.name,
            *(known for known in chooser.killers[f"{mutant.file} {mutant.scope}"] if known != test.name),
        ][:5]
        return Verdict(mutant, True, ("never ends: " if answer["stopped"] else "") + test.name, len(asked))


def replaced_limits(test: Test, times: float) -> Test:
    """The same test with its limit so many times nearer (``worker.py`` makes the limit of the cost)."""
    from tests.mutation.worker import CPU_FIRST_S, CPU_TIMES

    limit_s = (CPU_FIRST_S + CPU_TIMES * test.cost_s) / times
    return Test(test.name, (limit_s - CPU_FIRST_S) / CPU_TIMES, test.real, test.lines, test.size)


@dataclass
class Reasons:
    """The survivors that are known, each with why nothing can or need notice it."""

    reasons: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Reasons:
        """From lines: a key at the margin, its reason indented below; one reason may stand below several keys."""
        found, keys = cls(), list[str]()
        reason: list[str] = []
        for line in [*path.read_text(encoding="utf-8").splitlines(), "end"]:
            if line.startswith("#") or not line.strip():
                continue
            if line.startswith(" "):
                reason.append(line.strip())
                continue
            if reason:
                found.reasons |= dict.fromkeys(keys, " ".join(reason))
                keys, reason = [], []
            keys.append(line.strip())
        return found


# ---------------------------------------------------------------------- all of it


def sample(every: Iterable[Mutant], size: int | None, seed: int, *, only: str = "") -> list[Mutant]:
    """The first ``size`` (None: all) in the order of the seed, of those whose key holds ``only``."""
    return sorted((m for m in every if only in m.key), key=lambda mutant: mutant.rank(seed))[:size]


def main(words: Sequence[str]) -> int:
    """Run the sample and print it; 0 when enough are noticed of those that can be."""
    parser = argparse.ArgumentParser(prog="make mutation", description=__doc__.split("\n\n")[0])
    parser.add_argument("--sample", type=int, help="how many edits (400; with --only: all)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (1)")
    parser.add_argument("--only", default="", help="of those whose key holds this text")
    parser.add_argument("--again", action="store_true", help="instead: those that survived the last run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="so many at once (one for each core)")
    parser.add_argument(
        "--tests", default=" ".join(TESTS), help=f"folders and files of tests to ask ({' '.join(TESTS)})"
    )
    parser.add_argument("--quick", action="store_true", help="where the tests are quick: wire, runtime, agent and step")
    parser.add_argument("--anew", action="store_true", help="map anew which test runs which line")
    parser.add_argument("--list", action="store_true", help="print the edits and plant none")
    parser.add_argument("--verbose", action="store_true", help="say what noticed each")
    asked = parser.parse_args(words)
    every = [mutant for file in files_of(TOP) for mutant in mutants_of(file, (TOP / file).read_bytes())]
    reasons = Reasons.read(SURVIVORS).reasons
    if stale := reasons.keys() - {mutant.key for mutant in every}:
        raise SystemExit("\n".join(f"{SURVIVORS.name} lists what is no edit any more: {key}" for key in sorted(stale)))
    if asked.quick:
        every = [mutant for mutant in every if mutant.file.startswith(QUICK_FILES)]
    size = 400 if asked.sample is None and not asked.only else asked.sample
    chosen = sample(every, size, asked.seed, only=asked.only)
    last = KEPT / "survivors.txt"
    if asked.again:
        before = {*last.read_text().splitlines()} if last.exists() else set()
        chosen = [mutant for mutant in every if mutant.key in before]
    if asked.list:
        print("\n".join(f"{mutant.line:4} {mutant.key}" for mutant in chosen))
        return 0
    folders = QUICK_TESTS if asked.quick else asked.tests.split()
    reach = reached(folders, asked.jobs, anew=asked.anew)
    verdicts = run(chosen, reach, folders, asked.jobs, verbose=asked.verbose)
    survived = [verdict for verdict in verdicts if not verdict.killed]
    KEPT.mkdir(exist_ok=True)
    last.write_text("".join(f"{verdict.mutant.key}\n" for verdict in survived))
    return report(verdicts, reasons)


def run(
    chosen: Sequence[Mutant], reach: Reach, folders: Sequence[str], jobs: int, *, verbose: bool = False
) -> list[Verdict]:
    """The verdicts, in the order of the edits."""
    chooser = Chooser(reach, TOP)
    killers = KEPT / "killers.json"
    if killers.exists():
        chooser.killers.update(json.loads(killers.read_text()))
    waiting: SimpleQueue[tuple[int, Mutant]] = SimpleQueue()
    for numbered in enumerate(chosen):
        waiting.put(numbered)
    verdicts: dict[int, Verdict] = {}
    began = time.monotonic()

    def work() -> None:
        with copied() as tree:
            bench = Bench(tree, folders)
            try:
                while not waiting.empty():
                    number, mutant = waiting.get()
                    since = time.monotonic()
                    verdict = verdicts[number] = judged(bench, chooser, mutant)
                    if verbose or not verdict.killed:
                        word = "noticed " if verdict.killed else "SURVIVED"
                        took_s = time.monotonic() - since
                        print(f"{word} {mutant.key}  (line {mutant.line}; {verdict.how}; {took_s:.1f} s)", flush=True)
            finally:
                bench.close()

    with ThreadPoolExecutor(jobs) as pool:
        for worker in [pool.submit(work) for _ in range(min(jobs, len(chosen) or 1))]:
            worker.result()
    killers.write_text(json.dumps(chooser.killers))
    print(f"{len(chosen)} edits in {time.monotonic() - began:.0f} s")
    return [verdicts[number] for number in sorted(verdicts)]


def report(verdicts: Sequence[Verdict], reasons: dict[str, str]) -> int:
    """Print both shares and every survivor; 0 if enough are noticed of those that can be."""
    noticed = [verdict.mutant for verdict in verdicts if verdict.killed]
    survived = [verdict for verdict in verdicts if not verdict.killed]
    unlisted = [verdict for verdict in survived if verdict.mutant.key not in reasons]
    for verdict in survived:
        if verdict.mutant.key in reasons:
            print(f"known   {verdict.mutant.key}\n        {reasons[verdict.mutant.key]}")
    for verdict in unlisted:
        print(f"UNKNOWN {verdict.mutant.file}:{verdict.mutant.line}: {verdict.mutant.key}\n        {verdict.how}")
    for mutant in noticed:
        if mutant.key in reasons:
            print(f"listed, yet noticed (take it out of {SURVIVORS.name}): {mutant.key}")
    packages = Counter(verdict.mutant.file.split("/")[1] for verdict in survived)
    where = "".join(f", {count} in {package}" for package, count in packages.most_common())
    able = len(noticed) + len(unlisted)
    share = len(noticed) / able if able else 1.0
    of_all = len(noticed) / len(verdicts) if verdicts else 1.0
    print(f"{len(noticed)} of all {len(verdicts)} edits noticed ({of_all:.1%}); {len(survived)} survived{where}")
    print(f"{len(noticed)} of the {able} that can be noticed ({share:.1%}); {len(survived) - len(unlisted)} are listed")
    if unlisted:
        print(f"{len(unlisted)} without a reason: write the test that notices it, or the reason into {SURVIVORS.name}")
    if share < SHARE_MIN:
        print(f"fewer than {SHARE_MIN:.0%} noticed of those that can be")
    return 1 if share < SHARE_MIN else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
