"""The conduct of every peer server and the expectations of every peer client, read from ``script.json``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

SCRIPT: dict[str, Any] = json.loads(Path(__file__).with_name("script.json").read_text(encoding="utf-8"))
SCRIPT["slow_s"] = float(os.environ.get("INTEROP_SLOW_S", SCRIPT["slow_s"]))
FULL_TEXT = "".join(SCRIPT["chunks"])


def skill_of(text: str) -> str:
    """The skill a message asks for: its first word."""
    return text.split(maxsplit=1)[0].lower() if text.strip() else "complete"


def executed(text: str) -> None:
    """Record one execution in the file that INTEROP_EXECUTIONS names, if it does, to be counted."""
    if "INTEROP_EXECUTIONS" in os.environ:
        with Path(os.environ["INTEROP_EXECUTIONS"]).open("a", encoding="utf-8") as book:
            book.write(text + "\n")
