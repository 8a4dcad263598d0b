"""``fleetsim ceremony``: what fires when, what fired, firing it now, and the files it stands in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from fleetsim.api.answer import iso
from fleetsim.api.answers import CeremonyFacts, RunFacts
from fleetsim.ceremony.file import parse_moment, zone_of
from fleetsim.cli import render
from fleetsim.cli.ceremony_files import CeremonyRows, check, chosen, fires_of, now, shown, with_ceremonies, wrong_in
from fleetsim.cli.hub_client import at_hub, connect, find_hub
from fleetsim.cli.main import CommonOptions, Exit, load_verb
from fleetsim.cli.options import timeout_option, within
from fleetsim.client.hub_client import HubClient
from fleetsim.model.errors import ConfigError, TimedOut


class CeremonyGroup(click.Group):
    """A group whose verb ``play`` is imported from the simulator when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*self.commands, "play"])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "play":
            return load_verb("play", "fleetsim.sim.cli.ceremony_play:play")
        return super().get_command(ctx, cmd_name)


@click.group(cls=CeremonyGroup)
def ceremony() -> None:
    """Scheduled skill requests, from ceremonies/*.yaml."""


@ceremony.command("list")
@click.option("--strict", is_flag=True, help="Exit 6 if a file is not in force or a target cannot be served.")
@click.pass_obj
def list_ceremonies(common: CommonOptions, strict: bool) -> int:
    """List every ceremony, its next fire and how its last run ended, and what is wrong with any.

    Without a running hub it reads the files and checks targets against agents.yaml. Only the hub checks skills, because
    it reads the cards.
    """
    listing = _listing(common)
    wrong = list(wrong_in(listing))
    for line in wrong:
        common.note(line)
    if common.as_json:
        render.emit_json(listing)
    else:
        render.table(
            ["ON", "CEREMONY", "SCHEDULE", "NEXT", "SKILL", "TARGETS", "LAST"],
            [
                [
                    "yes" if row.enabled else "no",
                    row.id,
                    row.schedule or f"once {row['at']}",
                    iso(row.next_fire_at) if row.next_fire_at else ("spent" if row.once and row.enabled else "-"),
                    row.skill,
                    ", ".join(row.targets),
                    render.word(row.last_run.status, plain=common.ascii) if row.last_run else "-",
                ]
                for row in listing.ceremonies
            ],
        )
    return Exit.NOTHING_RAN if strict and wrong else Exit.OK


def _listing(common: CommonOptions) -> CeremonyRows:
    return with_ceremonies(common, None, lambda source: source.listing(), reads=True)


@ceremony.command("show")
@click.argument("ceremony_id", metavar="ID")
@click.pass_obj
def show(common: CommonOptions, ceremony_id: str) -> int:
    """Show all of a ceremony: its keys, its next five fires, its last run and what is wrong with it."""
    listing = _listing(common)
    (row,) = chosen(listing, (ceremony_id,))
    for line in wrong_in(listing, ceremony_id):
        common.note(line)
    fires = fires_of([row], now(), 5) if row.enabled else []
    if common.as_json:
        render.emit_json({**row, "nextFires": [moment.isoformat() for moment, _ in fires]})
        return Exit.OK
    last = row.last_run
    render.labels(
        [
            ("id", row.id),
            ("name", row.name),
            ("description", row.description),
            ("schedule", f"{row.schedule or 'once at ' + row['at']} ({row.timezone})"),
            ("enabled", "yes" if row.enabled else "no"),
            ("skill", row.skill),
            ("targets", ", ".join(row.targets)),
            ("overlap", row.overlap),
            ("catch up", f"{row.catch_up}, within {row.catch_up_window} s"),
            ("late after", f"{row.late_after} s"),
            ("timeout", f"{row.timeout_ms / 1000:g} s"),
            ("notify", row.notify_channel),
            ("created by", row.created_by),
            ("project", row.project),
            ("file", row.path),
            *(("next", shown(moment, row.timezone).removesuffix(f" {row.timezone}")) for moment, _ in fires),
            ("last run", f"{last.status} at {iso(last.started_at)}" if last else None),
            ("error", last.error if last else None),
        ]
    )
    return Exit.OK


