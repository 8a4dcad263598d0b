"""What judges the tests is tested: which edits are made, and that noticed ones and survivors are told apart."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.mutants import files_of, mutants_of
from tests.mutation.run import SURVIVORS, TOP, Reasons, Verdict, report, sample

HERE = Path(__file__).parent


def edits(source: str) -> list[str]:
    return [f"{m.before} -> {m.after}" for m in mutants_of("fleetsim/wire/x.py", source.encode())]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(a):\n    return a < 7", ["a < 7 -> (a <= 7)", "a < 7 -> (a >= 7)", "7 -> (14)"]),
        ("def f(a, b):\n    return a and b", ["a and b -> (a or b)", "return a and b -> return None"]),
        ("def f(a):\n    if a.open:\n        a.close()", ["a.open -> (not (a.open))", "a.close() -> pass"]),
        ("class A:\n    limit: int = 0", ["0 -> (1)"]),
        ("def f(a):\n    raise ValueError('no')", ["raise ValueError('no') -> pass"]),
        ("def f(a):\n    return a.get('id')", ["'id' -> ('idX')"]),
        ("def f(a):\n    return a[-1]", ["-1 -> (1)"]),
        ("def f(a):\n    return [b for b in a if b.open]", ["b.open -> (not (b.open))"]),
        ("def f(a):\n    return max(a)", ["max -> min"]),
        ("def f(a):\n    a.n += 1", ["a.n += 1 -> pass", "a.n += 1 -> a.n -= 1"]),
    ],
)
def test_an_edit_is_one_that_a_person_could_have_made(source: str, expected: list[str]) -> None:
    assert set(expected) <= set(edits(source))


@pytest.mark.parametrize(
    "source",
    [
        '"""7 < 8"""',
        "def f(a: 'int | None') -> None:\n    'Less than 7.'",
        "def f(a):\n    log.warning('%d', 7 + len(a))",
        "def f(a):\n    assert a < 7",
        "def f(a):\n    raise AssertionError(a < 7)",
        "def f(a):\n    raise AssertionError",
        "from typing import TypeAlias\nA: TypeAlias = int | str",
        "@dataclass(frozen=True)\nclass A:\n    a: int",
    ],
)
def test_wording_types_logs_and_assertions_are_not_edited(source: str) -> None:
    assert edits(source) == []


@pytest.mark.slow
@pytest.mark.parametrize("file", ["fleetsim/agent/store.py", "fleetsim/wire/choice.py", "fleetsim/runtime/http.py"])
def test_an_edited_module_compiles_and_keeps_its_lines(file: str) -> None:
    source = (TOP / file).read_bytes()
    found = mutants_of(file, source)
    for mutant in found:
        edited = mutant.applied(source)
        compile(edited, file, "exec", dont_inherit=True)
        assert edited != source
        assert edited.count(b"\n") == source.count(b"\n"), mutant.key
    assert len({mutant.key for mutant in found}) == len(found) > 50


def test_a_sample_is_the_same_for_its_seed_and_hardly_another_after_a_change_elsewhere() -> None:
    source = (TOP / "fleetsim/agent/store.py").read_bytes()
    every = mutants_of("fleetsim/agent/store.py", source)
    moved = mutants_of("fleetsim/agent/store.py", source.replace(b"class Store:", b"\n\nclass Store:"))
    keys = [mutant.key for mutant in sample(every, 30, 1)]
    assert keys == [mutant.key for mutant in sample(reversed(moved), 30, 1)]
    assert keys != [mutant.key for mutant in sample(every, 30, 2)]


@pytest.mark.slow
def test_every_survivor_on_the_list_has_a_reason_and_is_an_edit_of_todays_source() -> None:
    reasons = Reasons.read(SURVIVORS).reasons
    files = {key.split(" | ")[0] for key in reasons} & {*files_of(TOP)}
    today = {mutant.key for file in files for mutant in mutants_of(file, (TOP / file).read_bytes())}
    assert [key for key, reason in reasons.items() if not reason or key not in today] == []


def test_several_keys_may_share_one_reason(tmp_path: Path) -> None:
    page = tmp_path / "survivors.txt"
    page.write_text(
        "# words\na | f | 1 -> (2)\nb | g | x -> pass\n    for one\n    reason\nc | h | y -> pass\n    own\n"
    )
    same = "for one reason"
    assert Reasons.read(page).reasons == {
        "a | f | 1 -> (2)": same,
        "b | g | x -> pass": same,
        "c | h | y -> pass": "own",
    }


TINY = """LIMIT = 3


def few(n: int) -> bool:
    return n < LIMIT


def spent(n: int) -> int:
    while n:
        n -= 1
    return n


def unused(n: int) -> int:
    return n * 2
"""
TINY_TEST = """from fleetsim.wire.tiny import few, spent


