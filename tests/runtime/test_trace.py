from __future__ import annotations

import pytest

from fleetsim.runtime.inbound import TracePlace, read_traceparent, span_id_of, trace_id_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("header", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),  # flags of level 2 are unknown and stay as they are
        (f"cc-{TRACE}-{SPAN}-01", True),  # of a later version the first four members are read
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", True),
    ],
)
def test_a_traceparent_names_a_place(header: str, sampled: bool) -> None:
    assert read_traceparent(header) == TracePlace(TRACE, SPAN, sampled)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"cc-{TRACE}-{SPAN}-01.more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-0g",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{TRACE}-{SPAN}-01\r\nX-Other: 1",
        f"00-{TRACE[:-1]}\u0661-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01-{'x' * 100_000}",
    ],
)
def test_a_malformed_traceparent_is_ignored(header: str) -> None:
    assert read_traceparent(header) is None


def test_a_place_is_written_in_the_form_in_which_it_is_read() -> None:
    place = TracePlace(trace_id_of("a"), span_id_of("a"), sampled=True)
    assert read_traceparent(str(place)) == place
    assert (trace_id_of("a"), span_id_of("a")) == (trace_id_of("a"), span_id_of("a"))
    assert len({trace_id_of("a"), trace_id_of("b")}) == len({span_id_of("a"), span_id_of("b")}) == 2
