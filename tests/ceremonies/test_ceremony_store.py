"""Ceremonies created, changed and deleted by a program, in files that a person can read and edit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetsim.ceremonies.folder import (
    CeremonyExists,
    CeremonyFolder,
    CeremonyNotFound,
    CeremonyNotWritable,
    CeremonyStore,
    TooManyCeremonies,
)
from fleetsim.ceremonies.scheduler import Scheduler
from fleetsim.ceremony.file import parse_ceremony
from fleetsim.ceremony.written import CeremonyInvalid, changed, written
from fleetsim.runtime.files import LOOK_EVERY_S, SETTLE_S, DiskFiles
from fleetsim.runtime.real import SystemClock
from fleetsim.runtime.yaml import load
from tests.ceremonies.ceremonies import FOLDER, MINUTE, Ground, ground, yaml
from tests.scale import scaled

NEW = {"id": "tick", "name": "Tick", "schedule": "* * * * *", "skill": "report", "targets": ["quinn"]}
BY_HAND = """\
# Who looks at the board, and when.
id: tick   # do not change
name: 'The board'
schedule: "0 14 * * *" # after lunch

skill: report
targets:
  - quinn # she knows it
  # ava is on holiday
# where word of it goes
notifyChannel: "77"
enabled: true
prompt: |
  # not a comment
  look at the board
