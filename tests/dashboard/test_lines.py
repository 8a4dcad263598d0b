"""Lines, tables, words and the filter grammar."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetsim.dashboard import labels
from fleetsim.dashboard.labels import HEALTH, MUTED, STATE, Tone, plain_ascii
from fleetsim.dashboard.query import parse
from fleetsim.dashboard.text import (
    BLANK,
    Column,
    Rows,
    TableRow,
    clip,
    fill,
    fitted,
    layout,
    line,
    spread,
    wrap,
)
from fleetsim.health.trend import Trend, span_for
from fleetsim.model.task import TaskState
from fleetsim.model.work import OutcomeKind

COLUMNS = (
    Column(title="A", width=8, flex=1, most=12),
    Column(title="B", width=5, align=">", drop=2),
    Column(title="C", width=5, drop=1),
    Column(title="D", width=6, flex=2),
)


@pytest.mark.slow
@given(st.text(max_size=60), st.integers(0, 30))
def test_clipped_text_never_takes_more_cells_than_there_are(text: str, width: int) -> None:
    assert clip(line(text), width).cell_len <= width


@given(st.lists(st.text(max_size=12), max_size=5), st.integers(1, 30), st.sampled_from("<>"))
def test_a_filled_line_takes_exactly_its_width(texts: list[str], width: int, align: str) -> None:
    assert fill(line(*texts), width, align).cell_len == width


@given(st.text(alphabet="ab 漢é\n", max_size=200), st.integers(2, 20))
def test_wrapping_keeps_every_letter_and_the_width(text: str, width: int) -> None:
    lines = wrap(text, width)
    assert all(row.cell_len <= width for row in lines)
    assert "".join("".join(row.plain for row in lines).split()) == "".join(text.split())


@given(st.integers(10, 200))
def test_a_table_never_writes_past_the_right_edge(width: int) -> None:
    found = layout(COLUMNS, width)
    row = TableRow(tuple(line("漢字" * 40) for _ in COLUMNS))
    assert found.row(row).cell_len == found.head().cell_len <= max(width, 2 + 3 * 2 + 1)


def test_columns_go_by_their_order_and_the_flexible_share_the_room() -> None:
    assert [column.title for _, column, _ in layout(COLUMNS, 60).columns] == ["A", "B", "C", "D"]
    assert [column.title for _, column, _ in layout(COLUMNS, 26).columns] == ["A", "C", "D"]
    assert [column.title for _, column, _ in layout(COLUMNS, 19).columns] == ["A", "D"]
    widths = {column.title: width for _, column, width in layout(COLUMNS, 100).columns}
    assert widths["A"] == 12
    assert widths["B"] == 5


def test_a_grey_tail_that_does_not_fit_goes_whole() -> None:
    found = layout((Column(title="A", width=10),), 13)
    row = TableRow((line("00:04:00", ("  14:00Z", MUTED)),))
    assert found.row(row).plain.strip() == "00:04:00"


def test_pieces_that_do_not_fit_are_left_out_whole() -> None:
    assert fitted([line("one"), line("twotwo"), BLANK, line("x")], 8).plain == "one  x"
    assert spread(line("left"), line("right"), 12).plain == "left   right"
    assert spread(line("left"), line("right"), 6).plain == "left"


def test_a_row_is_found_by_its_key_wherever_it_went() -> None:
    rows = Rows("abc")
    assert (rows.find("c", 0), rows.find("c", 2), rows.find("z", 1)) == (2, 2, None)


def test_every_state_and_kind_has_a_glyph_a_word_and_an_ascii_form() -> None:
    for word in (*TaskState, *OutcomeKind):
        mark = STATE[word.value]
        assert mark.glyph
        assert mark.word
        assert plain_ascii(mark.label).isascii()
        assert "?" not in plain_ascii(mark.label) or mark.glyph == "?"
    for mark in HEALTH.values():
        assert plain_ascii(mark.label).isascii()


def test_health_glyphs_stay_apart_in_ascii() -> None:
    assert len({plain_ascii(mark.glyph) for mark in HEALTH.values()}) == len(HEALTH)


def test_a_word_nobody_knows_is_shown_raw_as_a_warning() -> None:
    mark = STATE["pondering"]
    assert (mark.label, mark.tone) == ("pondering", Tone.WARN)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-1, "0s"), (8.9, "8s"), (119.9, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (2e5, "2d")],
)
def test_ages_are_short(seconds: float, said: str) -> None:
    assert labels.age(seconds) == said


@pytest.mark.parametrize(
    ("ms", "said"),
    [(None, "-"), (412, "412ms"), (4100, "4.1s"), (99_900, "99.9s"), (182_000, "3m02s"), (7.5e6, "2h05m")],
)
def test_measured_times_are_short(ms: float | None, said: str) -> None:
    assert labels.duration(ms) == said
    assert len(said) <= 5


def test_countdowns_shares_and_money() -> None:
    assert [labels.countdown(s) for s in (241, 0, -5, 90_061)] == ["00:04:01", "now", "now", "1d 01:01:01"]
    assert [labels.percent(*x) for x in ((0, 0), (5, 5), (9999, 10_000), (71, 100))] == ["-", "100", "99.9", "71.0"]
    assert [labels.money(x) for x in (None, 0.0114, 1.5, 1234.0)] == ["-", "0.011", "1.50", "1,234"]
    now = datetime(2026, 11, 21, 13, tzinfo=UTC)
    assert labels.moment(now + timedelta(hours=1), now) == "14:00Z"
    assert labels.moment(now + timedelta(days=1), now) == "Sun 13:00Z"
    assert labels.moment(now + timedelta(days=9), now) == "11-30 13:00Z"


def test_a_trend_has_its_outcomes_in_the_right_cells() -> None:
    now = datetime(2026, 11, 21, 13, 0, 14, tzinfo=UTC)
    trend = Trend()
    trend.add(now, True)
    trend.add(now - timedelta(seconds=20), False)
    trend.add(now - timedelta(minutes=3, seconds=50), True)
    cells = trend.cells(now, 240)
    assert (cells[-1], cells[-2], cells[0]) == ((1, 1), (0, 1), (1, 1))
    assert trend.cells(now + timedelta(hours=23), 24 * 3600)[0] == (2, 3)
    assert [span_for(age)[0] for age in (0, 240, 241, 3601, 14_401, 1e9)] == ["4m", "4m", "16m", "4h", "24h", "24h"]


FIELDS = {"agent": "quinn", "state": "working", "level": "warn", "text": "reading the board"}


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("", True),
        ("agent=quinn", True),
        ("agent=qui", True),
        ("agent=uinn", False),
        ("agent=*uinn", True),
        ("agent=flaky|quinn", True),
        ("!agent=quinn", False),
        ("state=working agent=flaky", False),
        ("BOARD", True),
        ("!board", False),
        ("level=info", True),
        ("level=error", False),
        ("nokey=x", False),
        ("agent=", True),
        ("=x", False),
        ("!", True),
    ],
)
def test_a_filter_lets_pass_what_its_words_say(text: str, passes: bool) -> None:
    assert parse(text).matches(FIELDS) is passes


@given(st.text(max_size=80))
def test_any_text_is_a_filter(text: str) -> None:
    assert parse(text).matches(FIELDS) in {True, False}


@pytest.mark.parametrize(
    ("filter_text", "passes"),
    [
        ("/^qu.nn$/", True),
        ("!/qu.nn/", False),
        ("agent=/^q/", True),
        ("skill=/^q/", False),
        ("/review now/", True),
        ("/REVIEW/", True),
        ("~prw", True),
        ("agent=~qn", True),
        ("!~prw", False),
        ("~zzz", False),
        ("/half", False),
    ],
)
def test_filters_know_regular_expressions_and_scattered_letters(filter_text: str, passes: bool) -> None:
    assert parse(filter_text).matches({"agent": "quinn", "skill": "pr_review now"}) is passes


def test_a_wrong_regex_is_named_and_left_out() -> None:
    for wrong in ("/(/", "/(?=a)/", "/" + "a" * 300 + "/", "/(a{1000}){1000}/"):
        query = parse(f"agent=quinn {wrong}")
        assert query.error
        assert query.matches({"agent": "quinn"})


def test_a_regex_that_backtracks_elsewhere_takes_linear_time() -> None:
    query, began = parse("/^(a+)+$/"), time.process_time()
    assert not query.matches({"text": "a" * 20_000 + "!"})
    assert time.process_time() - began < 1
