"""The package has a budget of lines, and a module holds one noun."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.house.tree import TOP, parsed, shown, sources

MODULE_LINES_MAX = 600

# Lines of Python per package. A row only goes down. A feature that needs more room raises its row in its own commit,
# and the commit says what it removed, or why nothing could go.
BUDGET = {
    "agent": 4_649,
    "api": 652,
    "caller": 18_180,
    "ceremony": 789,
    "check": 8_213,
    "cli": 8_386,
    "client": 4_674,
    "dashboard": 8_464,
    "hub": 5_881,
    "model": 3_256,
    "pytest_plugin": 506,
    "runtime": 6_464,
    "sim": 9_626,
    "testbed": 2_439,
    "wire": 3_437,
}


def _lines() -> dict[str, int]:
    lines: Counter[str] = Counter()
    for path in sources("fleetsim"):
        package, *module = path.relative_to(TOP / "fleetsim").parts
        if module:
            lines[package] += len(path.read_text().splitlines())
    return dict(lines)


def test_no_package_exceeds_its_budget() -> None:
    lines = _lines()
    assert {name: (count, BUDGET.get(name, 0)) for name, count in lines.items() if count > BUDGET.get(name, 0)} == {}
    assert sorted(lines) == sorted(BUDGET)


def test_no_module_exceeds_600_lines() -> None:
    lines = {shown(path): len(path.read_text().splitlines()) for path in sources("fleetsim")}
    assert {path: count for path, count in lines.items() if count > MODULE_LINES_MAX} == {}


@pytest.mark.slow
def test_every_module_has_a_docstring() -> None:
    silent = [shown(path) for path in sources("fleetsim") if len(ast.get_docstring(parsed(path)) or "") < 20]
    assert silent == []
