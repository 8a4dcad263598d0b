"""Skills: which one a message selects, how one is made, and what its context reads and writes."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from fleetsim.agent import Agent, SkillFailed
from fleetsim.agent.builtin import by_words
from fleetsim.agent.skills import AnyFunction, Effect, Skill, SkillContext, choose_skill, make_skill, skill
from fleetsim.client import AgentClient, SentTask
from fleetsim.model.errors import ConfigError, WireError
from fleetsim.model.task import Artifact, DataPart, FilePart, TaskState, TextPart
from fleetsim.testbed.network import in_process
from tests.agent.environment import Paper, at_work


async def _work(task: SkillContext) -> str:
    """The first line.

    And the rest.
    """
    return f"did {task.text}"


def offered(skill_id: str, **options: Any) -> Skill:
    return make_skill(_work, skill_id, options)


# -- which one -----------------------------------------------------------------------------------------

SKILLS = {
    made.skill_id: made
    for made in (
        offered("first", name="Opening hours", tags=("shop",), examples=("When do you close?",)),
        offered("data_check", name="Data", tags=("table",)),
        offered("eat", name="Eat"),
    )
}


@pytest.mark.parametrize(
    ("text", "metadata", "found"),
    [
        ("hello", {}, "eat"),
        ("", {}, "eat"),
        ("hello", {"skillHint": "first"}, "first"),
        ("hello", {"skillId": "first"}, "first"),
        ("hello", {"skillHint": "data_check", "skillId": "first"}, "data_check"),
        ("hello", {"skillHint": "missing"}, None),
        ("hello", {"skillHint": ""}, "eat"),
        ("hello", {"skillHint": 7}, "eat"),
        ("/first one two", {"skillHint": "data_check"}, "data_check"),
        ("/first one two", {}, "first"),
        ("  /first one two", {}, "first"),
        ("/first", {}, "first"),
        ("first one", {}, "eat"),
        ("/missing one", {}, "eat"),
        ("//first one", {}, "eat"),
        ("xfirst one", {}, "eat"),
    ],
)
def test_a_hint_selects_the_skill_then_a_command_then_the_default(text: str, metadata: Any, found: str | None) -> None:
    chosen = choose_skill(SKILLS, "eat", metadata, text)
    assert (chosen and chosen.skill_id) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("the SHOP, please", "first"),
        ("what are your hours?", "first"),
        ("will you close soon", "first"),
        ("a table", "data_check"),
        ("check this", "data_check"),
        ("table in the shop", "first"),
        ("eat", None),
        ("do you", None),
        ("shops", None),
        ("/eat shop", "eat"),
        ("", "eat"),
        ("  ", "eat"),
    ],
)
def test_by_keywords_the_first_skill_with_one_of_them_is_selected(text: str, found: str | None) -> None:
    chosen = by_words(SKILLS, "eat", {}, text)
    assert (chosen and chosen.skill_id) == found


# -- how it is made ------------------------------------------------------------------------------------


def test_a_functions_name_and_first_line_describe_it() -> None:
    async def say_hello(task: SkillContext) -> None:
        """Greets.

        At length.
        """

    async def silent(task: SkillContext) -> None:
        return None

    made = skill(say_hello)
    assert (made.skill_id, made.name, made.description) == ("say_hello", "Say hello", "Greets.")
    assert made.run is say_hello
    assert skill(silent).description == ""


async def answer_of(offer: Skill, text: str) -> SentTask:
    agent = Agent("counter", skills=[offer])
    async with in_process(agent.app()) as transport, AgentClient("http://counter", transport=transport) as client:
        return await client.send_task(text)


async def pieces(task: SkillContext) -> AsyncIterator[str]:
    """Yields two pieces."""
    yield "one "
    yield task.text


def plain_pieces(task: SkillContext) -> Iterator[str]:
    yield "one "
    yield task.text


def plain(task: SkillContext) -> str:
    if task.text == "nobody":
        raise SkillFailed("there is nobody")
    return f"one {task.text}"


@pytest.mark.parametrize("function", [pieces, plain_pieces, plain, lambda task: _work(task)])
async def test_a_generator_yields_pieces_and_a_plain_function_returns_its_answer(function: AnyFunction) -> None:
    done = await answer_of(make_skill(function, "count", {}), "two")
    assert (done.state, done.text) in {(TaskState.COMPLETED, "one two"), (TaskState.COMPLETED, "did two")}


async def test_a_plain_function_can_fail_with_a_reason() -> None:
    done = await answer_of(skill(plain), "nobody")
    assert (done.state, done.error) == (TaskState.FAILED, "there is nobody")


def test_a_given_id_names_the_skill_unless_it_has_a_name() -> None:
    assert (offered("look-up_it").skill_id, offered("look-up_it").name) == ("look-up_it", "Look up it")
    assert offered("x", name="Its name").name == "Its name"
    assert offered("x").description == "The first line."
    assert offered("x", description="other").description == "other"


def test_a_skill_made_from_another_keeps_the_rest_and_starts_with_an_empty_record() -> None:
    first = offered("x", tags=("a",))
    first.undeclared.add("cost")
    second = make_skill(first, None, {"cost": True})
    assert (second.skill_id, second.tags, second.cost, second.undeclared) == ("x", ("a",), True, set())
    assert first.undeclared == {"cost"}


@pytest.mark.parametrize("skill_id", ["", " ", "é", "x" * 129])
def test_an_id_that_no_message_can_name_is_refused(skill_id: str) -> None:
    with pytest.raises(ConfigError):
        offered(skill_id)


# -- its context ---------------------------------------------------------------------------------------

X = offered("x")


@pytest.mark.parametrize(
    ("text", "read"),
    [("/x one two", "one two"), (" /x  one", "one"), ("/x", ""), ("/xy one", "/xy one"), (" one", " one"), ("", "")],
)
def test_a_skill_reads_its_message_without_the_command(text: str, read: str) -> None:
    assert at_work(X, TextPart(text=text)).text == read


def test_a_prompt_contains_data_and_names_files() -> None:
    context = at_work(
        X,
        TextPart(text="/x look"),
        DataPart(data={"a": 1}),
        FilePart(raw="AA==", filename="f.png", uri="http://u", media_type="image/png"),
        FilePart(uri="http://u/only"),
        FilePart(raw="AA=="),
        FilePart(raw="AA==", filename="n" * 300, media_type="m" * 100),
    )
    lines = context.prompt.split("\n")
    assert lines[:5] == [
        "look",
        '{"a":1}',
        "[file f.png, image/png: content not read]",
        "[file http://u/only, unknown type: content not read]",
        "[file unnamed, unknown type: content not read]",
    ]
    assert (lines[5].count("n") - 3, lines[5].count("m")) == (199, 79)
    assert context.data == ({"a": 1},)


async def test_the_text_of_a_skill_is_appended_to_the_answer() -> None:
    paper = Paper()
    context = at_work(X, paper=paper)
    await context.say("a")
    await context.say("")
    answer = Artifact(artifact_id="t", name="response", parts=(TextPart(text="a"),))
    assert paper.written == [(answer, True, False)]
    assert paper.breaths == 2


@pytest.mark.parametrize(
    ("options", "artifact_id", "append", "last_chunk"),
    [
        ({}, "t/attachment", False, True),
        ({"name": "n"}, "t/n", False, True),
        ({"name": "n", "artifact_id": "a"}, "a", False, True),
        ({"append": True, "last_chunk": False}, "t/attachment", True, False),
    ],
)
async def test_an_attachment_is_whole_and_beside_the_answer_by_default(
    options: Any, artifact_id: str, append: bool, last_chunk: bool
) -> None:
    paper = Paper()
    context = at_work(X, paper=paper)
    parts = (TextPart(text="x"), DataPart(data=1))
    await context.attach(*parts, **options)
    attached = Artifact(artifact_id=artifact_id, name=options.get("name"), parts=parts)
    assert paper.written == [(attached, append, last_chunk)]
    assert paper.breaths == 1


async def test_attachments_without_a_name_stay_separate() -> None:
    paper = Paper()
    context = at_work(X, paper=paper)
    for n in (1, 2):
        await context.attach(DataPart(data=n))
    await context.attach(DataPart(data=3), append=True)
    written = [(artifact.artifact_id, append) for artifact, append, _ in paper.written]
    assert written == [("t/attachment", False), ("t/attachment-2", False), ("t/attachment-2", True)]


async def test_data_without_a_json_form_is_never_attached() -> None:
    paper = Paper()
    context = at_work(X, paper=paper)
    with pytest.raises(WireError):
        await context.attach(TextPart(text="x"), DataPart(data={"x": math.nan}))
    assert paper.written == []


async def test_notes_and_questions_of_a_skill_reach_the_task() -> None:
    paper = Paper()
    context = at_work(X, paper=paper)
    await context.status("busy")
    assert await context.ask("why?") == "because"
    assert await context.ask("who?", auth=True) == "because"
    assert (await context.ask_message("what?")).message_id == "m"
    assert paper.written == ["busy", ("why?", False), ("who?", True), ("what?", False)]
    assert paper.breaths == 1
    assert [message.text for message in context.unread()] == ["by the way"]


@pytest.mark.parametrize(
    ("level", "sure"), [(-0.5, 0.0), (0.0, 0.0), (0.4, 0.4), (1.0, 1.0), (7.0, 1.0), (-math.inf, 0)]
)
def test_confidence_is_clamped_to_the_range_of_the_extension(level: float, sure: float) -> None:
    context = at_work(X)
    context.confidence(level, "why")
    assert (context.usage.confidence, context.usage.explanation) == (sure, "why")
    with pytest.raises(ValueError, match="number"):
        context.confidence(math.nan)


def test_an_effect_that_the_extension_cannot_name_is_not_tallied() -> None:
    context = at_work(X)
    with pytest.raises(ValueError, match="set"):
        context.effect("d", "p", "drop")
    with pytest.raises(WireError):
        context.effect("d", "p", "set", object())
    assert context.usage.effects == []


SPENDS, IS_SURE, CHANGES = (
    lambda task: task.use(1),
    lambda task: task.confidence(1.0),
    lambda task: task.effect("d", "p"),
)


@pytest.mark.parametrize(
    ("does", "declares", "drifts"),
    [
        (SPENDS, {}, {"cost"}),
        (SPENDS, {"sure": True}, {"cost"}),
        (SPENDS, {"cost": True}, set()),
        (IS_SURE, {"cost": True}, {"confidence"}),
        (IS_SURE, {"sure": True}, set()),
        (CHANGES, {}, {"effect d:p"}),
        (CHANGES, {"effects": (Effect(domain="d", path="q"),)}, {"effect d:p"}),
        (CHANGES, {"effects": (Effect(domain="e", path="p"),)}, {"effect d:p"}),
        (CHANGES, {"effects": (Effect(domain="e", path="p"), Effect(domain="d", path="p"))}, set()),
    ],
)
def test_an_undeclared_action_of_a_skill_is_remembered(
    does: Callable[[SkillContext], None], declares: Any, drifts: set[str]
) -> None:
    made = offered("x", **declares)
    does(at_work(made))
    assert made.undeclared == drifts
