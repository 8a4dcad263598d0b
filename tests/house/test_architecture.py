"""docs/ARCHITECTURE.md shows the packages and modules that exist, in the layers of pyproject.toml."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections import Counter

import pytest

from fleetsim.model.optional import OPTIONAL
from tests.house.tree import TOP, sources

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


def test_the_page_has_the_lines_of_core_and_optional_packages() -> None:
    lines: Counter[str] = Counter()
    for path in sources("fleetsim"):
        lines[path.relative_to(TOP / "fleetsim").parts[0]] += path.read_text().count("\n")
    optional = {name.partition(".")[2] for name in OPTIONAL}
    told = [int(figure.replace(",", "")) for figure in re.findall(r"about ([\d,]+) lines", PAGE)]
    counted = [sum(n for name, n in lines.items() if (name in optional) is of) for of in (False, True)]
    assert told == [pytest.approx(figure, rel=0.04) for figure in counted]
    assert {name for name in lines.keys() - optional if lines[name] > 6_500} <= {"cli", "dashboard", "hub"}


WITHOUT = """
import importlib, pkgutil, sys
from fleetsim.model.optional import OPTIONAL
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in OPTIONAL:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import fleetsim
for found in pkgutil.walk_packages(fleetsim.__path__, "fleetsim.", onerror=lambda name: None):
    if not found.name.startswith(OPTIONAL):
        importlib.import_module(found.name)
from fleetsim.cli.main import main
sys.argv = ["fleetsim", *sys.argv[1:]]
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("--help", 0, "Simulate a day"),
        ("ceremony --help", 0, "play"),
        ("sim storm --seeds 3", 2, "the package fleetsim.sim is not installed"),
        ("check --help", 2, "the package fleetsim.check is not installed"),
    ],
)
def test_the_core_works_without_the_optional_packages(words: str, code: int, said: str) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT, *words.split()], cwd=TOP, capture_output=True, text=True)
    assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done.stderr
