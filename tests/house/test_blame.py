"""Every end of a request has a row in the one table of blame."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetsim.model import errors
from fleetsim.model.errors import FleetsimError, HttpRefused
from fleetsim.model.task import TERMINAL, TaskState
from fleetsim.model.work import BLAME, Cause, OutcomeKind
from fleetsim.request.ending import cause_of
from tests.house.tree import parsed, sources

ROOT = Path(__file__).parent.parent.parent
ENDINGS = {"close", "give_up", "outcome_of", "Stopped"}
ELSEWHERE = {OutcomeKind.UNDELIVERABLE: {Cause.PROTOCOL, Cause.LIMIT_REACHED, Cause.INTERNAL_ERROR}}
"""Causes of errors that end a request as another kind before it can end as this one."""


def endings() -> Iterator[tuple[str, OutcomeKind, set[Cause]]]:
    """The calls with which the caller ends a request itself: the kind, and the causes it may name there."""
    folders = [ROOT / "fleetsim" / package for package in ("caller", "request", "ledger")]
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
                kinds = _named(call, "OutcomeKind") if _name(call.func) in ENDINGS else set()
                if kinds:
                    kind = OutcomeKind[kinds.pop()]
                    causes = {Cause[name] for name in _causes(call, function)}
                    if any(isinstance(node, ast.Call) and _name(node.func) == "cause_of" for node in ast.walk(call)):
                        causes |= {cause_of(error) for error in _errors()} - ELSEWHERE.get(kind, set())
                    yield f"{path.name}:{call.lineno}", kind, causes


def _causes(call: ast.Call, function: ast.FunctionDef) -> set[str]:
    """The causes in the call; for a local name, those of that name's assignments."""
    found = _named(call, "Cause")
    names = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
    for assign in (node for node in ast.walk(function) if isinstance(node, ast.Assign)):
        if any(isinstance(target, ast.Name) and target.id in names for target in assign.targets):
            found |= _named(assign.value, "Cause")
    return found


def _named(tree: ast.AST, enum: str) -> set[str]:
    inside = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return {node.attr for node in inside if isinstance(node.value, ast.Name) and node.value.id == enum}


def _name(function: ast.expr) -> str:
    return getattr(function, "attr", getattr(function, "id", ""))


@pytest.mark.slow
def test_every_end_that_the_code_can_write_has_a_blame() -> None:
    found = list(endings())
    assert len(found) > 12
    assert all(causes for _, _, causes in found), "an end names no cause"
    missing = [(where, kind, cause) for where, kind, causes in found for cause in causes if (kind, cause) not in BLAME]
    assert missing == []


def _errors() -> Iterator[FleetsimError]:
    for kind in vars(errors).values():
        if not (isinstance(kind, type) and issubclass(kind, FleetsimError)):
            continue
        if issubclass(kind, HttpRefused):
            yield from (kind("no", status=status) for status in (400, 401, 403, 404, 413, 429, 500, 503))
        elif issubclass(kind, errors.TransportError):
            yield from (kind("no", sent=sent) for sent in (True, False))
        else:
            yield kind("no")


def test_every_kind_and_every_cause_has_a_row_and_a_meaning() -> None:
    assert {kind for kind, _ in BLAME} == set(OutcomeKind)
    assert {cause for _, cause in BLAME} == set(Cause)


@pytest.mark.slow
def test_only_the_model_divides_ends_into_successes_and_failures() -> None:
    """A list of two ends elsewhere would miss the next one. The check's words of 0.1 belong to that dialect."""
    lists = []
    for path in sources("fleetsim"):
        if path.parent.name in {"model", "wire"} or path.name == "legacy.py":
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Set | ast.Tuple | ast.List) and len(_ends(node)) > 1:
                lists.append(f"{path.name}:{node.lineno}")
    assert lists == []


def _ends(node: ast.Set | ast.Tuple | ast.List) -> set[TaskState]:
    named = {getattr(item, "attr", "").lower() for item in node.elts} | {
        getattr(item, "value", "") for item in node.elts
    }
    return {state for state in TERMINAL if state.value in named}