@ceremony.command("next")
@click.argument("ceremony_ids", metavar="[ID]...", nargs=-1)
@click.option("--count", type=click.IntRange(1, 1_000), default=10, show_default=True, help="How many fires in all.")
@click.option("--tz", "zone", metavar="ZONE", help="Show times on this clock.  [default: each ceremony's own]")
@click.option("--from", "start", metavar="TIME", help="Count from there.  [default: now]")
@click.pass_obj
def next_fires(
    common: CommonOptions, ceremony_ids: tuple[str, ...], count: int, zone: str | None, start: str | None
) -> int:
    """List what fires next, of the ceremonies named or of all that are enabled.

    \b
    fleetsim ceremony next --count 20 --tz Europe/Berlin
    fleetsim ceremony next quinn.daily-digest --from 2026-10-24T00:00
    """
    rows = [row for row in chosen(_listing(common), ceremony_ids) if row.enabled]
    place = zone_of(zone) if zone else None
    after = parse_moment(start, place or UTC) - timedelta(microseconds=1) if start else now()
    fires = fires_of(rows, after, count)
    if common.as_json:
        render.emit_json([{"at": moment.isoformat(), "id": row.id, "skill": row.skill} for moment, row in fires])
    else:
        render.table(
            ["WHEN", "CEREMONY", "SKILL", "TARGETS"],
            [
                [
                    shown(moment, zone or row.timezone),
                    row.id,
                    row.skill,
                    ", ".join(row.targets),
                ]
                for moment, row in fires
            ],
        )
    return Exit.OK if fires else Exit.NOTHING_RAN


@ceremony.command("run")
@click.argument("ceremony_id", metavar="ID")
@click.option("--wait", is_flag=True, help="Wait for the run to end; exit 1 if it failed, 5 if it took too long.")
@click.option("--dry-run", is_flag=True, help="Say what would be sent, and to whom; exit 6 if to nobody.")
@click.option("--at", metavar="TIME", help="With --dry-run: what would be sent at that time.")
@timeout_option("How long to wait in all; then exit 5, and the run goes on.  [default: until it ended]", default=None)
@click.pass_obj
def run(
    common: CommonOptions, ceremony_id: str, wait: bool, dry_run: bool, at: str | None, timeout_s: float | None
) -> int:
    """Fire a ceremony now, whatever its schedule says.

    \b
    fleetsim ceremony run quinn.daily-digest --wait --timeout 600
    fleetsim ceremony run quinn.daily-digest --dry-run --at 2026-12-24T14:00Z
    """
    if at is not None and not dry_run:
        hint = "for a single time later: fleetsim ceremony new ID --at TIME"
        raise ConfigError("--at belongs to --dry-run", hint=hint)
    if dry_run:
        return _dry_run(common, ceremony_id, at)
    done = asyncio.run(_run(common, ceremony_id, wait, timeout_s))
    if common.as_json:
        render.emit_json(done)
    else:
        render.labels([("run", done["runId"]), ("status", done.get("status")), ("error", done.get("error"))])
    return _EXITS.get(done.get("status"), Exit.FAILED)


_EXITS = {None: Exit.OK, "success": Exit.OK, "timeout": Exit.TIMEOUT}
"""How a run that was waited for ended; everything else is a failure."""


def _dry_run(common: CommonOptions, ceremony_id: str, at: str | None) -> int:
    (row,) = chosen(_listing(common), (ceremony_id,))
    moment = parse_moment(at, zone_of(row.timezone)) if at else now()
    due = next((slot for slot, _ in fires_of([row], moment - timedelta(microseconds=1), 1)), None)
    sent = with_ceremonies(common, None, lambda source: source.dry_run(ceremony_id))
    plan = {
        "id": ceremony_id,
        "at": moment.isoformat(),
        "isSlot": due == moment,
        "nextFireAt": due.isoformat() if due else None,
        **sent,
    }
    if common.as_json:
        render.emit_json(plan)
    else:
        slot = "a slot of its schedule" if plan["isSlot"] else f"no slot; the next is {plan['nextFireAt'] or 'none'}"
        render.labels(
            [("at", f"{plan['at']} ({slot})"), ("enabled", "yes" if plan["enabled"] else "no: it would not fire")]
        )
        for request in plan["requests"]:
            render.labels([(key, request[key]) for key in ("agent", "skill", "text")])
    for problem in plan["problems"]:
        common.note(f"warning: {problem}")
    return Exit.OK if plan["requests"] else Exit.NOTHING_RAN


