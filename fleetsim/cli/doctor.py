"""``fleetsim doctor``: find out what keeps a fleet from running on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
from msgspec import UnsetType

import fleetsim
from fleetsim.api.answers import KeyIdentity
from fleetsim.api.health import DatabaseState, HealthSnapshot, HealthWord, HubMember
from fleetsim.cli.main import CommonOptions, Exit
from fleetsim.model.errors import ConfigError, FleetsimError
from fleetsim.model.work import ALL, DEFAULT_SKILL

if TYPE_CHECKING:
    from fleetsim.fleet.settings import AgentEntry, FleetConfig

OK, WARNING, FAILURE = "ok", "warning", "failure"
_GLYPHS = {OK: ("✓", "v"), WARNING: ("!", "!"), FAILURE: ("✗", "x")}

PORT = 3000

CONNECTIONS_MIN = 6
"""The connections of one hub to PostgreSQL."""

SNAPSHOT_S_MAX = 60.0
DISK_WARNING_BYTES, DISK_FAILURE_BYTES = 1024**3, 100 * 1024**2
SKEW_MAX_S = 30.0
"""A larger difference between two clocks makes webhook signatures and short deadlines fail."""

_AGENTS_AT_ONCE = 8


class Finding(NamedTuple):
    """The result of one check. ``next`` is the next step; empty for ``ok``."""

    check: str
    state: str
    text: str
    next: str = ""


@click.command()
@click.option("--offline", is_flag=True, help="Do not call the agents.")
@click.pass_obj
def doctor(common: CommonOptions, /, offline: bool) -> int:
    """Check this machine, agents.yaml, the ceremonies, the state folder, the hub and each agent.

    Every line that is not ok has the next step. Nothing is changed, and agents only get requests for their cards.

    \b
    fleetsim doctor
    fleetsim doctor -o json

    Exit codes: 0 without a failure, 1 with one. Warnings do not count.
    """
    findings = asyncio.run(_examine(common, offline))
    if common.as_json:
        from fleetsim.cli import render

        render.emit_json(
            {
                "schema": "fleetsim/doctor/1",
                "ok": all(found.state != FAILURE for found in findings),
                "checks": [found._asdict() for found in findings],
            }
        )
    else:
        _show(common, findings)
    return Exit.FAILED if any(found.state == FAILURE for found in findings) else Exit.OK


def _show(common: CommonOptions, findings: list[Finding]) -> None:
    from fleetsim.cli.render import line
    from fleetsim.model.text import one_line

    width = max(len(one_line(found.check, 40)) for found in findings)
    for found in findings:
        glyph = _GLYPHS[found.state][common.ascii]
        line(f"{glyph} {one_line(found.check, 40):{width}}  {one_line(found.text, 300)}")
        if found.next:
            line(f"  {'':{width}}  next: {one_line(found.next, 300)}")


async def _examine(common: CommonOptions, offline: bool) -> list[Finding]:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    versions = f"fleetsim {fleetsim.__version__}, Python {platform.python_version()}, {sys.platform}"
    findings = [Finding("versions", OK, versions)]
    try:
        ZoneInfo("Europe/Berlin")
    except ZoneInfoNotFoundError:
        findings.append(Finding("time zones", WARNING, "this machine has no time zone data", "pip install tzdata"))
    findings += _state(common)
    words: dict[str, HealthWord] = {}
    hub = await _hub(common, words)
    config = await _fleet(common, findings, words)
    findings += hub
    if config is not None:
        findings += _links(config)
    if config is not None and not offline:
        turns = asyncio.Semaphore(_AGENTS_AT_ONCE)
        entries = [entry for entry in config.agents if entry.enabled]
        offers: dict[str, list[str]] = {}
        for found in await asyncio.gather(*(_agent(common, config, entry, turns, offers) for entry in entries)):
            findings += found
        findings += _shared_skills(offers)
        findings += _unknown_skills(config, offers)
    return findings


def _links(config: FleetConfig) -> Iterator[Finding]:
    """Whether the notices of questions have a link that answers."""
    from fleetsim.runtime.address import private_reason

    settings = config.settings
    if settings.question_channels and not settings.question_link:
        if reason := private_reason(settings.base_url or ""):
            text = f"notices of questions have no link that answers them, because fleet.base_url {reason}"
            yield Finding("links", WARNING, text, "set it to the hub's public https address, or set question_link")
        else:
            yield Finding("links", OK, f"notices of questions have a link that answers them, at {config.link_base}")


def _unknown_skills(config: FleetConfig, offers: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    """Lists with a skill that their agent does not offer, and limits of one that no agent does. ``offers``: as in
    ``_shared_skills``."""
    read = {name for agents in offers.values() for name in agents}
    for name, limit in config.limits.items():
        known = {None, DEFAULT_SKILL, *offers}
        if limit.skill not in known and read.issuperset(entry.name for entry in config.enabled):
            text = f"limits: {name}: no agent offers the skill {limit.skill!r}"
            yield Finding("limits", WARNING, text, "correct the name in agents.yaml")
    for part, callers in (("keys", config.keys), ("ceremonies", config.ceremonies)):
        for name, caller in callers.items():
            for entry in caller.may or ():
                for skill in entry.skills if entry.agent in read | {ALL} else ():
                    if skill not in offers or entry.agent not in {ALL, *offers[skill]}:
                        text = f"{part}: {name}: {entry.agent} offers no skill {skill!r}"
                        yield Finding("allow-lists", WARNING, text, "correct the list in agents.yaml")


def _shared_skills(offers: dict[str, list[str]]) -> Iterator[Finding]:
    """The skill ids that mean more than one thing. ``offers``: skill id to an agent per entry of a card."""
    for skill, agents in sorted(offers.items()):
        different = sorted(set(agents))
        if twice := [name for name in different if agents.count(name) > 1]:
            text = f"the card of {', '.join(twice[:5])} lists {skill!r} twice"
            yield Finding("skills", WARNING, text, "give each skill of a card an id of its own")
        if len(different) > 1:
            names = ", ".join(different[:5]) + (", …" if len(different) > 5 else "")
            text = (
                f"{len(different)} agents offer {skill!r} ({names}); a request for the skill alone goes to any of them"
            )
            yield Finding(
                "skills", WARNING, text, "name the agent in requests and ceremonies, unless all do the same work"
            )


def _state(common: CommonOptions) -> Iterator[Finding]:
    """The folder of the hub's key and ledger."""
    from fleetsim.hub.state import state_path

    path = state_path(os.environ, common.state)
    above = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not os.access(above, os.W_OK):
        yield Finding("state folder", FAILURE, f"{above} cannot be written", "choose another with --state FOLDER")
    elif above != path:
        yield Finding("state folder", OK, f"{path} does not exist yet; `fleetsim up` makes it")
    else:
        yield _permissions(path)
    free = shutil.disk_usage(above).free
    state = FAILURE if free < DISK_FAILURE_BYTES else WARNING if free < DISK_WARNING_BYTES else OK
    step = "" if state == OK else "free some space, or set fleet.keep in agents.yaml"
    yield Finding("disk", state, f"{free / 1024**3:,.1f} GiB free at {above}", step)