# the end
"""


@asynccontextmanager
async def storing(start: str = "2026-01-01T00:00:30") -> AsyncIterator[tuple[Ground, CeremonyStore, Scheduler]]:
    async with ground(start) as g:
        folder = CeremonyFolder(g.files, FOLDER)
        async with g.scheduler(poll_s=LOOK_EVERY_S, folder=folder) as scheduler:
            yield g, CeremonyStore(folder, g.files, g.clock, scheduler), scheduler


def text_of(g: Ground, name: str = "tick.yaml") -> str:
    return g.files.take(FOLDER / name).decode()


# ------------------------------------------------------------------ create


async def test_a_created_ceremony_is_a_file_that_a_person_can_read() -> None:
    async with storing() as (g, store, _):
        more = {"prompt": "Look at:\n- the board\n- the inbox\n", "notifyChannel": "77", "timezone": "Europe/Berlin"}
        await store.create({**NEW, **more, "createdBy": "mallory"}, created_by="ava")
        assert text_of(g) == (
            "id: tick\n"
            "name: Tick\n"
            'schedule: "* * * * *"\n'
            "skill: report\n"
            "targets: [quinn]\n"
            'notifyChannel: "77"\n'
            "createdBy: ava\n"
            "timezone: Europe/Berlin\n"
            "prompt: |\n"
            "  Look at:\n"
            "  - the board\n"
            "  - the inbox\n"
        )
        assert g.files.modes[FOLDER / "tick.yaml"] == 0o644


async def test_a_created_ceremony_takes_effect_at_once_and_fires() -> None:
    async with storing() as (g, store, scheduler):
        stored = await store.create(NEW, created_by="ava")
        assert (stored.ceremony.created_by, stored.path) == ("ava", "ceremonies/tick.yaml")
        assert [row.ceremony.ceremony_id for row in scheduler.rows()] == ["tick"]
        await asyncio.sleep(31)
        assert g.desk.slots() == ["01-01T00:01"]
        assert store.list() == (store.get("tick"),)
        assert store.get("tick").values == {**NEW, "createdBy": "ava"}
        assert len(g.said("ceremony.loaded")) == 2, "the next look finds nothing new"


async def test_a_new_ceremony_never_replaces_another() -> None:  # T-33, the original's U18
    async with storing() as (g, store, _):
        await store.create(NEW, created_by="ava")
        g.put("id: tock\nnonsense", "tock.yaml")
        g.put(yaml(id_="elsewhere"), "here.yaml")
        g.put("", "late.yaml")
        await asyncio.sleep(6)
        g.put(yaml(id_="unseen"), "unseen.yaml")
        for taken in ("tick", "tock", "elsewhere", "late", "unseen"):
            before = {name: text_of(g, name) for name in ("tick.yaml", "tock.yaml", "here.yaml", "unseen.yaml")}
            with pytest.raises(CeremonyExists):
                await store.create({**NEW, "id": taken}, created_by="mallory")
            assert before == {name: text_of(g, name) for name in before}


async def test_a_ceremony_created_during_a_look_at_the_folder_stays() -> None:
    async with storing() as (g, store, scheduler):
        g.put(yaml(id_="other"), "other.yaml")
        await asyncio.sleep(LOOK_EVERY_S + SETTLE_S / 2)
        await store.create(NEW, created_by="ava")
        for _ in range(20):
            assert store.get("tick").ceremony.name == "Tick"
            await asyncio.sleep(SETTLE_S / 10)
        assert [row.ceremony.ceremony_id for row in scheduler.rows()] == ["other", "tick"]


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        ({"skill": None}, "skill", "'skill' is missing"),
        ({"schedule": None}, "schedule", "'schedule' is missing"),
        ({"schedule": "R * * * *"}, "schedule", "not understood"),
        ({"schedule": "* * * * * *"}, "schedule", "exactly five"),
        ({"targets": []}, "targets", "must name at least one agent"),
        ({"targets": "quinn"}, "targets", "must be a list"),
        ({"targets": [7]}, "targets", "item 1 of 'targets' must be text"),
        ({"enabled": "false"}, "enabled", "must be true or false"),
        ({"timezone": "Mars/Olympus"}, "timezone", "unknown time zone"),
        ({"project": "x"}, "project", "unknown key 'project'"),
        ({"name": {"a": [1, None, 2.5, True]}}, "name", "must be text"),
        ({"id": 7}, "id", "must be text"),
        ({"timeoutMs": 0}, "timeoutMs", "must be more than 0"),
        ({"at": "2026-01-02T00:00Z"}, "at", "go together"),
        ({"at": "2026-01-02T00:00Z", "in": 5, "schedule": None}, "in", "give one"),
        ({"in": "soon", "schedule": None}, "in", "'in' must be seconds"),
        ({"in": True, "schedule": None}, "in", "'in' must be seconds"),
        ({"in": "367d", "schedule": None}, "in", "of a year at most"),
        ({"in": 366 * 86_400 + 1, "schedule": None}, "in", "of a year at most"),
        ({"in": -1, "schedule": None}, "in", "'in' must be seconds"),
        ({"in": 1.5, "schedule": None}, "in", "'in' must be seconds"),
        ({"prompt": "x" * 40_000}, "", "larger than"),
        ({"prompt": "\ud800"}, "", ""),
    ],
)
async def test_an_error_names_its_key_and_no_file_is_written(change: dict[str, Any], field: str, says: str) -> None:
    async with storing() as (g, store, _):
        with pytest.raises(CeremonyInvalid) as refused:
            await store.create({**NEW, **change}, created_by="ava")
        assert refused.value.field == field
        assert says in refused.value.said
        assert "ceremony:" not in refused.value.said
        assert not [path for path in g.files.content() if path.name != "README.md"]


@pytest.mark.parametrize(
    ("span", "at"),
    [(0, "2026-01-01T00:00:30Z"), ("1d", "2026-01-02T00:00:30Z"), ("366 d", "2027-01-02T00:00:30Z")],
)
async def test_a_span_is_a_year_at_most(span: Any, at: str) -> None:
    async with storing() as (_, store, _scheduler):
        await store.create({**NEW, "schedule": None, "in": span}, created_by="ava")
        assert store.get("tick").values["at"] == at


async def test_neither_of_two_broken_files_with_one_id_is_deleted() -> None:
    async with storing() as (g, store, _):
        for name in ("a.yaml", "b.yaml"):
            g.put(yaml(targets="[]"), name)
        await asyncio.sleep(6)
        with pytest.raises(CeremonyNotFound) as missing:
            await store.delete("tick")
        assert "ceremonies/a.yaml" in (missing.value.hint or "")
        assert len(store.errors()) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("span", "at"), [(1_800, "00:30:30"), ("30m", "00:30:30"), ("2h", "02:00:30"), ("90 s", "00:02:00")]
)
async def test_a_span_is_stored_as_its_point_in_time(span: Any, at: str) -> None:
    async with storing() as (g, store, _):
        await store.create({**NEW, "schedule": None, "in": span}, created_by="ava")
        assert f'once: true\nat: "2026-01-01T{at}Z"\n' in text_of(g)
        await asyncio.sleep(3 * 60 * MINUTE)
        assert [at_.strftime("%H:%M:%S") for at_, _, _ in g.desk.fired] == [at]


@pytest.mark.slow
async def test_one_owner_has_at_most_a_hundred_and_all_have_a_thousand() -> None:
    async with storing() as (g, store, _):
        for n in range(99):
            g.put(yaml("@yearly", id_=f"c{n}", more="createdBy: ava\n"), f"{n}.yaml")
        await asyncio.sleep(6)
        await store.create(NEW, created_by="ava")
        with pytest.raises(TooManyCeremonies, match=r"\b100\b"):
            await store.create({**NEW, "id": "more"}, created_by="ava")
        await store.create({**NEW, "id": "more"}, created_by="quinn")
        for n in range(899):
            g.put(yaml("@yearly", id_=f"d{n}", more=f"createdBy: o{n // 100}\n"), f"d{n}.yaml")
        await asyncio.sleep(6)
        with pytest.raises(TooManyCeremonies, match=r"\b1000\b"):
            await store.create({**NEW, "id": "evenmore"}, created_by="eve")


# ------------------------------------------------------------------ update


async def test_a_change_keeps_every_other_line_of_a_persons_file() -> None:
    async with storing() as (g, store, _):
        g.put(BY_HAND, "board.yaml")
        await asyncio.sleep(6)
        await store.update("tick", {"schedule": "0 15 * * *", "targets": ["ava", "quinn"], "overlap": "queue"})
        assert text_of(g, "board.yaml") == (
            BY_HAND.replace("0 14 * * *", "0 15 * * *").replace(
                "targets:\n  - quinn # she knows it\n", "targets: [ava, quinn]\n"
            )
            + "overlap: queue\n"
        )
        await store.update("tick", {"prompt": None, "overlap": None, "name": "The\nboard"})
        assert text_of(g, "board.yaml").endswith('notifyChannel: "77"\nenabled: true\n# the end\n')
        assert "name: |-\n  The\n  board\n" in text_of(g, "board.yaml")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"id": "tock"}, "id"),
        ({"createdBy": "mallory"}, "createdBy"),
        ({"schedule": "x"}, "schedule"),
        ({"skill": None}, "skill"),
        ({"skil": "x"}, "skil"),
        ({"at": "2026-01-02T00:00Z", "once": True}, "schedule"),
    ],
)
async def test_a_forbidden_change_changes_nothing(changes: dict[str, Any], field: str) -> None:
    async with storing() as (g, store, _):
        await store.create(NEW, created_by="ava")
        before = text_of(g)
        with pytest.raises(CeremonyInvalid) as refused:
            await store.update("tick", {**changes, "name": "Tock"})
        assert refused.value.field == field
        assert text_of(g) == before


async def test_a_change_may_repeat_its_own_id_and_owner() -> None:
    async with storing() as (_, store, _):
        stored = await store.create(NEW, created_by="ava")
        assert (await store.update("tick", {**stored.values, "name": "Tock"})).ceremony.name == "Tock"


async def test_a_persons_edit_is_shown_within_five_seconds_and_not_overwritten() -> None:
    async with storing() as (g, store, _):
        await store.create(NEW, created_by="ava")
        g.put(text_of(g).replace("name: Tick", "name: Mine # now"), "tick.yaml")
        updated = await store.update("tick", {"skill": "sitrep"})
        assert updated.ceremony.name == "Mine"
        assert "name: Mine # now\n" in text_of(g)
        g.files.put(FOLDER / "tick.yaml", text_of(g).replace("Mine", "Later"))
        await asyncio.sleep(5)
        assert store.get("tick").ceremony.name == "Later"


async def test_a_broken_file_is_not_changed_but_may_be_deleted() -> None:
    async with storing() as (g, store, _):
        await store.create(NEW, created_by="ava")
        g.files.put(FOLDER / "tick.yaml", text_of(g) + "nonsense\n")
        with pytest.raises(CeremonyNotWritable):
            await store.update("tick", {"name": "Tock"})
        g.put("id: never\nname: x\n", "never.yaml")
        await asyncio.sleep(6)
        with pytest.raises(CeremonyNotFound) as unknown:
            store.get("never")
        assert "ceremonies/never.yaml" in (unknown.value.hint or "")
        await store.delete("never")
        await store.delete("tick")
        assert store.errors() == store.list() == ()


# ------------------------------------------------------------------ delete


async def test_a_deleted_ceremony_is_gone_at_once_and_fires_no_more() -> None:  # the original's U17
    async with storing() as (g, store, scheduler):
        await store.create(NEW, created_by="ava")
        await asyncio.sleep(MINUTE)
        await store.delete("tick")
        assert scheduler.rows() == ()
        await asyncio.sleep(5 * MINUTE)
        assert g.desk.slots() == ["01-01T00:01"]
        g.put(yaml(id_="later"), "later.yaml")
        await asyncio.sleep(5)
        assert [row.ceremony.ceremony_id for row in scheduler.rows()] == ["later"], "the folder is still looked at"
        with pytest.raises(CeremonyNotFound):
            await store.delete("tick")
        await store.create(NEW, created_by="quinn")
        assert store.get("tick").ceremony.created_by == "quinn"


async def test_a_ceremony_in_two_files_or_in_a_project_can_only_be_changed_by_a_person() -> None:
    async with storing() as (g, store, _):
        g.put(yaml(), "a.yaml")
        g.put(yaml(), "b.yaml")
        g.put(yaml(id_="other"), "other.yaml")
        g.files.put(Path(".proto/projects/shop/ceremonies/other.yaml"), yaml(id_="other"))
        await asyncio.sleep(6)
        for id_, why in (("tick", "two files have the id"), ("other", "is replaced by the project “shop”")):
            with pytest.raises(CeremonyNotWritable, match=why):
                await store.delete(id_)
            with pytest.raises(CeremonyNotWritable, match=why):
                await store.update(id_, {"enabled": False})
        assert len(g.files.content()) == 5


# ------------------------------------------------------------------ text


TEXTS = st.one_of(
    st.text(max_size=40),
    st.text(alphabet=" \n#:-'\"[]{}&*!|>%@`\t\\é\u2028\x85\ufeff😀", max_size=30),
    st.sampled_from(
        ["true", "No", "~", "null", "007", "1.10", "12:30", "- a", "a: b", "a #b", "", "\n", "a\n\nb\n", "y"]
    ),
)
VALUES = st.one_of(TEXTS, st.booleans(), st.integers(-(10**9), 10**9), st.lists(TEXTS, max_size=4))
MAPPINGS = st.dictionaries(
    st.sampled_from(["id", "name", "prompt", "targets", "skill", "description"]), VALUES, min_size=1
)


def is_text(value: Any) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in str(value))


@pytest.mark.slow
@given(MAPPINGS.filter(lambda values: all(map(is_text, values.values()))))
@settings(max_examples=scaled(1_000), deadline=None)
def test_any_written_text_is_read_back(values: dict[str, Any]) -> None:
    assert load(written(values), "x").value == values


@pytest.mark.slow
@given(MAPPINGS, MAPPINGS, st.sets(st.sampled_from(["name", "prompt", "targets"])))
@settings(max_examples=scaled(1_000), deadline=None)
def test_any_changed_value_is_read_back(before: dict[str, Any], after: dict[str, Any], gone: set[str]) -> None:
    if not all(map(is_text, [*before.values(), *after.values()])):
        return
    changes = {**after, **dict.fromkeys(gone)}
    wanted = {key: value for key, value in {**before, **changes}.items() if value is not None}
    if not wanted:
        return
    text = "# mine\n" + written(before)
    assert load(changed(text, changes), "x").value == wanted


@pytest.mark.parametrize(
    ("before", "changes", "after"),
    [
        ("{id: a, name: b}\n", {"name": "c"}, "{id: a, name: c}\n"),
        ("{id: a, name: b}\n", {"skill": "c"}, "id: a\nname: b\nskill: c\n"),
        ("id: a # why\nname: b", {"skill": "c"}, "id: a # why\nname: b\nskill: c\n"),
        ("id: a\nname: b # why\n", {"name": None}, "id: a\n"),
        ("id: a\nname: b # why\n", {"name": "x\ny"}, 'id: a\nname: "x\\ny" # why\n'),
        ("id: a\r\nname: b\r\n", {"name": "c"}, "id: a\r\nname: c\r\n"),
        ("id: a\nname:\n", {"name": "c"}, "id: a\nname: c\n"),
        ("id: a\nname: >\n  b\n  c\n\n# d\nskill: e\n", {"name": "c"}, "id: a\nname: c\n\n# d\nskill: e\n"),
        ("id: a\nprompt: |\n  b\n  # c\n\nskill: e\n", {"prompt": "x"}, "id: a\nprompt: x\n\nskill: e\n"),
        ("id: a\ntargets:\n- b\n# c\n\nskill: e\n", {"targets": ["x"]}, "id: a\ntargets: [x]\n# c\n\nskill: e\n"),
    ],
)
def test_a_changed_value_stays_in_its_place(before: str, changes: dict[str, Any], after: str) -> None:
    assert changed(before, changes) == after


# ------------------------------------------------------------------ on a disk


@pytest.mark.sockets
async def test_on_a_disk_two_programs_do_not_create_one_ceremony_twice(tmp_path: Path) -> None:
    stores = []
    for _ in range(8):
        folder = CeremonyFolder(DiskFiles(), tmp_path / "ceremonies")
        stores.append(CeremonyStore(folder, DiskFiles(), SystemClock()))
    made = await asyncio.gather(
        *(s.create(NEW, created_by=f"o{n}") for n, s in enumerate(stores)), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in made) == ["CeremonyExists"] * 7 + ["StoredCeremony"]
    ((path, _digest),) = (
        (s.path, s.digest) for s in await DiskFiles().listing(tmp_path / "ceremonies", suffixes=("",))
    )
    assert path.stat().st_mode & 0o777 == 0o644
    assert parse_ceremony(load(path.read_text(), str(path))).ceremony_id == "tick"


@pytest.mark.sockets
async def test_on_a_disk_a_change_keeps_the_mode_of_the_file(tmp_path: Path) -> None:
    folder = CeremonyFolder(DiskFiles(), tmp_path)
    store = CeremonyStore(folder, DiskFiles(), SystemClock())
    await store.create(NEW, created_by="ava")
    (tmp_path / "tick.yaml").chmod(0o640)
    await store.update("tick", {"enabled": False})
    assert (tmp_path / "tick.yaml").stat().st_mode & 0o777 == 0o640
    assert [stamp.path.name for stamp in await DiskFiles().listing(tmp_path, suffixes=("",))] == ["tick.yaml"]