@ceremony.command("history")
@click.argument("ceremony_ids", metavar="[ID]...", nargs=-1)
@click.option("--limit", type=click.IntRange(1, 1_000), default=20, show_default=True, help="How many, the newest.")
@click.option("--since", metavar="TIME", help="Only runs that began since then.")
@click.pass_obj
def history(common: CommonOptions, ceremony_ids: tuple[str, ...], limit: int, since: str | None) -> int:
    """List the runs of ceremonies, the newest first: those that fired, and slots that were missed or let go.

    Exits 6 if there are none.
    """

    async def runs(hub: HubClient) -> list[RunFacts]:
        ids = ceremony_ids or tuple(row.id for row in await hub.ceremonies())
        pages = [await hub.read(list[RunFacts], f"/ceremonies/{quote(id_, safe='')}/runs", limit=limit) for id_ in ids]
        return sorted((run for page in pages for run in page), key=lambda run: run.started_at, reverse=True)

    after = parse_moment(since, UTC) if since else None
    shown = [run for run in at_hub(common, runs) if after is None or run.started_at >= after]
    shown = shown[:limit]
    if common.as_json:
        render.emit_json(shown)
    else:
        render.table(
            ["SLOT", "CEREMONY", "WHY", "LATE", "OUTCOME", "SLOTS", "RUN", "ERROR"],
            [
                [
                    iso(run.scheduled_at),
                    run.ceremony_id,
                    run.trigger,
                    render.seconds(run.lateness_ms / 1000) if run.late else "-",
                    render.word(run.status, plain=common.ascii),
                    run.count,
                    run.run_id,
                    run.error,
                ]
                for run in shown
            ],
            right=frozenset({5}),
        )
    return Exit.OK if shown else Exit.NOTHING_RAN


# ------------------------------------------------------------------ files


def folder_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--folder``: where the files are."""
    what = "The folder of ceremonies.  [default: ceremonies, beside agents.yaml]"
    return click.option("--folder", type=click.Path(path_type=Path), metavar="DIR", help=what)(command)


@ceremony.command("validate")
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path(path_type=Path))
@folder_option
@click.pass_obj
def validate(common: CommonOptions, files: tuple[Path, ...], folder: Path | None) -> int:
    """Check ceremony files, those named or all of the folder: exit 2 if one is wrong, 6 if there is none.

    Without FILE and --folder, it warns about everything that `ceremony list --strict` refuses. A running hub also
    judges skills, and lists its files in other folders.
    """
    results = asyncio.run(check(common, files, folder))
    if not files and folder is None and (find_hub(common) or common.agents_yaml.exists()):
        listing = _listing(common)
        read = {result["path"] for result in results}  # just now, and by the hub up to five seconds ago
        theirs = {row.path: {"path": row.path, "id": row.id, "error": None} for row in listing.ceremonies}
        theirs |= {bad.path: {"path": bad.path, "id": bad.ceremony_id, "error": bad.error} for bad in listing.errors}
        results += [result for path, result in sorted(theirs.items()) if path not in read]
        for line in wrong_in(CeremonyRows(ceremonies=listing.ceremonies, errors=[])):
            common.note(line)
    if common.as_json:
        render.emit_json(results)
    else:
        for result in results:
            render.line(result["error"] or f"{result['path']}: {result['id']} is fine")
    if not results:
        common.note("no ceremony file found")
        return Exit.NOTHING_RAN
    return Exit.USAGE if any(result["error"] for result in results) else Exit.OK


@ceremony.command("new")
@click.argument("ceremony_id", metavar="ID")
@click.option("--skill", required=True, help="The skill to request.")
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="AGENT",
    help="An agent to ask (repeatable).  [default: all]",
)
@click.option("--schedule", metavar="CRON", help="Five fields, or @daily and the like.")
@click.option("--at", metavar="TIME", help="Once, at that time: 2026-11-22T15:30, on the clock of --timezone.")
@click.option("--in", "span", metavar="SPAN", help="Once, after this time: 30m, 2h, 1d.")
@click.option("--name", help="For people.  [default: the id]")
@click.option("--prompt", metavar="TEXT", help="The text for the agent.")
@click.option("--timezone", metavar="ZONE", help="The clock that times are read on.  [default: UTC]")
@click.option("--notify", metavar="CHANNEL", help="The channel to notify of the result.")
@click.option("--overlap", type=click.Choice(["skip", "queue", "allow"]), help="The rule for a slot during a run.")
@click.option("--catch-up", type=click.Choice(["none", "one", "all"]), help="Which missed slots still fire.")
@click.option("--disabled", is_flag=True, help="Write it disabled.")
@folder_option
@click.pass_obj
def new(common: CommonOptions, /, ceremony_id: str, folder: Path | None, **given: Any) -> int:
    """Write a new ceremony, ID.yaml in the folder; an existing file stays.

    If a hub is running, it writes the file into its own folder and uses the ceremony at once.

    \b
    fleetsim ceremony new quinn.digest --skill qa_report --target quinn --schedule "0 14 * * MON-FRI"
    fleetsim ceremony new re-audit --skill audit --target quinn --in 30m --prompt "audit PR 412 again"
    """
    if sum(given[key] is not None for key in ("schedule", "at", "span")) != 1:
        raise ConfigError("say when, in one way: --schedule, --at or --in")
    values = {
        "id": ceremony_id,
        "name": given["name"] or ceremony_id,
        "schedule": given["schedule"],
        "at": given["at"],
        "in": given["span"],
        "timezone": given["timezone"],
        "skill": given["skill"],
        "targets": list(given["targets"]) or ["all"],
        "notifyChannel": given["notify"],
        "prompt": given["prompt"],
        "overlap": given["overlap"],
        "catchUp": given["catch_up"],
        "enabled": False if given["disabled"] else None,
    }

    keys = {key: value for key, value in values.items() if value is not None}
    return _show_change(common, with_ceremonies(common, folder, lambda source: source.create(keys)))


@ceremony.command("enable")
@click.argument("ceremony_id", metavar="ID")
@folder_option
@click.pass_obj
def enable(common: CommonOptions, ceremony_id: str, folder: Path | None) -> int:
    """Let a ceremony fire again. Slots that passed meanwhile are not fired."""
    return _set_enabled(common, ceremony_id, folder, True)


@ceremony.command("disable")
@click.argument("ceremony_id", metavar="ID")
@folder_option
@click.pass_obj
def disable(common: CommonOptions, ceremony_id: str, folder: Path | None) -> int:
    """Keep a ceremony from firing, by schedule and by hand. A run in progress continues."""
    return _set_enabled(common, ceremony_id, folder, False)


@ceremony.command("delete")
@click.argument("ceremony_id", metavar="ID")
@folder_option
@click.pass_obj
def delete(common: CommonOptions, ceremony_id: str, folder: Path | None) -> int:
    """Remove a ceremony's file. Its history stays, and a run in progress continues."""
    with_ceremonies(common, folder, lambda source: source.delete(ceremony_id))
    if common.as_json:
        render.emit_json({"id": ceremony_id, "deleted": True})
    else:
        render.line(f"{ceremony_id} is deleted")
    return Exit.OK


