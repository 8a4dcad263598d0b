"""A task's results while they grow: what a tally tells, how pieces become artifacts, and what both weigh."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fleetsim.agent.limits import OutputLimit
from fleetsim.agent.tasks import ArtifactBuilder, FinalArtifact, UsageTotals, weigh_data, weigh_part
from fleetsim.model.extensions import (
    CONFIDENCE,
    CONFIDENCE_TYPE,
    COST,
    COST_TYPE,
    DELTAS_MAX,
    WORLDSTATE_DELTA,
    WORLDSTATE_DELTA_TYPE,
    EffectDelta,
)
from fleetsim.model.task import Artifact, DataPart, FilePart, Part, TaskState, TextPart

MAIN = "main"
DONE, FAILED = TaskState.COMPLETED, TaskState.FAILED


def text(*words: str) -> tuple[TextPart, ...]:
    return tuple(TextPart(text=word) for word in words)


def piece(*parts: Part, artifact_id: str = MAIN, **fields: Any) -> Artifact:
    return Artifact(artifact_id=artifact_id, parts=parts, **fields)


def drafted(*artifacts: Artifact, append: bool = True, chars_max: int = 1_000) -> ArtifactBuilder:
    draft = ArtifactBuilder(MAIN, chars_max=chars_max)
    for artifact in artifacts:
        draft.put(artifact, append=append)
    return draft


# -- the tally -----------------------------------------------------------------------------------------


def test_model_calls_add_up_and_the_last_named_model_is_told() -> None:
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
def test_an_amount_that_cannot_be_is_refused_and_adds_nothing(tokens: dict[str, int], cost_usd: float | None) -> None:
    tally = UsageTotals()
    with pytest.raises(ValueError, match="negative or infinite"):
        tally.use(tokens, cost_usd, "m")
    assert tally == UsageTotals()


def test_a_call_that_cost_nothing_is_a_call() -> None:
    tally = UsageTotals()
    tally.use({}, 0.0, None)
    (part,), uris = tally.parts(DONE, 7)
    assert isinstance(part, DataPart)
    assert part.data == {"usage": {}, "durationMs": 7, "success": True, "costUsd": 0.0}
    assert uris == (COST,)


def test_a_task_reports_so_many_effects_and_no_more() -> None:
    tally = UsageTotals()
    effect = EffectDelta(domain="d", path="p", op="inc", value=1)
    for _ in range(DELTAS_MAX):
        tally.add(effect)
    with pytest.raises(OutputLimit):
        tally.add(effect)
    assert tally.effects == [effect] * DELTAS_MAX


@pytest.mark.parametrize(("state", "success"), [(DONE, True), (FAILED, False), (TaskState.CANCELED, False)])
def test_everything_a_task_tallied_is_told_under_its_own_name(state: TaskState, success: bool) -> None:
    tally = UsageTotals(
        confidence=0.5, explanation="guess", effects=[EffectDelta(domain="d", path="p", op="inc", value=2)]
    )
    tally.use({"input_tokens": 3}, 0.5, "m")
    parts, uris = tally.parts(state, 12)
    told = {
        WORLDSTATE_DELTA_TYPE: {"deltas": [{"domain": "d", "path": "p", "op": "inc", "value": 2}]},
        COST_TYPE: {
            "usage": {"input_tokens": 3},
            "durationMs": 12,
            "success": success,
            "costUsd": 0.5,
            "model": "m",
        },
        CONFIDENCE_TYPE: {"confidence": 0.5, "success": success, "explanation": "guess"},
    }
    assert parts == tuple(
        DataPart(data=data, media_type=kind, metadata={"mimeType": kind}) for kind, data in told.items()
    )
    assert uris == (WORLDSTATE_DELTA, COST, CONFIDENCE)


@pytest.mark.parametrize(
    ("tally", "told"),
    [
        (UsageTotals(), []),
        (UsageTotals(tokens={"a": 1}), [{"usage": {"a": 1}, "durationMs": 1, "success": True}]),
        (UsageTotals(confidence=0.0), [{"confidence": 0.0, "success": True}]),
        (UsageTotals(explanation="of nothing"), []),
        (UsageTotals(model="named alone"), []),
    ],
)
def test_what_was_not_tallied_is_not_told(tally: UsageTotals, told: list[dict[str, Any]]) -> None:
    assert [part.data for part in tally.parts(DONE, 1)[0] if isinstance(part, DataPart)] == told


# -- pieces --------------------------------------------------------------------------------------------


def test_pieces_of_text_become_one_part_and_others_stay_apart() -> None:
    link, code = FilePart(uri="u"), TextPart(text="x", media_type="text/x")
    noted = TextPart(text="y", metadata={"k": 1})
    draft = drafted(*(piece(part) for part in (*text("a", "b"), link, *text("c"), code, *text("d"), noted, *text("e"))))
    assert draft.artifacts()[0].parts == (*text("ab"), link, *text("c"), code, *text("d"), noted, *text("e"))


def test_reading_an_artifact_while_it_grows_does_not_cut_its_text() -> None:
    draft = drafted(piece(*text("a")))
    assert draft.artifacts()[0].parts == text("a")
    draft.put(piece(*text("b")), append=True)
    assert draft.artifacts()[0].parts == text("ab")


@pytest.mark.parametrize("ahead", [TextPart(text="x", media_type="text/x"), TextPart(text="x", metadata={"k": 1})])
def test_text_that_follows_another_kind_of_text_is_a_part_of_its_own(ahead: TextPart) -> None:
    draft = drafted(piece(ahead))
    assert draft.artifacts()
    draft.put(piece(*text("b")), append=True)
    assert draft.artifacts()[0].parts == (ahead, *text("b"))


def test_an_artifact_keeps_everything_its_first_piece_says_of_it() -> None:
    first = piece(*text("a"), name="n", description="d", extensions=("e",), metadata={"k": 1})
    draft = drafted(first, piece(*text("b"), name="other"))
    assert draft.artifacts() == (piece(*text("ab"), name="n", description="d", extensions=("e",), metadata={"k": 1}),)


def test_an_artifact_without_a_part_is_not_shown() -> None:
    assert drafted(piece(artifact_id="empty"), piece(*text("x"), artifact_id="full")).artifacts() == (
        piece(*text("x"), artifact_id="full"),
    )


def test_a_piece_that_does_not_append_begins_its_artifact_anew() -> None:
    draft = drafted(piece(*text("old")), piece(*text("new")), append=False)
    assert draft.artifacts() == (piece(*text("new")),)


def test_a_draft_is_full_at_its_limit_and_not_before() -> None:
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


def test_a_final_text_takes_the_place_of_the_pieces_and_of_their_weight() -> None:
    draft = drafted(piece(*text("123456")), piece(*text("12"), artifact_id="beside"), chars_max=10)
    with pytest.raises(OutputLimit):
        draft.close(DONE, "123456789", 0)
    assert draft.chars == 8
    assert draft.close(DONE, "12345678", 0) == FinalArtifact(main(*text("12345678")), None)
    assert draft.chars == 10
    assert draft.artifacts()[0] == main(*text("12345678"))
    assert draft.artifacts()[1] == piece(*text("12"), artifact_id="beside")


def test_the_pieces_hold_where_the_final_text_is_theirs() -> None:
    assert drafted(piece(*text("a", "b"))).close(DONE, "ab", 0) == FinalArtifact(main(*text("ab")), ())
    assert drafted(piece(*text("ab"))).close(DONE, None, 0) == FinalArtifact(main(*text("ab")), ())


def test_what_the_tally_tells_is_added_to_the_pieces() -> None:
    draft = drafted(piece(*text("a")))
    draft.usage.use({"t": 1}, None, None)
    (cost,), uris = draft.usage.parts(FAILED, 5)
    assert draft.close(FAILED, None, 5) == FinalArtifact(main(*text("a"), cost, extensions=uris), (cost,))
    assert draft.artifacts() == (main(*text("a"), cost, extensions=uris),)


@pytest.mark.parametrize("state", [FAILED, TaskState.CANCELED, TaskState.REJECTED])
def test_a_task_that_did_not_complete_and_had_nothing_to_show_has_no_artifact(state: TaskState) -> None:
    draft = drafted()
    assert draft.close(state, None, 0) is None
    assert draft.artifacts() == ()


def test_a_completed_task_always_has_an_artifact() -> None:
    assert drafted().close(DONE, None, 0) == FinalArtifact(main(*text("")), ())
    beside = drafted(piece(*text("x"), artifact_id="beside"))
    assert beside.close(DONE, None, 0) is None
    assert beside.artifacts() == (piece(*text("x"), artifact_id="beside"),)


def test_a_task_that_only_tallied_shows_that() -> None:
    draft = drafted()
    draft.usage.confidence = 1.0
    (sure,), uris = draft.usage.parts(FAILED, 5)
    assert draft.close(FAILED, None, 5) == FinalArtifact(main(sure, extensions=uris), (sure,))


# -- weight --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "chars"),
    [
        (TextPart(text="abc"), 3),
        (FilePart(raw="abcd"), 4),
        (FilePart(uri="abcde"), 5),
        (FilePart(raw="abcd", uri="abcde"), 9),
        (DataPart(data="abc"), 3),
        (DataPart(data={"ab": "cde", "f": 1}), 2 + 3 + 1 + 8 + 2),
        (DataPart(data=["ab", True, None, []]), 2 + 8 + 8 + 2 + 2),
        (DataPart(data=({"a": ["b"]},)), 1 + 1 + 2 + 2 + 2),
    ],
)
def test_a_part_weighs_about_its_characters(part: Part, chars: int) -> None:
    assert weigh_part(part) == chars


def test_a_number_weighs_as_much_as_eight_characters() -> None:
    assert [weigh_data(data) for data in (1, 2.5, None, False)] == [8, 8, 8, 8]
