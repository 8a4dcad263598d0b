"""Lose hubs and PostgreSQL under a working fleet, again and again; then compare the fleet with its agents' records.

Hubs (``fleetsim up``) share a ledger in a real PostgreSQL, behind HAProxy with the configuration of ``deploy/``.
Clients send requests, answer each question twice, cancel, fire ceremonies and follow the events through the proxy; the
agents' webhooks go the same way. In each round, by chance: hubs are killed, stopped for twice the lease and
continued, cut from PostgreSQL (refused, silent, or at a commit), cloned, or ended by SIGTERM, or PostgreSQL is
restarted, killed, replaced by its synchronous standby, or refuses connections, writes or room. Notices of questions go
to a webhook that is away at times; of eight questions one is answered only after its notice.

The agents live in another process and note each send that reaches them (with the hub that sent it), each task that they
ran and each webhook that was answered with a 2xx. Triggers in the database note each change of an owner, and each write
by a hub that does not own the request. ``python -m tests.storms.hubs --rounds 300``
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import gc
import itertools
import json
import random
import re
import shutil
import signal
import statistics
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg

from fleetsim.ledger.bodies import decoder
from fleetsim.ledger.records import NoticeRecord, NoticeState, RunRecord
from fleetsim.model.work import Outcome, OutcomeKind
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.real import running_runtime
from tests.ports import held_port
from tests.postgres import PASSWORD, USER, Server
from tests.storms.caller_fleet import Agents, Truth
from tests.storms.hubs_clients import FLEET, LIMIT, LIMITS, Clients, Seen
from tests.storms.hubs_rig import Front, HubProcess, Line, small_disk, spread

NO_LIST = {"ava", "rex", "hugo"}
"""Agents without any way to look for a task whose id the hub does not know."""

CANCELED = {OutcomeKind.CANCELED, OutcomeKind.UNDELIVERABLE}
"""Ends of a request that was canceled, after or before it was sent."""

READY_S = 90.0
"""How long hubs may take until they are ready again, on a machine that may be busy."""

DRAIN_S = 180.0
END_S = 360.0
"""The last round, the end of all work and the comparison end within this time."""

WAKE_S = 2.0
"""How long after it lost a request, or after it woke, a hub may still finish calls before whose first byte, and after
the check of the lease, it was stopped or a busy machine let it wait. All calls of one group may be there at once."""

GRACE_S = 5.0
"""How much longer than the lease a take-over may last on a busy machine."""

STOP_S = 15.0
"""How long a hub with SIGTERM may still finish its calls and notices there."""

TRACES = """
CREATE TABLE storm_moves (correlation_id text, before bigint, after bigint, at timestamptz DEFAULT clock_timestamp());
CREATE TABLE storm_stale (correlation_id text, what text, owner bigint, writer bigint);
CREATE FUNCTION storm_request() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF OLD.hub <> NEW.hub THEN
        INSERT INTO storm_moves (correlation_id, before, after) VALUES (OLD.correlation_id, OLD.hub, NEW.hub);
    END IF;
    IF NEW.hub <> this_hub() OR EXISTS (SELECT FROM hubs WHERE hub = this_hub() AND ended_at IS NOT NULL) THEN
        INSERT INTO storm_stale VALUES (OLD.correlation_id, 'request', NEW.hub, this_hub());
    END IF;
    RETURN NULL; END $$;
