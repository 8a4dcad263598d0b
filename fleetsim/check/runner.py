"""Discovers an agent and runs probes: which requirements in which dialects, how many at once, and what comes out.

Knows nothing of what a probe does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from fleetsim import __version__
from fleetsim.check.agent_under_test import (
    DEFAULT_TEXTS,
    PROBE_EXCHANGES,
    AgentUnderTest,
    Hint,
    Options,
    Target,
    interfaces,
)
from fleetsim.check.evidence import TIMEOUTS, Exchange, NotPassed, Timeouts, Verdict, note_timeout
from fleetsim.check.listener import Listener
from fleetsim.check.needs import check_needs, too_long, unmet
from fleetsim.check.raw_dialect import listed, mapping, version_of
from fleetsim.check.report import Finding, Report, in_order, marked, sdks
from fleetsim.check.requirement import ALL, ONCE, PROFILES, SECTIONS, ProbeBatch, Requirement, Severity
from fleetsim.check.sections import REQUIREMENTS
from fleetsim.check.session import Session
from fleetsim.client.http import AgentUrl, auth_refused
from fleetsim.model.call import Operation
from fleetsim.model.errors import ConfigError, FleetsimError, Unreachable, WireError
from fleetsim.model.security import in_words, requested_schemes
from fleetsim.model.task import INTERRUPTED, TERMINAL
from fleetsim.model.text import one_line
from fleetsim.runtime.ports import Reply, Runtime
from fleetsim.wire.cards import read_card
from fleetsim.wire.choice import Choice, no_way, respelled
from fleetsim.wire.dialect import DIALECTS, OVER_JSON_RPC, dialect_of_version

log = logging.getLogger(__name__)

NONE = "fleetsim-none"
"""A task that does not exist, for the requests of ``discover``."""

SAME_MAX = 3
"""The repetitions end after this many with the same verdict."""

Progress: TypeAlias = Callable[[int, int, str], None]
"""Called after each probe: the number done, the number of all, and the requirement's id."""

Job: TypeAlias = tuple[Requirement, str]
"""A requirement and the name of the dialect to probe it in."""


def select(patterns: Iterable[str]) -> tuple[Requirement, ...]:
    """The requirements whose id, section or title fits one of the patterns (all without any), case-blind."""
    wanted = [pattern.lower() for pattern in patterns]
    if not wanted:
        return tuple(REQUIREMENTS.values())

    def fits(one: Requirement, pattern: str) -> bool:
        if any(fnmatchcase(text, pattern) for text in (one.id.lower(), one.section.lower())):
            return True
        return len(pattern) > 3 and pattern in f"{one.section} {one.title}".lower()

    return tuple(row for row in REQUIREMENTS.values() if any(fits(row, pattern) for pattern in wanted))


