"""The log as it leaves the process: harmless to a terminal, no record passing for another, no secret in it.

Each package keeps secrets out of what it logs; this is the second line behind them (threat T-41). It hides
values: those of environment variables named like secrets, the hub's own keys, and whatever has the shape of
a callback token or a signing secret.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterable, Mapping

from fleetsim.model.text import neutralise

HIDDEN = "(hidden)"
SECRET_CHARS_MIN = 8
"""A shorter value is not hidden: it would hide ordinary words, and protects little."""

_NAMED = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|PRIVATE")
_SHAPED = re.compile(r"whsec_[A-Za-z0-9+/=_-]+|[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])", re.ASCII)


class SafeFormatter(logging.Formatter):
    """Formats records so that only the first line of one begins at the margin."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
        self._hidden: set[str] = set()

    def hide(self, secrets: Iterable[str]) -> None:
        """Blot these out from now on."""
        self._hidden |= {secret for secret in secrets if len(secret) >= SECRET_CHARS_MIN}

    def hide_environment(self, env: Mapping[str, str]) -> None:
        """Blot out the values of variables whose names say that they hold a secret."""
        self.hide(value.strip() for name, value in env.items() if _NAMED.search(name.upper()))

    def clean(self, text: str) -> str:
        """Text without secrets, harmless to a terminal."""
        for secret in sorted(self._hidden, key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        return neutralise(_SHAPED.sub(HIDDEN, text))

    def format(self, record: logging.LogRecord) -> str:
        return self.clean(super().format(record)).replace("\n", "\n  | ")

    def trace(self, error: BaseException) -> str:
        return self.clean("".join(traceback.format_exception(error))).rstrip("\n")


LOG_FORMAT = SafeFormatter()
"""The process's one formatter: what it hides is hidden in every log."""
