"""Words for unfinished work, for one machine, or for the way of working stay out of the tree."""

from __future__ import annotations

import re

import pytest

from tests.house.tree import shown, texts

# Written in pieces, because this rule applies to this file too.
BANNED = {
    "a mark of work left over": r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b|raise NotImplemented" + r"Error",
    "a path of one machine": r"(?<![\w.<])/(wo" + r"rk|ro" + r"ot|ho" + r"me|far" + r"m|Use" + r"rs)/[\w.]",
    "a registry's host": r"\b(pyp" + r"i\.org|pythonho" + r"sted|npm" + r"js\.(org|com)|proxy\.go" + r"lang)",
    "a ticket standing in for a reason": r"\b(see|per|for|from|in) iss" + r"ue #?\d",
    "how it was written": r"(co-auth"
    + r"ored-by|genera"
    + r"ted (by|with) (an? )?(AI|LLM|assist"
    + r"ant|language model))",
}

ALLOWED: dict[str, str] = {}
"""Path: the reason why a word may stand there."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", BANNED)
def test_no_file_holds(kind: str) -> None:
    pattern = re.compile(BANNED[kind], re.IGNORECASE if kind == "how it was written" else 0)
    found = [
        f"{shown(path)}:{number}: {line.strip()[:100]}"
        for path in texts()
        if shown(path) not in ALLOWED
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []
