"""Exit codes, and the one place where an error becomes one of them (docs/reference/cli.md)."""

from __future__ import annotations

from enum import IntEnum

from fleetsim.model.errors import (
    AuthRefused,
    ConfigError,
    FleetsimError,
    HttpRefused,
    TimedOut,
    TransportError,
    UnfitAnswer,
    UnknownTarget,
)
from fleetsim.model.limits import TooMuch


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    AUTH = 4
    TIMEOUT = 5
    NOTHING_RAN = 6
    WAITING = 7
    VIOLATED = 8
    INTERRUPTED = 130


class NoAnswer(FleetsimError):
    """A turn through the hub came to no end of the agent's own; ``exit_code`` says which way."""

    def __init__(self, reason: str, exit_code: Exit, correlation_id: str) -> None:
        super().__init__(reason, hint=f"fleetsim task get {correlation_id}")
        self.exit_code = exit_code


NOBODY_THERE = frozenset({404, 410, 502, 504})
"""HTTP statuses that mean that nothing is at the address; any other status is from a server that is there."""


def exit_for(error: FleetsimError) -> Exit:
    match error:
        case NoAnswer():
            return error.exit_code
        case ConfigError() | UnknownTarget() | TooMuch() | UnfitAnswer():
            return Exit.USAGE
        case AuthRefused():
            return Exit.AUTH
        case TimedOut():
            return Exit.TIMEOUT
        case TransportError():
            return Exit.UNREACHABLE
        case HttpRefused(status=status) if status in NOBODY_THERE:
            return Exit.UNREACHABLE
        case _:
            return Exit.FAILED


def code_for(error: FleetsimError) -> str:
    """A stable name for scripts, e.g. ``FLEETSIM_ERR_CONFIG_ERROR``."""
    words = "".join(f"_{c}" if c.isupper() else c for c in type(error).__name__).upper()
    return f"FLEETSIM_ERR{words}"
