"""Exchanges with the agent, and the verdict that a probe bases on them.

An ``Exchange`` is one request with its answer: trimmed, harmless to print, without secrets. A probe returns when the
requirement is met and raises ``NotPassed`` otherwise, by one of three helpers named after
the verdicts. ``fail_unless`` blames the agent for this requirement. ``not_tested_unless`` only says that the probe
could not test it, so that one broken promise is reported once and not by every probe that depends on it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from fleetsim.model.call import Operation
from fleetsim.model.errors import InternalError, WireError
from fleetsim.model.masking import MASK, SECRET_HEADERS, masked
from fleetsim.model.text import neutralise
from fleetsim.wire.choice import may_mean_the_webhook
from fleetsim.wire.json import parse_untrusted
from fleetsim.wire.rest import read_error

T = TypeVar("T")


class Verdict(StrEnum):
    """The result of a probe. A promise that was not tested is never counted as kept."""

    PASS = "pass"
    FAIL = "fail"
    NOT_APPLICABLE = "not applicable"
    NOT_TESTED = "not tested"


@dataclass(slots=True)
class Timeouts:
    """Whether a wait timed out. On a busy machine that may be our doing, so such a probe is repeated alone."""

    noted: bool = False


TIMEOUTS: ContextVar[Timeouts | None] = ContextVar("timeouts", default=None)
"""The timeouts of the current probe, shared by its asyncio tasks."""


def note_timeout() -> None:
    """Note that the current probe waited for something that did not come in time."""
    if (timeouts := TIMEOUTS.get()) is not None:
        timeouts.noted = True


class Evidence(Protocol):
    """Evidence for a verdict, which a report shows: an exchange or a received webhook."""

    def shown(self) -> str:
        """As text for a report, trimmed and without secrets."""


class NotPassed(Exception):
    """A probe's verdict other than pass; ``lost`` if a connection or the probe itself broke."""

    def __init__(self, verdict: Verdict, reason: str, evidence: Sequence[Evidence] = (), *, lost: bool = False) -> None:
        super().__init__(reason)
        self.verdict, self.reason, self.evidence, self.lost = verdict, reason, tuple(evidence), lost


def fail_unless(kept: T | None, reason: str, *evidence: Evidence) -> T:
    """End the probe with *fail* unless the agent keeps what the requirement asks; returns ``kept``."""
    if not kept:
        raise NotPassed(Verdict.FAIL, reason, evidence)
    return kept


def not_tested_unless(there: T | None, reason: str, *evidence: Evidence) -> T:
    """End the probe with *not tested* unless what it leans on (an answer, a skill, a webhook) is there; returns it."""
    if not there:
        raise NotPassed(Verdict.NOT_TESTED, reason, evidence)
    return there


def not_applicable_unless(there: object, reason: str) -> None:
    """End the probe with *not applicable* unless the agent offers what the requirement is about."""
    if not there:
        raise NotPassed(Verdict.NOT_APPLICABLE, reason)


def fail_unless_error(exchange: Exchange, what: str, *codes: int) -> None:
    """End the probe with *fail* unless the answer is an error of one of these codes; ``what`` was asked.

    A call over JSON-RPC that was refused without a code is not tested: E-17 reports it once.
    """
    wanted = " or ".join(map(str, codes))
    uncoded = exchange.operation is not None and exchange.bare is None and exchange.own_form
    not_tested_unless(not uncoded, f"{what} must be {wanted}, and was refused without a code (E-17)", exchange)
    fail_unless(exchange.refused_with(*codes), f"{what} must be {wanted}, not {exchange}", exchange)


_INVALID = frozenset({400, 422})
_STATUSES = {-32001: {404}, -32600: _INVALID, -32602: _INVALID}
_STATUSES_03 = {-32002: {400, 409}, -32003: {400, 501}, -32004: {400, 501}, -32005: {400, 415}}
"""The HTTP statuses of errors over HTTP+JSON (1.0 section 5.4; in 0.3 those of a2a-sdk too). All others have 400."""

BODY_BYTES_MAX = 4 * 1024 * 1024
SHOWN_CHARS = 1_200
FRAMES_SHOWN = 12

_DULL_HEADERS = frozenset({"date", "server", "connection", "content-length", "transfer-encoding", "accept", "host"})


@dataclass(slots=True)
class Frame:
    """One event of a stream: its text, and its time in seconds of the runtime's clock; ``bare`` as an exchange's."""

    at: float
    text: str
    name: str = "message"
    bare: Callable[[Any], Any] | None = None

    @property
    def value(self) -> Any:
        return _parsed(self.text.encode())

    @property
    def result(self) -> Mapping[str, Any]:
        """The ``result`` of the event; empty if there is none."""
        value = self.value
        found = value.get("result") if isinstance(value, dict) else None
        found = found if self.bare is None else self.bare(value)
        return found if isinstance(found, dict) else {}


