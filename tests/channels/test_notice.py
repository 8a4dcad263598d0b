"""The form of a notice: an agent's text mentions nobody, formats nothing, and stays inside its marks."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetsim.channels import notice as put
from fleetsim.channels.notice import DISCORD_UNITS_MAX, Notice, NoticeKind

AT = datetime(2026, 3, 1, 14, 0, tzinfo=UTC)
HOSTILE = (
    "@everyone <!channel> <@U123> <https://evil.example|click> [click](https://evil.example) **bold** `code` ```\n"
    "\x1b[31mred\x1b]0;title\x07 \u202egnp.exe \u200b@here ``` # heading"
)


def noticed(headline: str = "quinn asks", text: str = "which branch?", **more: Any) -> Notice:
    return Notice(**{"kind": "question", "at": AT, "tone": NoticeKind.ASKS, "headline": headline, "text": text, **more})


def chat_parts(content: str) -> tuple[str, str, str]:
    """The headline, the text and the rest of a chat message; fails if a character stands outside the marks."""
    found = re.fullmatch(r"`([^`\n]+)`\n```\n([^`]*)\n```(?:\n(.*))?", content, re.DOTALL)
    assert found, content
    return found[1], found[2], found[3] or ""


def test_a_program_gets_the_headline_the_text_the_command_and_the_link() -> None:
    notice = noticed(command="fleetsim inbox reply q-1", link="https://hub.example/q-1")
    expected = "? quinn asks\n\nwhich branch?\n\nfleetsim inbox reply q-1\nhttps://hub.example/q-1\n"
    assert put.plain(notice) == expected
    assert put.plain(noticed(text="")) == "? quinn asks\n"


def test_a_chat_gets_the_same_inside_code_marks() -> None:
    notice = noticed(command="fleetsim inbox reply q-1", link="https://hub.example/q-1")
    expected = "`? quinn asks`\n```\nwhich branch?\n```\n`fleetsim inbox reply q-1`\nhttps://hub.example/q-1"
    assert put.discord(notice) == {"content": expected, "allowed_mentions": {"parse": []}, "flags": 4}
    assert put.slack(notice)["text"] == expected
    assert put.slack(noticed(text=""))["text"] == "`? quinn asks`"


@pytest.mark.parametrize("kind", ["discord", "slack"])
def test_an_agents_text_mentions_nobody_and_formats_nothing(kind: str) -> None:
    notice = noticed(headline=HOSTILE, text=HOSTILE)
    content = put.discord(notice)["content"] if kind == "discord" else put.slack(notice)["text"]
    headline, text, rest = chat_parts(content)
    assert "\x1b" not in content
    assert "\u202e" not in content
    assert rest == ""
    assert "everyone" in headline
    assert "everyone" in text
    if kind == "slack":
        assert not set("<>") & set(content)
        assert "&lt;!channel&gt;" in text


def test_slack_resolves_no_links_and_no_names() -> None:
    told = put.slack(noticed())
    assert (told["link_names"], told["unfurl_links"], told["unfurl_media"]) == (False, False, False)


def test_a_log_line_is_one_line() -> None:
    line = put.log_line(noticed(text="a\nb", command="fleetsim inbox reply q-1"))
    assert line == "? quinn asks | a b | fleetsim inbox reply q-1"
    assert put.log_line(noticed(headline="h" * 500, text="t" * 800)) == f"? {'h' * 199}… | {'t' * 499}…"


def test_a_notification_is_short_and_contains_the_command() -> None:
    title, text = put.desktop_texts(noticed(headline="h" * 500, text="t" * 500, command="fleetsim inbox reply q-1"))
    assert len(title) == 100
    assert text == "t" * 239 + "…\nfleetsim inbox reply q-1"


def test_a_webhook_contains_type_time_and_facts() -> None:
    notice = noticed(correlation_id="c-1", facts={"questionId": "q-1"}, command="x")
    assert (
        put.webhook(replace(notice, link="https://hub.example/q-1"), "ops")["data"]["link"] == "https://hub.example/q-1"
    )
    assert put.webhook(notice, "ops") == {
        "type": "fleetsim.question",
        "timestamp": "2026-03-01T14:00:00.000Z",
        "data": {
            "channel": "ops",
            "headline": "? quinn asks",
            "text": "which branch?",
            "command": "x",
            "link": None,
            "correlationId": "c-1",
            "questionId": "q-1",
        },
    }


@given(st.text(), st.text())
def test_no_text_leaves_its_marks_or_passes_a_limit(headline: str, text: str) -> None:
    notice = noticed(
        headline="h" + headline, text="t" + text * 5, command="c" * 200, link="https://h.example/" + "l" * 200
    )
    for content in (put.discord(notice)["content"], put.slack(notice)["text"]):
        _, shown, rest = chat_parts(content)
        assert rest.startswith(f"`{'c' * 200}`\nhttps://")
        assert len(put.plain(notice).encode("utf-8")) < 16 * 1024
        assert "\x1b" not in shown
    assert len(put.discord(notice)["content"].encode("utf-16-le")) <= 2 * DISCORD_UNITS_MAX
    assert json.loads(json.dumps(put.webhook(notice, "ops")))
    assert "\n" not in put.log_line(notice)


def test_a_long_text_is_cut_with_a_mark_and_discord_counts_in_its_own_way() -> None:
    notice = noticed(text="\N{GRINNING FACE}" * 5_000, headline="x" * 500)
    assert put.webhook(notice, "ops")["data"]["text"] == "\N{GRINNING FACE}" * 999 + "…"
    content = put.discord(notice)["content"]
    assert chat_parts(content)[1].endswith("…")
    assert len(content.encode("utf-16-le")) <= 4_000
    assert len(chat_parts(content)[1]) > 600


@pytest.mark.parametrize(("letters", "cut"), [(6, False), (7, True)])
def test_discord_takes_two_thousand_of_its_characters(letters: int, cut: bool) -> None:
    text = "\N{GRINNING FACE}" * 990 + "x" * letters
    content = put.discord(noticed(headline="q", text=text))["content"]
    assert (content == f"`? q`\n```\n{text}\n```") is not cut
    assert chat_parts(content)[1].endswith("…") is cut