def _permissions(path: Path) -> Finding:
    for found in (path, *sorted(path.iterdir())):
        about = found.lstat()
        if about.st_uid != os.geteuid():
            return Finding("state folder", FAILURE, f"{found} belongs to another user", "chown it, or --state FOLDER")
        if stat.S_IMODE(about.st_mode) & 0o077 and not found.is_symlink():
            return Finding("state folder", FAILURE, f"others can read {found}", f"chmod -R go= {path}")
    return Finding("state folder", OK, f"{path}, which only you can read")


async def _fleet(common: CommonOptions, findings: list[Finding], words: Mapping[str, HealthWord]) -> FleetConfig | None:
    """agents.yaml and its ceremonies. ``words``: the agents of the running hub, which may have more credentials."""
    from fleetsim.cli.ceremony_files import CeremonyRows, among_ceremonies, wrong_in
    from fleetsim.cli.hub_client import find_hub
    from fleetsim.fleet.config import load_fleet
    from fleetsim.hub.keys import FILE as AGENT_KEYS_FILE
    from fleetsim.hub.keys import AgentKeys
    from fleetsim.runtime.explain import did_you_mean
    from fleetsim.runtime.files import DiskFiles

    path = common.agents_yaml
    if not path.exists():
        findings.append(Finding("agents.yaml", WARNING, f"there is no {path}", "fleetsim init URL…"))
        return None
    try:
        config = await load_fleet(path, files=DiskFiles(), env=os.environ)
    except ConfigError as error:
        findings.append(Finding("agents.yaml", FAILURE, str(error), error.hint or "correct the file"))
        return None
    called = {
        entry.name: entry
        for entry in config.agents
        if entry.disabled_why and words.get(entry.name, HealthWord.PAUSED) is not HealthWord.PAUSED
    }
    enabled = len(called) + sum(entry.enabled for entry in config.agents)
    findings.append(Finding("agents.yaml", OK, f"{path}: {enabled} of {len(config.agents)} agents enabled"))
    for text in config.warnings:
        if not any(f"; {name} is disabled" in text for name in called):
            findings.append(Finding("agents.yaml", WARNING, text, "see the line in the file"))
    for name, entry in called.items():
        text = f"{words[name]} at the running hub, not called from this shell: {entry.disabled_why} here"
        findings.append(Finding(f"agent {name}", OK, text))
    folder = path.parent / "ceremonies"
    try:
        hub = find_hub(common)
        in_force = None if hub is not None and not hub.demo else folder
        listing = await among_ceremonies(common, in_force, lambda source: source.listing())
    except (FleetsimError, TimeoutError):  # the row of the hub says why
        listing = await among_ceremonies(common, folder, lambda source: source.listing())
    for problem in listing.errors:
        findings.append(Finding("ceremonies", FAILURE, problem.error, "fleetsim ceremony validate"))
    for text in wrong_in(CeremonyRows(ceremonies=listing.ceremonies, errors=[])):
        findings.append(Finding("ceremonies", WARNING, text.removeprefix("warning: "), "fleetsim ceremony list"))
    keys = AgentKeys(DiskFiles(), os.environ, path.parent / AGENT_KEYS_FILE)
    await keys.poll({entry.name for entry in config.agents})
    for part, known in (("keys", keys.keys), ("ceremonies", {row.id for row in listing.ceremonies})):
        kind = "key" if part == "keys" else "ceremony"
        counted = {f"limits: {name}: {kind}": getattr(limit, kind) for name, limit in config.limits.items()}
        for at, name in [*((part, name) for name in getattr(config, part)), *counted.items()]:
            if name is not None and name not in known:
                text = f"{at}: {name}: none of that name is here{did_you_mean(name, known)}"
                check = "allow-lists" if at == part else "limits"
                findings.append(Finding(check, WARNING, text, "correct the name in agents.yaml"))
    if not listing.errors:
        findings.append(Finding("ceremonies", OK, f"{len(listing.ceremonies)} in {folder}"))
    return config


