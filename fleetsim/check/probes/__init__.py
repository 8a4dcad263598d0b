"""The probes, one for each row; importing this package registers them all."""

from __future__ import annotations

from fleetsim.check.probes import (
    card,
    credentials,
    envelope,
    legacy,
    methods,
    push,
    push_delivery,
    push_refusal,
    rejoin,
    rest,
    sending,
    store,
    streams,
    tasks,
)

__all__ = [
    "card",
    "credentials",
    "envelope",
    "legacy",
    "methods",
    "push",
    "push_delivery",
    "push_refusal",
    "rejoin",
    "rest",
    "sending",
    "store",
    "streams",
    "tasks",
]
