"""``fleetsim sim``: plays a scenario of a whole fleet in seconds, fits one to a fleet, and compares two fleets.

Playing is in ``play``, which ``--help`` does not load.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fleetsim.cli import render
from fleetsim.cli.main import CommonOptions, Exit
from fleetsim.cli.options import read_span, report_option, with_scheme
from fleetsim.model.errors import ConfigError
from fleetsim.model.text import one_line


class ScenarioGroup(click.Group):
    """A group of verbs in which anything else is a scenario to run."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            args = ["run", *args]
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Options before the scenario are those of playing it; the group itself has but --help.
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names:
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=ScenarioGroup, no_args_is_help=True)
def sim() -> None:
    """Play a day of a fleet in seconds: the real hub and agents, on virtual time, from a seed.

    \b
    fleetsim sim list                      scenarios that come with fleetsim
    fleetsim sim agent-restart             play one of them
    fleetsim sim my.yaml --seed 7          play your own
    fleetsim sim my.yaml --record run.jsonl
    fleetsim sim my.yaml --watch           follow it on the dashboard while it is played
    fleetsim sim my.yaml --clock real      a load test: real HTTP, real time, real agents by url
    fleetsim sim --replay run.jsonl --report html=run.html
    fleetsim sim storm --seeds 1000 --jobs 4  play many seeds, and cut down the first that breaks a rule
    fleetsim sim any --seeds 500           the same, with a whole scenario drawn from each seed
    fleetsim sim storm --seeds 9000 --cluster tcp://10.0.0.5:8786   on the workers of a Dask cluster
    fleetsim sim init --from-hub           write a scenario fitted to your own fleet
    fleetsim sim diff twin.yaml slower.yaml   compare two scenarios, recordings or ledgers

    A scenario describes the agents, their traffic, the people who answer, the faults and the expectations
    (docs/reference/scenarios.md). The same seed gives the same run.

    Exit codes: 0 as expected, 1 an expectation is broken or a ceremony is wrong, 2 the scenario is wrong, 8 an
    invariant is broken: a defect of fleetsim, please report it.
    """


@sim.command("list")
@click.pass_obj
def list_(common: CommonOptions) -> int:
    """Show the scenarios that come with fleetsim, and what each teaches."""
    from fleetsim.sim.scenario import parse_scenario, shipped_scenarios

    rows = [(name, parse_scenario(path.read_bytes(), name)[0]) for name, path in shipped_scenarios().items()]
    if common.as_json:
        render.emit_json([{"name": name, "about": s.about, "durationSeconds": s.duration} for name, s in rows])
    else:
        for name, scenario in rows:
            render.line(f"{name}: {scenario.about}")
        common.note("play one: fleetsim sim NAME; see how it is written: fleetsim sim show NAME")
    return Exit.OK


@sim.command()
@click.argument("scenario")
@click.pass_obj
def show(common: CommonOptions, scenario: str) -> int:
    """Print the file of a scenario that comes with fleetsim, to begin your own with."""

    from fleetsim.sim.scenario import read_scenario

    render.lines(read_scenario(scenario)[1].decode())
    return Exit.OK


@sim.command()
@click.argument("scenario", required=False)
@click.option(
    "--clock",
    "rate",
    default="virtual",
    metavar="CLOCK",
    help="virtual, real, or xN: real sockets, and traffic N times as fast [virtual].",
)
@click.option(
    "--settle", default="5m", metavar="SPAN", help="In real time: how long requests may go on after the traffic [5m]."
)
@click.option("--replay", type=click.Path(path_type=Path), help="Report on a run that was kept, without playing it.")
@click.option("--seed", type=click.IntRange(min=0), help="The seed of all random draws [the scenario's].")
@click.option("--record", type=click.Path(path_type=Path), help="Keep the run in this file, a JSON object a line.")
@click.option("--watch", is_flag=True, help="Follow it on the dashboard; kept in NAME-SEED.jsonl without --record.")
@report_option
@click.option("--verbose", is_flag=True, help="Name every rule and how often it was looked at.")
@click.option("--seeds", type=click.IntRange(min=1), help="Play this many seeds, until one breaks a rule.")
@click.option("--first", type=click.IntRange(min=0), help="The first of those seeds [the scenario's].")
@click.option("--jobs", type=click.IntRange(min=1, max=512), default=1, help="How many processes play them [1].")
@click.option(
    "--cluster",
    metavar="URL",
    help="Play seeds, or load with --clock real, on a Dask cluster: tcp://HOST:PORT or tls://HOST:PORT.",
)
@click.option(
    "--covered", is_flag=True, help="Fail, too, if those seeds never met a kind of trouble or looked at a rule."
)
@click.option("--keep-going", is_flag=True, help="Play all seeds, whatever they break.")
@click.option(
    "--shrunk", type=click.Path(path_type=Path), help="Where the scenario cut down is written [NAME-SEED.yaml]."
)
@click.option("--tries", type=click.IntRange(min=0), default=200, help="How often to play it to cut it down [200].")
@click.pass_obj
def run(common: CommonOptions, /, **options: Any) -> int:
    """Play SCENARIO and report: a file, the name of a scenario that comes with fleetsim, or `any`, which the seed
    draws.
    """
    from fleetsim.sim.cli.play import RunOptions, run_scenario  # what it takes is loaded where it is asked for

    return run_scenario(common, RunOptions(**options))