def test_few_are_few():
    assert few(1) and not few(4)


def test_all_is_spent():
    assert spent(2) == 0
"""


FEW, SPENT = "fleetsim/wire/tiny.py | few", "fleetsim/wire/tiny.py | spent"


def verdicts(**fates: bool) -> list[Verdict]:
    edits = {mutant.key: mutant for mutant in mutants_of("fleetsim/wire/tiny.py", TINY.encode())}
    keys = {"few": f"{FEW} | n < LIMIT -> (n <= LIMIT)", "spent": f"{SPENT} | 1 -> (2)"}
    return [Verdict(edits[keys[name]], killed, "so") for name, killed in fates.items()]


def test_the_share_is_of_the_edits_that_can_be_noticed_and_both_shares_are_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fates = [*verdicts(few=True) * 18, *verdicts(spent=False) * 2]
    assert report(fates, {}) == 1
    said = capsys.readouterr().out
    assert "18 of all 20 edits noticed (90.0%)" in said
    assert "18 of the 20 that can be noticed (90.0%); 0 are listed" in said
    assert report(fates, {f"{SPENT} | 1 -> (2)": "equal"}) == 0
    said = capsys.readouterr().out
    assert "18 of all 20 edits noticed (90.0%)" in said
    assert "18 of the 18 that can be noticed (100.0%); 2 are listed" in said


def test_a_share_of_just_the_minimum_will_do() -> None:
    assert report([*verdicts(few=True) * 19, *verdicts(spent=False)], {}) == 0
    assert report([*verdicts(few=True) * 18, *verdicts(spent=False)], {}) == 1


def test_a_listed_edit_that_is_noticed_is_named_and_still_counted(capsys: pytest.CaptureFixture[str]) -> None:
    key = f"{FEW} | n < LIMIT -> (n <= LIMIT)"
    assert report(verdicts(few=True, spent=True), {key: "not so"}) == 0
    said = capsys.readouterr().out
    assert f"listed, yet noticed (take it out of survivors.txt): {key}\n" in said
    assert "2 of the 2 that can be noticed" in said


def tiny_run(tmp_path: Path, survivors: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A run over a tree with one module and one file of tests."""
    for folder, file, text in [
        ("fleetsim", "__init__.py", ""),
        ("fleetsim/wire", "__init__.py", ""),
        ("fleetsim/wire", "tiny.py", TINY),
        ("tests/wire", "test_tiny.py", TINY_TEST),
    ]:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / file).write_text(text)
    shutil.copytree(HERE, tmp_path / "tests" / "mutation", ignore=shutil.ignore_patterns("test_*", "__pycache__"))
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = '--import-mode=importlib'\n")
    (tmp_path / "tests" / "mutation" / "survivors.txt").write_text(survivors)
    command = [sys.executable, "-m", "tests.mutation.run", "--only", "tiny", "--tests", "wire", "--jobs", "1", *words]
    environment = {
        **os.environ,
        "FLEETSIM_CPU_FIRST_S": "0.5",  # what never ends uses all of it, and what ends not a tenth
        "PYTHONPATH": str(tmp_path),
        "PYTEST_ADDOPTS": "-p no:fleetsim -p no:schemathesis -p no:hypothesispytest",
    }
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.sockets
def test_noticed_edits_and_survivors_are_told_apart(tmp_path: Path) -> None:
    """A bound, a loop that never ends, a number at import, what no test runs."""
    done = tiny_run(tmp_path, "", "--verbose")
    said = {line for line in done.stdout.splitlines() if line.startswith(("noticed ", "SURVIVED"))}
    fate = {line.split(" | ")[2].split("  (")[0]: line for line in said}
    assert done.returncode == 1, done.stdout + done.stderr
    assert fate["n < LIMIT -> (n >= LIMIT)"].startswith("noticed")
    assert fate["3 -> (6)"].startswith("noticed"), "what runs at import is planted too"
    assert "never ends" in fate["n -= 1 -> pass"]
    assert fate["n -> (not (n))"].startswith("noticed")
    assert fate["n < LIMIT -> (n <= LIMIT)"].startswith("SURVIVED")
    assert "no test runs it" in fate["n * 2 -> (n / 2)"]
    assert (tmp_path / "fleetsim/wire/tiny.py").read_text() == TINY, "no edit is made in the tree itself"


@pytest.mark.sockets
def test_a_list_that_names_no_edit_of_todays_source_is_an_error(tmp_path: Path) -> None:
    done = tiny_run(tmp_path, f"{FEW} | n < LIMIT -> (n <= LIMIT)\n{FEW} | n < 9 -> (n <= 9)\n    gone\n", "--list")
    assert done.returncode == 1
    assert done.stderr == f"survivors.txt lists what is no edit any more: {FEW} | n < 9 -> (n <= 9)\n"
