"""Named points at which a test may stop the process, raise or wait. In production they do nothing. Code calls
``failpoints.reached("after_this")`` as an attribute of this module, since a test replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Handler: TypeAlias = Callable[[str], object]

reached: Handler = bool
"""Called with the name of each point. Unless a test installs a handler, it is a built-in function without effect."""


@contextmanager
def installed(handler: Handler) -> Iterator[None]:
    """Call ``handler`` with every point reached, in whichever thread reaches it, until the context is left.

    An error of the handler is raised at the point.
    """
    global reached
    before, reached = reached, handler
    try:
        yield
    finally:
        reached = before
