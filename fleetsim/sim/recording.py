"""What happened in a run, line by line: the hub's events, what agents know of their tasks, and what was done to them.

A line is a JSON object with ``t`` (virtual seconds since the start) and ``kind``; an event has its class's name as
``type`` and is written as the event stream writes it. It is all that the checker, the
figures and the report read: they share nothing with what ran.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from fleetsim.caller.event_wire import to_wire
from fleetsim.caller.events import Event
from fleetsim.caller.fleet_events import HubStarted
from fleetsim.model.errors import ConfigError
from fleetsim.model.work import Outcome
from fleetsim.sim.agents import TaskTruth
from fleetsim.sim.lines import problem_of

LINE_CHARS_MAX = 4 * 1024 * 1024
LINES_PER_LOOK = 250


class Recorder:
    """Writes a recording as it happens. ``digest`` is of all of it: two runs are the same if theirs are.

    ``progress`` is told the second of the run and the number of lines, now and then.
    """

    def __init__(self, file: IO[str], progress: Callable[[float, int], None] = lambda at_s, lines: None) -> None:
        self._file = file
        self._progress = progress
        self._hash = hashlib.sha256()
        self._last_s = 0.0
        self.lines = 0

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def write(self, at_s: float, kind: str, **members: Any) -> None:
        """One line."""
        line = json.dumps({"t": round(at_s, 6), "kind": kind, **members}, ensure_ascii=False, separators=(",", ":"))
        self._hash.update(line.encode("utf-8", "surrogatepass"))
        self._file.write(line + "\n")
        self._last_s = at_s
        self.lines += 1
        if self.lines % LINES_PER_LOOK == 0:
            self._progress(at_s, self.lines)

    def event(self, at_s: float, event: Event) -> None:
        """One of the hub's."""
        written = to_wire(event, exact=True)
        if isinstance(event, HubStarted):  # the process is this one, and says nothing of the run
            written["payload"] = {**written["payload"], "pid": 0}
        self.write(at_s, "event", type=type(event).__name__, event=written)

    def task(self, at_s: float, truth: TaskTruth) -> None:
        """What an agent knows of a task that has ended."""
        self.write(at_s, "task", **{**asdict(truth), "text": digest_of(truth.text), "chars": len(truth.text)})

    def played(self, *, source: str, wall_s: float, cpu_s: float) -> None:
        """How the run was played and what its digest is, after its last line: no part of what the digest is of."""
        digest = self.digest
        self.write(self._last_s, "played", source=source, digest=digest, wall_s=wall_s, cpu_s=cpu_s)

    def outcome(self, at_s: float, outcome: Outcome, *, accepted: bool) -> None:
        """What the ledger holds of a request at the end; ``accepted`` says whether it holds the request itself."""
        self.write(
            at_s,
            "outcome",
            correlation_id=outcome.correlation_id,
            agent=outcome.agent,
            skill=outcome.skill,
            task_id=outcome.task_id,
            outcome=outcome.kind.value,
            success=outcome.success,
            blame=outcome.blame.value,
            cause=outcome.cause.value if outcome.cause else None,
            reason=outcome.reason[:300],
            via=outcome.via.value,
            counts=outcome.counts,
            duration_ms=outcome.duration_ms,
            agent_ms=outcome.agent_ms,
            cost_usd=outcome.cost_usd,
            text=digest_of(outcome.text),
            chars=len(outcome.text),
            system_actor=outcome.system_actor,
            accepted=accepted,
        )


def digest_of(text: str) -> str:
    """What stands for a text in a recording: two texts are the same if theirs are."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a recording. Raises ConfigError, with the line, where it is none."""
    number = 0
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, text in enumerate(iter(lambda: file.readline(LINE_CHARS_MAX), ""), start=1):
                try:
                    line = json.loads(text)
                except (ValueError, RecursionError):
                    line = None
                if problem := problem_of(line, first=number == 1):
                    made = "one is made with `fleetsim sim SCENARIO --record FILE`"
                    raise ConfigError(f"{path}:{number}: {problem}", hint=made)
                yield line
        if number == 0:
            raise ConfigError(f"{path}:1: not a recording: the file is empty")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
