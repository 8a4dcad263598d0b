"""What health keeps of outcomes, packed: a million in a day take some thirty bytes each. Pure.

Rows lie in columns, oldest first, with sums beside them that are kept as rows come and go. How an outcome ended, and
for whom, is the same for many: each row has a number for that. Ids are kept apart from rows, eight bytes each.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import repeat
from math import inf
from operator import itemgetter, sub

from fleetsim.model.errors import Blame
from fleetsim.model.extensions import Usage
from fleetsim.model.text import one_line
from fleetsim.model.work import Cause, Outcome, OutcomeKind, UpdateSource

FAILURES_SHOWN = 10
CONFIDENT_AT = 0.8
"""From here on an agent was sure of itself; failing then is worth a count."""
NANO = 10**9
_SHORT_MAX = 2**16 - 1
COST_NANO_MAX, TOKENS_MAX = 2**63 - 1, 2**32 - 1
"""Of one outcome; what claims more counts as this much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeFacts:
    """What of an outcome health counts, named as there."""

    correlation_id: str
    agent: str
    skill: str
    system_actor: str
    kind: OutcomeKind
    success: bool
    blame: Blame
    ended_at: datetime
    duration_ms: int
    reason: str = ""
    via: UpdateSource = UpdateSource.LOCAL
    usage: Usage | None = None
    cost_usd: float | None = None
    confidence: float | None = None
    cause: Cause | None = None
    agent_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentFailure:
    """One outcome that was not a success, and whose doing that was; ``failure_reason`` is one harmless line."""

    timestamp: datetime
    skill: str
    correlation_id: str
    kind: OutcomeKind
    blame: Blame
    failure_reason: str


# ------------------------------------------------------------------ how they ended


@dataclass(slots=True, eq=False)
class OutcomeGroup:
    """What is the same for ``count`` of the outcomes that are kept."""

    number: int
    kind: OutcomeKind
    via: UpdateSource
    success: bool
    blame: Blame
    cause: Cause | None
    system_actor: str
    count: int = 0

    @property
    def answered(self) -> bool:
        """Whether the agent answers for it (``Outcome.counts``)."""
        return self.success or self.blame is Blame.AGENT


_Alike = tuple[OutcomeKind, UpdateSource, bool, Blame, Cause | None, str]


class OutcomeGroups:
    """All groups, by what they are and by number. One that nothing ended in any more gives its number to another."""

    def __init__(self) -> None:
        self._known: dict[_Alike, OutcomeGroup] = {}
        self._numbered: list[OutcomeGroup] = []
        self._free: list[int] = []

    def __iter__(self) -> Iterator[OutcomeGroup]:
        return iter(self._known.values())

    def __getitem__(self, number: int) -> OutcomeGroup:
        return self._numbered[number]

    def of(self, outcome: Outcome | OutcomeFacts) -> OutcomeGroup:
        """The outcome's own."""
        kind, via, success, blame = outcome.kind, outcome.via, outcome.success, outcome.blame
        alike = (kind, via, success, blame, outcome.cause, outcome.system_actor)
        group = self._known.get(alike)
        return group if group is not None else self._new(alike)

    def _new(self, alike: _Alike) -> OutcomeGroup:
        number = self._free.pop() if self._free else len(self._numbered)
        group = self._known[alike] = OutcomeGroup(number, *alike)
        self._numbered[number : number + 1] = [group]
        return group

    def drop(self, number: int, count: int) -> None:
        """So many outcomes that ended so are gone."""
        group = self._numbered[number]
        group.count -= count
        if not group.count:
            self._free.append(number)
            del self._known[group.kind, group.via, group.success, group.blame, group.cause, group.system_actor]


# ------------------------------------------------------------------ rows


