"""Through how many hubs a request has come: hubs may stand behind hubs, and must not send work round in a circle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HOPS_MAX = 4
"""So many hubs may pass a request on; the next one refuses it."""

HOPS_HEADER = "X-Fleetsim-Hops"
HOPS_KEY = "fleetsim.hops"
"""In a message's metadata, for agents between hubs that pass metadata on and not headers."""

_DIGITS_MAX = 6


def hops_of(metadata: Mapping[str, Any]) -> int:
    """How many hubs the metadata tells of; 0 if of none. Raises ValueError for what is no count."""
    told = metadata.get(HOPS_KEY, 0)
    if isinstance(told, float) and told.is_integer():
        told = int(told)  # 1.0's JSON knows one kind of number
    if not isinstance(told, int) or isinstance(told, bool) or told < 0:
        raise ValueError(f"{HOPS_KEY} is a whole number")
    return told


def hops_in(header: str | None) -> int:
    """The same by the header. Raises ValueError."""
    text = "0" if header is None else header.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
        raise ValueError(f"{HOPS_HEADER} is a whole number")
    return int(text)
