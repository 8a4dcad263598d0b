"""The agent under test: where it is, what its card says, what the check may do to it."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from urllib.parse import urlsplit

from fleetsim.check.evidence import BODY_BYTES_MAX, Exchange, NotPassed, Verdict, note_timeout
from fleetsim.check.listener import Listener
from fleetsim.check.raw_dialect import RawDialect, listed, mapping, url_parts, url_path, version_of
from fleetsim.client.http import AgentUrl, followed
from fleetsim.model.errors import ConnectionLost, FleetsimError, Unreachable
from fleetsim.model.text import one_line
from fleetsim.runtime.ports import Limits, Request, Runtime
from fleetsim.wire.choice import lies_below
from fleetsim.wire.dialect import OVER_JSON_RPC, dialect_of_version

PROBE_EXCHANGES: ContextVar[list[Exchange] | None] = ContextVar("probed", default=None)
"""The requests of the probe under way: what it leaned on is seen in them."""


@dataclass(slots=True, kw_only=True)
class AgentUnderTest:
    """An agent under test. Make one with ``runner.discover``.

    ``moved`` are endpoints that redirect or take 0.3's other objects (decision 50), and where they are; ``unknown``
    dialects that the card offers and the agent does not know, each with an answer that says so (C-19 tells it once for
    all rows), ``spoken`` those it knows instead.
    """

    target: Target
    runtime: Runtime
    options: Options
    listener: Listener | None
    card: Mapping[str, Any] = field(default_factory=dict)
    card_at: str = ""
    moved: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, Exchange] = field(default_factory=dict)
    spoken: tuple[str, ...] = ()
    card_reads: dict[str, Exchange] = field(default_factory=dict)
    open_reads: dict[str, Exchange] = field(default_factory=dict)
    exchanges: list[Exchange] = field(default_factory=list)
    dialects: tuple[str, ...] = ()
    hints: dict[str, Hint] = field(default_factory=dict)
    guarded: Exchange | None = None
    no_way: str = ""
    """Why nothing can be sent to the agent, as ``wire.choice`` says it: only its card is probed."""

    # The card.

    @property
    def capabilities(self) -> Mapping[str, Any]:
        return mapping(self.card.get("capabilities"))

    @property
    def streaming(self) -> bool:
        """Whether the card offers streams (``capabilities.streaming``), true or not."""
        return self.capabilities.get("streaming") is True

    @property
    def push(self) -> bool:
        """Whether the card offers webhooks (``capabilities.pushNotifications``), true or not."""
        return self.capabilities.get("pushNotifications") is True

    def skills(self) -> list[Mapping[str, Any]]:
        """The card's skills that are objects."""
        return [skill for skill in map(mapping, listed(self.card.get("skills"))) if skill]

    def interfaces(self) -> list[tuple[str, str]]:
        """(url, dialect) of each interface the card names in a binding that is probed, the url as written."""
        over_http = bool(self.dialects) and not any(name in OVER_JSON_RPC for name in self.dialects)
        return [(url, name) for url, name in interfaces(self.card) if name and (name not in OVER_JSON_RPC) == over_http]

    @property
    def has_aliases(self) -> bool:
        """Whether HTTP+JSON beside JSON-RPC can only be that of 0.3 and the seeds, as far as the card says."""
        named = {name for _, name in interfaces(self.card) if name and name not in OVER_JSON_RPC}
        return not named or any(version_of(name) == "0.3" for name in named)

    def endpoint(self, dialect: str) -> str:
        """Where a dialect is called, as our own caller does (decision 0012): what is pinned; the card's path, where the
        agent's base is configured; else what is configured; and where a redirect from there leads."""
        chosen = self._endpoint(dialect)
        return self.moved.get(chosen, chosen)

    def _endpoint(self, dialect: str) -> str:
        address = self.target.address
        if address.rpc_url:
            return address.rpc_url
        given = urlsplit(address.text)
        named = [url for url, name in interfaces(self.card) if name == dialect and url]
        named += [url for url, _ in self.interfaces() if url]
        if given.path in {"", "/"}:
            query = "&".join(filter(None, (given.query, url_parts(named[0]).query if named else "")))
            return f"{self.origin}{url_path(named[0]) if named else '/a2a'}{query and f'?{query}'}"
        inside = [url for url in named if lies_below(url, given.path)] if lies_below(self.card_at, given.path) else []
        query = f"?{given.query}" if given.query else ""
        return f"{self.origin}{url_path(inside[0])}{query}" if inside else address.text

    def raw_dialect(self, name: str, url: str) -> RawDialect:
        """How a dialect is written at an address, with the tenant of its first interface on the card."""
        entries = zip(map(mapping, listed(self.card.get("supportedInterfaces"))), interfaces(self.card), strict=False)
        tenant = next((entry.get("tenant") for entry, (_, spoken) in entries if spoken == name), "")
        return RawDialect(name, url, tenant if isinstance(tenant, str) else "")

    @property
    def origin(self) -> str:
        given = urlsplit(self.target.url)
        return f"{given.scheme}://{given.netloc}"

    @property
    def demands_auth(self) -> bool:
        """Whether a call without credentials was refused with HTTP 401 or 403 when the agent was discovered."""
        return self.guarded is not None and self.guarded.status in {401, 403}

    # The wire.

    async def exchange(
        self,
        method: str,
        url: str,
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        credentials: Mapping[str, str] | None = None,
    ) -> Exchange:
        """One request and its answer; ``problem`` has an error below HTTP. Raises NotPassed as ``opened``."""
        exchange = self.opened(method, url, body, headers, credentials)
        limits = Limits(total_s=self.options.reply_s, body_bytes_max=BODY_BYTES_MAX)
        request = Request(method=method, url=exchange.url, headers=exchange.sent_headers, body=body, limits=limits)
        try:
            # Ask again if the connection broke: an earlier answer may have closed the one that was used again. An agent
            # that breaks it on its own account breaks it twice. (``Connection: close`` on each call would spare this,
            # but node's servers then answer some calls of the pooled client with a bare 400.)
            try:
                reply = await self.runtime.transport.exchange(request)
            except ConnectionLost:
                reply = await self.runtime.transport.exchange(request)
            exchange.status, exchange.headers, exchange.body = reply.status, reply.headers, reply.body
        except FleetsimError as error:
            exchange.problem, exchange.unreached = str(error), isinstance(error, Unreachable)
            exchange.hint = error.hint
            note_timeout()
        exchange.seconds = self.runtime.clock.monotonic() - exchange.began
        return exchange

    def redirected(self, exchange: Exchange) -> str | None:
        """Where an answer leads, if our own caller would go there."""
        return followed(self.target.address, exchange.method, exchange.url, exchange.status or 0, exchange.headers)

    def opened(
        self,
        method: str,
        url: str,
        body: bytes,
        headers: Mapping[str, str] | None,
        credentials: Mapping[str, str] | None,
    ) -> Exchange:
        """A fresh exchange, on the record. ``credentials`` None means the target's own.

        Raises NotPassed (not tested) for a call to an agent that offers no interface that can be called.
        """
        if self.no_way and method != "GET":
            raise NotPassed(Verdict.NOT_TESTED, self.no_way)
        content = {"content-type": "application/json"} if body else {}
        own, query = (self.target.headers, self.target.query) if credentials is None else (credentials, "")
        url = f"{url}{'&' if '?' in url else '?'}{query}" if query else url
        sent = {**content, "accept": "application/json", **own, **(headers or {})}
        exchange = Exchange(method, url, sent, body, self.runtime.clock.monotonic(), secrets=self.target.secrets())
        self.exchanges.append(exchange)
        if (of_probe := PROBE_EXCHANGES.get()) is not None:
            of_probe.append(exchange)
        return exchange


