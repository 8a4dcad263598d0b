"""Where things are."""

from __future__ import annotations

from pathlib import Path

INTEROP = Path(__file__).resolve().parents[1]
ROOT = INTEROP.parents[1]
PEERS = INTEROP / "peers"
SHARED = PEERS / "shared"
CACHE = ROOT / ".interop"
LOGS = CACHE / "logs"
PAGE = ROOT / "docs" / "reference" / "interop.md"
FRAMEWORKS_PAGE = PAGE.with_name("frameworks.md")
FACTS = ROOT.parent / "shared" / "reference" / "interop.md"
"""The notes on real peers that the table cites; they lie beside the project, not in it."""
