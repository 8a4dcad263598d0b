"""The JSON on the page docs/reference/json.md is the output of the verbs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.world import Shell

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "json.md").read_text(encoding="utf-8")
EXAMPLES = {
    example["schema"]: example for example in map(json.loads, re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL))
}
VERBS = {
    "fleetsim/doctor/1": ("doctor", "--offline", "-o", "json"),
    "fleetsim/help/1": ("help", "completion", "--json"),
    "fleetsim/config/1": ("config", "show", "-o", "json"),
}


def forms(value: Any) -> Any:
    """The members and types of a document; of a list, each form once."""
    if isinstance(value, dict):
        return {name: "any" if name == "value" else forms(inner) for name, inner in value.items()}
    if isinstance(value, list):
        rows = [forms(inner) for inner in value]
        return [row for at, row in enumerate(rows) if row not in rows[:at]]
    return type(value).__name__


@pytest.mark.parametrize("schema", VERBS)
def test_an_example_has_the_members_and_types_of_the_document(tmp_path: Path, schema: str) -> None:
    shell = Shell(tmp_path)
    shell.write("agents.yaml", "agents:\n  - name: quinn\n    url: http://127.0.0.1:9000\n")
    document = json.loads(shell.run(*VERBS[schema]).stdout)
    assert forms(document) == forms(EXAMPLES[schema])
    for row in EXAMPLES[schema].get("values", ()):
        assert row in document["values"]


def test_each_member_is_explained() -> None:
    names = {
        name
        for example in EXAMPLES.values()
        for row in [example, *example.get("checks", ()), *example.get("options", ()), *example.get("values", ())]
        for name in row
    }
    assert {name for name in names if f"`{name}`" not in PAGE} == set()
