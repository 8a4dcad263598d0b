"""The built-in skills, each alone: the text, reports and effects of each, and its duration."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fleetsim.agent.builtin import PROFILES, flaky_skill
from fleetsim.agent.skills import Skill, SkillFailed, SkillRejected
from fleetsim.agent.tasks import UsageTotals
from fleetsim.model.extensions import EffectDelta
from fleetsim.model.task import Artifact, TextPart
from tests.agent.environment import Paper, at_work, said

SKILLS = {made.skill_id: made for profile in PROFILES.values() for made in profile.skills()}


class Did:
    """The record of one run of a skill."""

    def __init__(self) -> None:
        self.answer: str | None = None
        self.error: Exception | None = None
        self.written: list[Any] = []
        self.tally = UsageTotals()
        self.took_s = 0.0

    @property
    def effects(self) -> list[EffectDelta]:
        return self.tally.effects


async def done(skill: Skill | str, text: str = "", *answers: str, message_id: str = "m", prefix: str = "") -> Did:
    made = SKILLS[skill] if isinstance(skill, str) else skill
    paper = Paper(*(said(answer, message_id=prefix + answer) for answer in answers))
    context = at_work(made, TextPart(text=text), paper=paper, message_id=message_id)
    did, began_s = Did(), asyncio.get_running_loop().time()
    try:
        did.answer = await made(context)
    except (SkillFailed, SkillRejected, RuntimeError, ValueError) as error:
        did.error = error
    did.written, did.tally, did.took_s = paper.written, context.usage, asyncio.get_running_loop().time() - began_s
    return did


# -- the reference agent's -----------------------------------------------------------------------------


async def test_echo_returns_its_message_at_once() -> None:
    did = await done("echo", "a b")
    assert (did.answer, did.took_s, did.written) == ("a b", 0.0, [])


@pytest.mark.parametrize(
    ("text", "seconds", "answer"),
    [
        ("20", 20, "20"),
        (" 0.5 ", 0.5, "0.5"),
        ("", 5, "5"),
        ("soon", 5, "5"),
        ("nan", 5, "5"),
        ("0", 0, "0"),
        ("-3", 0, "0"),
        ("3600", 3600, "3600"),
        ("3601", 3600, "3600"),
        ("inf", 3600, "3600"),
    ],
)
async def test_slow_works_for_the_requested_time_up_to_an_hour(text: str, seconds: float, answer: str) -> None:
    did = await done("slow", text)
    assert did.answer == f"done after {answer} s"
    assert did.took_s == pytest.approx(seconds)
    assert did.written == [f"step {step} of 5" for step in (1, 2, 3, 4, 5)]


async def test_stream_sends_its_text_word_by_word() -> None:
    did = await done("stream", "one  two")
    chunks = [
        (Artifact(artifact_id="t", name="response", parts=(TextPart(text=word),)), True, False)
        for word in ("one", " ", " two")
    ]
    assert did.written == chunks
    assert did.took_s == pytest.approx(0.15)
    assert did.answer is None
    tokens = {"input_tokens": 3, "output_tokens": 3}
    assert did.tally == UsageTotals(tokens=tokens, cost_usd=pytest.approx(3e-5), model="parrot")


async def test_ask_greets_the_name_in_the_answer() -> None:
    did = await done("ask", "", " Ada ")
    assert (did.answer, did.written) == ("Hello Ada", [("Who shall I greet?", False)])
    unnamed = await done("ask", "", " ")
    assert isinstance(unnamed.error, SkillFailed)
    assert str(unnamed.error) == "no name was given"


async def test_auth_waits_for_a_sign_in() -> None:
    did = await done("auth")
    assert did.answer == "signed in"
    assert [auth for _, auth in did.written] == [True]


@pytest.mark.parametrize(
    ("skill_id", "text", "kind", "said"),
    [
        ("fail", "no disk", SkillFailed, "no disk"),
        ("fail", "", SkillFailed, "it was asked to"),
        ("reject", "x", SkillRejected, "this agent does not do that"),
        ("crash", "x", RuntimeError, "unexpected: x"),
        ("explode", "x", SkillFailed, "Agent execution failed (ValueError)"),
    ],
)
async def test_a_skill_that_is_made_to_fail_fails_with_its_reason(
    skill_id: str, text: str, kind: type[Exception], said: str
) -> None:
    did = await done(skill_id, text)
    assert type(did.error) is kind
    assert str(did.error) == said


async def test_one_of_ten_flaky_calls_fails_at_a_random_place() -> None:
    flaky = flaky_skill()
    runs = [await done(flaky, "x" if at % 2 else "") for at in range(30)]
    for ten in (runs[:10], runs[10:20], runs[20:]):
        assert [str(did.error) for did in ten if did.error] == ["this was the one in ten"]
    assert {did.answer for did in runs} == {"x", "fine this time", None}
    assert 0 < [did.error is None for did in runs].index(False) < 9, "the seed of these tests puts it in between"


async def test_estimate_reports_its_cost_and_confidence() -> None:
    did = await done("estimate", "abc")
    assert did.answer == "3 characters, give or take"
    assert did.tally == UsageTotals(
        tokens={"input_tokens": 120, "output_tokens": 40},
        cost_usd=0.0042,
        model="abacus",
        confidence=0.8,
        explanation="two of three sources agree",
    )


@pytest.mark.parametrize(("text", "answer"), [("broken", "filed: broken"), ("", "filed: untitled")])
async def test_file_bug_raises_the_number_on_the_board_by_one(text: str, answer: str) -> None:
    did = await done("file_bug", text)
    assert did.answer == answer
    assert did.effects == [EffectDelta(domain="board", path="bugs.open", op="inc", value=1)]


# those that imitate known agents

_SURE = {"confidence": 0.9, "explanation": "the whole board was read"}


@pytest.mark.parametrize(
    ("skill_id", "text", "tools", "begins", "sure", "changes"),
    [
        ("qa_report", "x" * 40, ["list_test_runs", "list_bugs"], "## QA report", {}, []),
        ("board_audit", "x" * 40, ["list_board"], "## Board audit", _SURE, []),
        (
            "bug_triage",
            "x" * 40,
            ["file_bug"],
            f"## Filed\n\n{'x' * 40}",
            {},
            [EffectDelta(domain="board", path="bugs.open", op="inc", value=1)],
        ),
        ("pr_review", "x" * 40, ["get_pull_request"], f"## Review of {'x' * 40}\n\nAPPROVE", {}, []),
    ],
)
async def test_a_qa_skill_uses_its_tools_and_accounts_for_a_model_call(
    skill_id: str, text: str, tools: list[str], begins: str, sure: dict[str, Any], changes: list[EffectDelta]
) -> None:
    did = await done(skill_id, text)
    assert did.answer is not None
    assert did.answer.startswith(begins)
    assert did.written == [f"running {tool}" for tool in tools]
    assert did.took_s == pytest.approx(0.4 * len(tools))
    tokens = {"input_tokens": 210, "output_tokens": len(did.answer) // 4 + 1}
    assert did.tally == UsageTotals(tokens=tokens, model="stand-in", effects=changes, **sure)


async def test_analyze_asks_for_a_dataset_that_the_message_lacks() -> None:
    named = await done("analyze", " sales ")
    assert (named.answer, named.written) == ("Analysed: sales", ["running load", "running analyze"])
    asked = await done("analyze", " ", "stock")
    assert (asked.answer, asked.written[1]) == ("Analysed: stock", ("Which dataset?", False))
