"""What the caller must never forget: the interface (here) and its SQLite form (``sqlite.open_ledger``)."""

from fleetsim.caller.ledger.interface import (
    CardSnapshot,
    Ledger,
    LedgerBroken,
    LedgerDamaged,
    LedgerLocked,
    Phase,
    QuestionRecord,
    QuestionState,
    RequestRecord,
    RunRecord,
    RunStatus,
    SlotClaim,
)

__all__ = [
    "CardSnapshot",
    "Ledger",
    "LedgerBroken",
    "LedgerDamaged",
    "LedgerLocked",
    "Phase",
    "QuestionRecord",
    "QuestionState",
    "RequestRecord",
    "RunRecord",
    "RunStatus",
    "SlotClaim",
]
