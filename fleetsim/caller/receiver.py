"""Receives webhooks: verifies them and passes their news to the tracker (Workstacean's callback route).

A token is checked from itself before anything is looked up; wrong, missing and unknown look alike from
outside (reliability T-10 to T-14). A token that says so counts only with a signature.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fleetsim.caller.account import Accounts
from fleetsim.caller.tracker import Tracker
from fleetsim.caller.webhooks import CALLBACK_PATH, CallbackTokens, TokenClaims
from fleetsim.client.wire_log import WireLog
from fleetsim.events.fleet import WebhookAccepted, WebhookRejected
from fleetsim.events.log import EventLog
from fleetsim.events.request import Level, UpdateIgnored
from fleetsim.ledger import EarlyWebhook, Ledger
from fleetsim.model.errors import FleetsimError, NotAccepting
from fleetsim.model.event import TaskEvent
from fleetsim.model.limits import WIRE_BYTES_MAX
from fleetsim.model.task import TERMINAL
from fleetsim.model.text import one_line
from fleetsim.model.work import KIND_OF_STATE, Outcome, UpdateSource
from fleetsim.request.records import RequestRecord
from fleetsim.runtime import failpoints
from fleetsim.runtime.body import Deadline
from fleetsim.runtime.codings import coding_of
from fleetsim.runtime.inbound import BodyReader, Refusal, traceparent_of
from fleetsim.runtime.limits import TokenBucket
from fleetsim.runtime.ports import Clock
from fleetsim.runtime.webhook import TOLERANCE_S, verify
from fleetsim.wire.json import parse_untrusted
from fleetsim.wire.reading import read_push_body

SEEN_S = 2 * TOLERANCE_S
"""How long a signed webhook's id is remembered: as long as any copy of it can pass for timely."""

SEEN_MAX = 50_000
REFUSED_PER_S, REFUSED_BURST = 50.0, 200.0
"""Webhooks with a wrong token that are recorded: in a second, and at once after a quiet time."""
_TURNED_AWAY = frozenset({408, 413, 415, 429, 503})
"""Statuses for a genuine webhook that is not taken, and that its agent may not repeat."""

_ENTRY = "fleetsim.wire"

_TAKEN, _EARLY = (JSONResponse({"success": True}, status) for status in (200, 202))


