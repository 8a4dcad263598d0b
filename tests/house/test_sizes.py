"""A module holds one noun whole; past some length it has found a second one, and says so."""

from __future__ import annotations

import ast

from tests.house.tree import parsed, shown, sources

MODULE_LINES_MAX = 600

LARGER_MODULES = {
    "fleetsim/caller/events.py": "a list of everything that can happen, one class each, and nothing else",
}
"""Path: the reason why it is one noun although it is long."""


def test_no_module_outgrows_its_noun() -> None:
    larger = {
        shown(path): lines
        for path in sources("fleetsim")
        if (lines := len(path.read_text().splitlines())) > MODULE_LINES_MAX
    }
    assert {path: lines for path, lines in larger.items() if path not in LARGER_MODULES} == {}
    assert set(LARGER_MODULES) <= set(larger), "an exception nobody needs any more"


def test_every_module_says_what_lives_in_it() -> None:
    silent = [shown(path) for path in sources("fleetsim") if len(ast.get_docstring(parsed(path)) or "") < 20]
    assert silent == []