def interfaces(card: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(url, dialect) of each interface a card names, the url as written; the dialect is "" in an unknown binding."""
    for entry in map(mapping, listed(card.get("supportedInterfaces"))):
        binding, version = str(entry.get("protocolBinding", "JSONRPC")), str(entry.get("protocolVersion", ""))
        yield str(entry.get("url", "")), dialect_of_version(version, binding)
    version = str(card.get("protocolVersion", "") or "0.3")
    if "url" in card:
        yield str(card["url"]), dialect_of_version(version, str(card.get("preferredTransport", "JSONRPC")))
    for entry in map(mapping, listed(card.get("additionalInterfaces"))):
        yield str(entry.get("url", "")), dialect_of_version(version, str(entry.get("transport", "")))


DEFAULT_TEXTS = {
    "quick": "fleetsim check",
    "slow": "4",
    "ask": "hello",
    "fail": "on purpose",
    "stream": "one two three four",
}
KINDS = tuple(DEFAULT_TEXTS)


@dataclass(frozen=True, slots=True)
class Hint:
    """How to get a kind of behaviour out of the agent: a skill to name, and a text to send."""

    skill: str | None
    text: str

    @classmethod
    def parse(cls, text: str, kind: str) -> Hint:
        """Read ``SKILL``, ``SKILL=TEXT`` or ``=TEXT``; without a text, the usual one of that kind is sent."""
        skill, equals, words = text.partition("=")
        return cls(skill.strip() or None, words if equals else DEFAULT_TEXTS[kind])


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Permissions and prior knowledge of a check. Times in seconds.

    ``reply_s`` limits the wait for the card, for each reply and for the first event of a stream; a probe may take three
    times as long.
    ``virtual``: hours pass at once, so rows that need them are probed. ``inside`` looks into
    the agent, where it runs in our hands; ``held`` says whether its store has a task, if the store is known.
    ``mutating`` are skills known to change the world. ``profile`` is one of ``requirement.PROFILES``. ``sdk`` is one of
    ``report.sdks``, if the agent's is known. ``signers`` are the places of keys that may sign the card (``CardTrust``).
    """

    hints: Mapping[str, Hint] = field(default_factory=dict)
    mutating: tuple[str, ...] = ()
    profile: str = ""
    sdk: str = ""
    signers: tuple[str, ...] = ()
    side_effects: bool = False
    virtual: bool = False
    inside: Internals | None = None
    held: Callable[[str], bool] | None = None
    seed: int = 0
    jobs: int = 8
    reply_s: float = 30.0
    rush_s: float = 1.0
    patience_s: float = 30.0

    @property
    def limit_s(self) -> float:
        """How long the task of a probe may take to its end."""
        return min(self.patience_s, self.reply_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which agent, and what lets the check in. ``dialects`` None probes those the card offers.

    ``rpc_url`` and ``card_url`` pin endpoint and card, at the origin of ``url``. ``query`` has the keys that go there.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    other_headers: Mapping[str, str] | None = field(default=None, repr=False)
    query: str = field(default="", repr=False)
    dialects: tuple[str, ...] | None = None
    rpc_url: str | None = None
    card_url: str | None = None

    @property
    def address(self) -> AgentUrl:
        """Where card and endpoint are, parsed as our own caller parses it. Raises ConfigError."""
        return AgentUrl.parse(self.url, rpc_url=self.rpc_url, card_url=self.card_url)

    def at(self, origin: str) -> Target:
        """The target at an origin, for one whose addresses are paths."""
        rpc_url, card_url = (path and origin + path for path in (self.rpc_url, self.card_url))
        return replace(self, url=origin + self.url, rpc_url=rpc_url, card_url=card_url)

    def secrets(self) -> tuple[str, ...]:
        """The texts that must never be shown."""
        values = [*self.headers.values(), *(self.other_headers or {}).values(), self.query.partition("=")[2]]
        parts = [part for value in values for part in {value, value.rpartition(" ")[2]} if part]
        return (*parts, *(part[:-1] for part in parts if len(part) > 5))  # a probe spoils the last letter


# -- an agent seen from inside: its log, its memory, its store of tasks --------------------------------

LINES_MAX = 20_000
LINE_CHARS_MAX = 4_000
DEPTH_MAX = 3

_LEVEL = re.compile(r"\b(TRACE|DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b", re.IGNORECASE)
_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class AgentLog:
    """The lines an agent has logged, ``LEVEL text`` each; of many, the last ``LINES_MAX``."""

    def __init__(self) -> None:
        self._kept: deque[str] = deque(maxlen=LINES_MAX)
        self._count = 0

    def add(self, line: str) -> None:
        """Keep a line, cut to ``LINE_CHARS_MAX``; the oldest goes when ``LINES_MAX`` are kept."""
        self._kept.append(one_line(line, LINE_CHARS_MAX))
        self._count += 1

    def add_printed(self, line: str) -> None:
        """Keep a line that was printed, at the level it names; what it says is for debugging alone is left out."""
        found = _LEVEL.search(line[:120])
        level = found[1].upper() if found else "PRINTED"
        if level not in {"DEBUG", "TRACE"}:
            self.add(f"{level} {line}")

    def __len__(self) -> int:
        return self._count

    def since(self, count: int) -> list[str]:
        return list(self._kept)[-(self._count - count) :] if self._count > count else []


class Internals(Protocol):
    """An agent that the check can observe from inside."""

    log: AgentLog

    async def collect(self) -> None:
        """Collect the garbage of its process."""


def is_store(value: object) -> bool:
    """Whether it can hold tasks: a mapping or another container of ids or of tasks."""
    return isinstance(value, Mapping) or (isinstance(value, Container) and isinstance(value, Sized))


def holds(store: object, task_id: str, depth: int = DEPTH_MAX) -> bool:
    """Whether a store has a task: by its id as a key, at most ``depth`` mappings deep, or among its items."""
    if isinstance(store, Mapping):
        if task_id in store:
            return True
        return depth > 1 and any(holds(value, task_id, depth - 1) for value in list(store.values()))
    if isinstance(store, list | tuple | set | frozenset | deque):
        return any(item == task_id or _id_of(item) == task_id for item in list(store))
    return depth == DEPTH_MAX and isinstance(store, Container) and task_id in store


def _id_of(item: Any) -> Any:
    if isinstance(item, Mapping):
        return item.get("id") or item.get("task_id")
    return getattr(item, "id", None) or getattr(item, "task_id", None)


@contextmanager
def capturing_logs(log: AgentLog, *names: str) -> Iterator[None]:
    """Write INFO and above from these enabled loggers and their children into ``log``; the empty name is every one."""

    def keep(record: logging.LogRecord) -> None:
        if record.levelno >= logging.INFO and any(
            not name or record.name == name or record.name.startswith(f"{name}.") for name in names
        ):
            log.add(f"{record.levelname} {text_of(record)}")

    watched = [logging.getLogger(name) for name in names]
    levels = [sampled.level for sampled in watched]
    let_info_through(*names)
    plain = logging.Logger.handle

    def handle(self: logging.Logger, record: logging.LogRecord) -> None:
        if not self.disabled:
            keep(record)
        plain(self, record)

    logging.Logger.handle = handle  # type: ignore[method-assign]
    try:
        yield
    finally:
        logging.Logger.handle = plain  # type: ignore[method-assign]
        for one, level in zip(watched, levels, strict=True):
            one.setLevel(level)


def let_info_through(*names: str) -> None:
    """Set these loggers to INFO, unless they log more."""
    for name in names:
        one = logging.getLogger(name)
        one.setLevel(min(one.level or logging.INFO, logging.INFO))


def text_of(record: logging.LogRecord) -> str:
    """A record's text, with the members that were handed in beside it."""
    try:
        text = record.getMessage()
    except Exception:  # noqa: BLE001 - the agent's own format string
        text = str(record.msg)
    more = [f"{name}={value}" for name, value in vars(record).items() if name not in _USUAL]
    return " ".join([text, *more])