async def run_check(
    target: Target | str,
    runtime: Runtime,
    *,
    listener: Listener | None = None,
    options: Options | None = None,
    requirements: Iterable[Requirement] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Test an agent against the checklist. Raises ConfigError for an unknown profile or SDK; else as ``discover``."""
    options = options or Options()
    if options.profile and options.profile not in PROFILES:
        raise ConfigError(f"unknown profile {one_line(options.profile, 40)!r}", hint=f"one of: {', '.join(PROFILES)}")
    if options.sdk and options.sdk not in sdks():
        raise ConfigError(f"no baseline of {one_line(options.sdk, 40)!r}", hint=f"one of: {', '.join(sdks())}")
    target = Target(url=target) if isinstance(target, str) else target
    began, clock = runtime.clock.now(), runtime.clock.monotonic()
    agent = await discover(target, runtime, options, listener)
    run = CheckRun(agent, progress)
    findings = await run.all(
        replace(row, severity=Severity.MUST) if options.profile in row.binding_for else row
        for row in (REQUIREMENTS.values() if requirements is None else requirements)
    )
    told, shared = marked(in_order(findings, REQUIREMENTS), options.sdk)
    return Report(
        url=target.url,
        agent=one_line(str(agent.card.get("name", "?")), 80),
        dialects=() if agent.no_way else agent.dialects,
        endpoints={} if agent.no_way else {name: agent.endpoint(name) for name in agent.dialects},
        listener=listener.origin if listener else "",
        findings=told,
        seconds=runtime.clock.monotonic() - clock,
        seed=options.seed,
        began=began.isoformat(timespec="seconds"),
        version=__version__,
        note="; ".join(filter(None, (run.note, shared))),
    )


class CheckRun:
    """One run over one agent. It keeps the exchanges of each probe, and the probes that timed out beside others."""

    def __init__(self, agent: AgentUnderTest, progress: Progress | None) -> None:
        self._agent = agent
        self._sessions = {name: Session(agent, name) for name in agent.dialects}
        self._jobs = agent.options.jobs
        self._progress = progress
        self._done = self._all = 0
        self._late: list[Job] = []
        self._left: dict[str, list[Exchange]] = {name: [] for name in agent.dialects}
        self.note, self._beside = agent.no_way, False

    async def all(self, requirements: Iterable[Requirement]) -> list[Finding]:
        """The findings of every requirement in each of its dialects; slow ones run side by side."""
        findings: list[Finding] = []
        batches: dict[ProbeBatch, list[Job]] = {batch: [] for batch in ProbeBatch}
        for requirement in requirements:
            names = self._dialects(requirement)
            self._all += len(names) or 1
            batches[requirement.batch] += [(requirement, name) for name in names]
            if not names:
                about = "/".join(requirement.covers if requirement.dialects == ONCE else requirement.dialects)
                reason = f"about A2A {about}; probed here: {', '.join(self._agent.dialects)}"
                findings.append(self._finding(requirement, "", Verdict.NOT_APPLICABLE, reason))
        together = batches[ProbeBatch.TOGETHER]
        if len(together) > self._jobs and await one_at_a_time(Session(self._agent, self._agent.dialects[-1])):
            self._jobs, self.note = 1, "the agent does one task at a time, so it was probed for one thing at a time"
        findings += [await self._alone(requirement, name) for requirement, name in batches[ProbeBatch.ALONE]]
        findings += await self._again(await self._together(together))
        return findings + [await self._alone(requirement, name) for requirement, name in batches[ProbeBatch.LAST]]

    def _dialects(self, requirement: Requirement) -> tuple[str, ...]:
        """The dialects to probe a requirement in; none if it applies to none of the agent's."""
        spoken = self._agent.dialects
        if requirement.dialects == ONCE:
            versions = set(map(version_of, spoken))
            return spoken[-1:] if requirement.covers == ALL or set(requirement.covers) & versions else ()
        return tuple(name for name in spoken if version_of(name) in requirement.dialects)

    async def _together(self, batch: list[Job]) -> list[Finding]:
        # The slowest probes begin first, so that the run does not end with one of them alone.
        if self._agent.options.seed:
            batch = list(batch)
            self._agent.runtime.rng.stream("check/order").shuffle(batch)
        slow_first = sorted(batch, key=lambda job: -job[0].lasts_s)

        # A requirement by itself is probed by itself in each of its dialects.
        if self._jobs == 1 or len({requirement.id for requirement, _ in batch}) == 1:
            return [await self._alone(requirement, name) for requirement, name in slow_first]
        self._beside = True
        gate = asyncio.Semaphore(self._jobs)

        async def one(requirement: Requirement, name: str) -> Finding:
            async with gate:
                return await self._probe(requirement, name)

        timed = {name for requirement, name in batch if "end" in requirement.needs}
        async with asyncio.TaskGroup() as group:
            for name in timed:
                group.create_task(too_long(self._sessions[name]), name=f"time the slow skill {name}")
            working = [
                group.create_task(one(requirement, name), name=f"{requirement.id} {name}")
                for requirement, name in slow_first
            ]
        return [worker.result() for worker in working]

    async def _alone(self, requirement: Requirement, name: str, *, settled: bool = False) -> Finding:
        """Probe a requirement alone; if tasks of other probes matter, after these have ended."""
        if settled or self._jobs == 1:
            for other, asked in self._left.items():
                await settle(self._sessions[other], asked)
                asked.clear()
            if "end" in requirement.needs:
                await too_long(self._sessions[name])
        return await self._probe(requirement, name)

    async def _again(self, findings: list[Finding]) -> list[Finding]:
        """The findings, after probes that timed out beside others were repeated alone.

        After ``SAME_MAX`` in a row with the same verdict, the agent is the cause, of the other timeouts too.
        """
        late, self._late, self._beside = self._late, [], False
        latest = {finding.key: finding for finding in findings}
        for session in self._sessions.values():
            session.forget_late_fixtures()
        same = 0
        places = list(REQUIREMENTS)
        for requirement, name in sorted(late, key=lambda job: (places.index(job[0].id), job[1])):
            if same == SAME_MAX:
                break
            self._all += 1
            one = await self._alone(requirement, name, settled=True)
            same = same + 1 if one.verdict is latest[one.key].verdict else 0
            latest[one.key] = one
        return list(latest.values())

    async def _probe(self, requirement: Requirement, name: str) -> Finding:
        began = self._agent.runtime.clock.monotonic()
        verdict, reason, lost = Verdict.PASS, "", False
        evidence: tuple[str, ...] = ()
        asked: list[Exchange] = []
        leant_on = asked
        timeouts = Timeouts()
        exchanges_before, timeouts_before = PROBE_EXCHANGES.set(asked), TIMEOUTS.set(timeouts)
        try:
            await self._attempt(requirement, name)
        except NotPassed as result:
            verdict, reason, lost = result.verdict, result.reason, result.lost
            evidence = tuple(item.shown() for item in result.evidence)
            seen = [item for item in result.evidence if isinstance(item, Exchange)]
            asked += seen
            leant_on = seen if verdict is Verdict.FAIL else asked
            if verdict is Verdict.FAIL and any(exchange.unreached for exchange in seen):
                verdict, reason, lost = Verdict.NOT_TESTED, "the agent could not be reached any more", True
        try:
            if missing := await unmet(requirement, self._sessions[name], leant_on):
                verdict, reason, lost = Verdict.NOT_TESTED, missing, False
        except NotPassed:
            pass  # another row tells why the need could not be looked at
        finally:
            PROBE_EXCHANGES.reset(exchanges_before)
            TIMEOUTS.reset(timeouts_before)
        self._left[name] += asked
        if self._beside and timeouts.noted and verdict in {Verdict.FAIL, Verdict.NOT_TESTED}:
            self._late.append((requirement, name))
        seconds = self._agent.runtime.clock.monotonic() - began
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._all, requirement.id)
        return self._finding(requirement, name, verdict, reason, evidence=evidence, seconds=seconds, lost=lost)

    async def _attempt(self, requirement: Requirement, name: str) -> None:
        session, probe = self._sessions[name], requirement.probe
        if self._agent.no_way and requirement.section != SECTIONS["C"]:
            raise NotPassed(Verdict.NOT_TESTED, self._agent.no_way)
        await check_needs(requirement, session)
        if probe is None:
            raise NotPassed(Verdict.NOT_TESTED, "this version has no probe for it")
        limit_s = None if "time" in requirement.needs else 3 * session.options.reply_s
        try:
            async with asyncio.timeout(limit_s):
                await probe(session)
        except NotPassed as found:
            waited = "end" in requirement.needs and found.verdict in {Verdict.FAIL, Verdict.NOT_TESTED}
            if waited and (reason := await too_long(session)):
                raise NotPassed(Verdict.NOT_TESTED, reason) from None
            raise
        except TimeoutError:
            note_timeout()
            raise NotPassed(Verdict.NOT_TESTED, f"the probe was given up after {limit_s:g} s", lost=True) from None
        except FleetsimError as error:
            raise NotPassed(
                Verdict.NOT_TESTED, f"the connection did not hold: {one_line(str(error))}", lost=True
            ) from None
        except ExceptionGroup as group:  # of probes that do several things at once
            first: BaseException | None = group.subgroup(NotPassed)
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            raise first or _broke(group) from None
        except Exception as error:
            log.exception("the probe of %s broke", requirement.id)
            raise _broke(error) from None

    def _finding(self, requirement: Requirement, name: str, verdict: Verdict, reason: str, **more: Any) -> Finding:
        dialect = "any" if requirement.dialects == ONCE else name or "/".join(requirement.dialects)
        return Finding(requirement=requirement, dialect=dialect, verdict=verdict, reason=one_line(reason, 400), **more)


