"""What the caller must never forget: ``records`` are the values, ``sqlite.Ledger`` keeps them in one file.

What runs on every day, from a call down to the disk: ``sqlite`` (what is promised; values are encoded at the call) >
``storage`` (transactions, and the thread that runs them) > ``tables`` and ``journal`` (rows and SQL; ``schema`` says
what the file looks like), on a connection that ``file`` opened. ``recovery`` says at each opening whether the file and
its log are whole, and makes a new ledger of a damaged one.
"""

from fleetsim.caller.ledger.records import (
    CardSnapshot,
    EarlyWebhook,
    KnownId,
    LedgerBroken,
    LedgerCopied,
    LedgerDamaged,
    LedgerLocked,
    OtherWay,
    Phase,
    QuestionRecord,
    QuestionState,
    RequestNote,
    RequestRecord,
    RunRecord,
    RunStatus,
    SlotClaim,
)

__all__ = [
    "CardSnapshot",
    "EarlyWebhook",
    "KnownId",
    "LedgerBroken",
    "LedgerCopied",
    "LedgerDamaged",
    "LedgerLocked",
    "OtherWay",
    "Phase",
    "QuestionRecord",
    "QuestionState",
    "RequestNote",
    "RequestRecord",
    "RunRecord",
    "RunStatus",
    "SlotClaim",
]
