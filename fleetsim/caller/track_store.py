"""The open tracks, and when each falls due. One that only waits for its next look is a string of bytes until then.

A track is some thirty objects, 2.4 KB. Of 100,000 that are looked at every half minute nearly all wait, and the
collector of cycles would visit all of their objects. Bytes weigh a quarter and hold nothing that it looks at.
"""

from __future__ import annotations

import marshal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

from fleetsim.caller.ledger import RequestRecord
from fleetsim.caller.timing_wheel import TimingWheel
from fleetsim.caller.track import Timer, Track
from fleetsim.model.changing import copier

PARK_S = 5.0
"""A track that is not looked at for so long is packed; a young task, looked at often, would not be worth it."""

PACKED_BYTES_MAX = 4_096
"""Larger ones stay as they are: to pack and unpack them at each look would cost more than they weigh."""

_EPOCH, _MICROSECOND, _NO_OFFSET = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1), timedelta()
_PLAIN = frozenset({type(None), bool, int, float, str, bytes, frozenset})
"""What ``marshal`` writes by itself, as it does dictionaries of them; it refuses all else."""

_NESTED = frozenset({tuple, list})


class TrackStore:
    """Tracks by correlation id, oldest first. A track that is put in is a value: it is not changed any more.

    ``due`` is called with each whose time has come.
    """

    def __init__(self, due: Callable[[str], None]) -> None:
        self.wheel = TimingWheel(due)
        self._tracks: dict[str, Track | bytes] = {}
        self._places: Counter[tuple[str, str]] = Counter()
        self._last: tuple[bytes, Track] | None = None

    def __len__(self) -> int:
        return len(self._tracks)

    def __contains__(self, correlation_id: str) -> bool:
        return correlation_id in self._tracks

    def __iter__(self) -> Iterator[Track]:
        return map(self._whole, tuple(self._tracks.values()))

    def get(self, correlation_id: str) -> Track | None:
        """One track."""
        found = self._tracks.get(correlation_id)
        return found if found is None or type(found) is Track else self._whole(found)

    def awake(self) -> Iterator[Track]:
        """Those that may have something under way, or a question."""
        return (found for found in tuple(self._tracks.values()) if isinstance(found, Track))

    def naming(self, text: str) -> Iterator[Track]:
        """All in which some text may be ``text``."""
        found, written = tuple(self._tracks.values()), text.encode("utf-8", "surrogatepass")
        return (self._whole(one) for one in found if isinstance(one, Track) or written in one)

    def places(self) -> Counter[tuple[str, str]]:
        """How many are at work at which agent's which address."""
        return self._places

    def add(self, track: Track) -> None:
        """Take on a new one."""
        record = track.record
        self._tracks[record.request.correlation_id] = track
        self._places[record.agent, record.sent_to] += 1

    def put(self, before: Track, track: Track, *, at: float) -> None:
        """What became of one at that moment."""
        old, new = before.record, track.record
        was, wake = min(before.timers.values(), default=None), min(track.timers.values(), default=None)
        if new is not old and (new.url, new.rpc_url) != (old.url, old.rpc_url):
            self._leave(old)
            self._places[new.agent, new.sent_to] += 1
        waits = wake is not None and wake >= at + PARK_S and _waits(track)
        self._tracks[new.request.correlation_id] = (packed(track) if waits else None) or track
        self.wheel.move(new.request.correlation_id, was, wake)

    def pop(self, correlation_id: str) -> None:
        """It is over."""
        track = self.get(correlation_id)
        if track is not None:
            del self._tracks[correlation_id]
            self._leave(track.record)

    def _leave(self, record: RequestRecord) -> None:
        place = record.agent, record.sent_to
        self._places[place] -= 1
        if not self._places[place]:
            del self._places[place]

    def _whole(self, found: Track | bytes) -> Track:
        if isinstance(found, Track):
            return found
        if self._last is None or self._last[0] is not found:  # who looks at one often looks again
            self._last = found, unpacked(found)
        return self._last[1]