@dataclass(slots=True)
class Exchange:
    """One request and its answer. ``problem`` is an error below HTTP, ``hint`` the next step after it.

    ``unreached``: the request did not reach the agent, so it proves nothing. ``operation`` and ``params`` are those of
    a call; ``bare`` reads its result in a body without an envelope, as HTTP+JSON has it.
    """

    method: str
    url: str
    sent_headers: Mapping[str, str]
    sent: bytes
    began: float
    secrets: tuple[str, ...] = field(default=(), repr=False)
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    frames: list[Frame] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    ended: bool = False
    seconds: float = 0.0
    problem: str = ""
    hint: str | None = None
    unreached: bool = False
    operation: Operation | None = None
    params: Any = None
    bare: Callable[[Any], Any] | None = None

    @property
    def at(self) -> float:
        """When the answer was complete, in seconds of the runtime's clock."""
        return self.began + self.seconds

    @property
    def asked(self) -> Any:
        return _parsed(self.sent)

    @property
    def value(self) -> Any:
        """The JSON of the answer; of a stream, of its first event. None if there is none."""
        if self.frames:
            return self.frames[0].value
        return _parsed(self.body)

    @property
    def answer(self) -> Mapping[str, Any]:
        value = self.value
        return value if isinstance(value, dict) else {}

    @property
    def result(self) -> Any:
        if self.bare is None:
            return self.answer.get("result")
        return None if self.error else self.bare(self.value)

    @property
    def error(self) -> Mapping[str, Any] | None:
        """The error, in JSON-RPC's words: any refusal. One in the agent's own form has no code."""
        if self.bare is None:
            found = self.answer.get("error")
            own = {"code": None, "message": ""} if self.own_form else None
            return found if isinstance(found, dict) and own is None else own
        refused = self.status is not None and self.status >= 300
        if not refused and not self.frames:
            return None
        sent = self.params.get("message") if isinstance(self.params, dict) else None
        names_task = isinstance(sent, dict) and "taskId" in sent
        operation = Operation.GET if names_task else self.operation or Operation.SEND  # what a bare 404 speaks of
        problem = read_error(self.value, operation, self.status if refused else None)
        if problem is not None:
            return {"code": problem.wire_code, "message": str(problem), "data": problem.data}
        return {"code": None, "message": ""} if refused else None

    @property
    def code(self) -> Any:
        """The code of the error; None if it is missing or cannot be a code."""
        found = None if self.error is None else self.error.get("code")
        return found if isinstance(found, int | float | str) else None

    @property
    def own_form(self) -> bool:
        """Whether 4xx or 501 came with JSON without a code; 401, 408 and 429 refuse the caller or the moment."""
        status = self.status or 0
        if not (status == 501 or 400 <= status < 500) or status in {401, 408, 429} or not isinstance(self.value, dict):
            return False
        enveloped = self.bare is None and "jsonrpc" in self.answer
        return not enveloped and read_error(self.value, Operation.SEND) is None

    @property
    def refuses_webhook(self) -> bool:
        """Whether a webhook was refused: with -32602, or in words that name it (P-40 is about the code)."""
        if self.error is None or self.refused_with(-32602):
            return self.error is not None
        words = str(self.error.get("message") or "") or self.body.decode("utf-8", "replace")
        return may_mean_the_webhook(InternalError(words))

    def refused_with(self, *codes: int) -> bool:
        """Whether the request was refused with one of these codes, or in a form of its own with the status of one."""
        if self.own_form and self.bare is not None:
            known = _STATUSES if "a2a-version" in self.sent_headers else {**_STATUSES, **_STATUSES_03}
            return any(self.status in known.get(code, {400}) for code in codes)
        return self.code in codes

    @property
    def media_type(self) -> str:
        """The answer's media type in lower case, without parameters such as the charset; empty if none was sent."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def granted(self) -> bool:
        """Whether HTTP 200 (over HTTP+JSON any 2xx) came, and no error."""
        fits = self.status is not None and 200 <= self.status < (201 if self.bare is None else 300)
        return fits and self.error is None

    def __str__(self) -> str:
        """The answer in a few words, for a sentence."""
        if self.problem:
            return self.problem
        if self.error is not None and self.code is not None:
            message = neutralise(str(self.error.get("message", "")), limit=120, lines=False)
            return f"error {self.error.get('code')} ({message})"
        if self.status is not None and self.status >= 300:
            return f"HTTP {self.status}"
        if self.frames:
            return f"a stream of {len(self.frames)} events"
        if "result" in self.answer or (self.bare is not None and self.granted):
            result = self.result if isinstance(self.result, dict) else {}
            return "a message" if result.get("kind") == "message" or "message" in result else "a result"
        return f"HTTP {self.status} with {self.media_type or 'no type'}"

    def shown(self) -> str:
        """The exchange as text: request, answer, times; trimmed and masked."""
        lines = [f"{self.method} {self.url}", *_headers(self.sent_headers)]
        if self.sent:
            lines += ["", _trim(self.sent.decode("utf-8", "replace"), SHOWN_CHARS // 2)]
        status = f"HTTP {self.status}" if self.status is not None else "no answer"
        lines += ["", f"<- {status} after {self.seconds:.3f} s", *_headers(self.headers)]
        if self.frames:
            half = FRAMES_SHOWN // 2
            whole = [f"  +{frame.at - self.began:.3f} s  {_trim(frame.text, 400)}" for frame in self.frames]
            if len(whole) > FRAMES_SHOWN:
                whole = [*whole[:half], f"  … {len(whole) - FRAMES_SHOWN} more …", *whole[-half:]]
            lines += ["", *whole, "  (the stream ended)" if self.ended else "  (still open)"]
        elif self.body:
            lines += ["", _trim(self.body.decode("utf-8", "replace"), SHOWN_CHARS)]
        if self.problem:
            lines.append(f"!! {self.problem}")
        return masked(neutralise("\n".join(lines), limit=8_000), self.secrets)


def _headers(headers: Mapping[str, str]) -> list[str]:
    return [
        f"{name}: {MASK if name.lower() in SECRET_HEADERS else _trim(value, 200)}"
        for name, value in headers.items()
        if name.lower() not in _DULL_HEADERS
    ]


def _trim(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def _parsed(data: bytes) -> Any:
    """JSON as the agent wrote it; None if it is not JSON."""
    if not data.strip():
        return None
    try:
        return parse_untrusted(data, bytes_max=BODY_BYTES_MAX)
    except WireError:
        return None


def written(value: Any) -> bytes:
    """Compact JSON of what a probe sends, however odd."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
