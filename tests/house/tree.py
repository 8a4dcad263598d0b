"""The project's own files, for the house rules."""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterator
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
_SKIPPED = {"__pycache__", "node_modules", ".venv", ".interop", ".git", "build", "dist"}


def sources(folder: str) -> tuple[Path, ...]:
    """Every Python file under a folder of the project."""
    return tuple(sorted(p for p in (TOP / folder).rglob("*.py") if not _SKIPPED & set(p.parts)))


def texts() -> Iterator[Path]:
    """Every file a person writes: code, tests, docs, settings."""
    for folder in ("fleetsim", "tests", "docs", "ceremonies", "scripts", ".ci", "requirements"):
        for path in sorted((TOP / folder).rglob("*")):
            if path.is_file() and not _SKIPPED & set(path.parts) and path.suffix in _WRITTEN:
                yield path
    unwritten = {"LICENSE", ".git"}  # in a linked worktree .git is a file
    yield from sorted(p for p in TOP.iterdir() if p.is_file() and p.suffix in _WRITTEN and p.name not in unwritten)


_WRITTEN = {".py", ".md", ".toml", ".yaml", ".yml", ".txt", ".in", ".json", ".mjs", ".js", ".sh", ".tcss", ""}


def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file, parsed each time: all of them together need more memory than the rest of the tests.
    Garbage collection is off meanwhile: it would visit the nodes again and again, and none is garbage."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        if collecting:
            gc.enable()


def functions(path: Path) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function and method of a file, with its dotted name."""

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield prefix + child.name, child
            inner = f"{prefix}{child.name}." if hasattr(child, "name") and isinstance(child.name, str) else prefix
            yield from walk(child, inner)

    yield from walk(parsed(path), "")


def names_of_tests(path: Path) -> list[str]:
    """The names of a file's tests. No class holds any."""
    return re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE)


def shown(path: Path) -> str:
    """The path as messages show it."""
    return path.relative_to(TOP).as_posix()
