"""``make fuzz``: every target for a share of the time, its volume printed; a finding ends it with the input.

``python -m tests.fuzz.run --seconds 600 [--only NAME …] [--seed N]``. A finding is anything but a declared
error: its input is printed in full, and the same seed brings it back.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from tests.fuzz import doors, files, requests, wires
from tests.fuzz.target import Target

TARGETS: tuple[Target, ...] = (*wires.TARGETS, *doors.TARGETS, *requests.TARGETS, *files.TARGETS)
SLOW_S = 2.0
"""Processor seconds that no input of at most 8 KiB may take, on any machine this is likely to run on."""


@dataclass(slots=True)
class Volume:
    """The counts of one target's inputs."""

    target: Target
    inputs: int = 0
    taken: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0

    def __str__(self) -> str:
        rate = self.inputs / self.seconds if self.seconds else 0.0
        return (
            f"{self.target.name:<10} {self.inputs:>12,} inputs  {self.taken:>11,} taken  {rate:>8,.0f}/s  "
            f"slowest {self.slowest_s * 1000:>6.1f} ms  {self.target.promise}"
        )


class Found(Exception):
    """An input that breaks the promise of its target."""

    def __init__(self, target: Target, data: bytes) -> None:
        super().__init__(f"{target.name}: {data!r}")
        self.data = data


def drive(target: Target, *, seed: int, seconds: float, inputs_max: int | None = None) -> Volume:
    """Feed one target for ``seconds``. Raises Found from its error."""
    draw = target.draw(random.Random(f"{seed}/{target.name}"))
    volume, began = Volume(target), time.monotonic()
    while (time.monotonic() - began < seconds) and (inputs_max is None or volume.inputs < inputs_max):
        for _ in range(64):
            data = draw()
            at = time.process_time()
            try:
                volume.taken += bool(target.judge(data))
                took = time.process_time() - at
                if took > SLOW_S:
                    raise AssertionError(f"took {took:.1f} s of processor time")
            except Exception as error:
                raise Found(target, data) from error
            volume.slowest_s = max(volume.slowest_s, took)
            volume.inputs += 1
    volume.seconds = time.monotonic() - began
    return volume


def chosen(names: Sequence[str]) -> list[Target]:
    """The targets with these names, or all. Raises SystemExit for an unknown name."""
    known = {target.name: target for target in TARGETS}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"no target {unknown[0]!r}; there are {', '.join(known)}")
    return [known[name] for name in names] if names else list(TARGETS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, and say by the exit code whether anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="time in all, shared by the targets")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)
    targets = chosen(given.only)
    print(f"seed {given.seed}, {given.seconds:.0f} s over {len(targets)} targets", flush=True)
    total = 0
    for target in targets:
        try:
            volume = drive(target, seed=given.seed, seconds=given.seconds / len(targets))
        except Found as found:
            traceback.print_exception(found)
            print(f"FOUND by {target.name}: {found.data!r}", file=sys.stderr)
            return 1
        print(volume, flush=True)
        total += volume.inputs
    print(f"{total:,} inputs, nothing but declared errors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