async def _hub(common: CommonOptions, words: dict[str, HealthWord]) -> list[Finding]:
    """The running hub, or the port that it would listen on. ``words`` gets the health of the hub's agents."""
    from fleetsim.cli.hub_client import connect, find_hub
    from fleetsim.hub.state import StateDir, state_path
    from fleetsim.ledger.sqlite.copies import COPY, mark_of
    from fleetsim.runtime.ports import Request
    from fleetsim.runtime.server import listen

    try:
        address = find_hub(common)
    except ConfigError as error:
        return [Finding("hub", FAILURE, str(error), error.hint or "")]
    if address is None:
        if mark_of(StateDir(state_path(os.environ, common.state)).ledger_path) == COPY:
            text = "no hub runs here, and the ledger comes from a backup that no hub has used yet"
            return [Finding("hub", WARNING, text, "fleetsim up --take-over, once no hub uses the original any more")]
        try:
            listen("127.0.0.1", PORT).close()
        except ConfigError:
            return [Finding("hub", WARNING, f"no hub runs here, but port {PORT} is taken", "fleetsim up --port 3001")]
        return [Finding("hub", OK, f"no hub runs here; port {PORT} is free")]
    try:
        async with connect(common) as hub:
            version = (await hub.read(KeyIdentity, "/whoami")).version
            health = await hub.read(HealthSnapshot, "/health")
            ready = await hub.runtime.transport.exchange(Request(method="GET", url=f"{hub.url}/readyz"))
    except FleetsimError as error:
        return [Finding("hub", FAILURE, f"{address.url}: {error}", error.hint or f"look at process {address.pid}")]
    words.update({row.agent_name: row.health for row in health.agents})
    said = f"{address.url} runs fleetsim {version}"
    if ready.status != 200:
        reason = json.loads(ready.body).get("reason") or f"HTTP {ready.status}"
        return [Finding("hub", FAILURE, f"{said} and is not ready: {reason}", "look at its log, then restart it")]
    if version != fleetsim.__version__:
        return [Finding("hub", WARNING, f"{said}, this is {fleetsim.__version__}", "restart the hub with this version")]
    return [Finding("hub", OK, said), *_members(health.hubs or ()), *_database(health.database)]


