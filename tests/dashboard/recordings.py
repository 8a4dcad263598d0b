"""Recordings of a made-up run: an hour's journal as the hub's events, with the lines that a simulator adds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from fleetsim.events.request import Event, OutcomeDecided
from fleetsim.events.wire import to_wire
from fleetsim.recording.reader import FORMAT
from tests.dashboard.driver import EVENTS
from tests.dashboard.journal import NOW

BEGAN = NOW - timedelta(minutes=20)
DURATION_S = 1_200.0
EXPECT = ("fleet.success_rate >= 50%", "quinn.lost == 0", "fleet.requests >= 100000")


def start(**members: Any) -> dict[str, Any]:
    return {
        "t": 0.0,
        "kind": "start",
        "format": FORMAT,
        "scenario": "an-hour",
        "seed": 42,
        "start": BEGAN.isoformat(),
        "duration_s": DURATION_S,
        "agents": [],
        "replicas": {},
        "expect": list(EXPECT),
        **members,
    }


def told(events: Iterable[Event]) -> list[dict[str, Any]]:
    """The events of a hub as lines."""
    lines = []
    for event in events:
        written = to_wire(event, exact=True)
        if isinstance(event, OutcomeDecided):
            written["payload"] |= {"endedAt": written["at"]}
        at_s = round((event.at - BEGAN).total_seconds(), 6)
        lines.append({"t": at_s, "kind": "event", "type": type(event).__name__, "event": written})
    return lines


def trouble(t: float, phase: str, fault: str = "hang", agent: str | None = "quinn", **members: Any) -> dict[str, Any]:
    return {"t": t, "kind": "trouble", "phase": phase, "fault": fault, "agent": agent, **members}


def health(t: float, **agents: str) -> dict[str, Any]:
    seen = {name: {"health": word, "outcomes": 1} for name, word in agents.items()}
    return {"t": t, "kind": "health", "now": (BEGAN + timedelta(seconds=t)).isoformat(), "agents": seen}


def verdict(t: float = DURATION_S, **members: Any) -> dict[str, Any]:
    figures = [{"expect": text, "figure": 0.5, "holds": at != 2} for at, text in enumerate(EXPECT)]
    whole = {"result": "unexpected", "expectations": figures, "rules": 14, "cases": 1_234, "violations": 0, "first": []}
    return {"t": t, "kind": "verdict", **whole, **members}


def a_run() -> list[dict[str, Any]]:
    """Twenty minutes with one trouble that is over and one that continues, without a verdict yet."""
    added = [
        health(60.0, quinn="up", flaky="up"),
        trouble(300.0, "begins", said="hang of quinn at 5m for 2m"),
        health(360.0, quinn="down", flaky="degraded"),
        trouble(420.0, "ends"),
        trouble(600.0, "begins", "lost-webhooks", None, said="lost-webhooks, 50% of messages"),
        health(660.0, quinn="up", flaky="degraded"),
        {"t": 700.0, "kind": "complaint", "said": "a worker failed"},
    ]
    lines = sorted([*told(EVENTS), *added], key=lambda line: line["t"])
    return [start(), *lines]


def write(path: Path, lines: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path
