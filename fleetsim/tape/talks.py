"""The conversations of a tape: each recorded exchange with its place in one. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from fleetsim.model.call import Operation, PushConfig
from fleetsim.tape.tape import HOOKS, Tape, TapeRequest, TapeRow, made_ids, params_of, push_configs, read_request
from fleetsim.wire.cards import read_card

Matching: TypeAlias = Literal["text", "skill", "order"]
MOVES = frozenset({Operation.SEND, Operation.STREAM, Operation.CANCEL})
"""The operations that change a task."""


@dataclass(slots=True, eq=False)
class TalkState:
    """A conversation, on the tape or with a present caller: its moves in order, the second of the last one, and for
    each of its ids the number of moves before it. ``names`` are the present ids by those of the tape, ``hooks`` the
    present webhooks by their numbers there, and ``now_at`` the conversation on the tape.
    """

    history: list[tuple[str, ...]] = field(default_factory=list)
    moved_s: float = 0.0
    owned: dict[str, int] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    hooks: dict[int, PushConfig] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)
    now_at: TalkState | None = None

    def move(self, key: tuple[str, ...], at_s: float) -> None:
        self.history.append(key)
        self.moved_s = at_s

    def own(self, ids: Iterable[str], talks: dict[str, TalkState]) -> None:
        for name in ids:
            self.owned.setdefault(name, len(self.history))
            talks.setdefault(name, self)

    @classmethod
    def find(cls, asked: TapeRequest, talks: Mapping[str, TalkState]) -> tuple[TalkState, Any]:
        """The conversation that a request continues and its place there; "?" if no reply named its task."""
        talk = talks.get(asked.task_id) or talks.get(asked.context_id)
        if asked.task_id and (talk is None or asked.task_id not in talk.owned):
            return cls(), "?"
        if talk is None:
            return cls(), ""
        return talk, (*talk.history, talk.owned[asked.task_id or asked.context_id], bool(asked.task_id))


@dataclass(slots=True, eq=False)
class TapeEntry:
    """A recorded exchange and its place in a conversation, ``since_s`` seconds after the last move. ``made`` are the
    ids in its replies, ``hooks`` the webhooks that it registers, and ``webhooks`` those that follow. ``line`` is that
    of the file."""

    row: TapeRow
    asked: TapeRequest
    key: tuple[str, ...]
    place: Any
    talk: TalkState
    since_s: float
    made: list[str]
    hooks: tuple[int, ...]
    line: int
    webhooks: list[TapeRow] = field(default_factory=list)


class TapeReader:
    """``entries`` are the exchanges of a tape. ``places`` are the paths of the agent's interfaces over HTTP+JSON.

    ``matching`` is what must be equal beside operation and dialect: the skill and the text, the skill, or only the
    order.
    """

    def __init__(self, tape: Tape, matching: Matching = "text") -> None:
        self.matching = matching
        interfaces = () if tape.head.card is None else read_card(tape.head.card).interfaces
        at = {urlsplit(one.url).path.rstrip("/") for one in interfaces if one.binding.upper() == "HTTP+JSON"}
        self.places = sorted(at, key=len, reverse=True)
        self.entries: list[TapeEntry] = []
        self._talks: dict[str, TalkState] = {}
        for line, row in sorted(enumerate(tape.rows, 2), key=lambda numbered: numbered[1].hook > 0):
            self._add(row, line)

    def key(self, asked: TapeRequest) -> tuple[str, ...]:
        """The part of a request that must be equal, beside its skill."""
        return (*asked.kind, asked.text if asked.operation is None or self.matching == "text" else "")

    def _add(self, row: TapeRow, line: int) -> None:
        """Find the place of a row. A webhook belongs to the last move of its task, or else to its registration."""
        if row.hook:
            ids, earlier = [*made_ids(row.body)], [entry for entry in self.entries if entry.row.at <= row.at]
            talks = [self._talks[name] for name in ids if name in self._talks]
            moves = [e for e in earlier if e.talk in talks and e.asked.operation in {*MOVES, Operation.PUSH_SET}]
            for entry in (moves or [entry for entry in earlier if row.hook in entry.hooks])[-1:]:
                entry.webhooks.append(row)
                entry.made += ids
            return
        asked = read_request(row, self.places)
        talk, place = TalkState.find(asked, self._talks)
        key = self.key(asked)
        if asked.operation in MOVES:
            talk.move(key, row.at)
        made = [*made_ids(row.replies)]
        talk.own(made, self._talks)
        numbers = (config["url"].removeprefix(HOOKS) for config in push_configs(params_of(row.body)))
        hooks = tuple(int(number) for number in numbers if re.fullmatch("[0-9]{1,9}", number))
        self.entries.append(TapeEntry(row, asked, key, place, talk, row.at - talk.moved_s, made, hooks, line))
