"""The planted defects still fit the code; ``make planted`` plants them."""

from __future__ import annotations

from tests.storms.planted import DEFECTS, TOP


def test_every_defect_can_still_be_planted() -> None:
    counts = {d.name: (TOP / "fleetsim" / d.file).read_text(encoding="utf-8").count(d.old) for d in DEFECTS}
    assert {name: count for name, count in counts.items() if count != 1} == {}


def test_every_defect_of_the_original_that_can_occur_here_is_planted() -> None:
    names = {d.name.rstrip("b") for d in DEFECTS}
    assert {f"U{n}" for n in range(1, 22)} - names == {"U18", "U19"}
