"""A task of many artifacts is folded like one of few, at the same cost for each event."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from fleetsim.ledger.sqlite import open_ledger
from fleetsim.model import event as events
from fleetsim.model.event import ArtifactUpdate, Snapshot, fold, plain
from fleetsim.model.task import Artifact, Task, TaskState, TaskStatus, TextPart
from fleetsim.runtime.ports import Runtime
from tests.ledger.ledgers import record


def update(artifact_id: str, text: str, *, append: bool = False) -> ArtifactUpdate:
    artifact = Artifact(artifact_id=artifact_id, parts=(TextPart(text=text),))
    return ArtifactUpdate(task_id="t", context_id="c", artifact=artifact, append=append)


def task_of(*ids: str) -> Task:
    artifacts = tuple(Artifact(artifact_id=name, parts=(TextPart(text=name),)) for name in ids)
    return Task(task_id="t", context_id="c", status=TaskStatus(state=TaskState.WORKING), artifacts=artifacts)


changes = st.tuples(st.integers(0, 12), st.sampled_from("abcdefg"), st.booleans())


@example(ids=["a", "b"], steps=[(0, "e", False), (1, "f", False), (1, "g", False), (3, "f", False)])
@given(ids=st.lists(st.sampled_from("abcd"), max_size=5), steps=st.lists(changes, max_size=12))
def test_an_update_finds_its_artifact_among_any_number(ids: list[str], steps: list[tuple[int, str, bool]]) -> None:
    """Also after two tasks grew out of one, and after an agent gave two artifacts one id."""

    def told(many: int) -> list[Task]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(events, "MANY", many)
            tasks = [fold(None, Snapshot(task=task_of(*ids)))]
            for number, (at, name, append) in enumerate(steps):
                tasks.append(fold(tasks[at % len(tasks)], update(name, str(number), append=append)))
            return tasks

    assert told(2) == told(1_000)


@pytest.mark.parametrize("count", [64, 127, 128, 129, 300])
def test_many_artifacts_are_a_value_like_a_tuple(count: int) -> None:
    folded = fold(task_of(*map(str, range(count))), update("last", "x"))
    more = fold(fold(folded, update("more", "y")), update("7", "changed"))
    assert [artifact.artifact_id for artifact in folded.artifacts] == [*map(str, range(count)), "last"], (
        "it is not changed"
    )
    whole, many = plain(more), more.artifacts
    assert type(whole.artifacts) is tuple is not type(many)
    assert plain(whole) is whole
    assert (more, many, whole.artifacts) == (whole, whole.artifacts, many)
    assert (whole == folded, many == whole.artifacts[:-1], many == list(whole.artifacts)) == (False, False, False)
    assert (len(many), many[0], many[-1], many[7].text) == (
        count + 2,
        whole.artifacts[0],
        whole.artifacts[-1],
        "changed",
    )
    assert many[1:-1:3] == whole.artifacts[1:-1:3]
    assert many.index(many[count // 2]) == count // 2
    with pytest.raises(IndexError):
        many[count + 2]


async def test_a_request_with_many_artifacts_is_written_like_any_other(runtime: Runtime) -> None:
    folded = fold(task_of(*map(str, range(100))), update("100", "x"))
    async with open_ledger(None, clock=runtime.clock, storage="inline") as ledger:
        await ledger.accept([replace(record("r"), task=folded)])
        assert await ledger.open_requests() == (replace(record("r"), task=plain(folded)),)


def test_one_more_artifact_takes_no_memory_for_the_thousands_before_it() -> None:
    """A new tuple of 20,000 would take 160 KB; only the first copy is divided into rows."""
    task = fold(task_of(*map(str, range(20_000))), update("first", "x"))
    added, changed = update("second", "x"), update("10000", "changed")
    tracemalloc.start()
    try:
        task = fold(fold(task, added), changed)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(task.artifacts) == 20_002
    assert peak < 20_000


class Compared(str):
    """An id that counts how often it is compared."""

    __slots__ = ()
    times = 0

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@pytest.mark.parametrize("append", [False, True])
def test_an_update_costs_as_many_comparisons_among_thousands_as_among_a_hundred(append: bool) -> None:
    def compared(count: int) -> int:
        task = task_of(*(Compared(f"a{number}") for number in range(count)))
        task = fold(task, update(Compared("first"), "x"))
        Compared.times = 0
        task = fold(task, update(Compared("second"), "x", append=append))
        task = fold(task, update(Compared(f"a{count // 2}"), "y", append=append))
        assert (task.artifacts[-1].artifact_id, len(task.artifacts)) == ("second", count + 2)
        assert task.artifacts[count // 2].parts[-1] == TextPart(text=f"a{count // 2}y" if append else "y")
        return Compared.times

    assert compared(5_000) <= compared(100) <= 8
