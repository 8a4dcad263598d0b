"""Each name falls due once, at its moment, however often it was moved; what was taken never does."""

from __future__ import annotations

import asyncio
import random

from fleetsim.caller.timing_wheel import CROWD, CROWD_S, SLOT_S, TimingWheel


def now() -> float:
    return asyncio.get_running_loop().time()


class Told:
    """A wheel, and what it told of when."""

    def __init__(self) -> None:
        self.at: list[tuple[str, float]] = []
        self.wheel = TimingWheel(lambda name: self.at.append((name, now())))


async def test_each_falls_due_at_its_moment_and_not_at_its_seconds() -> None:
    told = Told()
    moments = {"a": 0.25, "b": 2.75, "c": 2.5, "d": 3_600.125, "e": 2.5}
    for name, when in moments.items():
        told.wheel.move(name, None, when)
    assert len(told.wheel) == 5
    await asyncio.sleep(4_000)
    assert told.at == [("a", 0.25), ("c", 2.5), ("e", 2.5), ("b", 2.75), ("d", 3_600.125)]
    assert len(told.wheel) == 0


async def test_a_name_that_is_moved_falls_due_where_it_is_and_nowhere_it_was() -> None:
    told, rng = Told(), random.Random(7)
    names = {f"n{n}": rng.uniform(0, 20 * SLOT_S) for n in range(200)}
    for name, when in names.items():
        told.wheel.move(name, None, when)
    for name in list(names) * 5:
        later = None if rng.random() < 0.2 else rng.uniform(0, 20 * SLOT_S)
        told.wheel.move(name, names.get(name), later)
        names.pop(name, None)
        if later is not None:
            names[name] = later
    assert len(told.wheel) == len(names)
    await asyncio.sleep(21 * SLOT_S)
    assert sorted(told.at) == sorted(names.items())


async def test_what_is_moved_while_it_is_told_of_falls_due_again_and_the_others_are_told_all_the_same() -> None:
    at: list[tuple[str, float]] = []

    def due(name: str) -> None:
        at.append((name, now()))
        if name == "again" and len(at) < 4:
            wheel.move(name, at[-1][1], at[-1][1])

    wheel = TimingWheel(due)
    wheel.move("again", None, 5.0)
    wheel.move("other", None, 5.0)
    await asyncio.sleep(10)
    assert at == [("again", 5.0), ("other", 5.0), ("again", 5.0), ("again", 5.0)]
    assert len(wheel) == 0


async def test_a_loop_that_was_late_tells_of_all_that_passed_in_order() -> None:
    told = Told()
    await asyncio.sleep(100)
    for name, when in (("past", 40.5), ("next", 101.5), ("before", 20.5)):
        told.wheel.move(name, None, when)
    await asyncio.sleep(5)
    assert told.at == [("before", 100.0), ("past", 100.0), ("next", 101.5)]


async def test_a_closed_wheel_tells_of_nothing_and_takes_nothing() -> None:
    told = Told()
    told.wheel.move("a", None, 5.0)
    told.wheel.close()
    told.wheel.move("b", None, 6.0)
    await asyncio.sleep(10)
    assert told.at == []


async def test_of_a_crowd_each_falls_due_within_a_hundredth_of_its_moment_and_never_before_it() -> None:
    told, rng = Told(), random.Random(7)
    names = {f"n{n}": rng.uniform(2, 4) for n in range(5 * CROWD)}
    for name, when in names.items():
        told.wheel.move(name, None, when)
    await asyncio.sleep(5)
    assert sorted(name for name, _ in told.at) == sorted(names)
    late = [at - names[name] for name, at in told.at]
    assert min(late) >= 0
    assert max(late) <= CROWD_S + 1e-6
    assert len({at for _, at in told.at}) <= 2 / CROWD_S + 1
    told.wheel.move("alone", None, 7.123)
    await asyncio.sleep(3)
    assert told.at[-1] == ("alone", 7.123), "the crowd is over"
