"""The site of the documentation: each page has its place in the navigation."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.house.tree import TOP

DOCS = TOP / "docs"
APART = {"decisions", "skills"}
"""Folders without a place of their own: a list leads to the decisions, and a skill file is for coding agents."""


def _places(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from _places(part)


def test_each_page_has_one_place_in_the_navigation() -> None:
    placed = Counter(_places(tomllib.loads((TOP / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    expected = {page for page in pages if page.partition("/")[0] not in APART} | {"decisions/README.md"}
    assert sorted(placed) == sorted(expected), "give the page a place in `nav` of zensical.toml"
    assert set(placed.values()) == {1}


def test_the_site_loads_no_fonts_of_another_host() -> None:
    project = tomllib.loads((TOP / "zensical.toml").read_text(encoding="utf-8"))["project"]
    assert project["theme"]["font"] is False
    assert "offline" in project["plugins"], "search works from the files"
