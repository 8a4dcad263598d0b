"""The card broker: one client per agent, and its card, fetched, refreshed and checked.

Workstacean's SkillBrokerPlugin, without its faults: a failed first fetch is tried again until it works,
skills of agents.yaml are never pruned, the last good card stays in use while a newer one cannot be had,
and credentials, limits and trace go with every fetch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime

from fleetsim.client import AgentClient, ClientLimits
from fleetsim.client.card_facts import CardFacts
from fleetsim.client.wire_log import WireLog
from fleetsim.events.fleet import CardFailed, CardFetched
from fleetsim.events.log import EventLog
from fleetsim.events.request import Level
from fleetsim.fleet.access import Access
from fleetsim.fleet.settings import AgentEntry, FleetConfig
from fleetsim.ledger import CardSnapshot, Ledger
from fleetsim.model.card import AgentCard, Capabilities
from fleetsim.model.errors import (
    AuthRefused,
    CardNotTrusted,
    ConfigError,
    FleetsimError,
    HttpRefused,
    NotAccepting,
    TransportError,
    UnknownTarget,
    WireError,
)
from fleetsim.model.extensions import doubts_of, hub_of
from fleetsim.model.text import one_line
from fleetsim.model.work import ALL
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.workers import Workers
from fleetsim.wire.choice import Choice, origin_of
from fleetsim.wire.dialect import read_card, write_card

RETRY_WAITS_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Pauses after failed fetches; the last one repeats."""

FIRST_READ_S_MAX = 10.0
"""How long work waits for cards that nobody has looked at yet: less than those who ask the hub wait for its reply, even
where an entry's ``timeoutMs`` gives its agent minutes."""

FORMER_KEPT_S = 60.0
"""How long the earlier address of an agent is kept after its last work there."""

REFRESH_JITTER = 0.1

SEARCH_EVERY_S = 3_600.0
"""How often a card is looked for wherever one may be, and read whole. In between it is asked for where it was, and sent
if it is another: one that appears below a configured path, or changes under its old ETag, is seen by then."""

SKILLS_MAX = 500
_FROM_LAST_RUN = "kept from an earlier run, not fetched since"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentView:
    """The state of an agent as the hub knows it.

    ``reachable`` is None until somebody tried. ``stale_reason`` says why ``card`` is older than it should
    be, or why there is none; empty when all is well. ``skills`` are what may be asked for now, ``doubts`` the warnings
    of the card for requesters.
    """

    entry: AgentEntry
    card: AgentCard | None = None
    choice: Choice | None = None
    reachable: bool | None = None
    stale_reason: str = ""
    fetched_at: datetime | None = None
    tried_at: datetime | None = None
    latency_ms: int | None = None
    failures: int = 0
    unreachable_since: datetime | None = None
    skills: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def capabilities(self) -> Capabilities:
        """The card's flags; before the first card, what agents.yaml says of streaming and nothing else."""
        if self.card is not None:
            return self.card.capabilities
        return Capabilities(streaming=bool(self.entry.streaming))

    @property
    def stale(self) -> bool:
        """Whether a card is in use that could not be refreshed."""
        return self.card is not None and bool(self.stale_reason)


@dataclass(slots=True)
class _CardState:
    """One agent's client and view. ``wake`` has its card read now.

    ``failures`` are the kinds of failure since the card was last read, with whether the agent was there. ``works``: a
    task completed, and no connection failed since. Then a card that answers 5xx does not mean that the agent is down.
    """

    client: AgentClient
    view: AgentView
    failures: set[tuple[type[FleetsimError], bool]] = field(default_factory=set)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    works: bool = False
    worker: asyncio.Task[None] | None = None


@dataclass(slots=True)
class _Former:
    """An earlier address of an agent, and the client for the work that is still there."""

    entry: AgentEntry
    client: AgentClient
    unused_since: float | None = None


