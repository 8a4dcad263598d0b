"""What differs from one dialect to another is an attribute of it: nobody outside ``wire`` asks which version it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.tree import TOP, parsed, shown, sources

VERSIONS = {"0.1", "0.3", "1.0"}
EXEMPT = {
    "fleetsim/check/sections": "it says what stands on the wire: a version there is a value that is judged",
    "fleetsim/check/broken": "it spoils what stands on the wire",
    "fleetsim/agent/profiles": "products as they were seen: which dialects one speaks is what makes it that product",
}


def compared(tree: ast.AST) -> Iterator[ast.AST]:
    """Where a version is compared, matched or looked up by."""
    for node in ast.walk(tree):
        asked: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            asked = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            asked = [node.value]
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            literal = isinstance(node.value, ast.Name) and node.value.id == "Literal"
            asked = [node.slice] if isinstance(node.slice, ast.Constant) and not literal else []
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and "with" in node.func.attr:
            asked = list(node.args)
        constants = (inner for part in asked for inner in ast.walk(part) if isinstance(inner, ast.Constant))
        if any(constant.value in VERSIONS for constant in constants if isinstance(constant.value, str)):
            yield node


def outside() -> list[Path]:
    own = (TOP / "fleetsim/wire", *(TOP / folder for folder in EXEMPT))
    return [path for path in sources("fleetsim") if not any(path.is_relative_to(folder) for folder in own)]


def test_no_version_is_compared_outside_wire() -> None:
    found = [f"{shown(path)}:{node.lineno}" for path in outside() for node in compared(parsed(path))]  # type: ignore[attr-defined]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        'x.dialect == "1.0"',
        'name in {"0.3", "1.0"}',
        'BEHAVIOURS["0.3"]',
        'version.startswith("0.1")',
        '"0.3" not in names',
    ],
)
def test_a_comparison_is_found(line: str) -> None:
    assert [*compared(ast.parse(line))] != []


@pytest.mark.parametrize("line", ['dialect("0.3")', 'dialects=("1.0", "0.3")', "dialect.kinds", 'x: Literal["0.3"]'])
def test_naming_a_version_is_none(line: str) -> None:
    assert [*compared(ast.parse(line))] == []
