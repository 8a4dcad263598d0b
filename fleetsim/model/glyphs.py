"""The glyph of each state, in every place that a person reads, and its replacement in ASCII. Pure."""

from __future__ import annotations

from collections.abc import Mapping

GLYPH: Mapping[str, str] = {
    "up": "●",
    "degraded": "◐",
    "down": "○",
    "too few": "◌",
    "unknown": "?",
    "paused": "‖",
    "submitted": "·",
    "working": "▶",
    "input-required": "?",
    "auth-required": "!",
    "completed": "✓",
    "failed": "✗",
    "canceled": "⊘",
    "rejected": "⊗",
    "undeliverable": "⊗",
    "lost": "✗",
    "expired": "◷",
    "protocol_error": "✗",
    "running": "▶",
    "success": "✓",
    "failure": "✗",
    "timeout": "◷",
    "missed": "–",
    "skipped": "–",
}
"""By the word of the hub: health of an agent, state of a task, kind of an outcome, status of a ceremony's run."""

ASCII: Mapping[str, str] = {
    **dict(zip("●◐○◌‖·▶✓✗⊘⊗◷–", "+~-:=.>vxo#T-", strict=True)),
    **dict(zip("▌…→←↑↓▲▼│─┄“”’•", '>~><^v^v|--""\'*', strict=True)),
    **dict(zip("▁▂▃▄▅▆▇", "_.:-=+#", strict=True)),
    "↵": "ret",
    "?": "?",
    "!": "!",
}
"""The replacement of each glyph with ``--ascii``."""
