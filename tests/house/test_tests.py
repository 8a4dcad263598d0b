"""Rules for the tests themselves."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.house.tree import TOP, functions, names_of_tests, parsed, shown, sources


def test_the_tests_are_no_packages_and_their_names_are_unique() -> None:
    tests = [path for path in sources("tests") if "interop" not in path.parts]
    assert [shown(path) for path in tests if path.name == "__init__.py"] == []
    names = Counter(path.name for path in tests if path.name.startswith("test_"))
    assert [name for name, count in names.items() if count > 1] == []


def test_every_test_folder_mirrors_a_package_or_is_known() -> None:
    known = {
        "house",
        "storms",
        "differential",
        "fuzz",
        "behaviours",
        "browser",
        "broken",
        "interop",
        "plugin",
        "bench",
        "mutation",
        "field",
        "golden",
    }
    packages = {path.name for path in (TOP / "fleetsim").iterdir() if path.is_dir()}
    folders = {path.relative_to(TOP / "tests").parts[0] for path in sources("tests") if path.parent != TOP / "tests"}
    assert folders - known - packages == set()


@pytest.mark.slow
def test_nothing_is_mocked_and_nothing_sleeps_to_wait() -> None:
    found = []
    for path in sources("tests"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("unittest.mock", "mock")):
                found.append(f"{shown(path)}:{node.lineno} mock")
            if isinstance(node, ast.Import) and any(alias.name in {"unittest.mock", "mock"} for alias in node.names):
                found.append(f"{shown(path)}:{node.lineno} mock")
            called = node.func if isinstance(node, ast.Call) else None
            sleeps = isinstance(called, ast.Attribute) and called.attr == "sleep"
            if called and sleeps and ast.unparse(called) == "time.sleep" and shown(path) not in SLEEPERS:
                found.append(f"{shown(path)}:{called.lineno} time.sleep")
    assert found == []


SLEEPERS: dict[str, str] = {
    "tests/storms/crash.py": "kills real processes at moments drawn by chance",
    "tests/storms/caller_kill.py": "kills real processes at moments drawn by chance",
    "tests/client/test_client_sockets.py": "a server in a thread says that it has started, and rings no bell",
    "tests/ledger/test_ledger_storage.py": "a job that holds the database's own thread for a while",
}
"""Path: what in it is real and slow, and cannot be waited for otherwise."""


@pytest.mark.slow
def test_every_test_asserts_something() -> None:
    """An assert or a ``pytest.raises``, its own or in a helper of the tests that it calls."""
    places = [(path, name, _told_by(node)) for path in sources("tests") for name, node in functions(path)]
    telling = {"assert", "raises", "fail", "warns", "run_state_machine_as_test"}
    while more := {name.rpartition(".")[2] for _, name, told in places if told & telling} - telling:
        telling |= more
    silent = [
        f"{shown(path)}::{name}"
        for path, name, told in places
        if path.name.startswith("test_") and name.rpartition(".")[2].startswith("test_") and not told & telling
    ]
    assert silent == []


def _told_by(function: ast.AST) -> set[str]:
    """The functions that a function calls, and "assert" if it asserts itself."""
    parts = [*ast.walk(function)]
    called = {
        part.func.attr if isinstance(part.func, ast.Attribute) else getattr(part.func, "id", "")
        for part in parts
        if isinstance(part, ast.Call)
    }
    return called | {"assert" for part in parts if isinstance(part, ast.Assert)}


def test_names_are_sentences_of_outcome() -> None:
    terse = [
        f"{shown(path)}::{name}"
        for path in sources("tests")
        if path.name.startswith("test_")
        for name in names_of_tests(path)
        if len(name.split("_")) < 4
    ]
    assert terse == []
