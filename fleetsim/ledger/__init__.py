"""The durable memory: one interface, with forms in a SQLite file, in memory and in PostgreSQL.

Read ``interface`` first; ``records`` are the values, ``bodies`` their JSON. Simulations run ``sqlite`` without threads.
"""

from fleetsim.ledger.interface import Ledger, LedgerLimits, SharedLedger
from fleetsim.ledger.records import (
    CardSnapshot,
    EarlyWebhook,
    LeaseLost,
    LedgerBroken,
    LedgerCopied,
    LedgerDamaged,
    LedgerLocked,
    LedgerMoved,
    MessageKind,
    NoticeRecord,
    NoticeState,
    PassedMessage,
    RequestNote,
    RunRecord,
    RunStatus,
    SlotClaim,
    TakenOver,
)

__all__ = [
    "CardSnapshot",
    "EarlyWebhook",
    "LeaseLost",
    "Ledger",
    "LedgerBroken",
    "LedgerCopied",
    "LedgerDamaged",
    "LedgerLimits",
    "LedgerLocked",
    "LedgerMoved",
    "MessageKind",
    "NoticeRecord",
    "NoticeState",
    "PassedMessage",
    "RequestNote",
    "RunRecord",
    "RunStatus",
    "SharedLedger",
    "SlotClaim",
    "TakenOver",
]