def _broke(error: Exception) -> NotPassed:
    return NotPassed(Verdict.NOT_TESTED, f"the probe broke ({type(error).__name__})", lost=True)


# -- the agent: its card, and the dialects that it knows -------------------------------------------------


async def discover(target: Target, runtime: Runtime, options: Options, listener: Listener | None) -> AgentUnderTest:
    """Fetch the card and find out what can be probed. Raises ConfigError for a wrong address or mutating skill,
    Unreachable, and AuthRefused if both card and endpoint are closed to the credentials.
    """
    agent = AgentUnderTest(target=target, runtime=runtime, options=options, listener=listener)
    await _read_cards(agent)
    skills = [str(skill.get("id")) for skill in agent.skills()]
    for named in options.mutating if agent.card else ():
        if named not in skills:
            near = get_close_matches(named, skills, n=1) or skills[:5]
            raise ConfigError(f"the card has no skill {one_line(named, 80)}", hint=f"e.g. {one_line(', '.join(near))}")
    known = dict.fromkeys(name for _, name in interfaces(agent.card) if name)
    offered = tuple(name for name in known if name in OVER_JSON_RPC) or tuple(known)
    requested = ""
    with suppress(WireError):  # C-05 reports a document that cannot be read as a card
        card = read_card(agent.card)
        requested = in_words(requested_schemes(card))
        agent.no_way = "" if target.dialects or target.address.rpc_url else no_way(card)
    if agent.no_way:
        offered = tuple(dict.fromkeys(dialect_of_version(item.protocol_version) for item in card.interfaces))
    agent.dialects = target.dialects or tuple(sorted(offered)) or ("0.3",)
    agent.hints = {**_detected(agent), **options.hints}
    if agent.no_way:
        return agent
    newest = Session(agent, agent.dialects[-1])
    for url in dict.fromkeys(agent.endpoint(name) for name in agent.dialects):
        asked = await _knock(newest, url, {})
        if (there := agent.redirected(asked)) and not newest.dialect.over_http:
            agent.moved[url] = there
            asked = await _knock(newest, there, {})
        agent.guarded = asked
    if agent.demands_auth:
        own = await _knock(newest, agent.endpoint(newest.dialect.name), None)
        if own.status in {401, 403}:
            given = "the credential given" if target.headers or target.query else None
            reply = Reply(status=own.status, headers=own.headers, body=own.body)
            raise auth_refused(target.address.where, given, requested, reply)
    # Probe in the dialects the agent knows, where it knows one, rather than in those the card offers. Dialects that
    # were asked for are probed whatever comes of it.
    unknown = {name: refusal for name in offered if (refusal := await _refusal(agent, name)) is not None}
    spoken = [name for name in offered if name not in unknown]
    if unknown:
        binding = DIALECTS[offered[0]].binding
        specified = sorted(name for name, spec in DIALECTS.items() if spec.guessed and spec.binding == binding)
        spoken += [name for name in specified if name not in offered and await _refusal(agent, name) is None]
    if unknown and spoken:
        agent.unknown, agent.spoken = unknown, tuple(sorted(spoken))
        agent.dialects = agent.target.dialects or agent.spoken
    await _find_spelling(agent)
    return agent


