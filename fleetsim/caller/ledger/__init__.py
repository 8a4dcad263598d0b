"""The caller's durable memory.

``records`` are the values and ``bodies`` their JSON; ``interface.Ledger`` is what the caller may ask for. ``sqlite`` is
the form that keeps them in a file or in memory; a simulation runs it without threads.
"""

from fleetsim.caller.ledger.interface import Ledger, LedgerLimits, SharedLedger
from fleetsim.caller.ledger.records import (
    AgentRoute,
    CardSnapshot,
    EarlyWebhook,
    HubMember,
    KnownId,
    LeaseLost,
    LedgerBroken,
    LedgerCopied,
    LedgerDamaged,
    LedgerLocked,
    LedgerMoved,
    MessageKind,
    OtherWay,
    PassedMessage,
    Phase,
    QuestionRecord,
    QuestionState,
    RequestNote,
    RequestRecord,
    RunRecord,
    RunStatus,
    SlotClaim,
    TakenOver,
)

__all__ = [
    "AgentRoute",
    "CardSnapshot",
    "EarlyWebhook",
    "HubMember",
    "KnownId",
    "LeaseLost",
    "Ledger",
    "LedgerBroken",
    "LedgerCopied",
    "LedgerDamaged",
    "LedgerLimits",
    "LedgerLocked",
    "LedgerMoved",
    "MessageKind",
    "OtherWay",
    "PassedMessage",
    "Phase",
    "QuestionRecord",
    "QuestionState",
    "RequestNote",
    "RequestRecord",
    "RunRecord",
    "RunStatus",
    "SharedLedger",
    "SlotClaim",
    "TakenOver",
]
