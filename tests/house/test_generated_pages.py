"""Generated pages say what the code says."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from fleetsim.model.journal import TOPICS, Topic

ROOT = Path(__file__).parent.parent.parent
ENVELOPE = {"level", "correlation_id", "parent_id", "agent", "skill", "task_id"}


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


def test_every_row_has_somebody_who_publishes_it() -> None:
    rooms = [path for room in ("caller", "hub") for path in (ROOT / "fleetsim" / room).rglob("*.py")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in rooms)
    silent = {row.pattern for row in TOPICS if f'"{row.pattern.partition("{")[0]}' not in code}
    assert silent == set()


def test_every_payload_that_is_published_has_its_keys_in_the_row() -> None:
    checked = 0
    for where, topic, keys in published():
        rows = [row for row in TOPICS if _fits(row, topic)]
        assert any(keys <= set(row.payload) for row in rows), f"{where}: {topic} with {sorted(keys)}"
        checked += 1
    assert checked > 15


def published() -> Iterator[tuple[str, str, set[str]]]:
    """Where the code names a topic of the table, which, and the payload keys it names there."""
    for path in sorted((ROOT / "fleetsim").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args or not isinstance(node.func, ast.Attribute):
                continue
            topic = _text(node.args[0])
            if node.func.attr in {"publish", "say"} and any(_fits(row, topic) for row in TOPICS):
                yield f"{path.name}:{node.lineno}", topic, {k.arg for k in node.keywords if k.arg} - ENVELOPE


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(value) for value in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "x"


def _fits(row: Topic, topic: str) -> bool:
    pattern = re.sub(r"\\\{[^}]*\\\}", r"[^\\s]+", re.escape(row.pattern))
    return re.fullmatch(pattern, re.sub(r"\{[^}]*\}", "x", topic)) is not None
