"""What the caller must never forget: the interface (here) and its SQLite form (``sqlite.open_ledger``)."""

from fleetsim.caller.ledger.interface import (
    PREFIX_CHARS_MIN,
    CardSnapshot,
    EarlyWebhook,
    KnownId,
    Ledger,
    LedgerBroken,
    LedgerDamaged,
    LedgerLocked,
    OtherWay,
    Phase,
    QuestionRecord,
    QuestionState,
    RequestRecord,
    RunRecord,
    RunStatus,
    SlotClaim,
)

__all__ = [
    "PREFIX_CHARS_MIN",
    "CardSnapshot",
    "EarlyWebhook",
    "KnownId",
    "Ledger",
    "LedgerBroken",
    "LedgerDamaged",
    "LedgerLocked",
    "OtherWay",
    "Phase",
    "QuestionRecord",
    "QuestionState",
    "RequestRecord",
    "RunRecord",
    "RunStatus",
    "SlotClaim",
]
