"""docs/ARCHITECTURE.md shows the packages and modules that exist, in the layers that pyproject.toml holds."""

from __future__ import annotations

import re
import tomllib

from tests.house.tree import TOP

PAGE = (TOP / "docs" / "ARCHITECTURE.md").read_text()
DRAWING = PAGE.split("```mermaid")[1].split("```")[0]
PACKAGES = {path.parent.name for path in (TOP / "fleetsim").glob("*/__init__.py")}
LAYERS = next(
    contract["layers"]
    for contract in tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    if contract["type"] == "layers"
)


def test_the_drawing_has_every_layer_in_its_order() -> None:
    rows = [re.findall(r'(\w+)\["<b>', line) for line in DRAWING.splitlines()]
    drawn = [set(row) for row in rows if row]
    assert drawn == [set(layer.split(" | ")) for layer in LAYERS]


def test_the_table_has_every_package() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == PACKAGES


def test_every_module_in_the_table_exists() -> None:
    missing = []
    for package, row in re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE, re.MULTILINE):
        for name in re.findall(r"`(\w+/?)`", row):
            path = TOP / "fleetsim" / package / name
            if not (path.is_dir() or path.with_suffix(".py").is_file()):
                missing.append(f"{package}/{name}")
    assert missing == []
