"""What the caller must never forget: the interface, and its form in SQLite (``sqlite.open_ledger``).

What runs on every day, from a call down to the disk: ``interface`` (what is promised) > ``sqlite`` (values are encoded
at the call) > ``storage`` (transactions, and the thread that runs them) > ``tables`` (SQL) > ``rows`` and ``schema``
(what a row and the file look like), on a connection that ``file`` opened. ``recovery`` says at each opening whether the
file and its log are whole, and makes a new ledger of a damaged one.
"""

from fleetsim.caller.ledger.interface import (
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
