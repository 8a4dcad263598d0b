"""The files that a new contributor relies on: Makefile, locks, CI, decisions."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib

import pytest

from fleetsim.runtime.yaml import load
from tests.house.tree import TOP

PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]


def locked(name: str) -> dict[str, str]:
    """Package: version, from a lock."""
    text = (TOP / "requirements" / name).read_text()
    return {_plain(package): version for package, version in re.findall(r"^([\w.-]+)==([^\s\\;]+)", text, re.MULTILINE)}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _wanted(requirements: list[str]) -> set[str]:
    return {_plain(re.split(r"[<>=!~;\[ ]", requirement)[0]) for requirement in requirements}


@pytest.mark.parametrize("name", ["run.txt", "dev.txt"])
def test_a_lock_contains_hashes_and_names_no_place(name: str) -> None:
    text = (TOP / "requirements" / name).read_text()
    entries = re.split(r"^(?=[\w.-]+==)", text, flags=re.MULTILINE)[1:]
    assert entries
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []
    assert re.findall(r"https?:|--(?:extra-)?index|--find-links|@ file", text) == []


def test_the_locks_contain_every_dependency_of_the_project_at_the_same_versions() -> None:
    run, dev = locked("run.txt"), locked("dev.txt")
    assert _wanted(PROJECT["dependencies"]) - set(run) == set(), "run scripts/lock --keep"
    assert {"hatchling", "editables"} <= set(run), "what installs the project itself is locked too"
    assert _wanted(PROJECT["optional-dependencies"]["dev"]) - set(dev) == set(), "run scripts/lock --keep"
    assert {name: version for name, version in run.items() if dev.get(name) != version} == {}


def test_make_without_a_target_lists_every_target() -> None:
    done = subprocess.run(["make", "--no-print-directory"], cwd=TOP, capture_output=True, text=True, check=True)
    text = (TOP / "Makefile").read_text()
    phony = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)[0].split()
    assert [target for target in phony if f"make {target} " not in done.stdout] == []
    assert {"demo", "test", "check", "interop"} <= set(phony)


def test_the_scripts_are_executable() -> None:
    scripts = [TOP / ".ci" / "run", TOP / "scripts" / "setup", TOP / "scripts" / "lock"]
    assert [path.name for path in scripts if not os.access(path, os.X_OK)] == []


def test_decisions_have_numbers_and_the_sections_context_decision_consequence() -> None:
    folder = TOP / "docs" / "decisions"
    pages = sorted(path for path in folder.glob("*.md") if path.name != "README.md")
    assert len({path.name[:4] for path in pages}) == len(pages)
    for page in pages:
        text = page.read_text()
        assert re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", page.name)
        assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Context", "Decision", "Consequence"], page.name
        assert len(text.splitlines()) <= 60, f"{page.name}: a decision is one page"
        assert page.name in (folder / "README.md").read_text(), f"{page.name} is not listed"


def test_links_between_pages_have_a_target() -> None:
    pages = [*TOP.glob("*.md"), *(TOP / "docs").rglob("*.md")]
    dead = [
        f"{page.relative_to(TOP)} -> {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
        if "://" not in target and not target.startswith("mailto:") and not (page.parent / target).exists()
    ]
    assert dead == []


def test_modules_that_pages_name_exist() -> None:
    """``request/machine.py`` or ``request`` in backticks; a name alone (``salvage.KEYS``) is not looked at."""
    packages = "|".join(sorted(path.name for path in (TOP / "fleetsim").iterdir() if path.is_dir()))
    pages = [TOP / "CONTRIBUTING.md", TOP / "docs" / "ARCHITECTURE.md", *(TOP / "docs").glob("explanation/*.md")]
    named = [
        (page, name) for page in pages for name in re.findall(rf"`((?:{packages})/[\w/]*(?:\.py)?)`", page.read_text())
    ]
    assert len(named) > 20
    assert [f"{page.name}: {name}" for page, name in named if not (TOP / "fleetsim" / name).exists()] == []


def test_where_to_change_what_names_paths_and_what_they_define() -> None:
    """In a row, a name belongs to the path before it."""
    table = (TOP / "CONTRIBUTING.md").read_text().split("## Where to change what")[1].split("\n## ")[0]
    rows = [line.split("|")[2] for line in table.splitlines() if line.startswith("| ")]
    wrong, looked_up = [], 0
    for row in rows:
        defined: set[str] = set()
        for name in re.findall(r"`([\w./]+)`", row):
            path = next((path for folder in ("fleetsim", ".") if (path := TOP / folder / name).exists()), None)
            if path is not None and path.suffix == ".py":
                made = re.findall(r"(?:def|class) \w+|[\w, ]+(?:: [^=\n]+)? ?=", path.read_text())
                defined = {word for text in made for word in re.findall(r"\w+", text)}
            elif path is None and name not in defined:
                wrong.append(name)
            looked_up += 1
    assert looked_up > 50
    assert wrong == []


def test_the_package_has_the_metadata_of_pyproject() -> None:
    import fleetsim

    assert fleetsim.__version__ == PROJECT["version"]
    assert (TOP / "fleetsim" / "py.typed").exists()
    assert re.search(
        rf"^## \[{PROJECT['version']}\] - \d{{4}}-\d\d-\d\d$", (TOP / "CHANGELOG.md").read_text(), re.MULTILINE
    )


def test_the_workflow_on_a_code_host_runs_the_script_of_each_change_and_nothing_else() -> None:
    workflow = load((TOP / ".github/workflows/ci.yml").read_bytes(), "ci.yml").value
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert [step["run"] for step in steps if "run" in step] == [".ci/run"]
    assert os.access(TOP / ".ci/run", os.X_OK)


def test_the_environment_of_check_app_needs_the_projects_dependencies() -> None:
    needed = PROJECT["dependencies"]
    asked = (TOP / "tests" / "interop" / "peers" / "app10" / "requirements.in").read_text().split("\n")
    assert sorted(needed) == sorted(line for line in asked if line and not line.startswith("a2a-sdk"))
