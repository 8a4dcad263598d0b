"""Exit codes, and the one place where an error becomes one of them (docs/reference/cli.md)."""

from __future__ import annotations

from enum import IntEnum

from fleetsim.model.asking import UnfitAnswer
from fleetsim.model.errors import (
    AuthRefused,
    ConfigError,
    FleetsimError,
    HttpRefused,
    TimedOut,
    TransportError,
    UnknownTarget,
)
from fleetsim.model.limits import TooMuch


class Exit(IntEnum):
    """What an exit code means."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    AUTH = 4
    TIMEOUT = 5
    NOTHING_RAN = 6
    WAITING = 7
    INTERRUPTED = 130


def exit_for(error: FleetsimError) -> Exit:
    """The exit code of an error."""
    match error:
        case ConfigError() | UnknownTarget() | TooMuch() | UnfitAnswer():
            return Exit.USAGE
        case AuthRefused():
            return Exit.AUTH
        case TimedOut():
            return Exit.TIMEOUT
        case TransportError() | HttpRefused():
            return Exit.UNREACHABLE
        case _:
            return Exit.FAILED


def code_for(error: FleetsimError) -> str:
    """A stable name for scripts, e.g. ``FLEETSIM_ERR_CONFIG_ERROR``."""
    words = "".join(f"_{c}" if c.isupper() else c for c in type(error).__name__).upper()
    return f"FLEETSIM_ERR{words}"