def _waits(track: Track) -> bool:
    """Whether nothing is under way for it but time."""
    record = track.record
    return (
        record.task is not None
        and track.polling.began is None
        and not (track.streaming.open or track.streaming.joining or track.sending.in_air)
        and track.asking.question is None
        and track.asking.answer is None
        and not record.request.parts
        and not record.task.artifacts
    )


# -- packing ------------------------------------------------------------------------------------------------------
# A record is a list of the values of those members that are not the default itself, and before them the number of its
# form: which class it is of, and which members these are. There are some dozens of forms, told once for all records.

_ENUM, _MOMENT, _TIMERS = -1, -2, -3
"""In place of a form's number."""


def packed(track: Track) -> bytes | None:
    """A track as bytes; None if it is too large, or holds something that has no such form."""
    try:
        written = marshal.dumps(_written(track))
    except ValueError:
        return None
    return written if len(written) <= PACKED_BYTES_MAX else None


def unpacked(written: bytes) -> Track:
    """The track that was packed, by this process."""
    track: Track = _read(marshal.loads(written))
    return track


class _Kind:
    """How records of one class are packed; ``forms`` are numbered by members, a bit for each."""

    def __init__(self, record: type[Any]) -> None:
        self.changed, setters = copier(record)  # type: ignore[arg-type]  # a class can be a key
        self.members = tuple((1 << at, one.name, one.default) for at, one in enumerate(fields(record)))
        self.setters = tuple(setters.values())
        self.plain = object.__new__(record)
        for (_, _, default), assign in zip(self.members, self.setters, strict=True):
            assign(self.plain, None if default is MISSING else default)
        self.forms: dict[int, int] = {}

    def form(self, members: int) -> int:
        """The number of the form with these members."""
        number = self.forms.get(members)
        if number is None:
            number = self.forms[members] = len(_forms)
            set_ = (assign for (bit, _, _), assign in zip(self.members, self.setters, strict=True) if members & bit)
            _forms.append((self, tuple(set_)))
        return number


_kinds: dict[type[Any], _Kind] = {}
_forms: list[tuple[_Kind, tuple[Callable[[Any, Any], None], ...]]] = []
_enums: list[Enum] = []
_enum_numbers: dict[int, int] = {}
"""By identity: members of two classes may be equal."""


def _written(value: Any) -> Any:
    kind = type(value)
    if (known := _kinds.get(kind)) is not None:
        members, line = 0, [0]
        for bit, name, default in known.members:
            member = getattr(value, name)
            if member is not default:
                members |= bit
                line.append(member if type(member) in _PLAIN else _written(member))
        line[0] = known.form(members)
        return line
    if kind is tuple:
        return tuple(map(_written, value))
    if kind is dict and value and type(next(iter(value))) is Timer:
        return [_TIMERS, *(part for timer, due in value.items() for part in (_enum_number(timer), due))]
    if kind in _PLAIN or kind is dict:
        return value
    # What was read from the ledger names UTC by an object of pydantic's.
    if kind is datetime and (value.tzinfo is UTC or value.utcoffset() == _NO_OFFSET):
        return [_MOMENT, (value - _EPOCH) // _MICROSECOND]
    if isinstance(value, Enum):
        return [_ENUM, _enum_number(value)]
    if not (is_dataclass(value) and hasattr(kind, "__slots__")):
        raise ValueError(f"a {kind.__name__} is not packed")
    _kinds[kind] = _Kind(kind)
    return _written(value)


def _enum_number(member: Enum) -> int:
    if id(member) not in _enum_numbers:
        _enum_numbers[id(member)] = len(_enums)
        _enums.append(member)
    return _enum_numbers[id(member)]


def _read(written: Any) -> Any:
    if type(written) is tuple:
        return tuple(map(_read, written))
    if type(written) is not list:
        return written
    values = iter(written)
    number = next(values)
    if number == _ENUM:
        return _enums[next(values)]
    if number == _MOMENT:
        return _EPOCH + next(values) * _MICROSECOND
    if number == _TIMERS:
        return {_enums[timer]: due for timer, due in zip(values, values, strict=True)}
    kind, setters = _forms[number]
    record = kind.changed(kind.plain, {})
    for assign, value in zip(setters, values, strict=True):
        assign(record, _read(value) if type(value) in _NESTED else value)
    return record
