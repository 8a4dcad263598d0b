"""The caller's durable memory.

``records`` are the values and ``bodies`` their JSON; ``interface.Ledger`` is what the caller may ask for. ``sqlite`` is
the form that keeps them in a file or in memory; a simulation runs it without threads.
"""

from fleetsim.caller.ledger.interface import Ledger, LedgerLimits
from fleetsim.caller.ledger.records import (
    AgentRoute,
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
    "AgentRoute",
    "CardSnapshot",
    "EarlyWebhook",
    "KnownId",
    "Ledger",
    "LedgerBroken",
    "LedgerCopied",
    "LedgerDamaged",
    "LedgerLimits",
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