class CardBroker:
    """Knows every configured agent. ``async with`` starts one worker per enabled agent."""

    def __init__(
        self,
        runtime: Runtime,
        config: FleetConfig,
        events: EventLog,
        *,
        ledger: Ledger | None = None,
        client_factory: Callable[[AgentEntry], AgentClient] | None = None,
        wire: WireLog | None = None,
    ) -> None:
        self._runtime = runtime
        self._wire = wire
        self._settings = config.settings
        self._events = events
        self._ledger = ledger
        self._rng = runtime.rng.stream("cards")
        self._workers = Workers("cards")
        self._make = client_factory or self._client_for
        self._states = {
            entry.name: _CardState(self._make(entry), AgentView(entry=entry, skills=entry.skill_names))
            for entry in config.agents
        }
        self._offers: Mapping[str, Collection[str]] | None = None
        self.hub_ids: Mapping[str, str] = {}
        """The agents that are hubs, by name, each with its id."""
        self._disabled: Mapping[str, str] | None = None
        self._away: frozenset[str] | None = None
        self._unread: dict[str, _CardState] = {}
        self._was_read = asyncio.Event()
        self._former: dict[tuple[str, tuple[str, str, int] | None], _Former] = {}
        self._replaced: list[tuple[float, AgentClient]] = []

    # ------------------------------------------------------------------ reading

    def view(self, agent: str) -> AgentView:
        """The state of an agent. Raises UnknownTarget."""
        return self._state(agent).view

    def find(self, agent: str) -> AgentView | None:
        """The same; None for an agent that is not in the fleet."""
        return None if (state := self._states.get(agent)) is None else state.view

    def views(self) -> tuple[AgentView, ...]:
        return tuple([state.view for state in self._states.values()])

    def client(self, agent: str, url: str = "") -> AgentClient:
        """The client of an agent, for work at the origin of ``url`` if one is given.

        That is the agent's one client while the agent is there; else a client without credential that calls only that
        origin. Raises UnknownTarget.
        """
        return self._former_at(agent, url).client if self.former(agent, url) else self._state(agent).client

    def entry(self, agent: str, url: str = "") -> AgentEntry:
        """The agent as agents.yaml has it, or had it when it was at the origin of ``url``. Raises UnknownTarget."""
        return self._former_at(agent, url).entry if self.former(agent, url) else self._state(agent).view.entry

    def former(self, agent: str, url: str) -> bool:
        """Whether the agent is not at the origin of ``url`` any more, or not in the fleet."""
        state = self._states.get(agent)
        return bool(url) and (state is None or origin_of(url) != origin_of(state.view.entry.url))

    def offers(self) -> Mapping[str, Collection[str]]:
        """The skills of each enabled agent now, for the registry; the same object until they change."""
        if self._offers is None:
            self._offers = {name: state.view.skills for name, state in self._states.items() if state.view.entry.enabled}
        return self._offers

    def disabled(self) -> Mapping[str, str]:
        """Why each of the other agents takes no work, by name."""
        if self._disabled is None:
            entries = (state.view.entry for state in self._states.values())
            self._disabled = {entry.name: entry.takes_no_work for entry in entries if not entry.enabled}
        return self._disabled

    def unread(self) -> Collection[str]:
        """The enabled agents without a card."""
        return {view.entry.name for view in self.views() if view.entry.enabled and view.card is None}

    def away(self) -> Collection[str]:
        """The agents that cannot be reached now."""
        if self._away is None:
            self._away = frozenset(name for name, state in self._states.items() if state.view.reachable is False)
        return self._away

    # ------------------------------------------------------------------ first reads

    def reading(self, skill: str | None, targets: Sequence[str], access: Access | None = None) -> bool:
        """Whether the first read of a card is in progress that may change the target of such a request, or its form.

        A request does not wait for a card of an earlier run that lists the skill. It waits where the dialect, the
        part of a person or a new skill may still be unknown.
        """
        if not self._unread or not (skill or targets):
            return False

        def lists(state: _CardState) -> bool:
            name = state.view.entry.name
            return skill in state.view.skills and (access is None or access.may(name, skill))

        # A wait for an agent would show the caller that the agent exists.
        unread = {name: state for name, state in self._unread.items() if access is None or access.may(name)}
        if ALL in targets:
            asked = list(unread.values())
        elif targets:
            asked = [unread[name] for name in targets if name in unread]
        else:
            offering = [state for state in self._states.values() if state.view.entry.enabled and lists(state)]
            asked = [state for state in offering or unread.values() if state.view.tried_at is None]
        return any(state.view.card is None or not (skill is None or lists(state)) for state in asked)

    async def until_read(self, skill: str | None, targets: Sequence[str], access: Access | None = None) -> None:
        """Wait until no such card is left: each first read ends by its own deadline, the wait after 10 s."""
        if not self.reading(skill, targets, access):
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_READ_S_MAX):
                while self.reading(skill, targets, access):
                    await self._was_read.wait()

    def stop_waiting(self) -> None:
        """End every wait for a card: the hub closes."""
        self._unread = {}
        self._wake_waiting()

    def _find_unread(self) -> None:
        """List the enabled agents whose card was not read yet: work waits for no other."""
        self._unread = {
            name: state
            for name, state in self._states.items()
            if state.view.entry.enabled and state.view.tried_at is None
        }
        self._wake_waiting()

    def _was_tried(self, state: _CardState) -> None:
        if self._unread.pop(state.view.entry.name, None) is not None:
            self._wake_waiting()

    def _wake_waiting(self) -> None:
        self._was_read.set()
        self._was_read = asyncio.Event()

    # ------------------------------------------------------------------ fetching

    def completed(self, agent: str) -> None:
        """A task of the agent completed: it is there, even if its card cannot be read."""
        if (state := self._states.get(agent)) is not None:
            state.works = True
            if state.view.reachable is False:
                self._see(state, replace(state.view, reachable=True, unreachable_since=None))

    def hurry(self, agent: str) -> None:
        """Fetch an agent's card now instead of at its next time. An unknown agent is ignored."""
        if (state := self._states.get(agent)) is not None:
            state.works = False
            state.wake.set()

    def speaks(self, agent: str, url: str, dialect: str) -> None:
        """The agent at the origin of ``url`` took work in this dialect though its card reads as another: new work is
        sent so from the next reading of the card on, which is now."""
        state = self._states.get(agent)
        if state is not None and not self.former(agent, url) and state.client.spoken != dialect:
            state.client.speak(dialect)
            state.wake.set()

    def uncallable(self, agent: str, url: str) -> str:
        """Why work of an agent at ``url`` cannot continue after a restart; empty if it can."""
        if agent not in self._states:
            return f"agents.yaml has no agent “{agent}” any more"
        try:
            for credential in self.entry(agent, url).credentials:
                credential.require()
        except ConfigError as error:
            return f"agent “{agent}” has no credential any more: {error}"
        return ""

    async def refresh(self, agent: str, url: str = "") -> AgentView:
        """Fetch an agent's card and return what is known then; a failure is in the view. Raises UnknownTarget.

        With the ``url`` of a place where the agent is not any more: the card that is there, for its client alone.
        """
        if self.former(agent, url):
            left = self._former_at(agent, url)
            with suppress(FleetsimError):
                await left.client.discover(refresh=True)
            return AgentView(entry=left.entry, card=left.client.card)
        return await self._refresh(self._state(agent))

    async def _refresh(self, state: _CardState, *, where_found: bool = False) -> AgentView:
        began = self._runtime.clock.monotonic()
        try:
            card = await state.client.discover(refresh=True, where_found=where_found)
        except FleetsimError as error:
            if self._in_force(state):
                self._failed(state, error)
            return state.view
        if self._in_force(state):
            await self._fetched(state, card, round((self._runtime.clock.monotonic() - began) * 1000))
        return state.view

    async def __aenter__(self) -> CardBroker:
        await self._remember()
        self._find_unread()
        for state in self._states.values():
            self._attend(state)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._workers.close()
        clients = [state.client for state in self._states.values()]
        clients += [left.client for left in self._former.values()]
        for client in clients + [client for _, client in self._replaced]:
            await client.aclose()

    def apply(self, config: FleetConfig) -> None:
        """Follow a changed agents.yaml. Agents whose entry is as it was go on undisturbed.

        An agent that is gone, or at another origin now, is still called there for work it has, without credential.
        """
        new, old_ones = config.settings, self._settings
        rebuild = (new.connect_s, new.call_s) != (old_ones.connect_s, old_ones.call_s)
        self._settings = config.settings
        before, self._states = self._states, {}
        for entry in config.agents:
            old = before.pop(entry.name, None)
            if old is not None and old.view.entry == entry and not rebuild:
                self._states[entry.name] = old
                continue
            self._states[entry.name] = state = self._successor(entry, old)
            self._attend(state)
        for old in before.values():
            self._dismiss(old)
        self._offers = self._disabled = self._away = None
        self._find_hubs()
        self._find_unread()

    def _successor(self, entry: AgentEntry, old: _CardState | None) -> _CardState:
        """The state of a new or changed entry. At the same address what its card said holds until the next one."""
        state = _CardState(self._make(entry), AgentView(entry=entry, skills=entry.skill_names))
        if old is None:
            return state
        self._dismiss(old, moved_to=entry.url)
        view = old.view
        if view.entry.address == entry.address:
            seen = replace(view, entry=entry, card=None, choice=None, skills=entry.skill_names)
            state.client.speak(old.client.spoken)
            if view.card is not None and not entry.card_trust.required:
                seen = _with_card(seen, view.card, state.client.adopt(view.card, old.client.card_at))
            state.view = seen
        return state

    def _dismiss(self, state: _CardState, *, moved_to: str = "") -> None:
        """Retire an entry. Its address stays callable if the agent has left it."""
        if state.worker is not None:
            state.worker.cancel()
        self._replaced.append((self._runtime.clock.monotonic(), state.client))
        entry = state.view.entry
        if origin_of(entry.url) != origin_of(moved_to):
            self._leave(entry)

    async def release(self, in_use: Iterable[tuple[str, str]]) -> None:
        """Close clients of earlier entries; forget earlier addresses not ``in_use``: (agent, url) of open work."""
        used = {(agent, origin_of(url)) for agent, url in in_use}
        now = self._runtime.clock.monotonic()
        for key, left in list(self._former.items()):
            if key in used:
                left.unused_since = None
            elif left.unused_since is None:
                left.unused_since = now  # a last cancel may still be under way
            elif now - left.unused_since >= FORMER_KEPT_S:  # a late cancel or webhook may still need it
                del self._former[key]
                self._replaced.append((left.unused_since, left.client))
        due = [client for since, client in self._replaced if now - since >= FORMER_KEPT_S]
        self._replaced = [(since, client) for since, client in self._replaced if now - since < FORMER_KEPT_S]
        for client in due:
            await client.aclose()

    def _attend(self, state: _CardState) -> None:
        if state.view.entry.enabled:
            state.worker = self._workers.start(self._keep_fresh(state), name=state.view.entry.name)

    async def _keep_fresh(self, state: _CardState) -> None:
        clock, searched_at = self._runtime.clock, float("-inf")
        while True:
            woken = state.wake.is_set()
            state.wake.clear()
            where_found = not woken and not state.view.failures and clock.monotonic() < searched_at + SEARCH_EVERY_S
            if not where_found:
                searched_at = clock.monotonic()
            if failures := (await self._refresh(state, where_found=where_found)).failures:
                pause_s = RETRY_WAITS_S[min(failures, len(RETRY_WAITS_S)) - 1]
            else:
                pause_s = self._settings.card_refresh_s * self._rng.uniform(1 - REFRESH_JITTER, 1 + REFRESH_JITTER)
            try:
                async with asyncio.timeout(pause_s):
                    await state.wake.wait()
            except TimeoutError:
                continue

    async def _fetched(self, state: _CardState, card: AgentCard, latency_ms: int) -> None:
        before = state.view
        now = self._runtime.clock.now()
        view = replace(
            _with_card(before, card, await state.client.choice()),
            reachable=True,
            stale_reason="",
            fetched_at=now,
            tried_at=now,
            latency_ms=latency_ms,
            failures=0,
            unreachable_since=None,
        )
        self._see(state, view)
        state.failures.clear()
        choice, entry = view.choice, view.entry
        warnings = choice.warnings if choice else ()
        self._events.publish(
            CardFetched(
                level=Level.WARN if warnings and before.choice != choice else Level.INFO,
                agent=entry.name,
                url=entry.url,
                rpc_url=choice.url if choice else "",
                dialect=choice.spoken or "" if choice else "",
                skills=tuple(view.skills),
                streaming=view.capabilities.streaming,
                push_notifications=view.capabilities.push_notifications,
                changed=tuple(changes(before.card, view.card, entry.url)),
                auth=entry.secrets,
                warnings=tuple(warnings),
                latency_ms=view.latency_ms,
            )
        )
        self._was_tried(state)
        if self._ledger is not None and (
            before.card != card or before.choice != view.choice
        ):  # each write costs a commit
            snapshot = CardSnapshot(
                agent=entry.name,
                url=entry.url,
                fetched_at=now,
                card=write_card(card),
                found_at=state.client.card_at,
                spoken=state.client.spoken,
            )
            with suppress(NotAccepting):  # the next change of the card is written
                await self._ledger.save_card(snapshot)

    def _failed(self, state: _CardState, error: FleetsimError) -> None:
        """Keep the last good card, and publish the first failure of its kind until a card is read again.

        Where a signature is required, no card without one leaves an earlier one in use.
        An agent that is down has its card read after each request that fails.
        """
        view = state.view
        if isinstance(error, CardNotTrusted):
            view = replace(view, card=None, choice=None)
        reason = one_line(f"{error}{f' ({error.hint})' if error.hint else ''}", 300)
        state.works &= not isinstance(error, TransportError)
        answered = isinstance(error, AuthRefused | WireError) or (
            isinstance(error, HttpRefused) and (error.status < 500 or state.works)
        )
        usable = view.card is not None or bool(view.entry.skills)
        reachable, now = answered and usable, self._runtime.clock.now()
        seen = replace(
            view,
            reachable=reachable,
            unreachable_since=None if reachable else view.unreachable_since or now,
            stale_reason=reason,
            tried_at=now,
            failures=view.failures + 1,
        )
        self._see(state, seen)
        kind = type(error), reachable
        if kind not in state.failures:
            state.failures.add(kind)
            self._events.publish(CardFailed(agent=view.entry.name, reason=reason, stale=view.card is not None))
        self._was_tried(state)

    # ------------------------------------------------------------------ parts

    def _see(self, state: _CardState, view: AgentView) -> None:
        """Replace the view of an agent, and drop the tables that were made of the old one."""
        if state.view.skills != view.skills:
            self._offers = None
        if state.view.reachable is not view.reachable:
            self._away = None
        before, state.view = state.view, view
        if before.card is not view.card:
            self._find_hubs()

    def _find_hubs(self) -> None:
        self.hub_ids = {name: hub for name, state in self._states.items() if (hub := hub_of(state.view.card))}

    def _in_force(self, state: _CardState) -> bool:
        """Whether agents.yaml still has this entry: a card that was fetched for an earlier entry is ignored."""
        return self._states.get(state.view.entry.name) is state

    def _state(self, agent: str) -> _CardState:
        try:
            return self._states[agent]
        except KeyError:
            raise UnknownTarget(f"unknown agent “{one_line(agent, 64)}”") from None

    def _former_at(self, agent: str, url: str) -> _Former:
        """The earlier address of an agent, where some of its work still is."""
        key = (agent, origin_of(url))
        if key not in self._former:
            state = self._states.get(agent)
            there = replace(state.view.entry, url=url, rpc_url=None, card_url=None) if state is not None else None
            self._leave(there or AgentEntry(name=agent, url=url))
        return self._former[key]

    def _leave(self, entry: AgentEntry) -> None:
        """From now on call the origin of this entry without its credential and headers."""
        key = (entry.name, origin_of(entry.url))
        if key not in self._former:
            bare = replace(entry, auth=None, api_key_env=None, headers={})
            self._former[key] = _Former(bare, self._make(bare))

    def _client_for(self, entry: AgentEntry) -> AgentClient:
        runtime = self._runtime
        if self._wire is not None:
            runtime = replace(runtime, transport=self._wire.tap(runtime.transport, entry.name))
        return AgentClient(
            entry.url,
            rpc_url=entry.rpc_url,
            card_url=entry.card_url,
            runtime=runtime,
            credential=entry.credentials,
            way=entry.way,
            headers=entry.headers,
            dialect=entry.dialect,
            trust=entry.card_trust,
            limits=ClientLimits(connect_s=self._settings.connect_s, total_s=entry.timeout_s or self._settings.call_s),
        )

    async def _remember(self) -> None:
        """Take up the cards of an earlier run, for agents whose address is still the same."""
        for snapshot in await self._ledger.cards() if self._ledger is not None else ():
            state = self._states.get(snapshot.agent)
            if state is None:
                continue
            entry = state.view.entry
            if entry.url != snapshot.url or entry.card_url not in {None, snapshot.found_at}:
                continue
            if entry.card_trust.required:  # its signature is not in the snapshot
                continue
            try:
                card = read_card(snapshot.card)
                state.client.speak(snapshot.spoken)
                view = _with_card(state.view, card, state.client.adopt(card, snapshot.found_at))
            except FleetsimError:
                continue
            self._see(state, replace(view, fetched_at=snapshot.fetched_at, stale_reason=_FROM_LAST_RUN))


def _with_card(view: AgentView, card: AgentCard, choice: Choice) -> AgentView:
    """The view with another card: pinned skills first and always, then the card's."""
    skills = [skill.skill_id for skill in card.skills if skill.skill_id][:SKILLS_MAX]
    skills = [*view.entry.skill_names, *skills]
    return replace(view, card=card, choice=choice, skills=tuple(dict.fromkeys(skills)), doubts=doubts_of(card))


def changes(before: AgentCard | None, now: AgentCard | None, url: str) -> list[str]:
    """The differences between two cards of the agent at ``url``, in words; empty for a first and for an equal card."""
    if before is None or now is None or before == now:
        return []
    return [str(change) for change in CardFacts.of(before, url).changes_to(CardFacts.of(now, url))] or ["details"]
