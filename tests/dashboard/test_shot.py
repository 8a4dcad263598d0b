"""Pictures: made without a terminal, and of nothing but themselves."""

from __future__ import annotations

import html
import re

import pytest

from fleetsim.dashboard.screenshot import take
from tests.dashboard.driver import EVENTS
from tests.dashboard.journal import NOW
from tests.dashboard.pictures import FLEET

pytestmark = pytest.mark.sockets


def words(svg: str) -> str:
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    return " ".join(html.unescape(text) for text in texts).replace("\xa0", " ")


@pytest.mark.slow
async def test_a_picture_of_a_recording_looks_live() -> None:
    svg = await take(EVENTS, at=NOW)
    assert svg.startswith("<svg")
    assert "● LIVE" in words(svg)
    assert "frank" in words(svg)
    assert "2026-11-21 13:55:59Z" in words(svg)


async def test_the_readmes_picture_shows_the_screen_of_today() -> None:
    assert words(FLEET.read_text(encoding="utf-8")) == words(await take(EVENTS, at=NOW)), "run `make pictures`"


@pytest.mark.parametrize(
    ("screen", "word"), [("tasks", "Live output"), ("inbox", "Your answer"), ("ceremonies", "Runs")]
)
async def test_each_screen_can_be_taken(screen: str, word: str) -> None:
    assert word in words(await take(EVENTS, screen=screen, size=(110, 30), at=NOW))


async def test_a_picture_fetches_nothing_and_is_the_same_each_time() -> None:
    one, two = [await take(EVENTS, size=(100, 30), at=NOW) for _ in range(2)]
    assert re.findall(r"url\((?!#)[^)]*\)|href=|@import|@font-face", one) == []
    assert one == two
    assert not re.search(r">(?:&#160;)+[^<&]", one)
