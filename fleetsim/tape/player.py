"""``TapeServer``: acts as the agent of a tape. It finds the recorded exchange of a request and plays its reply with new
ids, at the recorded times. A request without one gets an error that names the nearest; no reply is invented.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from fleetsim.client.http import CARD_PATHS
from fleetsim.model.call import Operation, PushConfig
from fleetsim.model.errors import InternalError
from fleetsim.model.text import one_line
from fleetsim.runtime.address import AddressPolicy
from fleetsim.runtime.inbound import Refusal, drop
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.webhook import Delivery, WebhookSender
from fleetsim.runtime.workers import Workers
from fleetsim.tape import tape as tapes
from fleetsim.tape.recorder import METHODS, TapeRecorder, origin, read_row, secrets_in
from fleetsim.tape.tape import CONTEXT_ID, HOOKS, TASK_ID, Tape, TapeRequest, TapeRow, made_ids, params_of, renamed
from fleetsim.wire import jsonrpc, rest
from fleetsim.wire.cards import read_card
from fleetsim.wire.dialect import UNSAID
from fleetsim.wire.json import dump
from fleetsim.wire.sse import KEEPALIVE, frame

log = logging.getLogger(__name__)

Matching: TypeAlias = Literal["text", "skill", "order"]
KEEPALIVE_S = 15.0
_MOVES = frozenset({Operation.SEND, Operation.STREAM, Operation.CANCEL})
"""The operations that change a task. Between two of them is a stage of the task, in which reads are alike."""
_STRANGER = "?"


@dataclass(slots=True, eq=False)
class TapeEntry:
    """A recorded exchange. ``place`` is the task or conversation of an earlier reply that it continues, "?" for a task
    that no reply named, or empty. ``about`` is the task that it reads or moves, ``stage`` the number of moves of that
    task so far, ``since_s`` the time since the last one. ``made`` are the ids in its replies.
    """

    row: TapeRow
    asked: TapeRequest
    place: str
    about: str
    stage: int
    since_s: float
    made: list[str]
    hooks: tuple[int, ...]
    webhooks: list[TapeRow] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class TalkState:
    """One conversation with a present caller: its ids by those of the tape, its webhooks by their numbers there, and
    the stage of each task with the second in which that began."""

    names: dict[str, str] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)
    hooks: dict[int, PushConfig] = field(default_factory=dict)
    stages: dict[str, tuple[int, float]] = field(default_factory=dict)

    def recorded(self, present: str) -> str:
        """The id on the tape."""
        return next((name for name, now in self.names.items() if now == present), _STRANGER) if present else ""


class TapeServer:
    """``app`` is the server, and ``misses`` the requests without a recorded reply, each in a sentence.

    ``matching`` is what must be equal beside operation and dialect: the skill and the text, the skill, or only the
    order. ``fast`` plays without pauses. ``live`` records what is missing from the real agent, at the end of the tape.
    """

    def __init__(
        self,
        tape: Tape,
        runtime: Runtime,
        *,
        policy: AddressPolicy,
        matching: Matching = "text",
        fast: bool = False,
        live: TapeRecorder | None = None,
    ) -> None:
        self.misses: list[str] = []
        self._tape, self._runtime, self._matching, self._fast, self._live = tape, runtime, matching, fast, live
        self._sender, self._workers = WebhookSender(runtime, policy), Workers("tape")
        interfaces = () if tape.head.card is None else read_card(tape.head.card).interfaces
        at = {urlsplit(one.url).path.rstrip("/") for one in interfaces if one.binding.upper() == "HTTP+JSON"}
        self._places = sorted(at, key=len, reverse=True)
        self._read = len(tape.rows)
        self._entries: list[TapeEntry] = []
        self._known: set[str] = set()
        self._moves: dict[str, tuple[int, float]] = {}
        for row in sorted(tape.rows, key=lambda row: row.hook > 0):
            self._add(row)
        self._used: set[int] = set()
        self._talks: dict[str, TalkState] = {}
        self.app = Starlette(routes=[Route("/{path:path}", self.answer, methods=METHODS)], lifespan=self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        async with self._workers:
            yield

    def _add(self, row: TapeRow) -> None:
        """Find the place of a row. A webhook belongs to the last move of its task, or else to its registration."""
        if row.hook:
            ids, earlier = [*made_ids(row.body)], [entry for entry in self._entries if entry.row.at <= row.at]
            moves = [e for e in earlier if e.asked.operation in {*_MOVES, Operation.PUSH_SET} and e.about in ids]
            for entry in (moves or [entry for entry in earlier if row.hook in entry.hooks])[-1:]:
                entry.webhooks.append(row)
                entry.made += ids
            return
        asked = tapes.read_request(row, self._places)
        task = asked.task_id if asked.task_id in self._known else _STRANGER if asked.task_id else ""
        place = task or (asked.context_id if asked.context_id in self._known else "")
        about = task.strip(_STRANGER) or next(made_ids(row.replies, TASK_ID), "")
        stage, at = self._moves.get(about, (0, row.at))
        if asked.operation in _MOVES:
            stage, at = self._moves[about] = stage + 1, row.at
        made = [*made_ids(row.replies)]
        self._known.update(made)
        urls = [str(config["url"]) for config in tapes.push_configs(params_of(row.body))]
        hooks = tuple(int(url.removeprefix(HOOKS)) for url in urls if url.startswith(HOOKS))
        self._entries.append(TapeEntry(row, asked, place, about, stage, row.at - at, made, hooks))

    # -- a request

    async def answer(self, request: Request) -> Response:
        """Play the reply to a request."""
        try:
            present, body = await read_row(request)
        except Refusal as refusal:
            return Response(str(refusal), refusal.status)
        asked = tapes.read_request(present, self._places, secrets_in(request))
        ids = (asked.task_id, asked.context_id)
        talk = next((self._talks[name] for name in ids if name in self._talks), TalkState())
        is_live = any(name in ids for row in self._tape.rows[self._read :] for name in made_ids(row.replies))
        entry = None if is_live else self._choose(asked, talk)
        if entry is not None:
            self._begin(entry, asked, talk)
            return await self._reply(entry.row, present, talk, request)
        if asked.operation is None and urlsplit(present.path).path.endswith(CARD_PATHS) and self._tape.head.card:
            return Response(dump(tapes.readdress(self._tape.head.card, origin(request))), media_type="application/json")
        if self._live is not None and (is_live or not talk.names):
            return await self._live.forward(request, present, body)
        return self._miss(asked, present)

    def _choose(self, asked: TapeRequest, talk: TalkState) -> TapeEntry | None:
        """The exchange to play: the first of the best that was not played, else the last of them.

        A read of a task gets the newest recorded read of its stage by now, or the first of it.
        """
        place = talk.recorded(asked.task_id) or talk.recorded(asked.context_id).strip(_STRANGER)
        matching = "text" if asked.operation is None else self._matching
        fits = [
            number
            for number, entry in enumerate(self._entries)
            if entry.asked.kind == asked.kind and entry.place == place
            if matching == "order" or entry.asked.skill == asked.skill
            if matching != "text" or entry.asked.text == asked.text
        ]

        def distance(number: int) -> int:
            variants = zip(self._entries[number].asked.variant, asked.variant, strict=True)
            return 0 if matching == "order" else sum(one != other for one, other in variants)

        least = min(map(distance, fits), default=0)
        best = [number for number in fits if distance(number) == least]
        if asked.operation is Operation.GET and place in talk.stages:
            stage, began_s = talk.stages[place]
            passed_s = math.inf if self._fast else self._runtime.clock.monotonic() - began_s
            reads = [entry for entry in map(self._entries.__getitem__, best) if entry.stage == stage]
            return next((entry for entry in reversed(reads) if entry.since_s <= passed_s), reads[0] if reads else None)
        used = talk.used if place.strip(_STRANGER) else self._used
        for number in [*(number for number in best if number not in used), *best[-1:]]:
            used.add(number)
            return self._entries[number]
        return None

    def _begin(self, entry: TapeEntry, asked: TapeRequest, talk: TalkState) -> None:
        """Give each id of an exchange its present form, and start its webhooks."""
        names, now_s = talk.names, self._runtime.clock.monotonic()
        names.update((one, other) for one, other in zip(entry.asked.ids, asked.ids, strict=False) if one and other)
        if asked.context_id and not entry.asked.context_id:  # the agent adopts the caller's
            names.update(dict.fromkeys(made_ids(entry.row.replies, CONTEXT_ID), asked.context_id))
        for name in entry.made:
            names.setdefault(name, self._runtime.ids.new())
        self._talks.update(dict.fromkeys(names.values(), talk))
        if asked.push is not None:
            talk.hooks.update(dict.fromkeys(entry.hooks, asked.push))
            names.update({f"{HOOKS}{number}": asked.push.url for number in entry.hooks})
        if asked.operation in _MOVES:
            talk.stages[entry.about] = entry.stage, now_s
        if entry.webhooks:
            self._workers.start(self._send_webhooks(entry, talk, now_s), name=entry.about or "webhooks")

    async def _reply(self, row: TapeRow, present: TapeRow, talk: TalkState, request: Request) -> Response:
        await self._pause(row.after)
        if row.status is None or (row.broke and row.frames is None):
            drop(request.scope)
            return Response(status_code=502)
        if row.frames is not None:
            return StreamingResponse(self._frames(row, present, talk, request), row.status, row.reply_headers)
        await self._pause(row.ended - row.after)
        reply = self._present(row.reply, present, talk)
        tapes.readdress(reply, origin(request))
        return Response(tapes.unpack(reply), row.status, row.reply_headers)

    async def _frames(self, row: TapeRow, present: TapeRow, talk: TalkState, request: Request) -> AsyncIterator[bytes]:
        passed_s = row.after
        for event in row.frames or ():
            while event.after - passed_s > KEEPALIVE_S and not self._fast:
                await asyncio.sleep(KEEPALIVE_S)
                passed_s += KEEPALIVE_S
                yield KEEPALIVE
            await self._pause(event.after - passed_s)
            passed_s = event.after
            text = tapes.unpack(self._present(event.body, present, talk)).decode("utf-8", "replace")
            yield frame(text, event=None if event.event == "message" else event.event, event_id=event.id or None)
        await self._pause(row.ended - passed_s)
        if row.broke:
            drop(request.scope)

    async def _pause(self, seconds: float) -> None:
        if seconds > 0 and not self._fast:
            await asyncio.sleep(seconds)

    def _present(self, reply: Any, present: TapeRow, talk: TalkState) -> Any:
        """A recorded reply with the ids of the present request, its envelope's too."""
        reply, body = renamed(reply, talk.names), present.body
        if isinstance(reply, dict) and isinstance(body, dict) and "jsonrpc" in reply and reply.get("id") is not None:
            reply["id"] = body.get("id")
        return reply

    async def _send_webhooks(self, entry: TapeEntry, talk: TalkState, began_s: float) -> None:
        for row in entry.webhooks:
            await self._pause(row.at - entry.row.at - (self._runtime.clock.monotonic() - began_s))
            if (push := talk.hooks.get(row.hook)) is not None:
                delivery = Delivery(
                    url=push.url,
                    body=tapes.unpack(renamed(row.body, talk.names)),
                    token=push.token,
                    scheme=push.scheme,
                    credentials=push.credentials,
                    content_type=row.headers.get("content-type", "application/json"),
                )
                await self._sender.deliver(delivery)

    def _miss(self, asked: TapeRequest, present: TapeRow) -> Response:
        """An error in the caller's dialect that names the nearest recorded request."""

        def likeness(entry: TapeEntry) -> tuple[bool, bool, float]:
            ratio = SequenceMatcher(None, entry.asked.text[:500], asked.text[:500]).ratio()
            return entry.asked.operation is asked.operation, entry.asked.kind == asked.kind, ratio

        said = f"the tape has no reply to {asked}"
        if self._entries:
            nearest = max(self._entries, key=likeness)
            said += f"; the nearest, {nearest.row.at:g} s into the tape, is {nearest.asked}"
        self.misses.append(said)
        log.warning("%s", one_line(said, 1_000))
        problem, spoken = InternalError(said), asked.spoken
        if spoken is not None and spoken.paths:
            return Response(dump(rest.error(problem, spoken, 500)), 500, media_type="application/json")
        rpc_id = present.body.get("id") if isinstance(present.body, dict) else None
        error = jsonrpc.error(rpc_id, problem, spoken.name if spoken else UNSAID)
        return Response(dump(error), 200 if spoken else 404, media_type="application/json")
