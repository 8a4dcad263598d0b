"""Named points at which a test may stop the process, raise or wait. In production they do nothing.

Code that promises something across a crash calls ``failpoint("after_this")`` where a crash would hurt most.
Unless a handler is installed that is one global read and one comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Handler: TypeAlias = Callable[[str], None]

_handler: Handler | None = None


def failpoint(point: str) -> None:
    """Tell the installed handler, if there is one, that ``point`` was reached; what it raises is raised here."""
    if _handler is not None:
        _handler(point)


@contextmanager
def installed(handler: Handler) -> Iterator[None]:
    """Call ``handler`` with every point reached, in whichever thread reaches it, until the context is left."""
    global _handler
    before, _handler = _handler, handler
    try:
        yield
    finally:
        _handler = before
