"""Reads recordings: each line becomes an event, of the hub (``fleetsim.events``) or of the run (``recording.events``).

A line without the members of its kind is an error with its number; unknown members and kinds are ignored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple

import msgspec

from fleetsim.events.fleet import StateRead
from fleetsim.events.request import Event
from fleetsim.events.wire import event_classes, from_wire
from fleetsim.model.errors import ConfigError
from fleetsim.model.text import one_line
from fleetsim.recording import events as s

FORMAT = "fleetsim-recording/2"
ROWS_MAX = 1_000
"""Agents, expectations, replicas and violations of one recording that are shown."""
TEXT_CHARS_MAX = 300
LINE_BYTES_MAX = 32 * 1024 * 1024
MADE_WITH = "one is made with `fleetsim sim SCENARIO --record FILE` or, of a hub, with `fleetsim record`"

KINDS: Mapping[str, type[Event]] = {
    "start": s.ScenarioStarted,
    "state": StateRead,
    "calm": s.TrafficEnded,
    "stopped": s.RunStopped,
    "unsettled": s.RequestsUnsettled,
    "end": s.RunEnded,
    "played": s.RecordingEnded,
    "verdict": s.RunJudged,
    "hits": s.MessagesHit,
    "killed": s.HubKilled,
    "lost": s.EventsLost,
    "taken": s.RequestsTaken,
    "complaint": s.FailureLogged,
    "ledger": s.LedgerChecked,
    "late": s.LoopBlocked,
    "health": s.HealthLooked,
    "kept": s.MemoryCounted,
    "keys": s.KeysChecked,
    "reached": s.OriginsReached,
    "submitted": s.RequestSubmitted,
    "asked": s.RequestTimed,
    "refused": s.SubmitRefused,
    "answer": s.AnswerGiven,
    "call": s.CallEnded,
    "forged": s.WebhookForged,
    "repeated": s.WebhooksRepeated,
    "task": s.AgentTaskEnded,
    "outcome": s.OutcomeRecorded,
    "due": s.SlotsCounted,
    "edited": s.CeremonyEdited,
}
"""The class of each kind of line, beside ``event``, ``trouble`` and ``past`` (only in recordings of older versions)."""
_TROUBLE: Mapping[Any, type[Event]] = {"begins": s.TroubleBegan, "ends": s.TroubleEnded}
_PUBLISHED = frozenset(kind.__name__ for kind in event_classes())


class RecordingLine(NamedTuple):
    """One line, by its number from 1 on. ``past``: the hub published the event before the recording began.

    ``event`` is None for a kind that this version does not know, and for an event that nobody asked for. Of a
    ``RunEvent`` the moment ``at`` is not set: only a player knows the hub's clock.
    """

    number: int
    at_s: float
    event: Event | None
    past: bool = False


def read_line(line: Any, number: int, wanted: Container[str] | None = None) -> RecordingLine:
    """One line of a recording. Of the hub's events only the classes ``wanted``, by name, are read; all if None. Raises
    ValueError for a wrong line."""
    first = number == 1
    if first and (not isinstance(line, dict) or line.get("format") != FORMAT):
        raise ValueError(f"not a recording of this version of fleetsim ({FORMAT})")
    if not isinstance(line, dict) or not isinstance(kind := line.get("kind"), str):
        raise ValueError("not a line of a recording")
    if first is not (kind == "start"):
        raise ValueError("a recording has one start, in its first line")
    try:
        at_s = msgspec.convert(line.get("t"), s.Second)
        if kind in {"event", "past"}:
            return RecordingLine(number, at_s, _of_hub(line, wanted), past=kind == "past")
        of = _TROUBLE[line.get("phase")] if kind == "trouble" else KINDS.get(kind)
        if of is None:
            return RecordingLine(number, at_s, None)
        members = _harmless(line) if of in s.SHOWN else line
        return RecordingLine(number, at_s, msgspec.convert({**members, "line": number}, of))
    except (ValueError, KeyError, RecursionError) as error:
        raise ValueError(one_line(f"not a line of a recording: {kind}: {error}")) from None


def _of_hub(line: Mapping[str, Any], wanted: Container[str] | None) -> Event | None:
    """Raises ValueError if the event cannot be read as the class that the line names."""
    name = line.get("type")
    if not isinstance(name, str):
        raise ValueError("its event has no type")
    if wanted is not None and name not in wanted:
        return None
    event = event_of(line.get("event"))
    if name in _PUBLISHED and type(event).__name__ != name:
        raise ValueError(f"its event cannot be read as {name}")
    return event


def event_of(row: Any) -> Event:
    """Reads an event of the hub. Raises ValueError."""
    event = from_wire(row) if isinstance(row, dict) and isinstance(row.get("seq"), int) else None
    if event is None:
        raise ValueError("an event has a number (seq), a moment (at) and a topic")
    return event


def _harmless(value: Any) -> Any:
    """A value whose texts may be shown on a terminal, and whose lists are not endless."""
    match value:
        case str():
            return one_line(value, TEXT_CHARS_MAX)
        case dict():
            return {_harmless(key): _harmless(item) for key, item in list(value.items())[:ROWS_MAX]}
        case list():
            return [_harmless(item) for item in value[:ROWS_MAX]]
        case _:
            return value


class RecordingReader:
    """Reads a recording line by line, also while it is written. Open it with ``with``. ``wanted`` as ``read_line``.

    Every method raises ConfigError, with the line, if the file is not a recording or was replaced.
    """

    def __init__(self, path: Path, wanted: Container[str] | None = None) -> None:
        self.path = path
        self.number = 0
        """Of the line read last, from 1 on."""
        self._wanted = wanted
        self._file: IO[bytes] | None = None
        self._part, self._at = b"", 0

    def __enter__(self) -> RecordingReader:
        try:
            self._file = self.path.open("rb")
        except OSError as error:
            raise ConfigError(f"{self.path}: {error.strerror}", hint=MADE_WITH) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    @property
    def partial(self) -> bool:
        """Whether the file ends, so far, in the middle of a line."""
        return bool(self._part)

    def read(self) -> RecordingLine | None:
        """The next line; None while it is incomplete."""
        assert self._file is not None
        try:
            more = self._file.readline(LINE_BYTES_MAX + 1 - len(self._part))
            if not more and os.fstat(self._file.fileno()).st_size < self._at:
                raise self._wrong("the file was replaced while it was read", hint="open it again")
        except OSError as error:
            raise ConfigError(f"{self.path}: {error.strerror}") from None
        self._at += len(more)
        self._part += more
        if not self._part.endswith(b"\n"):
            if len(self._part) > LINE_BYTES_MAX:
                self.number += 1
                raise self._wrong(f"not a line of a recording: more than {LINE_BYTES_MAX:,} bytes")
            return None
        text, self._part = self._part, b""
        return self._line(text)

    def rewind(self) -> None:
        """To the first line again."""
        assert self._file is not None
        self._file.seek(0)
        self.number = self._at = 0
        self._part = b""

    def last(self) -> RecordingLine | None:
        """The line without a line feed at the end of the file; None if there is none."""
        return self._line(self._part) if self._part else None

    def _line(self, text: bytes) -> RecordingLine:
        self.number += 1
        try:
            line = msgspec.json.decode(text)
        except (ValueError, RecursionError):
            try:  # text that is no Unicode, or nested deeply
                line = json.loads(text.decode("utf-8", "replace"))
            except (ValueError, RecursionError):
                line = None
        try:
            return read_line(line, self.number, self._wanted)
        except ValueError as error:
            raise self._wrong(str(error)) from None

    def _wrong(self, problem: str, *, hint: str = MADE_WITH) -> ConfigError:
        return ConfigError(f"{self.path}:{self.number}: {problem}", hint=hint)


def lines_of(path: Path, wanted: Container[str] | None = None) -> Iterator[RecordingLine]:
    """The lines of a recording. Raises ConfigError, with the line."""
    with RecordingReader(path, wanted) as reader:
        while (line := reader.read()) is not None:
            yield line
        if (line := reader.last()) is not None:
            yield line
        if reader.number == 0:
            raise ConfigError(f"{path}:1: not a recording: the file is empty", hint=MADE_WITH)
