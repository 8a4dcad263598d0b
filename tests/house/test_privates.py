"""Tests use only public names of the code under test."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.tree import parsed, shown, sources

FOREIGN = {"_compositor", "_driver", "_exit", "_filters", "_selector"}
"""Of Textual, of ``os`` and of asyncio."""


def own_names(tree: ast.AST) -> Iterator[str]:
    """The private names that a file gives its own classes, functions and objects."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            yield node.attr
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def reached(tree: ast.AST) -> set[str]:
    """The private attributes that a file uses and that are not its own."""
    read = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and not _is_self(node.value))
    return {node.attr for node in read if node.attr[0] == "_" and node.attr[:2] != "__"} - {*own_names(tree), *FOREIGN}


def _is_self(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in {"self", "cls"}


def _files() -> list[Path]:
    return [path for path in sources("tests") if "interop" not in path.parts]


@pytest.mark.slow
def test_no_test_uses_a_private_attribute() -> None:
    found = {shown(path): names for path in _files() if (names := reached(parsed(path)))}
    assert found == {}