CREATE TABLE storm_notices (subject text, notice text, at timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION storm_notice() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO storm_notices VALUES (NEW.subject, NEW.body); RETURN NULL; END $$;
CREATE TRIGGER storm AFTER INSERT OR UPDATE ON notices FOR EACH ROW WHEN (NEW.state <> 'raised')
    EXECUTE FUNCTION storm_notice();
CREATE FUNCTION storm_part() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO storm_stale SELECT NEW.correlation_id, TG_TABLE_NAME, hub, this_hub() FROM requests
        WHERE correlation_id = NEW.correlation_id AND hub <> this_hub();
    RETURN NULL; END $$;
CREATE TRIGGER storm AFTER UPDATE ON requests FOR EACH ROW EXECUTE FUNCTION storm_request();
CREATE TRIGGER storm AFTER INSERT ON outcomes FOR EACH ROW EXECUTE FUNCTION storm_part();
CREATE TRIGGER storm AFTER INSERT ON questions FOR EACH ROW EXECUTE FUNCTION storm_part();
CREATE TRIGGER storm AFTER INSERT ON webhooks FOR EACH ROW EXECUTE FUNCTION storm_part();
"""


STRAINS: dict[str, tuple[list[str], list[str]]] = {
    "no free connection": (
        [
            "ALTER DATABASE postgres ALLOW_CONNECTIONS false",
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'postgres'"
            " AND query LIKE 'SELECT%' AND query NOT LIKE '%set_config%'",  # the readers
        ],
        ["ALTER DATABASE postgres ALLOW_CONNECTIONS true"],
    ),
    "read-only": (
        ["ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()"],
        [
            "SET default_transaction_read_only = off",
            "ALTER SYSTEM RESET default_transaction_read_only",
            "SELECT pg_reload_conf()",
        ],
    ),
    "disk full": ([], []),
}
"""Statements that begin and end a fault of PostgreSQL."""

SYNC = "SELECT FROM pg_stat_replication WHERE sync_state = 'sync'"
ONE_OF_TWO = "schema=storm&target_session_attrs=read-write"
STRICT = (
    "ALTER DATABASE postgres SET default_transaction_isolation = 'repeatable read'",
    "ALTER DATABASE postgres SET statement_timeout = '1s'",
)
"""Defaults of a database whose owner is careful."""


class StormError(AssertionError):
    """A rule that was broken."""


@dataclass
class Storm:
    """The fleet, and the faults that it suffers."""

    folder: Path
    server: Server
    standby: Server
    """It has each acknowledged write, except within ``promote``."""

    runtime: Runtime
    hubs: list[HubProcess]
    rng: random.Random
    lease_s: float
    seen: Seen

    @property
    def database(self) -> str:
        return self.server.url().partition("?")[0]

    # ------------------------------------------------------------------ faults

    async def kill(self, hub: HubProcess) -> None:
        await self._lose("kill", hub)
        hub.signal(signal.SIGKILL)
        await hub.ended()
        if self.rng.random() < 0.5:  # or its next process takes over from it
            await asyncio.sleep(spread(self.rng, self.lease_s, self.lease_s * 1.6))
        hub.start()

    async def pause(self, hub: HubProcess) -> None:
        await self._lose("pause", hub)
        hub.signal(signal.SIGSTOP)
        await asyncio.sleep(2 * self.lease_s)
        self.seen.woken.append((hub.name, time.time()))
        hub.signal(signal.SIGCONT)
        await self._keeps(hub)

    async def cut(self, hub: HubProcess) -> None:
        seconds = spread(self.rng, 0.3, 2 * self.lease_s)
        if seconds > self.lease_s:
            await self._lose("cut", hub)
        if self.rng.random() < 0.5:
            hub.line.close()
        else:
            hub.line.passes.clear()
        await asyncio.sleep(seconds)
        hub.line.heal()
        await self._keeps(hub)

    async def clone(self, hub: HubProcess) -> None:
        """Start a copy of the hub's machine: it is refused, and the hub goes on."""
        here = "SELECT hub FROM hubs WHERE name = $1 AND ended_at IS NULL"
        before = await self._rows(here, await self._name(hub))
        copy = hub.clone()
        try:
            async with asyncio.timeout(60):
                code = await copy.ended()
        except TimeoutError:
            code = -1
        copy.close()
        after = await self._rows(here, await self._name(hub))
        if code != 2 or before != after:
            self.seen.problems.append(f"the clone of {hub.name} ended with {code}, memberships {before}, then {after}")

    async def cut_at_commit(self, hub: HubProcess) -> None:
        for _ in range(3):
            hub.line.at_commit = self.rng.random() < 0.5
            with suppress(TimeoutError):
                async with asyncio.timeout(3):
                    while hub.line.at_commit is not None:  # noqa: ASYNC110 - the hub commits when it has work
                        await asyncio.sleep(0.05)
        hub.line.heal()

    async def leave(self, hub: HubProcess) -> None:
        await self._lose("leave", hub)
        hub.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(60):
                code = await hub.ended()
        except TimeoutError:
            self.seen.problems.append(f"{hub.name} did not stop within 60 s of SIGTERM")
            hub.signal(signal.SIGKILL)
            code = await hub.ended()
        if code not in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
            self.seen.problems.append(f"{hub.name} ended with {code} after SIGTERM")
        await asyncio.sleep(spread(self.rng, 0.1, self.lease_s))
        hub.start()

    async def restart_database(self, how: str, *, promote: bool) -> None:
        """Stop PostgreSQL. After a while start it again, or ``promote`` its standby."""
        away_s = spread(self.rng, 0.3, 1.6 * self.lease_s)
        if how == "kill":
            self.server.kill()
        else:
            await asyncio.to_thread(self.server.stop, how)
        since = time.monotonic()
        while (past := time.monotonic() - since) < away_s:
            for hub in self.hubs:
                status, body = await hub.ready(self.runtime)
                self.seen.refusals[f"{status} {body.decode()[:160] if status else 'no reply'}"] += 1
                if status and status != 200 and b'"reason"' not in body:
                    self.seen.problems.append(f"{hub.name} gives no reason: {body!r}")
                if status == 200 and past > 1:
                    self.seen.problems.append(f"{hub.name} was ready {past:.1f} s after PostgreSQL was gone ({how})")
            await asyncio.sleep(0.2)
        if not promote:
            await asyncio.to_thread(self.server.start)
            return
        await asyncio.to_thread(self.standby.promote)
        self.server, self.standby = self.standby, self.server
        await self.all_ready()
        await self.add_standby()

    async def add_standby(self) -> None:
        """Let the other cluster follow; from then on each commit waits for it."""
        await asyncio.to_thread(self.standby.follow, self.server)
        await self._rows("ALTER SYSTEM SET synchronous_standby_names = '*'")
        await self._rows("SELECT pg_reload_conf()")
        async with asyncio.timeout(60):
            while not await self._rows(SYNC):  # noqa: ASYNC110 - PostgreSQL tells nobody
                await asyncio.sleep(0.1)

    async def strain_database(self, how: str) -> None:
        """Let PostgreSQL refuse new connections, writes, or larger tables, for a while."""
        other_database = self.database.replace("/postgres", "/template1")
        operator = await asyncpg.connect(other_database, timeout=20)
        try:
            for statement in STRAINS[how][0]:
                await operator.execute(statement)
            disk = self.server.disk or Path()
            if how == "disk full":
                with suppress(OSError), (disk / "rest").open("wb", buffering=0) as file:
                    while file.write(b"x" * 4_096):
                        pass
            await asyncio.sleep(spread(self.rng, 0.5, 2 * self.lease_s))
        finally:
            (disk / "rest").unlink(missing_ok=True)
            for statement in STRAINS[how][1]:
                await operator.execute(statement)
            await operator.close()

    async def _lose(self, fault: str, hub: HubProcess) -> None:
        rows = await self._rows("SELECT hub FROM hubs WHERE name = $1 AND ended_at IS NULL", await self._name(hub))
        for (number,) in rows:
            self.seen.losses.append((fault, hub.name, number, time.time()))

    async def _keeps(self, hub: HubProcess) -> None:
        """A hub that is back loses nothing if no other has ended its membership yet, whatever becomes of that later."""
        ended = {row[0] for row in await self._rows("SELECT hub FROM hubs WHERE ended_at IS NOT NULL")}
        self.seen.losses = [loss for loss in self.seen.losses if loss[1] != hub.name or loss[2] in ended]

    async def _name(self, hub: HubProcess) -> str:
        names = [row[0] for row in await self._rows("SELECT DISTINCT name FROM hubs")]
        (name,) = [name for name in names if hub.name in name] or [""]
        return name

    async def _rows(self, sql: str, *values: Any) -> list[Any]:
        settings = {"search_path": "storm", "statement_timeout": "0"}  # not as STRICT
        connection = await asyncpg.connect(self.database, server_settings=settings, timeout=20)
        try:
            return list(await connection.fetch(sql, *values))
        finally:
            await connection.close()

    # ------------------------------------------------------------------ rounds

    async def round(self) -> None:
        """One or more faults at the same time, with at least one hub spared, until all hubs are ready again."""
        one: list[Callable[[HubProcess], Awaitable[None]]] = [
            self.kill, self.kill, self.pause, self.pause, self.cut, self.cut, self.cut_at_commit, self.leave,
            self.clone,
        ]  # fmt: skip
        self.seen.sink.away = self.rng.random() < 0.2
        if self.seen.sink.away:
            self.seen.faults["sink away"] += 1
        if self.rng.random() < 0.2:
            how = self.rng.choice(list(STRAINS))
            self.seen.faults[f"PostgreSQL: {how}"] += 1
            self.seen.note(f"PostgreSQL: {how}")
            await self.strain_database(how)
            self.seen.note("PostgreSQL works again")
        elif self.rng.random() < 0.25:
            how, promote = self.rng.choice(("fast", "immediate", "kill")), self.rng.random() < 0.4
            what = f"PostgreSQL {how}{', standby promoted' if promote else ''}"
            self.seen.faults[what] += 1
            self.seen.note(what)
            await self.restart_database(how, promote=promote)
            self.seen.note("PostgreSQL is back")
        else:
            hit = self.rng.sample(self.hubs, self.rng.randint(1, len(self.hubs) - 1))
            chosen = [(self.rng.choice(one), hub) for hub in hit]
            for fault, hub in chosen:
                self.seen.faults[fault.__name__] += 1
                self.seen.note(f"{fault.__name__} of {hub.name}")
            await asyncio.gather(*(fault(hub) for fault, hub in chosen))
            self.seen.note("the faults are over")
        self.seen.sink.away = False
        await self.all_ready()
        self.seen.note("all hubs are ready")
        await self.check_now()

    async def all_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        for hub in self.hubs:
            while (reply := await hub.ready(self.runtime))[0] != 200:
                if hub.exit_code is not None:
                    self.seen.problems.append(f"{hub.name} ended by itself with {hub.exit_code}")
                    hub.start()
                if time.monotonic() > deadline:
                    self.seen.problems.append(f"{hub.name} is not ready after {READY_S:.0f} s: {reply}")
                    break
                await asyncio.sleep(0.2)

    async def check_now(self) -> None:
        """The rules that hold at any time."""
        problems = self.seen.problems
        accepted = set(self.seen.accepted)
        known = {row[0] for row in await self._rows("SELECT correlation_id FROM requests")}
        problems += [f"{cid} was accepted and is not in the ledger" for cid in accepted - known]
        for cid, what, owner, writer in await self._rows("SELECT * FROM storm_stale"):
            problems.append(f"hub {writer} wrote the {what} of {cid}, which hub {owner} owns")
        begun = Truth.read(self.folder / "truth").begun
        problems += [f"{cid} was run {count} times" for cid, count in begun.items() if count > 1]

    async def drain(self) -> None:
        """Wait until no request of before is open. Ceremonies still fire, and on a busy machine one is always open."""
        deadline, begun = time.monotonic() + DRAIN_S, round(time.time() * 1e6)
        while True:
            rows = await self._rows(
                "SELECT correlation_id, agent, phase, hub FROM requests WHERE phase = 'closed' OR accepted_at < $1"
                " UNION ALL SELECT run_id, ceremony_id, status, hub FROM runs"
                " WHERE status = 'running' AND started_at < $1"
                " UNION ALL SELECT subject, place, state, hub FROM notices WHERE state = 'raised'",
                begun,
            )
            self.seen.drained = {row[0] for row in rows if row[2] == "closed"}
            open_rows = [tuple(row) for row in rows if row[2] != "closed"]
            if not open_rows or time.monotonic() > deadline:
                self.seen.problems += [f"{row} is open still" for row in open_rows[:10]]
                return
            await asyncio.sleep(0.5)

    async def run(self, front: str, per_s: float, rounds: int, until: float) -> tuple[int, str]:
        """Play the rounds, end all work and hubs, and compare. Returns the number of rounds and the figures."""
        seen, done = self.seen, 0
        for hub in self.hubs:
            hub.start()
        await self.all_ready()
        connection = await asyncpg.connect(self.database, server_settings={"search_path": "storm"})
        await connection.execute(TRACES)
        await connection.execute(f"CREATE TABLESPACE small LOCATION '{self.server.disk}'")
        await connection.execute("ALTER TABLE requests SET TABLESPACE small")
        for statement in STRICT:
            await connection.execute(statement)
        await connection.close()
        await self.add_standby()
        key = (self.folder / "hub-1" / "api-key").read_text().strip()
        clients = Clients(self.runtime, front, key, seen, self.rng, per_s=per_s)
        seen.note("the clients begin")
        working = asyncio.create_task(clients.work())
        while done < rounds and time.time() < until and not seen.problems:
            await self.round()
            done += 1
            if done % 5 == 0 or seen.problems:
                print(f"{done} rounds, {sum(seen.faults.values())} faults, {len(seen.accepted)} requests", flush=True)
            if working.done():
                working.result()
        await clients.rest()
        seen.note("no new work")
        await self.drain()
        working.cancel()
        await asyncio.wait([working])
        seen.note("SIGTERM for all hubs")
        for hub in self.hubs:
            hub.signal(signal.SIGTERM)
        await asyncio.gather(*(hub.ended() for hub in self.hubs))
        return done, await self.check()

    async def keep(self) -> str:
        """Write problems, notes and each table into the folder. Returns the explanation of the problems: the notes, the
        warnings of the hubs, and each line of the folder about the requests of the problems."""
        seen, folder = self.seen, self.folder
        (folder / "problems").write_text("\n".join(seen.problems))
        (folder / "notes").write_text("\n".join(seen.notes))
        for name, server in (("postgres", self.server), ("standby", self.standby)):
            shutil.copy(server.data / "log", folder / f"{name}.log")
        try:
            for (table,) in await self._rows("SELECT tablename FROM pg_tables WHERE schemaname = 'storm'"):
                rows = await self._rows(f"SELECT to_json(row)::text FROM {table} AS row")
                (folder / f"{table}.json").write_text("\n".join(row[0] for row in rows))
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            seen.note(f"the tables could not be kept: {error!r}")
        files = {path.name: path.read_text(errors="replace") for path in sorted(folder.iterdir()) if path.is_file()}
        about = ["", *seen.notes, files.get("hubs.json", "")]
        for hub in self.hubs:
            warnings = re.findall(r"^.* (?:WARNING|ERROR) .*(?:\n  \|.*)*", files[hub.log.name], re.MULTILINE)
            about += [hub.name, *warnings[-40:]]
        ids = dict.fromkeys(re.findall(r"\b(?=\w*\d)\w[\w-]{11,}", "\n".join(seen.problems)))
        for name in list(ids)[:5]:
            lines = [f"{file}: {line}" for file, text in files.items() for line in text.splitlines() if name in line]
            about += [f"about {name}", *(line[:600] for line in lines[:60])]
        return "\n".join(about)

    # ------------------------------------------------------------------ the end

    async def check(self) -> str:
        """Compare the records of clients, ledger and agents. Returns the figures."""
        await self.check_now()
        truth, seen, problems = Truth.read(self.folder / "truth"), self.seen, self.seen.problems
        outcomes = {
            row[0]: decoder(Outcome)(row[1])
            for row in await self._rows("SELECT correlation_id, body FROM outcomes")
            if row[0] in seen.drained
        }
        problems += [f"{cid} was accepted and has no outcome" for cid in seen.accepted - outcomes.keys()]
        told, journal, last = Counter(seen.told), set(), seen.events[-1] if seen.events else 0
        for seq, topic, cid in await self._rows(
            "SELECT seq, body::json->>'topic', body::json->>'correlationId' FROM events ORDER BY seq"
        ):
            told[cid] += seq > last and str(topic).startswith("autonomous.outcome")
            if topic not in ("hub.started", "hub.stopping"):
                journal.add(seq)
        problems += [f"{cid} has an outcome told {told[cid]} times" for cid in outcomes if told[cid] != 1]
        resent, stale_calls = await self._sends(truth)
        ends, unknown = self._ends(truth, outcomes)
        promises = self._promises(truth, outcomes)
        self._answers(truth, outcomes)
        slots, by_hand = await self._slots()
        limits = await self._limits(truth)
        retries = self._retries(outcomes)
        notices = await self._notices()
        backwards = [(a, b) for a, b in itertools.pairwise(seen.events) if b <= a]
        problems += [f"a reader of the events went back: {backwards[:5]}"] if backwards else []
        missed = {seq for seq in journal if seen.events and seq <= seen.events[-1]} - set(seen.events)
        problems += [f"a reader of the events missed {len(missed)}: {sorted(missed)[:5]}"] if missed else []
        times = await self._take_overs()
        errors = {hub.name: hub.log.read_text(errors="replace").count("Traceback") for hub in self.hubs}
        return "\n".join(
            [
                f"faults: {dict(sorted(seen.faults.items()))}, {sum(seen.faults.values())} in all",
                f"requests: {len(seen.accepted)} accepted ({seen.refused} refused), {len(outcomes)} outcomes {ends}",
                f"unknown: {dict(unknown)}",
                f"slots: {slots} fired, by hand {by_hand}; questions answered: {len(seen.answers)}",
                f"notices of questions: {notices}",
                f"limits: {limits}; unknown outcomes sent again: {retries}",
                f"webhooks acknowledged: {promises}; events read: {len(seen.events)} in {seen.streams} streams",
                f"messages that arrived twice: {resent}; calls by a hub without the request: {stale_calls},"
                f" and within {WAKE_S:g} s about {len(seen.overtaken)} requests",
                f"/readyz while PostgreSQL was away: {dict(seen.refusals)}",
                f"tracebacks in the logs: {errors}",
                *times,
            ]
        )

    def _ends(self, truth: Truth, outcomes: dict[str, Outcome]) -> tuple[dict[str, int], Counter[str]]:
        ends: Counter[str] = Counter()
        unknown: Counter[str] = Counter()
        for cid, outcome in outcomes.items():
            ends[outcome.kind.value] += 1
            if outcome.kind is OutcomeKind.UNKNOWN:
                if cid not in truth.arrived:
                    unknown["never reached its agent"] += 1
                elif cid in self.seen.overtaken:
                    unknown["arrived after another hub had looked for it"] += 1
                elif outcome.agent in NO_LIST:
                    unknown["ran at an agent without a list"] += 1
                else:
                    self.seen.problems.append(f"{cid} at {outcome.agent} is unknown: {outcome.reason}")
            elif outcome.kind is OutcomeKind.COMPLETED:
                if outcome.text != truth.said.get(cid):
                    self.seen.problems.append(f"{cid} at {outcome.agent} has another text: {outcome.text!r}")
            elif outcome.kind not in CANCELED or cid not in self.seen.canceled:
                self.seen.problems.append(f"{cid} at {outcome.agent}: {outcome.kind} {outcome.reason!r}")
        return dict(ends), unknown

    def _promises(self, truth: Truth, outcomes: dict[str, Outcome]) -> int:
        """Each webhook with a 2xx before its request's end shows in the outcome. Returns the number of webhooks."""
        count = 0
        for cid, promises in truth.promised.items():
            if (outcome := outcomes.get(cid)) is None:
                continue
            before = [promise for promise in promises if promise.at <= outcome.ended_at.timestamp()]
            count += len(promises)
            ends = {promise.state for promise in before} & {"completed", "failed", "canceled", "rejected"}
            if (outcome.kind is OutcomeKind.UNKNOWN and before) or (ends and outcome.kind.value not in ends):
                states = ", ".join(promise.state for promise in before)
                self.seen.problems.append(f"{cid} at {outcome.agent} is {outcome.kind}, acknowledged: {states}")
        return count

    def _answers(self, truth: Truth, outcomes: dict[str, Outcome]) -> None:
        given: dict[str, list[str]] = defaultdict(list)
        for cid, texts in truth.answers.items():
            for text in texts:
                given[text.split()[0]].append(text)
            if len({text.split()[0] for text in texts}) < len(texts) and cid not in self.seen.overtaken:
                self.seen.problems.append(f"{cid} got an answer twice: {texts}")
        for question, texts in self.seen.answers.items():
            if len(texts) > 1:
                self.seen.problems.append(f"question {question} was answered {len(texts)} times")
            if question in given and given[question] != texts:
                self.seen.problems.append(f"question {question}: hubs took {texts}, the agent got {given[question]}")

    async def _slots(self) -> tuple[int, int]:
        """Each minute of each ceremony has one run, and each run one request."""
        runs = [decoder(RunRecord)(row[0]) for row in await self._rows("SELECT body FROM runs")]
        minutes: dict[str, list[datetime]] = defaultdict(list)
        for run in runs:
            if run.claim.trigger == "cron":
                minutes[run.claim.ceremony_id].append(run.claim.scheduled_at)
            ended = run.status.value in ("success", "failure")
            if len(run.children) != 1 or not (ended or self.seen.drained.isdisjoint(run.children)):
                self.seen.problems.append(
                    f"run of {run.claim.ceremony_id} {run.claim.scheduled_at}: {run.status}, {run.error}"
                )
        last = max((max(slots) for slots in minutes.values()), default=None)
        first = min((min(slots) for slots in minutes.values()), default=None)
        for name, slots in minutes.items():
            slots.sort()
            if len(set(slots)) < len(slots):
                self.seen.problems.append(f"{name} fired a slot twice")
            ways = itertools.pairwise([first, *slots, last] if first and last else slots)
            self.seen.problems += [
                f"{name} has no slot between {a} and {b}" for a, b in ways if b - a > timedelta(minutes=1)
            ]
        hand = {run.claim.run_id for run in runs if run.claim.trigger != "cron"}
        self.seen.problems += [f"run {run} was accepted and is not in the ledger" for run in self.seen.runs - hand]
        return sum(map(len, minutes.values())), len(hand)

    async def _limits(self, truth: Truth) -> str:
        """No limit admits a request beyond it, and each approval raises it once. A hub that is lost between the booking
        and the send of a held request leaves the booking."""
        figures = []
        approved = await self._rows(
            "SELECT count(*) FROM questions WHERE question_id LIKE 'limit-%' AND answer IS NOT NULL"
        )
        for name, agent in LIMITS.items():
            sent = Counter[int]()
            for cid, micros in await self._rows(
                "SELECT correlation_id, accepted_at FROM requests WHERE agent = $1 AND body::json->>'skill' = 'work'",
                agent,
            ):
                sent[micros // 3_600_000_000] += name == "refuses" or cid in truth.arrived
            uses = [json.loads(row[0]) for row in await self._rows("SELECT body FROM limits WHERE name = $1", name)]
            used, raised = (sum(use.get(amount, 0) for use in uses) for amount in ("used", "raised"))
            figures.append(f"{name}: {sent.total()} sent, {used} used, raised by {raised}")
            most = LIMIT * len(uses) + raised
            right = sent.total() <= used <= most and (name == "asks" or max(sent.values(), default=0) <= LIMIT)
            if not right or raised > LIMIT * approved[0][0]:
                self.seen.problems.append(f"the limit {figures[-1]}, {approved[0][0]} approvals, at most {most}")
        return f"{', '.join(figures)}; refused: {dict(self.seen.over)}"

    def _retries(self, outcomes: dict[str, Outcome]) -> int:
        """The hubs retry an unknown outcome once, and only with a policy."""
        retried = Counter(outcome.retry_of for outcome in outcomes.values() if outcome.retry_of is not None)
        for cid, count in retried.items():
            old = outcomes.get(cid)
            fits = old is not None and (old.kind, old.skill) == (OutcomeKind.UNKNOWN, "work") and old.agent in NO_LIST
            if count > 1 or not fits:
                self.seen.problems.append(f"{cid} was retried {count} times: {old}")
        return len(retried)

    async def _notices(self) -> str:
        """Each question has one notice: delivered, or given up with a reason. None is sent again after that record. A
        hub that is lost between a delivery and its record lets another one repeat it. One that is lost before it has a
        notice on record leaves none if somebody answers at once."""
        ends: Counter[str] = Counter()
        first = "SELECT subject, min(extract(epoch FROM at))::float8 FROM storm_notices GROUP BY 1"
        ended = {row[0]: row[1] for row in await self._rows(first)}
        lost = [loss[2] for loss in self.seen.losses]
        moved = "SELECT correlation_id FROM storm_moves UNION SELECT correlation_id FROM requests WHERE hub = ANY ($1)"
        left = {row[0] for row in await self._rows(moved, lost)}
        for name, cid, body in await self._rows(  # the ledger keeps the newest notices alone
            "SELECT question_id, correlation_id, notice FROM questions LEFT JOIN (SELECT DISTINCT ON (subject) *"
            " FROM storm_notices ORDER BY subject, at DESC) AS ended ON subject = question_id"
        ):
            row = decoder(NoticeRecord)(body) if body else None
            taken = self.seen.sink.taken.get(name, [])
            ends[f"{row.state}{row.reason and f' ({row.reason})'}" if row else "not recorded"] += 1
            if row is None:
                right = cid in self.seen.canceled | left
            else:
                right = bool(row.reason if row.state is NoticeState.GIVEN_UP else taken)
            if not right:
                self.seen.problems.append(f"question {name}: notice {row}, taken {taken}")
            for hub, at in taken[1:]:
                woken = [at - woke for woken, woke in self.seen.woken if woken == hub and woke < at]
                if at > ended.get(name, at) and min(woken, default=WAKE_S) >= WAKE_S:
                    self.seen.problems.append(
                        f"{hub} sent the notice of {name} again: {taken}, on record {ended[name]}"
                    )
        twice = sum(len(taken) > 1 for taken in self.seen.sink.taken.values())
        return f"{dict(ends)}; taken twice: {twice}"

    async def _sends(self, truth: Truth) -> tuple[int, int]:
        """How often a message arrived again, and how often from a hub that no longer owned its request."""
        names = {row[0]: row[1] for row in await self._rows("SELECT hub, name FROM hubs")}
        moves: dict[str, list[tuple[float, int]]] = defaultdict(list)
        for cid, after, at in await self._rows("SELECT correlation_id, after, at FROM storm_moves ORDER BY at"):
            moves[cid].append((at.timestamp(), after))
        resent = stale = 0
        for cid, arrivals in truth.arrived.items():
            first: dict[str, str] = {}
            again = []
            for arrival in arrivals:
                if arrival.message in first:
                    resent += 1
                    if first[arrival.message] != arrival.hub:
                        again.append(
                            f"message {arrival.message} of {cid} came from {first[arrival.message]} and {arrival.hub}"
                        )
                first.setdefault(arrival.message, arrival.hub)
                owner = next((hub for at, hub in reversed(moves[cid]) if at < arrival.at), None)
                if owner is None or arrival.hub in names[owner]:
                    continue
                late = arrival.at - next(at for at, hub in reversed(moves[cid]) if hub == owner)
                woken = [arrival.at - at for hub, at in self.seen.woken if hub == arrival.hub and at < arrival.at]
                if min([late, *woken]) <= WAKE_S:
                    self.seen.overtaken.add(cid)
                else:
                    stale += 1
                    self.seen.problems.append(
                        f"{arrival.hub} sent {arrival.message} of {cid} {late:.2f} s after it lost it"
                    )
            self.seen.problems += again if cid not in self.seen.overtaken else []
        return resent, stale

    async def _take_overs(self) -> list[str]:
        """The time from each loss of a hub until another membership owned the last of its requests."""
        lines, by_fault = [], defaultdict(list)
        for fault, name, number, at in self.seen.losses:
            rows = await self._rows(
                "SELECT max(extract(epoch FROM at))::float8 - $2, count(*) FROM storm_moves WHERE before = $1",
                number,
                at,
            )
            took_s, count = rows[0]
            if took_s is None:
                continue
            by_fault[fault].append(took_s)
            if took_s > self.lease_s + GRACE_S + (STOP_S if fault == "leave" else 0):
                self.seen.problems.append(
                    f"{count} requests of {name} ({number}) were taken over {took_s:.1f} s after {fault}"
                )
        for fault, times in sorted(by_fault.items()):
            times.sort()
            ninth = times[min(len(times) - 1, len(times) * 9 // 10)]
            lines.append(
                f"take-over after {fault}: {len(times)}, least {times[0]:.1f}, median"
                f" {statistics.median(times):.1f}, 90 % {ninth:.1f}, most {times[-1]:.1f} s (lease {self.lease_s:g} s)"
            )
        return lines


def configure(folder: Path, agents: Agents, front: str, sink: str, *, lease_s: float, ceremonies: int) -> None:
    rows = [
        f"fleet: {{base_url: '{front}', poll_interval_s: 2, lease_s: {lease_s}, retry_waits_s: [0.1, 0.3, 0.9],"
        " question_channels: [ops]}",
        "channels: {ops: {sinks: "
        f"[{{kind: webhook, internal: true, url: '{sink}/${{STORM_HUB}}', secretEnv: OPS}}]}}}}",
        "agents:",
    ]
    for entry in agents.entries:
        keys = [f"name: {entry.name}", f"url: '{entry.url}'", "external: true", "headers: {X-Hub: '${STORM_HUB}'}"]
        for key, value in FLEET[entry.name].items():
            keys.append(f"{key}: {str(value).lower()}")
        if entry.name in NO_LIST:
            policy = "{name: work, idempotent: true, retry: {attempts: 1, on: [undeliverable, unknown], waits: [2s]}}"
            keys.append(f"skills: [echo, ask, {policy}]")
        rows.append("  - {" + ", ".join(keys) + "}")
    rows.append("limits:")
    for name, agent in LIMITS.items():
        what = "ask" if name == "asks" else "refuse"
        rows.append(f"  {name}: {{requests: {LIMIT}, per: hour, agent: {agent}, skill: work, atLimit: {what}}}")
    (folder / "agents.yaml").write_text("\n".join(rows) + "\n")
    (folder / "ceremonies").mkdir()
    names = list(FLEET)
    for number in range(ceremonies + 1):
        name = f"tick-{number:02}" if number < ceremonies else "hand"
        schedule = "* * * * *" if number < ceremonies else "0 0 1 1 *"
        (folder / "ceremonies" / f"{name}.yaml").write_text(
            f'id: {name}\nname: Tick\nschedule: "{schedule}"\nskill: echo\ntargets: [{names[number % len(names)]}]\n'
            "prompt: good morning\noverlap: allow\ncatchUp: all\ncatchUpWindow: 86400\n"
        )


async def storm(
    rounds: int, seed: int, *, hubs: int, lease_s: float, ceremonies: int, per_s: float, until: float
) -> str:
    """Raises StormError; returns the figures."""
    folder, good = Path(tempfile.mkdtemp(prefix="hubs-storm-")), False
    rng, seen, began = random.Random(seed), Seen(), time.monotonic()
    server, standby = Server(), Server()
    try:
        server.start()
        with ExitStack() as stack:
            front_port, *ports = [stack.enter_context(held_port()) for _ in range(hubs + 1)]
            server.disk, standby.disk = (stack.enter_context(small_disk(256)) for _ in range(2))
            agents = stack.enter_context(Agents(folder / "truth", front_port, ways=FLEET))
            async with AsyncExitStack() as tasks:
                runtime = await tasks.enter_async_context(running_runtime())
                members = []
                for number, port in enumerate(ports, 1):
                    line = Line()
                    for cluster in (server, standby):
                        await tasks.enter_async_context(await line.start(cluster.port))
                    places = ",".join(f"127.0.0.1:{port}" for port in line.ports)
                    env = {
                        "FLEETSIM_LEDGER": f"postgresql://{USER}@{places}/postgres?{ONE_OF_TWO}",
                        "OPS": f"whsec_{base64.b64encode(b'o' * 32).decode()}",
                        "PGPASSWORD": PASSWORD,
                        "FLEETSIM_LEDGER_KEY": base64.b64encode(b"k" * 32).decode(),
                    }
                    members.append(HubProcess(f"hub-{number}", folder, port, line, env))
                front = Front(folder, front_port, members)
                stack.callback(front.close)
                sink = await tasks.enter_async_context(await asyncio.start_server(seen.sink.serve, "127.0.0.1", 0))
                sink_url = f"http://127.0.0.1:{sink.sockets[0].getsockname()[1]}"
                configure(folder, agents, front.url, sink_url, lease_s=lease_s, ceremonies=ceremonies)
                it = Storm(folder, server, standby, runtime, members, rng, lease_s, seen)
                for hub in members:
                    stack.callback(hub.close)
                done, figures, about = 0, "", ""
                try:
                    async with asyncio.timeout(until + END_S - time.time()):
                        done, figures = await it.run(front.url, per_s, rounds, until)
                except Exception:  # noqa: BLE001 - whatever it is, its reasons are in the folder
                    seen.problems.append(traceback.format_exc())
                if seen.problems:
                    about = await it.keep()
        good = not seen.problems
    finally:
        standby.close()
        server.close()
        if good:
            shutil.rmtree(folder)
    figures = f"{done} rounds of {hubs} hubs in {time.monotonic() - began:.0f} s\n{figures}"
    if seen.problems:
        raise StormError("\n".join([f"{len(seen.problems)} problems in {folder}", *seen.problems[:20], figures, about]))
    none = (
        "requests lost",
        "outcomes twice",
        "slots twice or missed",
        "answers twice",
        "webhooks lost",
        "notices missed",
    )
    return "\n0 ".join((figures, ", 0 ".join(none)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hubs", type=int, default=3)
    parser.add_argument("--lease", type=float, default=5.0, help="seconds")
    parser.add_argument("--ceremonies", type=int, default=90, help="slots each minute")
    parser.add_argument("--rate", type=float, default=8.0, help="requests each second")
    parser.add_argument("--minutes", type=float, default=24 * 60, help="no new round begins after them")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that hubs and PostgreSQL end too
    gc.freeze()
    print(
        asyncio.run(
            storm(
                options.rounds,
                options.seed,
                hubs=options.hubs,
                lease_s=options.lease,
                ceremonies=options.ceremonies,
                per_s=options.rate,
                until=time.time() + options.minutes * 60,
            )
        )
    )


if __name__ == "__main__":
    main()
