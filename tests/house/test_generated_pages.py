"""Generated pages say what the code says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from fleetsim.model.journal import TOPICS

ROOT = Path(__file__).parent.parent.parent


def test_the_generated_reference_is_up_to_date() -> None:
    done = subprocess.run([sys.executable, "scripts/docs.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_topic_that_is_published_has_a_row() -> None:
    rows = [re.compile(re.sub(r"\\\{[^}]*\\\}", r"[^\\s]+", re.escape(t.pattern)) + r"\Z") for t in TOPICS]
    published: set[str] = set()
    for path in (ROOT / "fleetsim").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        published |= set(re.findall(r"(?:publish|\.say|_say)\(\s*f?\"([a-z]+\.[A-Za-z_.{}\[\]]+)\"", text))
    assert len(published) > 15
    unknown = {topic for topic in published if not any(row.match(re.sub(r"\{[^}]*\}", "x", topic)) for row in rows)}
    assert unknown == set()
