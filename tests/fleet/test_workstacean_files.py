"""The files of Workstacean load unchanged: its registry and its ceremonies, in every shape they had."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetsim.ceremonies.folder import CeremonyFolder
from fleetsim.client.credential import Credential
from fleetsim.fleet.config import load_fleet
from fleetsim.runtime.files import DiskFiles

pytestmark = pytest.mark.sockets  # real files are read in a thread

DATA = Path(__file__).parent / "data" / "workstacean"
ENV = {
    "QUINN_BASE_URL": "http://quinn:7870",
    "AVA_BASE_URL": "http://automaker-server:3008",
    "PROTOPEN_BASE_URL": "http://steamdeck:7870",
    "AVA_API_KEY": "k",
    "PROTOPEN_API_KEY": "k",
    "PARTNER_API_TOKEN": "t",
    "FRANK_API_KEY": "k",
}


async def test_workstaceans_registry_loads_unchanged() -> None:
    fleet = await load_fleet(DATA / "agents.yaml", files=DiskFiles(), env=ENV)
    entries = {entry.name: entry for entry in fleet.enabled}
    assert list(entries) == ["quinn", "protomaker", "protopen", "external_partner", "frank", "signer", "researcher"]
    assert entries["quinn"].url == "http://quinn:7870/a2a"
    assert entries["quinn"].skill_names == ("pr_review", "bug_triage", "security_triage")
    assert entries["protomaker"].skill_names == ("sitrep", "board_health", "manage_feature", "bug_triage")
    assert entries["protomaker"].credentials == (Credential(scheme="apiKey", env="AVA_API_KEY"),)
    assert entries["protomaker"].streaming is False
    assert (entries["protopen"].streaming, entries["protopen"].external) == (True, True)
    assert entries["external_partner"].credentials == (Credential(scheme="bearer", env="PARTNER_API_TOKEN"),)
    assert dict(entries["external_partner"].headers) == {"a2a-extensions": "https://proto-labs.ai/a2a/ext/cost-v1"}
    assert entries["frank"].credentials == (Credential(scheme="apiKey", env="FRANK_API_KEY"),)
    assert entries["signer"].credentials == ()
    assert entries["researcher"].skills == ()
    (warning,) = fleet.warnings
    assert "agents.yaml:53:15: the scheme hmac " in warning


async def test_a_registry_whose_every_entry_is_commented_out_is_an_empty_fleet() -> None:
    fleet = await load_fleet(DATA / "agents-none.yaml", files=DiskFiles(), env={})
    assert (fleet.agents, fleet.warnings) == ((), ())


async def test_workstaceans_ceremonies_load_unchanged() -> None:
    folder = CeremonyFolder(DiskFiles(), DATA / "ceremonies")
    await folder.poll()
    assert folder.contents.problems == ()
    found = folder.contents.ceremonies
    assert sorted(found) == ["_weekly.retro", "board.pr-audit", "fleet_digest", "quinn.daily-digest"]
    digest = found["quinn.daily-digest"]
    assert (digest.schedule.shown, digest.skill, digest.targets) == ("0 14 * * *", "qa_report", ("quinn",))
    assert (digest.notify_channel, digest.enabled) == ("1469080556720623699", True)
    audit = found["board.pr-audit"]
    assert (audit.enabled, audit.targets, audit.schedule.shown) == (False, ("all",), "0 */3 * * *")
    fleet = found["fleet_digest"]
    assert (fleet.timezone, fleet.timeout_s, fleet.created_by) == ("America/Los_Angeles", 300, "ava")
    assert fleet.targets == ("quinn", "protomaker")
    assert found["_weekly.retro"].notify_channel == "1469195643590541353"