async def _refusal(agent: AgentUnderTest, dialect: str) -> Exchange | None:
    """An answer that says the agent does not know the dialect: neither how to read a task nor how to cancel one."""
    session, refused = Session(agent, dialect), None
    for operation in (Operation.GET, Operation.CANCEL):
        refused = await session.rpc(operation, session.dialect.by_id(NONE), request_id=1)
        if refused.code not in {-32601, -32009}:
            return None
    return refused


async def _find_spelling(agent: AgentUnderTest) -> None:
    """Probe with 0.3's other objects over HTTP+JSON if those of the SDKs are refused (decision 50); no work begins."""
    for name in agent.dialects:
        url = agent.endpoint(name)
        other = respelled(Choice(dialect_name=name, url=url))
        if other is None:
            continue
        refused = []
        for place in (url, other.url):
            agent.moved[url] = place
            session = Session(agent, name)
            message = session.dialect.message("fleetsim", session.new(), taskId=NONE)
            exchange = await session.rpc(Operation.SEND, session.dialect.send(message))
            refused.append(exchange.status in {400, 422})
        if refused != [True, False]:
            del agent.moved[url]


async def _knock(session: Session, url: str, credentials: Mapping[str, str] | None) -> Exchange:
    if session.dialect.over_http:
        return await session.rpc(Operation.GET, session.dialect.by_id(NONE), url=url, credentials=credentials)
    return await session.rpc("fleetsim/check", request_id=1, url=url, credentials=credentials)


