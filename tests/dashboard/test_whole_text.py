"""A text on the screen is whole, or marked with the amount that is missing."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fleetsim.dashboard.controls import WholeText
from fleetsim.dashboard.screens.tasks import amount, live, live_title
from fleetsim.dashboard.text import wrap
from fleetsim.dashboard.view_tasks import LIVE_CHARS_MAX
from fleetsim.model.errors import UnknownTarget
from fleetsim.model.limits import excerpt, shown_text
from tests.dashboard.driver import detail, showing
from tests.dashboard.journal import NOW, Journal


def chunked(count: int, *, end: bool) -> tuple[Journal, dict[str, Any], str]:
    """A task that streamed this many chunks, and perhaps ended with them."""
    j = Journal(start=NOW)
    about = j.request("quinn", "echo")
    j.bind(about)
    pieces = [f"chunk-{at:05d} " for at in range(count)]
    for piece in pieces:
        j.chunk(about, piece)
    whole = "".join(pieces)
    if end:
        j.end(about, **shown_text(whole))
    return j, about, whole


def words(lines: Any) -> str:
    return "\n".join(row.plain for row in lines)


def test_the_count_in_the_title_is_what_is_shown_while_chunks_arrive() -> None:
    j, about, whole = chunked(1_000, end=False)
    found = detail(j, about)
    assert (found.text, found.cut) == (whole, False)
    assert f"{len(whole):,} characters" in words([live_title(found, follow=True)])


@pytest.mark.slow
def test_live_text_over_the_limit_names_the_shown_part() -> None:
    j, about, whole = chunked(4_999, end=False)
    found = detail(j, about)
    told = f"the last {LIVE_CHARS_MAX:,} of {len(whole):,} characters"
    assert found.text == whole[-LIVE_CHARS_MAX:]
    assert told in words([live_title(found, follow=True)])
    assert words(live(found, None, 80)).index(told) < words(live(found, None, 80)).index("chunk-04998")


def test_an_excerpt_of_the_outcome_gives_way_to_live_text_that_is_whole() -> None:
    j, about, whole = chunked(1_000, end=True)
    assert len(whole) > 4_000
    assert (detail(j, about).text, detail(j, about).cut) == (whole, False)


def test_a_replaced_artifact_is_counted_once() -> None:
    j, about, whole = chunked(100, end=False)
    j.chunk(about, whole, append=False)
    assert detail(j, about).chars == len(whole)


def test_a_recording_with_an_excerpt_ends_in_a_mark_that_says_so() -> None:
    j = Journal(start=NOW)
    about = j.request("quinn", "echo")
    j.end(about, **shown_text("x" * 62_890))
    found = detail(j, about)
    assert amount(found) == "the first 4,000 of 62,890 characters"
    assert words(live(found, None, 80)).rstrip().endswith("… the first 4,000 of 62,890 characters")


def test_live_text_with_a_hole_says_so() -> None:
    j, about, _ = chunked(10, end=False)
    j.say("agent.chat.inbound", **about, type="artifact", append=True, artifactId="answer", **excerpt("y" * 9_000))
    found = detail(j, about)
    assert found.cut
    assert amount(found).startswith("excerpts of ")
    assert "excerpts of" in words(live(found, None, 80))


def test_a_long_request_is_marked() -> None:
    j = Journal(start=NOW)
    about = {"correlation_id": j.new_id(), "agent": "quinn", "skill": "echo"}
    j.say("agent.skill.request", **about, targets=["quinn"], systemActor="user", **excerpt("p" * 5_000))
    assert "… the first 4,000 of 5,000 characters" in words(live(detail(j, about), None, 80))


@pytest.mark.sockets
async def test_the_whole_of_4999_chunks_is_shown_once_the_task_ended() -> None:
    j, _, whole = chunked(4_999, end=True)
    async with showing(j.events) as ui:
        ui.desk.whole = WholeText(text=whole, chars=len(whole))
        await ui.press("2", "enter")
        await ui.settle()
        page = ui.app.query_one("#live")
        shown = words(page.lines)  # type: ignore[attr-defined]
        assert "chunk-00000" in shown
        assert "chunk-04998" in shown
        assert shown.count("chunk-") == 4_999
        assert f"{len(whole):,} characters" in ui.text
        assert "…" not in shown
        assert [asked[0] for asked in ui.desk.asked].count("text") == 1


@pytest.mark.sockets
async def test_a_text_the_agent_made_too_long_keeps_its_mark_and_one_that_is_gone_says_so() -> None:
    j = Journal(start=NOW)
    about = j.request("quinn", "echo")
    j.end(about, **shown_text("x" * 4_000, chars=2_000_000))
    async with showing(j.events) as ui:
        ui.desk.whole = WholeText(text="x" * 100_000, chars=2_000_000)
        await ui.press("2", "enter", "G")
        await ui.settle()
        assert "the first 100,000 of 2,000,000 characters" in ui.text
    async with showing(j.events) as ui:
        ui.desk.error = UnknownTarget("the ledger has it no more")
        await ui.press("2", "enter")
        assert "the first 4,000 of 2,000,000 characters" in ui.text
        assert "only an excerpt" in ui.status


@pytest.mark.sockets
async def test_a_long_question_is_read_whole_before_it_is_answered() -> None:
    j = Journal(start=NOW)
    about = j.request("quinn", "echo")
    j.bind(about)
    question = "because " * 1_000 + "which?"
    told = {"questionId": "q-1", "kind": "input-required", "checkpoint": 1, "contextId": "c", "systemActor": "user"}
    j.say(f"hitl.request.{about['correlation_id']}", **about, **told, **excerpt(question, name="question"))
    async with showing(j.events) as ui:
        ui.desk.whole = WholeText(text=question, chars=len(question))
        await ui.press("3")
        await ui.settle()
        assert "which?" in words(ui.app.query_one("#reading").lines)  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_million_characters_without_a_space_are_wrapped_in_a_moment() -> None:
    began = time.process_time()
    lines = wrap("é" * 1_000_000, 80)
    assert len(lines) == 12_500
    assert time.process_time() - began < 20, "not by copying the rest for each line"


def test_a_completed_task_without_text_shows_the_placeholder_and_keeps_none() -> None:
    for text, kind, shown in (("", "completed", True), ("yes", "completed", False), ("", "failed", False)):
        j = Journal(start=NOW)
        about = j.request("quinn", "echo")
        j.bind(about)
        j.end(about, kind=kind, success=kind == "completed", **shown_text(text))
        found = detail(j, about)
        assert ('Skill "echo" completed by quinn' in words(live(found, None, 80))) is shown
        assert found.text == text