class OutcomeRows:
    """Outcomes of one skill at one agent that went one way: successes, failures of the agent's, or others' doing.

    ``counts`` has how many there are of each group, ``newest`` the newest failures with when they ended and in which
    turn they came, ``last`` the same of the newest outcome and its kind. ``confident_count`` told how confident they
    were, ``confidence_nano`` in all, in billionths; ``sure_count`` at ``CONFIDENT_AT`` or more.
    """

    __slots__ = (
        "_asked",
        "_at",
        "_ending",
        "_first",
        "_more",
        "_ms",
        "_told",
        "confidence_nano",
        "confident_count",
        "cost_nano_usd",
        "counts",
        "input_tokens",
        "last",
        "newest",
        "output_tokens",
        "sure_count",
    )

    def __init__(self) -> None:
        self._at, self._ms, self._ending = array("d"), array("I"), array("H")
        self._first = 0  # what is before it is gone, and cut off when it has become an eighth
        self._more: tuple[array[int], ...] = ()  # nano-USD, tokens in and out, confidence; none until a row has any
        self.cost_nano_usd = self.input_tokens = self.output_tokens = 0
        self.confidence_nano = self.confident_count = self.sure_count = 0
        self._asked: tuple[float, ...] = ()
        self._told: Sequence[int] = ()
        self.counts: dict[int, int] = {}
        self.newest: list[tuple[float, int, RecentFailure]] = []
        self.last: tuple[float, int, OutcomeKind] | None = None

    def __len__(self) -> int:
        return len(self._at) - self._first

    def add(self, at: float, ms: int, group: OutcomeGroup, outcome: Outcome | OutcomeFacts, turn: int) -> None:
        """Count an outcome that ended ``at`` seconds since 1970, in whatever order they come."""
        self._asked = self._told = ()
        times, number = self._at, group.number
        if number > _SHORT_MAX and self._ending.typecode == "H":
            self._ending = array("I", self._ending)
        late = bool(times) and at < times[-1]
        place = bisect_right(times, at, self._first) if late else len(times)
        if late:
            times.insert(place, at)
            self._ms.insert(place, ms)
            self._ending.insert(place, number)
        else:
            times.append(at)
            self._ms.append(ms)
            self._ending.append(number)
            self.last = (at, turn, group.kind)
        group.count += 1
        counts = self.counts
        counts[number] = counts.get(number, 0) + 1
        if self._more or outcome.cost_usd or outcome.usage is not None or outcome.confidence is not None:
            self._add_more(place, outcome)
        if not group.success:
            self._add_failure(at, turn, outcome)

    def _add_more(self, place: int, outcome: Outcome | OutcomeFacts) -> None:
        if not self._more:
            self._more = tuple(array(code, repeat(0, len(self._at) - 1)) for code in "qIII")
        usage, confidence = outcome.usage, outcome.confidence
        values = (
            min(round((outcome.cost_usd or 0.0) * NANO), COST_NANO_MAX),
            min(usage.input_tokens, TOKENS_MAX) if usage is not None else 0,
            min(usage.output_tokens, TOKENS_MAX) if usage is not None else 0,
            0 if confidence is None else 1 + round(confidence * NANO),
        )
        for column, value in zip(self._more, values, strict=True):
            column.insert(place, value)
        self._sum(values, 1)

    def _sum(self, values: Sequence[int], by: int) -> None:
        """Put one row's into the sums, or take it out again."""
        cost, read, written, confidence = values
        self.cost_nano_usd += by * cost
        self.input_tokens += by * read
        self.output_tokens += by * written
        if confidence:
            self.confidence_nano += by * (confidence - 1)
            self.confident_count += by
            self.sure_count += by * (confidence > CONFIDENT_AT * NANO)

    def _add_failure(self, at: float, turn: int, outcome: Outcome | OutcomeFacts) -> None:
        if len(self.newest) == FAILURES_SHOWN:
            if at < self.newest[0][0]:
                return
            del self.newest[0]
        failure = RecentFailure(
            timestamp=outcome.ended_at,
            skill=outcome.skill,
            correlation_id=outcome.correlation_id,
            kind=outcome.kind,
            blame=outcome.blame,
            failure_reason=one_line(outcome.reason or outcome.kind.value),
        )
        insort(self.newest, (at, turn, failure), key=itemgetter(0))

    def drop_before(self, cutoff: float, groups: OutcomeGroups) -> Sequence[int]:
        """Forget what ended before ``cutoff``; the durations of it, in milliseconds."""
        first, upto = self._first, bisect_left(self._at, cutoff, self._first)
        if upto == first:
            return ()
        gone = self._ms[first:upto]
        for number, count in Counter(self._ending[first:upto]).items():
            groups.drop(number, count)
            self.counts[number] -= count
            if not self.counts[number]:
                del self.counts[number]
        if self._more:
            for values in zip(*(column[first:upto] for column in self._more), strict=True):
                self._sum(values, -1)
        self.newest = [kept for kept in self.newest if kept[0] >= cutoff]
        self._first, self._asked, self._told = upto, (), ()
        if not self:
            self.last = None
        if upto * 8 > len(self._at):
            del self._at[:upto]
            for column in (self._ms, self._ending, *self._more):
                del column[:upto]
            self._first = 0
        return gone

    @property
    def oldest_at(self) -> float:
        """When the oldest ended, in seconds since 1970; infinity without any."""
        return self._at[self._first] if self else inf

    def pieces(self, moments: tuple[float, ...]) -> Sequence[int]:
        """How many ended from each of these, which are in order, to the next, and from the last on.

        An agent's rows are asked as its skills' too: so what was told last is kept.
        """
        if self._asked is not moments:
            times, place = self._at, self._first
            places = [place := bisect_left(times, at, place) for at in moments]
            self._asked, self._told = moments, list(map(sub, [*places[1:], len(times)], places))
        return self._told

    def before(self, at: float) -> int:
        """How many ended before."""
        return bisect_left(self._at, at, self._first) - self._first

    def upto(self, at: float) -> int:
        """How many had ended by then."""
        return bisect_right(self._at, at, self._first) - self._first

    def durations(self) -> Sequence[int]:
        """All of them, in milliseconds."""
        return self._ms[self._first :]

    def looks(self) -> Iterator[float]:
        """When they ended, newest first: each of the newest, and fewer and fewer of the older."""
        size = n = len(self)
        while size > 0:
            yield self._at[self._first + size - 1]
            size -= max(1, (n - size) // 64)

    def first_longer_than(self, ms: int) -> float | None:
        """When the oldest ended that took longer."""
        return next((self._at[at] for at in range(self._first, len(self._ms)) if self._ms[at] > ms), None)

    def first_after(self, at: float) -> float | None:
        """When the first ended after that moment."""
        place = bisect_right(self._at, at, self._first)
        return self._at[place] if place < len(self._at) else None

    def last_other(self, numbers: Collection[int]) -> float | None:
        """When the newest ended that has none of these groups."""
        if all(number in numbers for number in self.counts):
            return None
        return next(self._at[at] for at in range(len(self._at) - 1, -1, -1) if self._ending[at] not in numbers)


# ------------------------------------------------------------------ ids

_PARTS = 2**14
_KEY, _ENTRY = 5, 8  # bytes: of a hash, and of it with the second


class RecentIds:
    """Which ids came within some time: of each 54 bits of its hash in this process, and the second.

    Once in a hundred years of a million a day are two taken for one.
    """

    def __init__(self) -> None:
        self._parts: defaultdict[int, bytearray] = defaultdict(bytearray)
        self._cutoff = 0

    def clear(self) -> None:
        """Forget all."""
        self._parts.clear()

    def forget_before(self, at: float) -> None:
        """What was noted with an earlier second may come again; ``at`` is in seconds since 1970."""
        self._cutoff = int(at)

    def add(self, name: str, at: float) -> bool:
        """Note an id ``at`` a moment, in seconds since 1970; False if it is known."""
        number = hash(name)
        part = self._parts[number % _PARTS]
        key = (number // _PARTS & 0xFF_FFFF_FFFF).to_bytes(_KEY, "big")
        place = part.find(key)
        while place >= 0 and (place % _ENTRY or self._old(part, place)):
            place = part.find(key, place + 1)
        if place >= 0:
            return False
        if len(part) % (8 * _ENTRY) == 0:
            while part and self._old(part, 0):
                del part[:_ENTRY]
        part += key
        part += (int(at) & 0xFF_FFFF).to_bytes(_ENTRY - _KEY, "big")
        return True

    def _old(self, part: bytearray, place: int) -> bool:
        second = int.from_bytes(part[place + _KEY : place + _ENTRY], "big")
        return 0 < (self._cutoff - second & 0xFF_FFFF) < 0x80_0000