if TYPE_CHECKING:
    from fleetsim.sim.comparison import Comparison
    from fleetsim.sim.observed import Observed

LEDGER_MAGIC = b"SQLite format 3\x00"
PAGE = 1_000
SETTINGS = (
    "poll_interval_s",
    "task_limit_s",
    "question_ttl_s",
    "question_expiry",
    "connect_s",
    "call_s",
    "retry_waits_s",
    "calls_max",
    "calls_per_agent_max",
    "breaker_failures",
    "breaker_pause_s",
    "cooldowns_s",
    "skill_limits_s",
)
"""The keys of `fleet:` in agents.yaml that change how requests end, and that name no address."""


@sim.command()
@click.option(
    "--from-hub",
    "hub",
    is_flag=False,
    flag_value="",
    metavar="[URL]",
    help="Ask a running hub: this machine's, or the one at URL with the key in WORKSTACEAN_API_KEY.",
)
@click.option(
    "--from-ledger", "ledger", type=click.Path(path_type=Path), metavar="FILE", help="Read a hub's ledger.db."
)
@click.option(
    "--from-recording", "recording", type=click.Path(path_type=Path), metavar="FILE", help="Read a run.jsonl."
)
@click.option(
    "--since", default="7d", show_default=True, callback=read_span, metavar="SPAN", help="How far back to look."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("twin.yaml"),
    show_default=True,
    metavar="FILE",
    help="Where the scenario is written.",
)
@click.option("--ceremonies", type=click.Path(path_type=Path), help="Their folder [default: beside agents.yaml].")
@click.option("--force", is_flag=True, help="Write over FILE.")
@click.option("--no-check", is_flag=True, help="Do not play it to see how well it fits.")
@click.pass_obj
def init(
    common: CommonOptions,
    hub: str | None,
    ledger: Path | None,
    recording: Path | None,
    since: float,
    out: Path,
    ceremonies: Path | None,
    force: bool,
    no_check: bool,
) -> int:
    """Write a scenario whose agents behave as yours were seen to: a twin of the fleet.

    Latency, pieces, cost, success and questions of each skill, how requests come in and how people answer are fitted to
    what a hub's ledger or journal holds. Ceremonies and settings are taken from beside agents.yaml; a wrong ceremony
    file is named and left out. Then the twin is played once. The first line says whether it fits; a table shows each
    figure beside the recorded one with the interval in which chance alone may have put that one (95 %, bootstrap).
    Volume (requests an hour) and arrivals (gap_p50) are figures too, and a recorded skill that was not played is named.

    \b
    fleetsim sim init --from-hub
    fleetsim sim init --from-ledger ~/.local/state/fleetsim/ledger.db --since 2d --out july.yaml
    fleetsim sim july.yaml                 play it
    fleetsim sim diff july.yaml slower.yaml   compare with an edited copy
    """
    from fleetsim.ceremonies.folder import FolderContents, contents_of
    from fleetsim.fleet.settings import FleetSettings
    from fleetsim.model.spans import in_words
    from fleetsim.sim.comparison import compare
    from fleetsim.sim.scenario import ceremonies_of, folder_files, parse_scenario
    from fleetsim.sim.twin import twin_of, twin_text

    if sum(place is not None for place in (hub, ledger, recording)) != 1:
        raise click.UsageError("Say where to look: --from-hub, --from-ledger FILE or --from-recording FILE.")
    if os.path.lexists(out) and not force:
        raise ConfigError(f"{out} already exists and was not changed", hint="--out OTHER, or --force to write over it")
    folder = _ceremonies(common, ceremonies)
    contents = FolderContents() if folder is None else contents_of(folder_files(folder), folder)
    seen = _seen(common, hub, ledger, recording, since)
    settings = _settings(common)
    twin = twin_of(
        seen,
        ceremonies=tuple(contents.ceremonies.values()),
        poll_interval_s=FleetSettings(**settings).poll_interval_s,
    )
    relative = None if folder is None else os.path.relpath(folder, out.resolve().parent)
    text = twin_text(twin, seen, name="twin", ceremonies=relative, settings=settings)
    wanted, written = parse_scenario(text, str(out))
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{out}: {error.strerror}") from None
    for what in twin.left_out:
        common.note(f"left out, since a scenario has no such name: {what}")
    few = [f"{a}/{s} ({fit.tasks})" for a, agent in twin.agents.items() for s, fit in agent.skills.items() if fit.few]
    if few:
        common.note(f"few tasks, so that shares and times are guesses: {', '.join(few)}")
    for problem in contents.problems:
        common.note(*(f"not in force: {line}" for line in problem.error.splitlines()))
    comparison = None
    if not no_check:
        common.note(f"{out} is written; playing it to see how well it fits ({in_words(wanted.duration)} of the fleet)")
        comparison = compare(seen, _played(common, wanted, ceremonies_of(wanted, written, out.parent), out))
    if common.as_json:
        facts = {"written": str(out), "requests": len(seen.outcomes), "agents": list(wanted.fleet)}
        fit = None if comparison is None else {"verdict": comparison.verdict.value, **comparison.as_json()}
        render.emit_json({**facts, "fit": fit})
        return Exit.OK
    render.line(str(out))
    if comparison is not None:
        _show_fit(comparison)
    common.note(f"  next: fleetsim sim {out}")
    return Exit.OK


