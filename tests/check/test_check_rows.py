from __future__ import annotations

import re

from fleetsim.check.requirement import ALL, NEEDS, ONCE
from fleetsim.check.runner import select
from fleetsim.check.sections import REQUIREMENTS


def test_every_row_has_a_probe() -> None:
    assert [row.id for row in REQUIREMENTS.values() if row.probe is None] == []


def test_rows_are_sorted_by_section_and_number_except_for_those_with_after() -> None:
    ids = list(REQUIREMENTS)
    after = {row.id: row.after for row in REQUIREMENTS.values() if row.after}
    assert after == {"M-03": "M-10", "P-38": "P-23", "P-39": "P-13", "P-40": "P-14"}
    assert {name: ids[ids.index(name) - 1] for name in after} == after
    others = [name for name in ids if name not in after]
    assert others == sorted(others, key=lambda name: ("CAXEMVTHSPRL".index(name[0]), name))


def test_every_row_has_its_source_its_probe_and_its_remedy() -> None:
    thin = [row.id for row in REQUIREMENTS.values() if min(map(len, (row.title, row.source, row.how, row.remedy))) < 5]
    assert thin == []


def test_rows_have_ids_dialects_and_needs_that_exist() -> None:
    assert [row_id for row_id in REQUIREMENTS if not re.fullmatch(r"[A-Z]-\d\d", row_id)] == []
    assert [row.id for row in REQUIREMENTS.values() if row.dialects != ONCE and not set(row.dialects) <= set(ALL)] == []
    assert [row.id for row in REQUIREMENTS.values() if not row.needs <= NEEDS.keys()] == []


def test_rows_are_selected_by_id_section_or_word_in_any_case() -> None:
    assert {row.id for row in select(["p-1*"])} == {f"P-1{n}" for n in range(10)}
    assert {row.section for row in select(["streams"])} >= {"Streams"}
    assert "P-17" in {row.id for row in select(["cancel is delivered"])}
    assert select(["no such thing"]) == ()
    assert len(select([])) == len(REQUIREMENTS)


def test_every_incident_of_the_guide_is_named_by_a_row() -> None:
    told = " ".join(row.incident for row in REQUIREMENTS.values())
    pulls = {"#40", "#61", "#6", "#19", "#25"}
    assert {pull for pull in pulls if not re.search(rf"{pull}\b", told)} == set()
