"""Values that agents report of themselves cannot corrupt a figure (T-08)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fleetsim.api.answer import to_json
from fleetsim.health.fleet_health import FleetHealth
from fleetsim.model.event import ArtifactUpdate, fold
from fleetsim.model.extensions import (
    CONFIDENCE_TYPE,
    COST_TYPE,
    COST_USD_MAX,
    DELTAS_MAX,
    DURATION_MS_MAX,
    TOKENS_MAX,
    WORLDSTATE_DELTA_TYPE,
    read_extras,
)
from fleetsim.model.task import Artifact, DataPart, Task, TaskState, TaskStatus, TextPart
from fleetsim.request.ending import outcome_of
from fleetsim.request.machine import new_track
from fleetsim.request.track import Now
from tests.request.steps import record

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=2),
    st.just({"a": 1}),
    st.sampled_from([10**400, -(10**400), 1e308, -1e308, -0.0, math.inf, -math.inf, math.nan, "1", "NaN"]),
)
USAGE = st.dictionaries(
    st.sampled_from(["input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"]), ODD
)
COST = st.fixed_dictionaries(
    {}, optional={"usage": USAGE | ODD, "durationMs": ODD, "costUsd": ODD, "success": ODD, "model": ODD}
)
SURE = st.fixed_dictionaries({}, optional={"confidence": ODD, "explanation": ODD, "success": ODD})
DELTA = st.fixed_dictionaries(
    {},
    optional={
        "domain": st.just("d") | ODD,
        "path": st.just("p") | ODD,
        "op": st.sampled_from(["set", "inc", "push"]) | ODD,
        "value": ODD,
    },
)
DELTAS = DELTA | st.fixed_dictionaries({"deltas": st.lists(DELTA | ODD, max_size=3) | ODD})


def done(*payloads: tuple[str, Any]) -> Task:
    parts = tuple(DataPart(data=data, metadata={"mimeType": kind}) for kind, data in payloads)
    artifact = Artifact(artifact_id="a", parts=parts)
    return Task(task_id="t", context_id="c", status=TaskStatus(state=TaskState.COMPLETED), artifacts=(artifact,))


@given(st.lists(COST, max_size=3), st.lists(SURE, max_size=3), st.lists(DELTAS, max_size=3))
def test_figures_stay_finite_and_within_bounds_for_any_report(
    costs: list[dict[str, Any]], sures: list[dict[str, Any]], deltas: list[dict[str, Any]]
) -> None:
    said = [(COST_TYPE, c) for c in costs] + [(CONFIDENCE_TYPE, s) for s in sures]
    found = read_extras(done(*said, *((WORLDSTATE_DELTA_TYPE, d) for d in deltas)))
    if found.cost is not None:
        usage = found.cost.usage
        assert all(0 <= n <= TOKENS_MAX for n in (usage.input_tokens, usage.output_tokens))
        assert all(0 <= n <= TOKENS_MAX for n in (usage.cache_creation_input_tokens, usage.cache_read_input_tokens))
        assert found.cost.duration_ms is None or 0 <= found.cost.duration_ms <= DURATION_MS_MAX
        assert found.cost.cost_usd is None or 0 <= found.cost.cost_usd <= COST_USD_MAX
        assert found.cost.success in {None, True, False}
    assert found.confidence is None or 0 <= found.confidence.confidence <= 1
    assert len(found.deltas) <= DELTAS_MAX
    assert all(delta.op in {"set", "inc", "push"} for delta in found.deltas)


@pytest.mark.parametrize("amount", [10**400, 1e308, -5, math.nan, "9", True])
def test_one_corrupt_outcome_leaves_the_fleets_figures_usable(amount: Any) -> None:
    cost: Mapping[str, Any] = {"costUsd": amount, "durationMs": amount, "usage": {"input_tokens": amount}}
    task = done((COST_TYPE, cost), (CONFIDENCE_TYPE, {"confidence": amount}))
    now = Now(10.0, datetime(2026, 1, 1, tzinfo=UTC))
    outcome = outcome_of(replace(new_track(record(), now), record=replace(record(), task=task)), now)
    health = FleetHealth()
    health.fold(outcome)
    figures = to_json(health.snapshot(outcome.ended_at, {}))

    def finite(value: Any) -> bool:
        if isinstance(value, Mapping):
            return all(finite(item) for item in value.values())
        if isinstance(value, list | tuple):
            return all(finite(item) for item in value)
        return not isinstance(value, float) or math.isfinite(value)

    assert finite(figures)
    assert outcome.cost_usd is None or 0 <= outcome.cost_usd <= COST_USD_MAX


def test_only_a_boolean_false_in_the_payload_denies_success() -> None:
    assert read_extras(done((COST_TYPE, {"success": False}))).denies_success
    assert not read_extras(done((COST_TYPE, {"success": "false"}))).denies_success


def test_effects_that_were_not_kept_are_reported() -> None:
    many = [{"domain": "d", "path": f"p{n}", "op": "set", "value": n} for n in range(DELTAS_MAX + 44)]
    task = done((WORLDSTATE_DELTA_TYPE, {"deltas": many}))
    assert (len(read_extras(task).deltas), read_extras(task).deltas_left_out) == (DELTAS_MAX, 44)
    now = Now(10.0, datetime(2026, 1, 1, tzinfo=UTC))
    outcome = outcome_of(replace(new_track(record(), now), record=replace(record(), task=task)), now)
    assert outcome.warnings == ("44 of 300 reported effects are not kept",)


def test_the_extension_of_a_later_piece_is_kept() -> None:
    """The last piece of a streamed artifact brings its data parts, and names their extensions."""
    first = Artifact(artifact_id="a", parts=(TextPart(text="x"),), extensions=("urn:one",))
    last = replace(first, parts=(TextPart(text=""),), extensions=("urn:two", "urn:one"))
    begun = fold(None, ArtifactUpdate(task_id="t", context_id="c", artifact=first))
    ended = fold(begun, ArtifactUpdate(task_id="t", context_id="c", artifact=last, append=True))
    assert ended.artifacts[0].extensions == ("urn:one", "urn:two")
    assert ended.artifacts[0].parts == (TextPart(text="x"),)