@lru_cache(64)  # a flood of webhooks asks for the same one hundreds of times a second
def _too_many(after_s: int, *, closes: bool = False) -> Response:
    headers = {"Retry-After": str(after_s), **({"Connection": "close"} if closes else {})}
    return JSONResponse({"success": False, "error": "too many webhooks"}, 429, headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverLimits:
    """Bytes and seconds for one webhook body, and bodies of an agent read at once.

    A webhook over a limit of its agent's account is answered after ``hold_s``; while ``held_max`` of an agent wait for
    that, its others lose their connection at once.
    """

    body_bytes_max: int = WIRE_BYTES_MAX
    body_s: float = 10.0
    hold_s: float = 1.0
    held_max: int = 16
    reading_max: int = 32


class WebhookObserver(Protocol):
    """Observes each genuine webhook, from start to end."""

    def webhook(self, record: RequestRecord, traceparent: str, /) -> AbstractContextManager[None]:
        """Enter the span of a webhook before it is handled; ``traceparent`` is its own header."""


class CallbackReceiver:
    """Answers webhooks: 401 for every token that is not ours, 202 for early ones, 200 for all others."""

    def __init__(
        self,
        tokens: CallbackTokens,
        tracker: Tracker,
        events: EventLog,
        clock: Clock,
        *,
        accounts: Accounts,
        records: Ledger,
        limits: ReceiverLimits | None = None,
        observer: WebhookObserver | None = None,
        wire: WireLog | None = None,
    ) -> None:
        self._tokens = tokens
        self._tracker = tracker
        self._events = events
        self._clock = clock
        self._records = records
        self._observer = observer
        self._wire = wire
        self._limits = limits or ReceiverLimits()
        self._accounts = accounts
        self._held: Counter[str] = Counter()
        self._bodies = BodyReader(bytes_max=self._limits.body_bytes_max, seconds=self._limits.body_s)
        self._reading: dict[str, deque[Deadline]] = {}
        self._strangers = TokenBucket(clock, per_s=REFUSED_PER_S, burst=REFUSED_BURST)
        self._seen: OrderedDict[tuple[str, str], float] = OrderedDict()

    def routes(self) -> list[Route]:
        """The one route, to be mounted beside the API."""
        return [Route(CALLBACK_PATH + "{taskId:path}", self.receive, methods=["POST"])]

    async def receive(self, request: Request) -> Response:
        token = given_token(request)
        bearer = None if token is None else self._tokens.verify(token)
        if bearer is None:
            return self._refuse(request, "no token of ours")  # before the body: a stranger costs no memory
        try:
            self._accounts.account(bearer.agent).admit(debt_s_max=0.0)
        except Refusal as refusal:
            response = await self._later(bearer.agent, int(refusal.headers["retry-after"]))
        else:
            response = await self._accounts.charged(bearer.agent, self._take(request, bearer))
        if self._wire is not None and self._wire.on and (entry := request.scope.get(_ENTRY)):
            entry.status = response.status_code
            entry.reply = bytes(response.body).decode()
            entry.reply_bytes = len(response.body)
        if response.status_code in _TURNED_AWAY:
            self._tracker.turned_away(bearer.correlation_id)  # it may have carried the end, so poll soon
        return response

    async def _later(self, agent: str, after_s: int) -> Response:
        """Refuse a webhook of an agent over its limit, after a pause: some agents repeat at once."""
        if self._held[agent] >= self._limits.held_max:
            return _too_many(after_s, closes=True)
        self._held[agent] += 1
        try:
            await asyncio.sleep(self._limits.hold_s)
        finally:
            self._held[agent] -= 1
            if not self._held[agent]:
                del self._held[agent]
        return _too_many(after_s)

    async def _take(self, request: Request, bearer: TokenClaims) -> Response:
        if coding := one_line(coding_of(request.headers), 40):
            self._reject(bearer, 415, f"the webhook has the content coding {coding}; polling brings the task")
            error = {"success": False, "error": "a webhook must have no content coding"}
            return JSONResponse(error, 415, {"Accept-Encoding": "identity"})
        body = await self._body(request, bearer)
        if isinstance(body, Response):
            return body
        if self._wire is not None and self._wire.on:
            headers, url = dict(request.headers), str(request.url)
            entry, _ = self._wire.begin(bearer.agent, "POST", url, headers, body, webhook=True)
            request.scope[_ENTRY] = entry
        signed_id = None
        if bearer.signed:  # only what is genuine and timely counts (T-13)
            secret = self._tokens.signing_secret(bearer.agent, bearer.correlation_id, epoch=bearer.epoch)
            signed_id = verify(request.headers.items(), secret, self._clock.now().timestamp(), body)
            if signed_id is None:
                return self._refuse(request, "the signature is missing, wrong or too old")
            if (bearer.correlation_id, signed_id) in self._seen:
                return _TAKEN
        try:
            events = read_push_body(parse_untrusted(body, bytes_max=self._limits.body_bytes_max))
        except FleetsimError:
            return JSONResponse({"success": False, "error": "not a webhook body"}, 400)
        try:
            response = await self._deliver(request, bearer, events, len(body))
        except NotAccepting:
            # an acknowledged webhook must survive a restart
            return JSONResponse({"success": False, "error": "cannot be recorded now"}, 503, {"Retry-After": "5"})
        if signed_id is not None and response.status_code < 300:
            self._remember(bearer.correlation_id, signed_id)
        return response

    def _remember(self, correlation_id: str, signed_id: str) -> None:
        """Remember a signed webhook that was taken: its copies get a 200 and are not read."""
        now = self._clock.monotonic()
        self._seen[correlation_id, signed_id] = now + SEEN_S
        while self._seen and (len(self._seen) > SEEN_MAX or next(iter(self._seen.values())) <= now):
            self._seen.popitem(last=False)

    async def _body(self, request: Request, bearer: TokenClaims) -> bytes | Response:
        """Read the body. With one body more than ``reading_max`` of the same agent, the oldest one is cut off.

        A body that comes slowly holds a connection and what came of it. If the next one were refused instead,
        the owner of one token could block the webhooks of all other tasks of that agent.
        """
        limits = self._limits
        reading = self._reading.setdefault(bearer.agent, deque())
        deadline = Deadline(self._clock.monotonic() + limits.body_s)
        reading.append(deadline)
        try:
            if len(reading) > limits.reading_max:
                # the oldest, because the newest may be the fast one
                reading.popleft().reschedule(self._clock.monotonic())
            return await self._bodies.read(request, deadline=deadline, account=self._accounts.account(bearer.agent))
        except Refusal as refusal:
            if refusal.status == 429:
                return _too_many(int(refusal.headers["retry-after"]))
            errors = {408: "body too slow", 400: "body cut off"}
            if refusal.status == 413:
                limit = limits.body_bytes_max
                errors[413] = f"larger than {limit} bytes"
                why = f"the webhook is larger than {limit:,} bytes (body_bytes_max); polling brings the task"
                self._reject(bearer, 413, why)
            return JSONResponse({"success": False, "error": errors[refusal.status]}, refusal.status)
        finally:
            with suppress(ValueError):  # it was cut off for a newer one
                reading.remove(deadline)
            if not reading:
                self._reading.pop(bearer.agent, None)

    def _reject(self, bearer: TokenClaims, status: int, why: str) -> None:
        """Publish that a genuine webhook was refused for its form."""
        cid = bearer.correlation_id
        self._events.publish(WebhookRejected(correlation_id=cid, agent=bearer.agent, status=status, why=why))

    async def _deliver(
        self, request: Request, bearer: TokenClaims, events: tuple[TaskEvent, ...], body_bytes: int
    ) -> Response:
        """Path, body, agent and task must agree with what the token says. Raises NotAccepting: see the ledger."""
        cid, last = bearer.correlation_id, request.path_params["taskId"]
        named, state = set[str](), None
        for event in events:
            named |= {task_id} if (task_id := event.task_id) else set()
            state = state or event.state
        track = self._tracker.open_tracks.get(cid)
        record = track.record if track else await self._records.request(cid)
        if record is None or record.agent != bearer.agent:
            return self._refuse(request, "a token for a request that is not known")
        outcome = await self._records.outcome(cid) if track is None else None
        # A request may end with its first answer, before the task it was bound to was worth a write of its own.
        bound = record.task.task_id if record.task else outcome.task_id if outcome else None
        if last not in {cid, bound} or (bound is not None and not named <= {bound}):
            return self._refuse(request, "path, body and token disagree")
        now, agent = self._clock.now(), bearer.agent
        webhook = EarlyWebhook(correlation_id=cid, agent=agent, events=events, received_at=now, body_bytes=body_bytes)
        with nullcontext() if self._observer is None else self._observer.webhook(record, traceparent_of(request)):
            early = await self._tracker.take_webhook(webhook)
        failpoints.reached("after_push_before_answer")
        if outcome is not None and state in TERMINAL:
            self._compare(outcome, state)
        self._events.publish(
            WebhookAccepted(
                correlation_id=cid,
                agent=bearer.agent,
                task_id=bound,
                state=state,
                duplicate=track is None,
                parked=early,
            )
        )
        return _EARLY if early else _TAKEN

    def _compare(self, outcome: Outcome, state: str) -> None:
        """Publish a webhook that contradicts the outcome; it changes nothing (F-17)."""
        if outcome.kind in KIND_OF_STATE.values() and outcome.kind.value != state:
            self._events.publish(
                UpdateIgnored(
                    level=Level.WARN,
                    correlation_id=outcome.correlation_id,
                    agent=outcome.agent,
                    skill=outcome.skill,
                    task_id=outcome.task_id,
                    state=state,
                    via=UpdateSource.PUSH.value,
                    why=f"contradicts the outcome, which is {outcome.kind.value}",
                )
            )

    def _refuse(self, request: Request, why: str) -> Response:
        """One answer for every token that does not fit: same status, same bytes."""
        if self._strangers.take():
            peer = request.client.host if request.client else "?"
            self._events.publish(WebhookRejected(why=why, status=401, peer=one_line(peer, 64)))
        return JSONResponse({"success": False, "error": "Invalid notification token"}, 401)


def given_token(request: Request) -> str | None:
    """The token of either header, unverified; None if there is none, or if both are sent and differ."""
    headers: list[tuple[bytes, bytes]] = request.scope["headers"]
    authorization = [value.decode("latin-1") for name, value in headers if name == b"authorization"]
    tokens = [value.decode("latin-1") for name, value in headers if name == b"x-a2a-notification-token"]
    for value in authorization:
        scheme, _, credentials = value.partition(" ")
        tokens.append(credentials if scheme.lower() == "bearer" else "")
    if len(tokens) not in {1, 2} or len(authorization) > 1 or len(set(tokens)) != 1:
        return None
    return tokens[0].strip()
