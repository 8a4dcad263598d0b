"""Classes are named by nouns of the field: those of the glossary, and those that every engineer knows."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.house.tree import TOP, parsed, shown, sources

pytestmark = pytest.mark.slow

WORDS = """
    access account actor address alarm app authenticator axis base batch behaviour body booking box breaker bucket
    buckets builder capabilities cause change changes choice chunks claim claims class client clients clock clocks
    column condition config contents controls counters credential cron database deadline decision delivery delta dialog
    destination detail dialer dir document estimates editor ending endpoint engine entry epoch exchange exit extras
    facts failure feed finder fold follower form formatter frame grid group guard gutter health hint identity
    driver host interface internals job journal keys label labels layout lifespan
    limiter limits line link listener lock look
    mark marks member meter metrics migration mode monitor mount move note notes notice
    notifier now observer operations options origin overlap page palette pane pattern percentiles period
    phase pipeline place plan policy polling principal problem profile program progress prompt protocol proxy
    pushing query rate rates reader receiver recorder registry report response retention role room route rows rule rules
    scheduler screen sample sender server service settings severity shrinker sink size slots snapshot source
    spec stamp stats storage store subscription target term text thresholds timeline timeouts timer tokens tone
    totals tracer tracing transactions transition tree trend update url usage variable veto view waiter watchdog
    weights widget window workers viewer writer
"""
"""Words of HTTP, databases, terminals and programming in their usual meaning."""

FIELD = frozenset(WORDS.split())

OTHERWISE = {
    "fleetsim/model/call.py": "operations say what is asked, as A2A does: SendMessage",
    "fleetsim/events/request.py": "events say what happened: OutcomeDecided",
    "fleetsim/events/fleet.py": "events say what happened: CeremonyFired",
    "fleetsim/recording/events.py": "events say what happened: TroubleBegan",
    "fleetsim/request/signals.py": "so do signals, and effects say what to do: SendFailed, Subscribe",
    "fleetsim/testbed/faults.py": "faults say what goes wrong: Stall",
    "fleetsim/agent/builtin.py": "each is called after the product whose quirks it has",
    "fleetsim/wire/proto_json.py": "it has the name of its specification",
    "fleetsim/wire/v0_1.py": "a dialect has its version's name",
    "fleetsim/wire/v0_3.py": "a dialect has its version's name",
    "fleetsim/wire/v1_0.py": "a dialect has its version's name",
}
"""Modules whose classes are named otherwise, and why."""


def test_a_class_is_named_by_a_noun_of_the_glossary_or_the_field() -> None:
    glossary = (TOP / "docs" / "glossary.md").read_text()
    known = FIELD | {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", glossary)}
    classes = _classes()
    errors = {"Exception", "RuntimeError", "Warning"}
    for _ in range(5):  # errors are named for their event, and so are their subclasses
        errors |= {node.name for _, node in classes if any(_last(base) in errors for base in node.bases)}
    strange = [
        f"{shown(path)}: {node.name}"
        for path, node in classes
        if shown(path) not in OTHERWISE
        if not node.name.startswith("_") and node.name not in errors
        if _head(node.name) not in known and _head(node.name).removesuffix("s") not in known
    ]
    assert strange == []


def _classes() -> list[tuple[Path, ast.ClassDef]]:
    """The classes at the top level of a module."""
    files = [(path, parsed(path).body) for path in sources("fleetsim")]
    return [(path, node) for path, body in files for node in body if isinstance(node, ast.ClassDef)]


def _last(base: ast.expr) -> str:
    return ast.unparse(base).split(".")[-1]


def _head(name: str) -> str:
    words: list[str] = re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*", name)
    return words[-1].lower()