def _set_enabled(common: CommonOptions, ceremony_id: str, folder: Path | None, enabled: bool) -> int:
    changes = {"enabled": enabled}
    return _show_change(common, with_ceremonies(common, folder, lambda source: source.update(ceremony_id, changes)))


def _show_change(common: CommonOptions, row: CeremonyFacts) -> int:
    """Say what is in the file now, when it fires, and what a running hub finds wrong with it."""
    for warning in row.warnings:
        common.note(f"warning: {warning}")
    if common.as_json:
        render.emit_json(row)
        return Exit.OK
    fires = "not while it is disabled"
    if row.enabled:
        fires = shown(row.next_fire_at, row.timezone) if row.next_fire_at else "never"
    render.labels([("id", row.id), ("file", row.path), ("next", fires)])
    return Exit.OK


# ------------------------------------------------------------------ runs


async def _run(common: CommonOptions, ceremony_id: str, wait: bool, timeout_s: float | None) -> dict[str, Any]:
    run_id: str | None = None

    def late() -> TimedOut:
        if run_id is None:
            return TimedOut(f"the hub did not say within {timeout_s:g} s that it fired {ceremony_id}; it may have")
        still = f"run {run_id} has not ended after {timeout_s:g} s; it goes on"
        return TimedOut(still, hint=f"fleetsim ceremony history {ceremony_id}, fleetsim task list")

    async with within(timeout_s, late), connect(common) as hub:
        run_id = await hub.run_ceremony(ceremony_id)
        listing = CeremonyRows(ceremonies=await hub.ceremonies(), errors=await hub.ceremony_errors())
        for line in wrong_in(listing, ceremony_id):
            common.note(line)
        while wait:
            mine = next((run for run in await hub.ceremony_runs(ceremony_id) if run.run_id == run_id), None)
            if mine is not None and mine.status != "running":
                return {"runId": run_id, "status": mine.status, "error": mine.error or None}
            await asyncio.sleep(0.5)
        return {"runId": run_id}
