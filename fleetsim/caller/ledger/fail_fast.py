"""Notices when the ledger fails for good, whichever room meets it first.

What passes by itself (NotAccepting: a full disk, another program's lock) and what is one value's fault
(ValueError) goes through as it is. Anything else (damage, an error nobody foresaw) ends the ledger's use:
from then on every call is refused with the same LedgerBroken, since a damaged file must not be written to.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from fleetsim.caller.ledger.interface import Ledger, LedgerBroken
from fleetsim.model.errors import NotAccepting

HINT = "stop the hub and start it with --salvage: it copies what can be read into a new ledger and keeps the old file"


def heeded(ledger: Ledger, failed: Callable[[LedgerBroken], None]) -> Ledger:
    """The same ledger; ``failed`` is called once, with the first failure that does not pass by itself."""
    return cast(Ledger, _FailFast(ledger, failed))


class _FailFast:
    def __init__(self, ledger: Ledger, failed: Callable[[LedgerBroken], None]) -> None:
        self._ledger = ledger
        self._failed = failed
        self._broken: LedgerBroken | None = None

    def __getattr__(self, name: str) -> Any:
        return partial(self._run, getattr(self._ledger, name))

    async def _run(self, method: Callable[..., Any], *args: Any, **named: Any) -> Any:
        if self._broken is not None:
            raise self._broken
        try:
            return await method(*args, **named)
        except (NotAccepting, ValueError):
            raise
        except Exception as error:
            if self._broken is None:
                self._broken = LedgerBroken(f"the ledger failed: {str(error) or type(error).__name__}", hint=HINT)
                self._failed(self._broken)
            raise self._broken from error