def _seen(
    common: CommonOptions, hub: str | None, ledger: Path | None, recording: Path | None, since_s: float
) -> Observed:
    from fleetsim.sim.observed import of_recording

    if recording is not None:
        return of_recording(recording)
    return asyncio.run(_of_hub(common, hub, since_s) if ledger is None else _of_ledger(ledger, since_s))


def _ceremonies(common: CommonOptions, given: Path | None) -> Path | None:
    """The folder of ceremonies: that given, else what `fleetsim up` takes if it has any."""
    if given is not None:
        if not given.is_dir():
            raise ConfigError(f"there is no folder {given}")
        return given.resolve()
    folder = common.agents_yaml.parent / "ceremonies"
    named = folder.is_dir() and any(path.suffix in {".yaml", ".yml"} for path in folder.iterdir())
    return folder.resolve() if named else None


def _settings(common: CommonOptions) -> dict[str, Any]:
    """The settings of agents.yaml that a scenario may have, if they are not the defaults."""
    from fleetsim.fleet.config import parse_fleet
    from fleetsim.fleet.settings import FleetSettings

    if not common.agents_yaml.exists():
        return {}
    settings = parse_fleet(common.agents_yaml.read_bytes(), source=str(common.agents_yaml), env=os.environ).settings
    plain = FleetSettings()
    return {
        key: dict(value) if isinstance(value, Mapping) else value
        for key in SETTINGS
        if (value := getattr(settings, key)) != getattr(plain, key)
    }


# ------------------------------------------------------------------ sources


async def _of_ledger(path: Path, since_s: float) -> Observed:
    from fleetsim.runtime.real import SystemClock
    from fleetsim.sim.observed import of_ledger

    return await of_ledger(path, since=SystemClock().now() - timedelta(seconds=since_s))


async def _of_hub(common: CommonOptions, url: str | None, since_s: float) -> Observed:
    from fleetsim.api.answers import AgentFacts
    from fleetsim.cli.hub_client import connect
    from fleetsim.client.hub_client import HubClient
    from fleetsim.events.wire import from_wire
    from fleetsim.runtime.real import SystemClock
    from fleetsim.sim.observed import of_run
    from fleetsim.sim.run import ObservedAgent, Run

    since = SystemClock().now() - timedelta(seconds=since_s)
    async with HubClient(with_scheme(url)) if url else connect(common) as hub:
        cards = {
            agent.name: ObservedAgent(dialect=agent.dialect, streaming=agent.streaming, push=agent.push_notifications)
            for agent in await hub.read(list[AgentFacts], "/agents")
            if agent.dialect
        }
        events, after = [], 0
        while page := await hub.get("/journal", after=after, limit=PAGE):
            events += [event for event in map(from_wire, page) if event is not None]
            if page[-1]["seq"] <= after:
                break
            after = page[-1]["seq"]
        return of_run(Run.of_events(events), hub.url, since=since, cards=cards)


# ------------------------------------------------------------------ playing


def _played(common: CommonOptions, scenario: Any, ceremonies: Mapping[str, bytes], source: Path | str) -> Observed:
    from dataclasses import replace

    from fleetsim.sim.cli.play import Progress
    from fleetsim.sim.clocks import VIRTUAL
    from fleetsim.sim.live import played
    from fleetsim.sim.observed import of_recording

    with tempfile.TemporaryDirectory() as folder, Progress(common) as say:
        record = Path(folder) / "run.jsonl"
        played(scenario, ceremonies, source=str(source), record=record, progress=say.run_of(scenario, VIRTUAL))
        return replace(of_recording(record), source=str(source))


