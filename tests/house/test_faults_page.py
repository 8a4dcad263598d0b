"""docs/reference/faults.md names code and tests that exist."""

from __future__ import annotations

import re

import pytest

from tests.house.tree import TOP, names_of_tests, sources

pytestmark = pytest.mark.slow

PAGE = TOP / "docs" / "reference" / "faults.md"
IDS = [f"F-{number:02d}" for number in range(1, 56)]


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| F-")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_fault_has_one_complete_row() -> None:
    assert [row[0] for row in rows()] == IDS
    assert [row[0] for row in rows() if len(row) != 6 or not all(row)] == []


def test_every_fault_names_tests_that_exist() -> None:
    known = {name for path in sources("tests") for name in names_of_tests(path)}
    missing = {row[0]: [test for test in named(row[5]) if test not in known] for row in rows()}
    assert {fault: tests for fault, tests in missing.items() if tests} == {}
    assert [row[0] for row in rows() if not named(row[5])] == []


def test_every_fault_names_code_that_exists() -> None:
    absent = [
        f"{row[0]} {name}"
        for row in rows()
        for name in named(row[4])
        if not (TOP / "fleetsim" / name).exists() and not (TOP / name).exists()
    ]
    assert absent == []
