"""The page of threats names every threat, and code and tests that exist."""

from __future__ import annotations

import re

from tests.house.tree import TOP, names_of_tests

PAGE = TOP / "docs" / "reference" / "threats.md"
EXPECTED = [f"T-{n:02}" for n in (*range(1, 19), *range(20, 28), *range(30, 63))]


def rows() -> dict[str, str]:
    found = re.findall(r"^\| (T-\d\d) \|(.*)\|$", PAGE.read_text(), re.MULTILINE)
    assert len(dict(found)) == len(found), "an id stands twice"
    return dict(found)


def test_every_threat_has_its_row_in_order() -> None:
    assert list(rows()) == EXPECTED


def test_every_row_has_a_text_and_names_code_and_tests_that_exist() -> None:
    known: dict[str, set[str]] = {}
    missing = []
    for name, row in rows().items():
        threat, control, code, tests = (cell.strip() for cell in row.split(" | "))
        assert threat, name
        assert control, name
        paths = re.findall(r"`(fleetsim/[\w/]+\.py)`", code)
        cited = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", tests)
        assert code == " ".join(f"`{path}`" for path in paths), name
        assert tests == " ".join(f"`{path}::{test}`" for path, test in cited), name
        assert paths, name
        assert cited, name
        missing += [f"{name}: {path}" for path in paths if not (TOP / path).is_file()]
        for path, test in cited:
            if path not in known:
                there = (TOP / path).is_file()
                known[path] = set(names_of_tests(TOP / path)) if there else set()
            missing += [f"{name}: {path}::{test}"] * (test not in known[path])
    assert missing == []