def _database(state: DatabaseState | UnsetType) -> Iterator[Finding]:
    """The PostgreSQL of a fleet that has several hubs."""
    if isinstance(state, UnsetType):
        return
    standbys = f"{state.standbys} standbys" + (f" (synchronous: {state.synchronous})" if state.synchronous else "")
    line = (
        f"PostgreSQL: {state.connections_free} connections free, oldest open transaction"
        f" {state.oldest_snapshot_s:.0f} s, {state.isolation}, {standbys}"
    )
    step = ""
    if state.connections_free < CONNECTIONS_MIN:
        step = "raise max_connections: a hub needs six"
    elif state.oldest_snapshot_s > SNAPSHOT_S_MAX:
        step = "end the session of that transaction (pg_stat_activity): each write becomes slower with it"
    elif state.standbys and not state.synchronous:
        step = "set synchronous_standby_names: a fail-over loses acknowledged requests otherwise"
    yield Finding("database", WARNING if step else OK, line, step)


def _members(hubs: Sequence[HubMember]) -> Iterator[Finding]:
    """The hubs of a fleet that has several."""
    from fleetsim.cli.health import hub_lines

    mixed = len({row.version for row in hubs}) > 1
    for row, line in zip(hubs, hub_lines(hubs), strict=True):
        late = row.lease_age_s > row.lease_s
        step = (
            "look at its process and its way to PostgreSQL"
            if late
            else "bring all hubs to one version"
            if mixed
            else ""
        )
        yield Finding("hubs", WARNING if step else OK, line, step)


async def _agent(
    common: CommonOptions,
    config: FleetConfig,
    entry: AgentEntry,
    turns: asyncio.Semaphore,
    offers: dict[str, list[str]],
) -> list[Finding]:
    """Whether the agent's card can be read, where its webhooks would go, and whether its clock agrees."""
    from fleetsim.cli.ask import AskOptions, agent_client
    from fleetsim.hub.agents import callback_base
    from fleetsim.runtime.ports import Request
    from fleetsim.runtime.real import running_runtime

    name = f"agent {entry.name}"
    async with turns, running_runtime() as runtime:
        began = runtime.clock.monotonic()
        try:
            async with agent_client(common, AskOptions.given(agent=entry.name)) as client:
                card, choice = await client.discover(), await client.choice()
        except FleetsimError as error:
            return [Finding(name, FAILURE, str(error), error.hint or f"fleetsim card {entry.name}")]
        for skill in entry.skill_names or [skill.skill_id for skill in card.skills if skill.skill_id]:
            offers.setdefault(skill, []).append(entry.name)
        if choice.no_way:
            return [Finding(name, FAILURE, choice.no_way, f"fleetsim card {entry.name}")]
        took_ms = (runtime.clock.monotonic() - began) * 1000
        findings = [Finding(name, OK, f"A2A {choice.dialect_name} at {choice.url}, card read in {took_ms:.0f} ms")]
        findings += [Finding(name, WARNING, warning, f"fleetsim card {entry.name}") for warning in choice.warnings]
        if card.capabilities.push_notifications and callback_base(entry, config.settings, "http://127.0.0.1") is None:
            text = "its webhooks cannot reach this hub, so its tasks are polled"
            findings.append(Finding(name, WARNING, text, "set fleet.base_url in agents.yaml"))
        with suppress(FleetsimError, TypeError, ValueError):
            reply = await runtime.transport.through(entry.way).exchange(Request(method="GET", url=client.card_at))
            there = parsedate_to_datetime(reply.headers["date"]) if "date" in reply.headers else runtime.clock.now()
            if abs(skew := (there - runtime.clock.now()).total_seconds()) > SKEW_MAX_S:
                text = f"its clock is {abs(skew):,.0f} s {'ahead of' if skew > 0 else 'behind'} this one"
                findings.append(Finding("clock", WARNING, f"{entry.name}: {text}", "set both clocks by NTP"))
    return findings
