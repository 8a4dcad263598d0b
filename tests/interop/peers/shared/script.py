"""What every peer server does and every peer client expects, read from ``script.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SCRIPT: dict[str, Any] = json.loads(Path(__file__).with_name("script.json").read_text(encoding="utf-8"))
FULL_TEXT = "".join(SCRIPT["chunks"])


def skill_of(text: str) -> str:
    """The skill a message asks for: its first word."""
    return text.split(maxsplit=1)[0].lower() if text.strip() else "complete"
