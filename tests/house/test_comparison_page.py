"""docs/explanation/comparison.md claims what fleetsim has: every verb and extra, and no option that does not exist."""

from __future__ import annotations

import re
import tomllib

from click.testing import CliRunner

from fleetsim.cli.main import VERBS, cli
from tests.house.tree import TOP

TEXT = (TOP / "docs/explanation/comparison.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))["project"]
HAS = TEXT.partition("## What fleetsim has")[2]


def test_the_page_names_every_verb_and_every_extra_of_users() -> None:
    assert set(re.findall(r"`fleetsim ([a-z]+)", HAS)) == set(VERBS)
    assert set(re.findall(r"`fleetsim\[([a-z]+)\]`", HAS)) == set(PROJECT["optional-dependencies"]) - {"dev"}


def test_each_option_on_the_page_exists() -> None:
    claims = [claim.split() for claim in re.findall(r"`fleetsim ([a-z]+ --[a-z -]+)`", TEXT)]
    shown = {verb: CliRunner().invoke(cli, [verb, "--help"]).output for verb, *_ in claims}
    assert len(claims) >= 4
    assert [f"{verb} {option}" for verb, option, *_ in claims if option not in shown[verb]] == []


def test_the_page_denies_only_what_no_package_brings() -> None:
    extras = PROJECT["optional-dependencies"]
    used = [*PROJECT["dependencies"], *(package for name in extras if name != "dev" for package in extras[name])]
    denied = TEXT.partition("does not do these things:")[2]
    brought_by = {"gRPC": "grpc", "models": "openai|anthropic|litellm"}
    assert [word for word in brought_by if word not in denied] == []
    assert [name for name in used if re.search("|".join(brought_by.values()), name)] == []
    assert [verb for verb in VERBS if re.search(rf"\b{verb}s?\b", denied) and verb != "agent"] == []
    assert "hub" not in denied