HEADS = ("AGENT/SKILL", "FIGURE", "TASKS")


def _show_fit(comparison: Comparison) -> None:
    from fleetsim.sim.comparison import VOLUME, FitVerdict, rows, verdict_of
    from fleetsim.sim.twin import FEW

    verdicts = [verdict_of(difference) for difference in comparison.differences]
    reason = (
        f"{verdicts.count('within')} of {len(verdicts)} figures are within chance of the recorded ones, "
        f"{verdicts.count('near')} more within 15 %, {verdicts.count('off')} further off"
    )
    judged = comparison.verdict is not FitVerdict.TOO_FEW
    render.line(f"the twin {comparison.verdict}: {reason if judged else f'no skill has {FEW} of them'}")
    volumes = {(d.agent, d.skill): d.tasks[0] for d in comparison.differences if d.measure is VOLUME}
    for agent, skill in comparison.only_a if judged else ():
        count = f"{volumes[agent, skill]:,} of {sum(volumes.values()):,} recorded requests"
        render.line(f"not played: {one_line(agent, 40)}/{one_line(skill, 40)}, {count}")
    render.table(
        (*HEADS, "RECORDED", "SIMULATED", "ERROR", "CHANCE (95 %)", "FIT"),
        list(rows(comparison, fit=True)),
        right=frozenset({2, 3, 4, 5}),
    )


# ------------------------------------------------------------------ two sides


@sim.command()
@click.argument("a")
@click.argument("b")
@click.option(
    "--since", default="7d", show_default=True, callback=read_span, metavar="SPAN", help="How far back to read ledgers."
)
@click.option("--seed", type=click.IntRange(min=0), help="The seed of both scenarios [each its own].")
@click.option(
    "--fail-over",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="PERCENT",
    help="Exit 1 only for a difference of more than this.",
)
@click.pass_obj
def diff(common: CommonOptions, a: str, b: str, since: float, seed: int | None, fail_over: float) -> int:
    """Compare two times of a fleet: each figure of each skill, and whether chance explains the difference.

    A and B are each a scenario (a file, or a name of `fleetsim sim list`), which is played; a recording (`--record
    run.jsonl`); or a hub's ledger (ledger.db). A figure is marked if its difference is more than chance
    explains among all compared figures (bootstrap, 95 % for all together).

    \b
    fleetsim sim diff twin.yaml slower.yaml
    fleetsim sim diff twin.yaml ~/.local/state/fleetsim/ledger.db --since 1d --fail-over 20

    Exit codes: 0 no difference, 1 a figure differs or one side has skills that the other has not.
    """
    from fleetsim.sim.comparison import compare, rows

    comparison = compare(*(_side(common, side, since, seed) for side in (a, b)))
    if common.as_json:
        render.emit_json(comparison.as_json())
    else:
        if comparison.differences:
            heads = (*HEADS, "A", "B", "DIFFERENCE", "A BY CHANCE (95 %)", "")
            render.table(heads, list(rows(comparison, fit=False)), right=frozenset({2, 3, 4, 5}))
        for side, only in ((a, comparison.only_a), (b, comparison.only_b)):
            for agent, skill in only:
                render.line(f"only in {side}: {agent}/{skill}")
        count = sum(difference.significant for difference in comparison.differences)
        render.line(f"{count} of {len(comparison.differences)} figures differ by more than chance")
    apart = comparison.beyond(fail_over / 100) or comparison.only_a or comparison.only_b
    return Exit.FAILED if apart else Exit.OK


def _side(common: CommonOptions, side: str, since_s: float, seed: int | None) -> Observed:
    """Observations from a ledger or a recording, by the first bytes of the file, or from playing a scenario. Raises
    ConfigError if it is none of these, or nothing was seen.
    """
    from fleetsim.sim.observed import of_recording
    from fleetsim.sim.scenario import ceremonies_of, parse_scenario, read_scenario, with_seed

    source, text, folder = read_scenario(side)
    if text.startswith(LEDGER_MAGIC):
        seen = asyncio.run(_of_ledger(Path(side), since_s))
    elif text.lstrip().startswith(b"{") and b'"kind"' in text[:200]:
        seen = of_recording(Path(side))
    else:
        scenario, written = parse_scenario(text, source)
        scenario = scenario if seed is None else with_seed(scenario, seed)
        seen = _played(common, scenario, ceremonies_of(scenario, written, folder), source)
    if not seen.outcomes:
        raise ConfigError(f"{side}: no request ended in it", hint="of a ledger, look further back with --since 30d")
    return seen
