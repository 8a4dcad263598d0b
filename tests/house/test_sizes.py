"""A module holds one noun, so it has a limit of lines."""

from __future__ import annotations

import ast

import pytest

from tests.house.tree import parsed, shown, sources

MODULE_LINES_MAX = 600


def test_no_module_exceeds_600_lines() -> None:
    lines = {shown(path): len(path.read_text().splitlines()) for path in sources("fleetsim")}
    assert {path: count for path, count in lines.items() if count > MODULE_LINES_MAX} == {}


@pytest.mark.slow
def test_every_module_has_a_docstring() -> None:
    silent = [shown(path) for path in sources("fleetsim") if len(ast.get_docstring(parsed(path)) or "") < 20]
    assert silent == []
