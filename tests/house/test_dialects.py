"""A new dialect is its module and its line in ``wire/dialect.py``: no other module has a list of dialects."""

from __future__ import annotations

import ast

import pytest

from fleetsim.wire.dialect import DIALECTS
from tests.house.tree import TOP, parsed, sources

pytestmark = pytest.mark.slow

OF_SOMEBODY = ("fleetsim/agent/builtin.py", "fleetsim/cli/demo_fleet.py")
"""Which dialects one product, or one agent of the demo, speaks is its own."""


def test_there_is_one_list_of_dialects() -> None:
    lists = []
    for path in sources("fleetsim"):
        name = path.relative_to(TOP).as_posix()
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.Tuple | ast.List | ast.Set) or name.startswith(OF_SOMEBODY):
                continue
            if sum(isinstance(item, ast.Constant) and item.value in DIALECTS for item in node.elts) > 1:
                lists.append(f"{name}:{node.lineno}")
    assert lists == []
