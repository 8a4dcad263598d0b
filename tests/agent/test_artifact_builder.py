"""The result of a task while it grows: the tally, how pieces become artifacts, and the weight of both."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fleetsim.agent.limits import OutputLimit
from fleetsim.agent.tasks import ArtifactBuilder, UsageTotals
from fleetsim.model.extensions import (
    DELTAS_MAX,
    EffectDelta,
)
from fleetsim.model.task import Artifact, FilePart, Part, TaskState, TextPart

MAIN = "main"
DONE, FAILED = TaskState.COMPLETED, TaskState.FAILED


def text(*words: str) -> tuple[TextPart, ...]:
    return tuple(TextPart(text=word) for word in words)


def piece(*parts: Part, artifact_id: str = MAIN, **fields: Any) -> Artifact:
    return Artifact(artifact_id=artifact_id, parts=parts, **fields)


def drafted(*artifacts: Artifact, append: bool = True, chars_max: int = 1_000) -> ArtifactBuilder:
    draft = ArtifactBuilder(MAIN, "c", chars_max=chars_max)
    for artifact in artifacts:
        draft.put(artifact, append=append)
    return draft


# -- the tally -----------------------------------------------------------------------------------------


def test_model_calls_add_up_and_the_last_model_is_reported() -> None:
    tally = UsageTotals()
    tally.use({"a": 1, "b": 0}, None, "first")
    assert tally.cost_usd is None
    tally.use({"a": 2, "c": 5}, 0.25, "second")
    tally.use({}, 0.5, None)
    assert (tally.tokens, tally.cost_usd, tally.model) == ({"a": 3, "b": 0, "c": 5}, 0.75, "second")


@pytest.mark.parametrize(
    ("tokens", "cost_usd"),
    [({"a": -1}, None), ({"a": 1, "b": -1}, None), ({}, -0.01), ({}, math.inf), ({}, math.nan), ({"a": -1}, 1.0)],
)
def test_an_impossible_amount_is_refused_and_adds_nothing(tokens: dict[str, int], cost_usd: float | None) -> None:
    tally = UsageTotals()
    with pytest.raises(ValueError, match="negative"):
        tally.use(tokens, cost_usd, "m")
    assert tally == UsageTotals()


def test_the_number_of_effects_of_a_task_is_limited() -> None:
    tally = UsageTotals()
    effect = EffectDelta(domain="d", path="p", op="inc", value=1)
    for _ in range(DELTAS_MAX):
        tally.add(effect)
    with pytest.raises(OutputLimit):
        tally.add(effect)
    assert tally.effects == [effect] * DELTAS_MAX


# -- pieces --------------------------------------------------------------------------------------------


def test_pieces_of_text_become_one_part_and_other_pieces_stay_separate() -> None:
    link, code = FilePart(uri="u"), TextPart(text="x", media_type="text/x")
    noted = TextPart(text="y", metadata={"k": 1})
    draft = drafted(*(piece(part) for part in (*text("a", "b"), link, *text("c"), code, *text("d"), noted, *text("e"))))
    assert draft.artifacts()[0].parts == (*text("ab"), link, *text("c"), code, *text("d"), noted, *text("e"))


def test_a_draft_is_full_at_its_limit() -> None:
    draft = drafted(piece(*text("1234")), piece(*text("567"), artifact_id="b"), chars_max=10)
    assert draft.chars == 7
    with pytest.raises(OutputLimit):
        draft.put(piece(*text("8901")), append=True)
    draft.put(piece(*text("890")), append=True)
    assert draft.chars == 10
    assert draft.artifacts() == (piece(*text("1234890")), piece(*text("567"), artifact_id="b"))


# -- the end -------------------------------------------------------------------------------------------


def main(*parts: Part, **fields: Any) -> Artifact:
    return piece(*parts, name="response", **fields)


def test_a_final_text_replaces_the_pieces_and_their_weight() -> None:
    draft = drafted(piece(*text("123456")), piece(*text("12"), artifact_id="beside"), chars_max=10)
    with pytest.raises(OutputLimit):
        draft.close(DONE, "123456789", 0)
    assert draft.chars == 8
    ending = draft.close(DONE, "12345678", 0)
    assert ending is not None
    assert (ending.artifact, ending.added) == (main(*text("12345678")), None)
    assert draft.chars == 10
    assert draft.artifacts()[0] == main(*text("12345678"))
    assert draft.artifacts()[1] == piece(*text("12"), artifact_id="beside")


@pytest.mark.parametrize("state", [FAILED, TaskState.CANCELED, TaskState.REJECTED])
def test_a_failed_task_without_a_result_has_no_artifact(state: TaskState) -> None:
    draft = drafted()
    assert draft.close(state, None, 0) is None
    assert draft.artifacts() == ()


def test_a_completed_task_always_has_an_artifact() -> None:
    ending = drafted().close(DONE, None, 0)
    assert ending is not None
    assert (ending.artifact, ending.added) == (main(*text("")), ())
    beside = drafted(piece(*text("x"), artifact_id="beside"))
    assert beside.close(DONE, None, 0) is None
    assert beside.artifacts() == (piece(*text("x"), artifact_id="beside"),)


# -- weight --------------------------------------------------------------------------------------------
