"""The check reads deliveries in an agent's log."""

from __future__ import annotations

import pytest

from fleetsim.check.sections.hygiene import tells_delivery

TASK = "7d200f11-2001-4200-8a2e-200200200200"


@pytest.mark.parametrize(
    ("line", "tells"),
    [
        (f"INFO webhook of task {TASK}: completed, answered 200", True),
        (f"INFO POST http://127.0.0.1:9000/hook {TASK} 200 OK", True),
        (f"INFO task={TASK} status=200, state=completed", True),
        (f"INFO delivered {TASK} (HTTP 200)", True),
        (f"INFO {TASK} HTTP/1.1 200.", True),
        (f"INFO task {TASK} begins", False),
        (f"INFO task {TASK} of context 200f0000-0000-4000-8000-00000000200a, to http://127.0.0.1:200/hook", False),
        (f"INFO task {TASK} took 1.200 s, or 200.5 ms", False),
        ("INFO another task: 200", False),
    ],
)
def test_a_log_line_is_a_delivery_if_it_has_the_task_and_the_status(line: str, tells: bool) -> None:
    assert tells_delivery(line, TASK) is tells
