"""Let the Nth call to the disk fail, for every N, in four ways, once and for a while.

Each run makes the same calls on a fresh ledger and on the independent model. After any failed disk call, a ledger call
took full effect or raised NotAccepting without any, at once and after the next opening; and the ledger
works again as soon as the disk does. ``python -m tests.storms.nth`` runs all; the test a sample.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import itertools
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from fleetsim.ledger import Ledger
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.model.errors import ConfigError, NotAccepting
from fleetsim.testbed.runtime import VirtualClock
from tests.ledger.ledger_model import Model, read_all
from tests.storms.sqlite_vfs import BUSY, FULL, IOERR, READONLY, Disk, Step
from tests.storms.work import LIMITS, Call, calls, names

KINDS = ("full", "io error", "busy", "read-only")
_CODES = {"full": FULL, "busy": BUSY, "read-only": READONLY}


class Nth:
    """Fails calls number ``first`` to ``first + length - 1``: of those that lock if busy, else that change files. A
    disk that fails a write with "busy" would mislead SQLite, which takes that error for a lock's."""

    def __init__(self, kind: str, first: int, length: int) -> None:
        self.seen = 0
        self._kind, self._range = kind, range(first, first + length)

    @property
    def failing_still(self) -> bool:
        """Whether the disk never came back before the end."""
        return self._range.start <= self.seen < self._range.stop

    def __call__(self, step: Step) -> int:
        if (step.what == "lock") is not (self._kind == "busy"):
            return 0
        self.seen += 1
        if self.seen not in self._range:
            return 0
        return IOERR.get(step.what, IOERR["write"]) if self._kind == "io error" else _CODES[self._kind]


async def play(folder: Path, kind: str, first: int, length: int, count: int) -> tuple[int, Counter[str]]:
    """One run. Returns the number of disk calls and the results of the ledger's calls. Raises AssertionError."""
    nth, model, told = Nth(kind, first, length), Model(LIMITS), Counter[str]()
    refused: list[Call] = []
    played = itertools.islice(calls(7), count)
    with Disk(folder, nth).installed():
        while told["not opened"] <= length + 1:
            try:
                async with opened(folder) as ledger:
                    for call in played:
                        try:
                            result = await call.on(ledger)
                        except NotAccepting:
                            refused.append(call)
                        else:
                            told["done"] += 1
                            assert result == model.apply(call.method, *call.args), call
                    await model.agrees_with(ledger)
                break
            except ConfigError:
                told["not opened"] += 1
    told["refused"] += len(refused)
    async with opened(folder) as ledger:
        found = await read_all(ledger, names(count))
    if found != model.view():
        # The sync failed, and so did every later write to the end, so the transaction could not be undone.
        assert nth.failing_still
        assert any(found == after(model, call).view() for call in refused)
        told["in doubt"] += 1
    return nth.seen, told


def after(model: Model, call: Call) -> Model:
    """A copy of the model with a call applied."""
    other = copy.deepcopy(model)
    other.apply(call.method, *call.args)
    return other


def opened(folder: Path) -> Ledger:
    return open_ledger(folder / "ledger.db", clock=VirtualClock(), storage="inline", limits=LIMITS)


def run(kind: str, first: int, length: int, count: int) -> tuple[int, Counter[str]]:
    """``play`` in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="nth-"))
    try:
        return asyncio.run(play(folder, kind, first, length, count))
    except Exception as error:
        raise AssertionError(f"{kind}, call {first}, {length} long: {type(error).__name__}: {error}") from error
    finally:
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=60, help="ledger calls in the scenario")
    parser.add_argument("--every", type=int, default=1, help="try every Nth disk call only")
    options = parser.parse_args()
    told: Counter[str] = Counter()
    runs = 0
    for kind, length in itertools.product(KINDS, (1, 25)):
        disk_calls, _ = run(kind, 0, 0, options.calls)
        for first in range(1, disk_calls + 1, options.every):
            told += run(kind, first, length, options.calls)[1]
            runs += 1
    print(f"nth: {runs} runs, each with other disk calls failing: {dict(told)}; 0 lost, 0 half done, all recovered")


if __name__ == "__main__":
    main()