async def _read_cards(agent: AgentUnderTest) -> None:
    address = agent.target.address
    for url in dict.fromkeys((*address.card_urls(), *AgentUrl.parse(address.text).card_urls())):
        read = await agent.exchange("GET", url, credentials={})
        agent.open_reads[url] = read
        if read.status in {401, 403} and (agent.target.headers or agent.target.query):
            read = await agent.exchange("GET", url)
        agent.card_reads[url] = read
        if there := agent.redirected(read):  # C-01 reports the redirect; the card behind it is judged
            read = await agent.exchange("GET", there)
        if not agent.card and read.status == 200 and "name" in mapping(read.value):
            agent.card, agent.card_at = mapping(read.value), url
    if all(read.status is None for read in agent.card_reads.values()):
        first = next(iter(agent.card_reads.values()))
        raise Unreachable(first.problem or f"{agent.target.url}: no answer", hint=first.hint)


def _detected(agent: AgentUnderTest) -> dict[str, Hint]:
    """Skills that say by id or tag what they are good for."""
    found: dict[str, Hint] = {}
    for kind, text in DEFAULT_TEXTS.items():
        names = ("echo", "quick", "ping", "hello") if kind == "quick" else (kind,)
        ids = [str(skill.get("id")) for skill in agent.skills()]
        tagged = [str(s.get("id")) for s in agent.skills() if set(names) & {str(t) for t in listed(s.get("tags"))}]
        skill = next((name for name in names if name in ids), None) or (tagged[0] if tagged else None)
        if skill is not None:
            found[kind] = Hint(skill, text)
    return found


# -- agents that do one task at a time: probes side by side would wait for each other -------------------

QUIET_S = 60.0
"""How long the tasks that a probe has left are waited for."""

DIFFERS_S = 0.5
"""A shorter delay does not matter, whatever the order."""

SOON_S = 0.2


async def one_at_a_time(session: Session) -> bool:
    """Whether a task waits until the one before it is done.

    A quick task is sent behind a slow one, if it is known how to get one; else three quick ones at once, which then
    end like the steps of a staircase. A first task goes ahead, since first tasks are slow everywhere.
    """
    try:
        await session.finished()
        alone_s = await _takes_s(session)
    except NotPassed:
        return False
    if "slow" in session.agent.hints:
        async with asyncio.TaskGroup() as group:
            slow = group.create_task(session.send(session.hint("slow")), name="slow")
            await asyncio.sleep(SOON_S)
            try:
                return await _takes_s(session) > 2 * alone_s + 2 * DIFFERS_S
            except NotPassed:
                return True
            finally:
                slow.cancel()  # the task goes on at the agent, but it blocks no other task
    if alone_s < DIFFERS_S / 2:
        return False
    try:
        async with asyncio.TaskGroup() as group:
            sent = [group.create_task(_takes_s(session)) for _ in range(3)]
    except ExceptionGroup:
        return True  # what ends by itself does not end beside two others
    first, second, last = sorted(task.result() for task in sent)
    return last - first > DIFFERS_S and second > 1.6 * first and last > 2.4 * first


async def _takes_s(session: Session) -> float:
    began = session.now()
    await session.finished()
    return session.now() - began


async def settle(session: Session, asked: Iterable[Exchange]) -> None:
    """Wait until the tasks that these requests show are over, or wait for somebody."""
    end = session.now() + QUIET_S
    states: dict[str, str] = {}  # the last one seen of each task
    for exchange in asked:
        seen = [mapping(session.dialect.task(exchange.result))]
        for frame in exchange.frames:
            kind, content = session.dialect.event(frame.result)
            event = mapping(content)
            seen.append({**event, "id": session.dialect.task_id(kind, event)})
        for task in seen:
            if isinstance(named := task.get("id"), str):
                states[named] = session.dialect.state(task) or states.get(named, "")
    for task_id, state in states.items():
        if state in TERMINAL or state in INTERRUPTED:
            continue
        if (await session.cancel(task_id)).code == -32002:
            continue
        exchange = await session.until(task_id, TERMINAL | INTERRUPTED, max(end - session.now(), 0.0))
        if exchange.unreached:
            return
