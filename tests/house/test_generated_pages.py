"""Generated pages agree with the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fleetsim.events.wire import event_classes

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "fleetsim"
TOPICS = {"events/request.py", "events/fleet.py", "recording/events.py", "client/hub_follow.py"}
"""Modules below ``fleetsim`` that may name them; the last reads them from the API."""
ENVELOPE = {"level", "correlation_id", "parent_id", "agent", "skill", "task_id"}


def test_the_generated_reference_is_up_to_date() -> None:
    done = subprocess.run([sys.executable, "scripts/docs.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_event_class_is_published_somewhere() -> None:
    packages = ("events", "request", "ledger", "channels", "fleet", "ceremonies", "caller", "hub")
    paths = [path for package in packages for path in (PACKAGE / package).rglob("*.py")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in paths if str(path.relative_to(PACKAGE)) not in TOPICS)
    silent = {kind.__name__ for kind in event_classes() if not re.search(rf"\b{kind.__name__}\b(\(|\.of\()", code)}
    assert silent <= {"QuestionExpired", "QuestionWithdrawn"}  # one of the two, by a name that stands for either


def test_topics_are_named_in_three_modules() -> None:
    agents = r"agent\.(?:skill|chat|card|push|auth|poll|stream|breaker)|autonomous\.outcome|dispatch\.dropped"
    hubs = r"hitl|ceremony\.loaded|ceremony\.\{\w+\}|world\.state|config|hub|scenario"
    literal = re.compile(rf"""["'](?:{agents}|{hubs})\.[a-z{{]\w*[."'}}]""")
    named = {
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in PACKAGE.rglob("*.py")
        if str(path.relative_to(PACKAGE)) not in TOPICS
        for found in literal.finditer(path.read_text(encoding="utf-8"))
        if not found[0].endswith(('json"', 'log"', "schema."))
    }
    assert named == set()
