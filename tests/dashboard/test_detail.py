"""The pages of a task and its conversation: an agent's text in full, and never as anything but text."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fleetsim.dashboard import outside
from fleetsim.dashboard.markdown import MARKDOWN_CHARS_MAX, markdown
from fleetsim.dashboard.parts_tree import CHILDREN_MAX, PartsTree
from fleetsim.dashboard.screens.tasks import live, story
from fleetsim.dashboard.view_tasks import TURNS_MAX
from fleetsim.dashboard.widgets import Page
from fleetsim.model.errors import FleetsimError
from fleetsim.model.parts import ListedPart
from tests.dashboard.driver import answered, detail, showing
from tests.dashboard.journal import HOSTILE, NOW, Journal


def shown(text: str, width: int = 60) -> str:
    return "\n".join(row.plain for row in markdown(text, width))


def test_a_timeline_has_each_state_once_and_keeps_news() -> None:
    j = Journal(start=NOW)
    about = j.request("quinn", "echo")
    j.bind(about)
    j.status(about, "", "submitted")
    j.status(about, "reading")
    j.status(about, "writing")
    j.status(about, "", "completed")
    j.update(about, "completed", "done")
    j.end(about, text="done")
    steps = detail(j, about).steps
    assert [step.state for step in steps if step.state] == ["submitted", "working", "working", "completed"]
    assert [step.what for step in steps][-3:] == ["reading", "writing", ""], "the answer stands beside it"


def test_ids_and_long_values_are_whole_at_any_width() -> None:
    j = Journal(start=NOW)
    about = j.request("quinn", "echo")
    j.bind(about)
    j.update(about, "working", "a long update " * 12)
    seen = detail(j, about)
    for width in (36, 44, 90):
        lines = story(seen, NOW, width)
        assert max(row.cell_len for row in lines) <= width
        joined = "".join(row.plain[9:].strip() for row in lines)
        assert all(value in joined for value in (seen.row.correlation_id, seen.row.task_id, seen.row.context_id))
        assert "".join(row.plain for row in lines).count("update") == 12


def test_a_conversation_has_every_turn_with_its_author() -> None:
    j = Journal(start=NOW)
    first = j.request("quinn", "echo", text="one")
    j.say("agent.skill.dispatched", **first, state="submitted", contextId="ctx", dialect="0.3", via="reply", taskId="t")
    j.end(first, text="two")
    j.later(1)
    second = j.request("quinn", "echo", text="three")
    j.say(
        "agent.skill.dispatched", **second, state="submitted", contextId="ctx", dialect="0.3", via="reply", taskId="t"
    )
    question = j.ask(second, "four?")
    told = {"questionId": question, "decision": "answer", "decidedBy": "ada"}
    j.say(f"hitl.response.{second['correlation_id']}", **second, **told, answer="five")
    j.end(second, text="six")
    seen = detail(j, second)
    assert [(turn.agent, turn.text) for turn in seen.turns] == [
        ("", "one"),
        ("quinn", "two"),
        ("", "three"),
        ("quinn", "four?"),
        ("", "five"),
    ]
    lines = [row.plain for row in live(seen, None, 60)]
    assert [row for row in lines if row.startswith("│ ")] == [
        f"│ {w}" for w in ["one", "two", "three", "four?", "five", "six"]
    ]
    assert not [turn for turn in detail(j, first).turns if turn.text == "three"]


def test_a_conversation_is_bounded() -> None:
    j = Journal(start=NOW)
    about = j.request("quinn", "echo")
    j.bind(about)
    for at in range(3 * TURNS_MAX):
        j.ask(about, f"question {at}?")
    assert len(detail(j, about).turns) == TURNS_MAX


def test_markdown_is_drawn_and_its_links_show_their_target_and_are_inert() -> None:
    lines = markdown("# Head\n\n[a link](https://evil.example/x) ![pic](http://h/p.png) <b>html</b>\nnext", 90)
    text = "\n".join(row.plain for row in lines)
    assert text.splitlines()[0] == "Head"
    assert all(part in text for part in ("a link (https://evil.example/x)", "http://h/p.png", "<b>html</b>", "\nnext"))
    for row in lines:
        assert all(isinstance(span.style, str) and "link" not in span.style for span in row.spans)


@pytest.mark.parametrize(
    "text", ["> " * 300 + "hidden", "".join("  " * at + "- hidden\n" for at in range(130)), "`" * 50]
)
def test_markdown_that_would_lose_text_is_its_source(text: str) -> None:
    assert shown(text).count("hidden") == text.count("hidden")
    assert shown(text).strip()


PIECES = ["[", ">", "`", "<", "**a*", "![[", "_", "~~a", "&#27;", "漢", "*a ", "- ", "---\n\n", "[a](b) ", "|a"]


@pytest.mark.parametrize("piece", [*PIECES, "|a|b|\n|-|-|\n"])
def test_hostile_markdown_is_bounded_in_time_and_width(piece: str) -> None:
    began = time.process_time()
    lines = markdown((piece * MARKDOWN_CHARS_MAX)[:MARKDOWN_CHARS_MAX], 80)
    assert time.process_time() - began < 5
    assert max(row.cell_len for row in lines) <= 80


@pytest.mark.sockets
async def test_a_hostile_answer_reaches_the_terminal_without_controls() -> None:
    j = Journal(start=NOW)
    about = j.request("quinn", "echo")
    j.bind(about)
    j.end(about, text=f"**x** &#27;[31m &#x202e;rtl `{HOSTILE}`\n\n✓ completed")
    async with showing(j.events, size=(140, 40)) as ui:
        ui.desk.error = FleetsimError("there is only an excerpt")
        await ui.press("2", "enter", "G")
        assert not set(ui.text) & {"\x1b", "\u202e", "\x07"}
        assert "│ ✓ completed" in ui.text


@pytest.mark.sockets
async def test_data_folds_and_what_is_not_there_takes_no_room() -> None:
    j, _ = answered()
    async with showing(j.events, "2", "enter", size=(140, 40)) as ui:
        tree = ui.app.query_one(PartsTree)
        assert "report.pdf, application/pdf, 3 bytes" in ui.text
        tree.focus()
        await ui.press("j", "j", "enter")
        assert "total: 3" in ui.text
        assert "rows: [2]" in ui.text
        await ui.press("enter")
        assert "total: 3" not in ui.text
    j = Journal(start=NOW)
    j.end(j.request("quinn", "echo"))
    async with showing(j.events, "2") as ui:
        assert not ui.app.query_one(PartsTree).display


@pytest.mark.sockets
async def test_a_large_tree_is_built_in_parts_and_says_what_is_left_out() -> None:
    j, _ = answered()
    async with showing(j.events, "2", "enter", size=(140, 40)) as ui:
        tree = ui.app.query_one(PartsTree)
        deep: object = "\x1b[31mend"
        for _ in range(5_000):
            deep = [deep]
        parts = [ListedPart(index=1, kind="data", size_bytes=1, data=[deep, *range(100_000)])]
        tree.show("large", (), parts, 1)
        await ui.pilot.pause()
        assert len(tree.root.children[0].children) == CHILDREN_MAX + 1
        assert "99,801 more" in str(tree.root.children[0].children[-1].label)


@pytest.mark.sockets
async def test_saved_files_can_be_opened_after_a_confirmation(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []

    async def opener(path: Path, env: object) -> None:
        opened.append(path)

    monkeypatch.setattr(outside, "open_file", opener)
    j, about = answered()
    async with showing(j.events, "2", "enter", size=(140, 40)) as ui:
        await ui.press("s", "enter")
        await ui.settle()
        assert ui.desk.asked[-1] == ("save", about["correlation_id"], about["correlation_id"][:8])
        await ui.press("o")
        assert opened == []
        await ui.press("y")
        await ui.settle()
        assert [path.name for path in opened] == ["part-1"]


@pytest.mark.sockets
async def test_an_opener_that_is_missing_says_where_the_file_is(tmp_path: Path) -> None:
    with pytest.raises(FleetsimError) as error:
        await outside.open_file(tmp_path / "a.pdf", {"PATH": str(tmp_path)})
    assert str(tmp_path / "a.pdf") in (error.value.hint or "")


@pytest.mark.sockets
async def test_an_answer_is_read_from_its_beginning_and_live_text_at_its_end() -> None:
    j = Journal(start=NOW)
    about = j.request("quinn", "echo", text="question " * 400)
    j.bind(about)
    lines = "".join(f"line {at}\n" for at in range(200))
    j.chunk(about, lines)
    async with showing(j.events, "2", "enter") as ui:
        assert "line 199" in ui.text
        j.end(about, text=lines)
        await ui.say(*j.events[-2:])
        assert "│ line 0 " in ui.text
        await ui.press("G")
        assert "line 199" in ui.text
        await ui.settle()
        assert "line 199" in ui.text


@pytest.mark.sockets
async def test_the_copy_key_takes_one_id_after_another() -> None:
    j, about = answered()
    async with showing(j.events, "2", "y") as ui:
        copied = [ui.app.clipboard]
        for _ in range(3):
            await ui.press("y")
            copied.append(ui.app.clipboard)
        assert copied[0] == copied[3] == about["correlation_id"]
        assert copied[1] == about["task_id"]
        assert copied[2].startswith("engagement-")


@pytest.mark.sockets
@pytest.mark.parametrize("width", [60, 80, 120, 200])
async def test_the_facts_take_what_they_need_and_the_text_the_rest(width: int) -> None:
    j, _ = answered()
    async with showing(j.events, "2", "enter", size=(width, 40)) as ui:
        facts, text = ui.app.query_one("#story", Page), ui.app.query_one("#live", Page)
        assert text.size.width + (facts.size.width if width >= 100 else 0) > width * 3 // 4
        if width >= 100:
            longest = max(row.cell_len for row in facts.lines)
            assert longest <= facts.inner_width
            assert "bold" in ui.text


@pytest.mark.sockets
async def test_an_agents_page_takes_the_rows_that_it_needs_and_cuts_no_address() -> None:
    address = "http://10.0.0.7:8000/" + "a-long-path/" * 12
    j = Journal(start=NOW)
    j.card("quinn", "0.3", ("echo",), url=address, rpcUrl=address)
    j.health("quinn", "down", "refused, " * 30)
    async with showing(j.events, "1", "enter", size=(120, 50)) as ui:
        facts = ui.app.query_one("#agent-facts", Page)
        assert "".join(row.plain[10:].rstrip() for row in facts.lines).count("a-long-path/") == 24
        assert " ".join(row.plain for row in facts.lines).count("refused") == 30
        assert facts.size.height == len(facts.lines)


@pytest.mark.sockets
async def test_the_pages_of_a_task_are_ascii_if_requested() -> None:
    j, _ = answered()
    j.end(j.request("quinn", "echo"), text="> quote\n\n- item\n\n|a|b|\n|-|-|\n|1|2|\n\n---")
    async with showing(j.events, "2", "enter", size=(140, 40), ascii=True) as ui:
        await ui.press("tab", "j", "j", "enter")
        assert "total: 3" in ui.text
        assert ui.text.isascii(), sorted({character for character in ui.text if not character.isascii()})
        await ui.press("escape", "j", "enter")
        assert "* item" in ui.text
        assert ui.text.isascii(), sorted({character for character in ui.text if not character.isascii()})
