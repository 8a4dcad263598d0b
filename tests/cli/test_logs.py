"""Text that logs and JSON on a terminal never show (T-38, T-41)."""

from __future__ import annotations

import json
import logging
import stat
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetsim.caller.webhooks import CallbackTokens
from fleetsim.cli import dashboard
from fleetsim.cli.render import HIDDEN, SafeFormatter
from fleetsim.model.text import escape, neutralise
from fleetsim.runtime.webhook import write_secret


def logged(formatter: SafeFormatter, text: str, error: BaseException | None = None) -> str:
    told = (type(error), error, error.__traceback__) if error else None
    return formatter.format(logging.LogRecord("room", logging.INFO, __file__, 1, "%s", (text,), told))


def test_a_message_cannot_begin_a_line_of_its_own() -> None:
    lines = logged(SafeFormatter(), "a\n2026-01-01 00:00:00 ERROR   hub: forged\r\nb\u2028c").split("\n")
    assert len(lines) == 3
    assert all(line.startswith("  | ") for line in lines[1:])


def test_a_terminal_gets_no_escape_from_a_log() -> None:
    line = logged(SafeFormatter(), "\x1b[2J\x9b1m\u202ex")
    assert line == neutralise(line)


def test_secrets_are_masked_whatever_their_source() -> None:
    formatter = SafeFormatter()
    formatter.hide(["the-hubs-own-key"])
    formatter.hide_environment(
        {"QUINN_API_KEY": " key-of-quinn ", "HOME": "/srv/someone", "my_token": "tok", "PASS": "x"}
    )
    token = CallbackTokens({1: b"k" * 32}, current=1).mint("quinn", "c-1")
    said = f"the-hubs-own-key key-of-quinn {token} {write_secret(bytes(32))} /srv/someone tok x"
    line = logged(formatter, said)
    assert line.endswith(f": {HIDDEN} {HIDDEN} {HIDDEN} {HIDDEN} /srv/someone tok x")


def test_secrets_in_a_traceback_are_masked_too() -> None:
    formatter = SafeFormatter()
    formatter.hide(["the-hubs-own-key"])
    try:
        raise ValueError("bad: the-hubs-own-key\x1b[2J")
    except ValueError as error:
        told = formatter.trace(error), logged(formatter, "went wrong", error)
    for text in told:
        assert "ValueError: bad: (hidden)" in text
        assert "the-hubs-own-key" not in text
        assert "\x1b" not in text


@given(st.text(st.characters(), max_size=60))
def test_json_on_a_terminal_is_escaped_and_has_the_same_content(text: str) -> None:
    for shown in (escape(json.dumps({"a": text}, ensure_ascii=False, indent=2)), escape(json.dumps(text))):
        assert neutralise(shown, limit=sys.maxsize).replace("\ufffd", "") == neutralise(shown, limit=sys.maxsize)
    assert json.loads(escape(json.dumps({"a": text}, ensure_ascii=False))) == {"a": text}


def test_every_unsafe_character_is_escaped_as_json_spells_it() -> None:
    text = "\x9b\x7f\u202e\U000e0041\ud800\u200b"
    shown = escape(json.dumps(text, ensure_ascii=False))
    assert shown == '"\\u009b\\u007f\\u202e\\udb40\\udc41\\ud800\\u200b"'
    assert json.loads(shown) == text


def test_the_log_beside_a_drawn_dashboard_keeps_two_files_of_a_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "LOG_BYTES_MAX", 1_000)
    path = tmp_path / "hub.log"
    for _ in range(2):
        with dashboard.logging_to(path):
            for number in range(100):
                logging.getLogger("room").warning("event %d", number)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["hub.log", "hub.log.1"]
    assert all(file.stat().st_size <= 1_000 for file in tmp_path.iterdir())
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}
    assert "event 99" in path.read_text(encoding="utf-8")
