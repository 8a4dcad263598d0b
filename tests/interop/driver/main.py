"""Build, run the lanes side by side, compare with the expectations, and say it in one closing line."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from driver.envs import CannotBuild, Env, command, python, ready
from driver.expected import LANES, OURS, PROGRAMS, Lane, Program
from driver.places import INTEROP, LOGS, PAGE, SHARED
from driver.processes import PeerFailed, client, end_all, run_to_end, server
from driver.table import page
from tests.ports import held_port

ALLOW = "INTEROP_ALLOW_NOT_RUN"
CLIENT_LIMIT_S = 120.0
PROGRAM_LIMIT_S = 240
REWRITE = "tests/interop/run --write"


@dataclass(slots=True)
class Tally:
    """The results of one lane: lines for a person, and counts."""

    name: str
    lines: list[str] = field(default_factory=list)
    passed: int = 0
    failed: int = 0
    not_run: str = ""
    took_s: float = 0.0

    def fail(self, line: str) -> None:
        """Count one failure and say it."""
        self.failed += 1
        self.lines.append(f"  FAILED {line}")


def main(words: Sequence[str]) -> int:
    """Run what was asked; 0 when everything expected came out and nothing was left out, else 1."""
    asked = _arguments(words)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if asked.write:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(page(), encoding="utf-8")
        print(f"wrote {os.path.relpath(PAGE)}")
        return 0
    started = time.monotonic()
    lanes = [lane for lane in LANES if _chosen(lane.name, asked)]
    programs = [program for program in PROGRAMS if _chosen(program.name, asked)]
    extra = {env.name: env for program in programs for env in (program.env, *program.needs)}
    homes = _build(
        {env.name: env for lane in lanes for env in (lane.server, lane.client, *((OURS,) if lane.hub else ()))} | extra
    )
    print(f"interop: environments ready after {time.monotonic() - started:.0f} s", flush=True)
    # Programs go first: the longest work of all, which mostly waits, is among them.
    works = [partial(_program, p, homes) for p in programs] + [partial(_run, lane, homes) for lane in lanes]
    tallies = _run_all(works, asked)
    if not asked.lanes:
        tallies.append(_show(_compare_page(), asked.verbose))
    return _close(tallies, time.monotonic() - started)


def _chosen(name: str, asked: argparse.Namespace) -> bool:
    return not asked.lanes or any(part in name for part in asked.lanes)


def _run_all(works: list[Callable[[], Tally]], asked: argparse.Namespace) -> list[Tally]:
    with ThreadPoolExecutor(max_workers=asked.jobs) as pool:
        try:
            return [_show(tally, asked.verbose) for tally in pool.map(lambda work: work(), works)]
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            end_all()
            raise


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/interop/run", description=__doc__)
    parser.add_argument("lanes", nargs="*", help="parts of lane names; all lanes if none is given")
    parser.add_argument("--write", action="store_true", help="write docs/reference/interop.md and leave")
    parser.add_argument("--verbose", "-v", action="store_true", help="show every check, not failures alone")
    parser.add_argument("--jobs", type=int, default=int(os.environ.get("INTEROP_JOBS", "8")), help="lanes at once")
    return parser.parse_args(words)


def _build(envs: dict[str, Env]) -> dict[str, Path | CannotBuild]:
    def one(env: Env) -> Path | CannotBuild:
        try:
            return ready(env)
        except CannotBuild as why:
            return why

    with ThreadPoolExecutor(max_workers=2) as pool:
        return dict(zip(envs, pool.map(one, envs.values()), strict=True))


def _run(lane: Lane, homes: dict[str, Path | CannotBuild]) -> Tally:
    tally = Tally(lane.name)
    for env in (lane.server, lane.client):
        home = homes[env.name]
        if isinstance(home, CannotBuild):
            tally.not_run = str(home)
            return tally
    started = time.monotonic()
    try:
        _judge(lane, _talk(lane, homes), tally)
    except PeerFailed as why:
        tally.fail(str(why))
    tally.took_s = time.monotonic() - started
    return tally


def _talk(lane: Lane, homes: dict[str, Any]) -> list[dict[str, Any]]:
    extra = {"INTEROP_OURS": "1"} if lane.server is OURS else {}
    if lane.bearer:
        extra["INTEROP_BEARER"] = json.loads((SHARED / "script.json").read_text())["bearer"]
    serve = [*command(lane.server, homes[lane.server.name], "server"), *lane.server_words]
    call = command(lane.client, homes[lane.client.name], lane.program)
    with ExitStack() as running:
        port = str(running.enter_context(held_port()))  # no other lane can take it before the client listens there
        if lane.server is OURS:
            serve.append(port)
        behind = {} if lane.hub else extra  # callers of the hub have a key of the hub's, and the server needs none
        url = running.enter_context(server(serve, behind, LOGS / f"{lane.name}-server.log"))
        if lane.hub:
            extra["INTEROP_BEARER"] += "-of-the-hub"  # which takes none shorter than 16 characters
            extra |= {"INTEROP_SKILL": "mill", "INTEROP_OPERATIONS": ",".join(lane.operations)}
            front = [*command(OURS, homes[OURS.name], "front"), url]
            url = running.enter_context(server(front, extra, LOGS / f"{lane.name}-hub.log"))
        words = [*call, url, port, *lane.client_words]
        return client(words, extra, LOGS / f"{lane.name}-client.log", CLIENT_LIMIT_S)


def _judge(lane: Lane, reports: list[dict[str, Any]], tally: Tally) -> None:
    """Each operation exactly once, each as expected; anything else is a failure."""
    seen: dict[str, dict[str, Any]] = {}
    for report in reports:
        op = report["op"]
        if op in seen or op not in lane.operations:
            tally.fail(f"{op}: reported, but not one expected report")
        seen[op] = report
    for op in lane.operations:
        wanted = "absent" if op in lane.absent else "works"
        got = seen.get(op, {"result": "missing", "detail": "no report"})
        said = f"{op}: {got['result']} ({got['detail']})"
        if got["result"] == wanted:
            tally.passed += 1
            tally.lines.append(f"  ok {said}")
        else:
            tally.fail(f"{said}, expected {wanted}")


def _program(program: Program, homes: dict[str, Path | CannotBuild]) -> Tally:
    tally = Tally(program.name)
    for env in (program.env, *program.needs):
        home = homes[env.name]
        if isinstance(home, CannotBuild):
            tally.not_run = str(home)
            return tally
    started = time.monotonic()
    words = [python(program.env, homes[program.env.name]), str(INTEROP / program.script)]
    try:
        code, said = run_to_end([*words, *program.words], LOGS / f"{program.name}.log", PROGRAM_LIMIT_S)
    except PeerFailed as why:
        tally.fail(str(why))
        return tally
    tally.lines.extend(f"  {line}" for line in said)
    tally.passed += max(1, sum(line.startswith("ok ") for line in said)) if code == 0 else 0
    if code != 0:
        tally.fail(f"ended with {code}: {said[-1]}")
    tally.took_s = time.monotonic() - started
    return tally


def _compare_page() -> Tally:
    tally = Tally("docs-page")
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page():
        tally.passed += 1
    else:
        tally.fail(f"{os.path.relpath(PAGE)} does not match the expectations; write it with: {REWRITE}")
    return tally


def _show(tally: Tally, verbose: bool) -> Tally:
    if tally.not_run:
        print(f"{tally.name}: NOT RUN, {tally.not_run}", flush=True)
        return tally
    print(f"{tally.name}: {tally.passed} as expected, {tally.failed} not, {tally.took_s:.1f} s", flush=True)
    for line in tally.lines:
        if verbose or "FAILED" in line:
            print(line, flush=True)
    return tally


def _close(tallies: list[Tally], took_s: float) -> int:
    missing = [tally for tally in tallies if tally.not_run]
    passed = sum(tally.passed for tally in tallies)
    failed = sum(tally.failed for tally in tallies)
    print(f"interop: {len(tallies) - len(missing)} of {len(tallies)} lanes ran in {took_s:.0f} s")
    allowed = os.environ.get(ALLOW) == "1"
    if missing:
        print("=" * 72)
        print(f"NOT RUN: {', '.join(tally.name for tally in missing)}")
        print("These peers were not tried: this run proves nothing about them.")
        print(f"{ALLOW}=1 allowed it." if allowed else f"This counts as failure. {ALLOW}=1 allows it.")
        print("=" * 72)
    print(f"{passed} passed, {failed} failed, {len(missing)} skipped", flush=True)
    return 1 if failed or (missing and not allowed) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
