"""Ceremonies in events and in the API, the request of a child, and the bounds of files and folders."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec import structs

from fleetsim.api.answer import to_json
from fleetsim.ceremonies.folder import CeremonyFolder
from fleetsim.ceremonies.runs import CeremonyRow, ceremony_facts, child_request, request_text, run_facts
from fleetsim.ceremony.file import Ceremony, parse_ceremony, zone_of
from fleetsim.ledger import RunRecord, RunStatus, SlotClaim
from fleetsim.model.errors import ConfigError
from fleetsim.runtime.yaml import load
from fleetsim.testbed.runtime import MemoryFiles
from tests.ceremonies.ceremonies import FOLDER, yaml

AT = datetime(2026, 1, 1, tzinfo=UTC)
RUN = RunRecord(
    claim=SlotClaim(ceremony_id="tick", scheduled_at=AT, run_id="r-1", trigger="manual"),
    status=RunStatus.FAILURE,
    started_at=AT + timedelta(seconds=1),
    ended_at=AT + timedelta(seconds=2),
    children=("c-1", "c-2"),
    error="quinn: broke",
)
RUN_TOLD = {
    "runId": "r-1",
    "ceremonyId": "tick",
    "trigger": "manual",
    "status": "failure",
    "scheduledAt": "2026-01-01T00:00:00.000Z",
    "startedAt": "2026-01-01T00:00:01.000Z",
    "endedAt": "2026-01-01T00:00:02.000Z",
    "correlationIds": ["c-1", "c-2"],
    "latenessMs": 1_000,
    "late": False,
    "count": 1,
    "error": "quinn: broke",
}


def parsed(more: str = "") -> Ceremony:
    return parse_ceremony(load(yaml(more=more), "ceremonies/a.yaml"))


def test_a_run_is_written_with_these_keys() -> None:
    assert to_json(run_facts(RUN)) == RUN_TOLD
    assert run_facts(structs.replace(RUN, ended_at=None))["endedAt"] is None


def test_a_ceremony_is_written_with_the_keys_of_its_file_and_the_facts_of_its_schedule() -> None:
    more = "description: about\ncreatedBy: ava\nnotifyChannel: '77'\ntimeoutMs: 1500\noverlap: allow\ncatchUp: 7\n"
    row = CeremonyRow(ceremony=parsed(more), path="a.yaml", next_at=AT, running=("r-2",), last=RUN, warnings=("odd",))
    assert to_json(ceremony_facts(row)) == {
        "id": "tick",
        "name": "Tick",
        "schedule": "* * * * *",
        "once": False,
        "at": None,
        "timezone": "UTC",
        "skill": "report",
        "targets": ["quinn"],
        "enabled": True,
        "description": "about",
        "createdBy": "ava",
        "notifyChannel": "77",
        "timeoutMs": 1500,
        "overlap": "allow",
        "catchUp": "one",
        "catchUpWindow": 7,
        "lateAfter": 60,
        "project": None,
        "path": "a.yaml",
        "warnings": ["odd"],
        "nextFireAt": "2026-01-01T00:00:00.000Z",
        "running": ["r-2"],
        "lastRun": RUN_TOLD,
    }
    bare = ceremony_facts(CeremonyRow(ceremony=parsed(), path="a.yaml", next_at=None))
    assert (bare["nextFireAt"], bare["lastRun"], bare["running"], bare["warnings"]) == (None, None, [], [])


def test_a_child_carries_the_ceremony_its_run_and_the_channel() -> None:
    request = child_request(parsed("notifyChannel: '77'\n"), "r-1", "c-1", "quinn")
    assert request.metadata == {"ceremonyId": "tick", "ceremonyName": "Tick", "runId": "r-1"}
    assert request.source.channel_id == "77"
    assert child_request(parsed(), "r-1", "c-1", "quinn").source.channel_id is None


def test_a_generated_text_keeps_letters_outside_ascii() -> None:
    ceremony = replace(parsed(), targets=("käthe",))
    assert 'targets: ["käthe"]' in request_text(ceremony, "r-1").splitlines()


@pytest.mark.parametrize("name", ["UTC", "utc", "Etc/UTC", "etc/utc"])
def test_every_spelling_of_utc_is_utc(name: str) -> None:
    assert zone_of(name) is UTC


@pytest.mark.parametrize(
    ("within", "beyond"),
    [
        ("timeoutMs: 604800000", "timeoutMs: 604800001"),
        ("timeoutMs: 1", "timeoutMs: 0"),
        ("catchUp: 86400", "catchUp: 86401"),
        (f"prompt: {'x' * 16_384}", f"prompt: {'x' * 16_385}"),
        (f"content: {'x' * 16_384}", f"content: {'x' * 16_385}"),
        (f"description: {'x' * 2_000}", f"description: {'x' * 2_001}"),
        (f"createdBy: {'x' * 128}", f"createdBy: {'x' * 129}"),
        (f"notifyChannel: {'x' * 200}", f"notifyChannel: {'x' * 201}"),
    ],
)
def test_every_bound_of_a_file_is_exact(within: str, beyond: str) -> None:
    assert parsed(f"{within}\n").ceremony_id == "tick"
    with pytest.raises(ConfigError):
        parsed(f"{beyond}\n")


@pytest.mark.parametrize(
    ("changed", "taken"),
    [
        (("targets: [quinn]", f"targets: [{', '.join(f't{n}' for n in range(64))}]"), True),
        (("targets: [quinn]", f"targets: [{', '.join(f't{n}' for n in range(65))}]"), False),
        (("quinn", "q" * 128), True),
        (("quinn", "q" * 129), False),
        (("skill: report", f"skill: {'r' * 200}"), True),
        (("skill: report", f"skill: {'r' * 201}"), False),
        (("name: Tick", f"name: {'T' * 200}"), True),
        (("name: Tick", f"name: {'T' * 201}"), False),
        (("name: Tick", 'name: ""'), False),
    ],
)
def test_every_bound_of_a_required_key_is_exact(changed: tuple[str, str], taken: bool) -> None:
    document = load(yaml().replace(*changed), "ceremonies/a.yaml")
    if taken:
        assert parse_ceremony(document).ceremony_id == "tick"
        return
    with pytest.raises(ConfigError):
        parse_ceremony(document)


# ------------------------------------------------------------------ the folder


def folder(**texts: str) -> CeremonyFolder:
    files = {str(FOLDER / f"{name}.yaml"): text for name, text in texts.items()}
    return CeremonyFolder(MemoryFiles(files), FOLDER)


async def test_a_look_returns_whether_the_folder_changed() -> None:
    ceremonies = folder(a=yaml())
    assert [await ceremonies.poll(), await ceremonies.poll()] == [True, False]
    assert await CeremonyFolder(MemoryFiles({}), Path("nowhere")).poll() is False


async def test_a_problem_names_the_ceremony_by_id_or_file_and_the_version_that_stays() -> None:
    files = MemoryFiles({str(FOLDER / "a.yaml"): yaml(id_="tick")})
    ceremonies = CeremonyFolder(files, FOLDER)
    await ceremonies.poll()
    files.put(FOLDER / "a.yaml", yaml(id_="tick", targets="[]"))
    files.put(FOLDER / "b.yaml", yaml(id_="x" * 200, targets="[]"))
    files.put(FOLDER / "c.yaml", yaml(targets="[]").replace("id: tick", "id: 7"))
    files.put(FOLDER / "d.yaml", yaml(id_="tick"))
    await ceremonies.poll()
    told = [(Path(p.path).stem, p.ceremony_id, p.kept) for p in ceremonies.contents.problems]
    assert told == [("a", "tick", True), ("b", "x" * 127 + "…", False), ("c", "c", False), ("d", "tick", False)]


@pytest.mark.slow
async def test_a_folder_holds_at_most_a_thousand_ceremonies() -> None:
    texts = {f"c{n:04}": yaml(id_=f"c{n:04}", more=f"createdBy: o{n // 90}\n") for n in range(1_001)}
    ceremonies = folder(**texts)
    await ceremonies.poll()
    assert len(ceremonies.contents.ceremonies) == 1_000
    (problem,) = ceremonies.contents.problems
    assert problem.error.startswith("ceremonies/c1000.yaml: ")


async def test_a_missing_folder_removes_no_ceremony() -> None:
    files = MemoryFiles({str(FOLDER / "a.yaml"): yaml()})
    ceremonies = CeremonyFolder(files, FOLDER)
    await ceremonies.poll()
    await files.remove(FOLDER / "a.yaml")
    await ceremonies.poll()
    assert list(ceremonies.contents.ceremonies) == ["tick"]
    assert [problem.path for problem in ceremonies.contents.problems] == [str(FOLDER)]
    files.put(FOLDER / "b.yaml", yaml(id_="other"))
    await ceremonies.poll()
    assert list(ceremonies.contents.ceremonies) == ["other"]
    assert ceremonies.contents.problems == ()


@pytest.mark.slow
async def test_the_ceremonies_of_at_most_a_hundred_projects_are_read() -> None:
    files = MemoryFiles({str(FOLDER / "README.md"): "about"})
    for n in range(101):
        files.put(Path(f".proto/projects/p{n:03}/ceremonies/a.yaml"), yaml(id_=f"c{n}", more=f"createdBy: o{n}\n"))
    ceremonies = CeremonyFolder(files, FOLDER)
    await ceremonies.poll()
    assert len(ceremonies.contents.ceremonies) == 100
    assert ceremonies.contents.problems == ()


async def test_an_owner_has_at_most_a_hundred_ceremonies() -> None:
    ceremonies = folder(**{f"c{n:03}": yaml(id_=f"c{n:03}") for n in range(101)})
    await ceremonies.poll()
    assert len(ceremonies.contents.ceremonies) == 100
    (problem,) = ceremonies.contents.problems
    assert problem.error.startswith("ceremonies/c100.yaml: ")
