#!/usr/bin/env python3
"""Build the documentation into site/, so that it can be viewed and searched from the files, without a network.

The site generator and its theme are `requirements/docs.txt`. The build fails for a warning, for a link without target,
and for anything that a browser would load from another host.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

TOP = Path(__file__).parent.parent
SITE = TOP / "site"
SHIM = "https://unpkg.com/iframe-worker/shim"
"""The theme loads this script from the web: without it, a browser refuses to search in files."""
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}


class Page(HTMLParser):
    """The ids, links and loaded addresses of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif (name := LOADED.get(tag)) in given:
            self.loaded.append(given[name])


def main() -> int:
    """Build and check. Return the exit code."""
    tool = Path(sys.executable).with_name("zensical")
    built = subprocess.run([tool, "build", "--clean", "--strict"], cwd=TOP, check=False)
    if built.returncode:
        return built.returncode
    pages = {path: path.read_text(encoding="utf-8") for path in SITE.rglob("*.html")}
    for path, text in pages.items():
        root = "../" * (len(path.relative_to(SITE).parts) - 1)
        pages[path] = text.replace(SHIM, f"{root}assets/iframe-worker.js")
        path.write_text(pages[path], encoding="utf-8")
    problems = [f"{path.relative_to(TOP)}: {problem}" for path, problem in _problems(pages)]
    sys.stderr.writelines(f"{problem}\n" for problem in problems)
    sys.stdout.write(f"site/index.html: {len(pages)} pages\n")
    return 1 if problems else 0


def _problems(pages: dict[Path, str]) -> Iterator[tuple[Path, str]]:
    """The problems of each page."""
    read = {path: Page(text) for path, text in pages.items()}
    index = (SITE / "search.js").read_text(encoding="utf-8")
    for path, page in read.items():
        if path.name == "404.html":  # its addresses are those of a server's root
            continue
        if f'"{path.relative_to(SITE).as_posix()}' not in index:
            yield path, "the search does not know it"
        for address in page.loaded:
            if urlsplit(address).netloc or not (path.parent / unquote(urlsplit(address).path)).is_file():
                yield path, f"loads {address}"
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                yield path, f"links to {link}, which is missing"
            elif target in read and parts.fragment and unquote(parts.fragment) not in read[target].ids:
                yield path, f"links to {link}: the page has no such heading"
    for sheet in SITE.rglob("*.css"):
        for address in re.findall(r"url\(['\"]?(https?:[^)]*)\)", sheet.read_text(encoding="utf-8")):
            yield sheet, f"loads {address}"


if __name__ == "__main__":
    sys.exit(main())
