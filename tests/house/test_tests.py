"""The tests' own manners."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.house.tree import TOP, functions, parsed, shown, sources


def test_the_tests_are_no_packages_and_their_names_are_unique() -> None:
    tests = [path for path in sources("tests") if "interop" not in path.parts]
    assert [shown(path) for path in tests if path.name == "__init__.py"] == []
    names = Counter(path.name for path in tests if path.name.startswith("test_"))
    assert [name for name, count in names.items() if count > 1] == []


def test_every_test_folder_mirrors_a_package_or_is_known() -> None:
    known = {"house", "storms", "fuzz", "behaviours", "interop", "plugin", "bench", "mutation"}
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
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "time.sleep" and shown(path) not in SLEEPERS:
                found.append(f"{shown(path)}:{node.lineno} time.sleep")
    assert found == []


SLEEPERS: dict[str, str] = {
    "tests/storms/crash.py": "kills real processes at moments drawn by chance",
    "tests/storms/caller_kill.py": "kills real processes at moments drawn by chance",
    "tests/client/test_client_sockets.py": "a server in a thread says that it has started, and rings no bell",
    "tests/caller/test_ledger_storage.py": "a job that holds the database's own thread for a while",
}
"""Path: what in it is real and slow, and cannot be waited for otherwise."""


@pytest.mark.slow
def test_every_test_asserts_something() -> None:
    """An assert or a ``pytest.raises``, of its own or in a helper of the tests that it calls."""
    places = [(path, *one) for path in sources("tests") for one in functions(path)]
    called = {id(node): {_callee(part) for part in ast.walk(node) if isinstance(part, ast.Call)} for *_, node in places}
    own = {id(node) for *_, node in places if any(isinstance(part, ast.Assert) for part in ast.walk(node))}
    telling = {"raises", "fail", "warns", "run_state_machine_as_test"}
    while more := {node.name for *_, node in places if id(node) in own or called[id(node)] & telling} - telling:
        telling |= more
    silent = [
        f"{shown(path)}::{name}"
        for path, name, node in places
        if path.name.startswith("test_") and node.name.startswith("test_")
        if id(node) not in own and not called[id(node)] & telling
    ]
    assert silent == []


def _callee(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def test_names_are_sentences_of_outcome() -> None:
    terse = [
        f"{shown(path)}::{name}"
        for path in sources("tests")
        if path.name.startswith("test_")
        for name, node in functions(path)
        if node.name.startswith("test_") and len(node.name.split("_")) < 4
    ]
    assert terse == []
