"""``fleetsim ceremony`` from a second process: the next slots, the past runs, and the files."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.cli.world import Shell

pytestmark = pytest.mark.sockets

AGENTS = "agents:\n  - name: quinn\n    url: http://127.0.0.1:9/a2a\n    skills: [report, audit]\n"


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    shell = Shell(tmp_path)
    shell.write("agents.yaml", AGENTS)
    return shell


def test_a_new_ceremony_is_a_file_that_the_other_verbs_read(shell: Shell) -> None:
    made = shell.run(
        *("ceremony", "new", "quinn.digest", "--skill", "report", "--target", "quinn"),
        *("--schedule", "0 14 * * MON-FRI", "--timezone", "Europe/Berlin", "--prompt", "say what is new"),
    )
    assert (made.returncode, "Europe/Berlin" in made.stdout) == (0, True)
    assert (shell.home / "ceremonies" / "quinn.digest.yaml").read_text() == (
        'id: quinn.digest\nname: quinn.digest\nschedule: "0 14 * * MON-FRI"\nskill: report\ntargets: [quinn]\n'
        "createdBy: system\ntimezone: Europe/Berlin\nprompt: say what is new\n"
    )
    fires = shell.json("ceremony", "next", "quinn.digest", "--count", "3", "--from", "2026-10-23T00:00")
    assert [fire["at"] for fire in fires] == [
        "2026-10-23T12:00:00+00:00",
        "2026-10-26T13:00:00+00:00",
        "2026-10-27T13:00:00+00:00",
    ]
    local = shell.run("ceremony", "next", "--count", "1", "--from", "2026-10-23T00:00", "--tz", "Asia/Kolkata")
    assert "Fri 2026-10-23 17:30:00+0530 Asia/Kolkata  quinn.digest" in local.stdout
    again = shell.run("ceremony", "new", "quinn.digest", "--skill", "other", "--schedule", "@daily")
    assert (again.returncode, "exists already" in again.stderr) == (1, True)
    assert "skill: report" in (shell.home / "ceremonies" / "quinn.digest.yaml").read_text()


def test_a_ceremony_is_paused_resumed_and_deleted_and_its_comments_stay(shell: Shell) -> None:
    text = '# mine\nid: tick\nname: Tick\nschedule: "@daily" # at midnight\nskill: report\ntargets: [quinn]\n'
    shell.write("ceremonies/a.yaml", text)
    assert "not while it is disabled" in shell.run("ceremony", "disable", "tick").stdout
    assert (shell.home / "ceremonies" / "a.yaml").read_text() == text + "enabled: false\n"
    assert shell.run("ceremony", "next").returncode == 6
    assert shell.json("ceremony", "show", "tick")["nextFires"] == []
    assert shell.run("ceremony", "enable", "tick").returncode == 0
    assert len(shell.json("ceremony", "show", "tick")["nextFires"]) == 5
    shown = shell.run("ceremony", "show", "tick").stdout
    assert "schedule: 0 0 * * * (UTC)\n" in shown
    assert shell.run("ceremony", "delete", "tick").returncode == 0
    assert not (shell.home / "ceremonies" / "a.yaml").exists()
    for verb in ("delete", "enable", "disable", "show", "next"):
        gone = shell.run("ceremony", verb, "tick")
        assert (gone.returncode, "tick" in gone.stderr) == (2, True), verb


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--schedule", "R * * * *"], 2, "random and hashed fields are refused"),
        (["--schedule", "@daily", "--in", "5m"], 2, "say when, in one way"),
        ([], 2, "say when, in one way"),
        (["--in", "soon"], 2, "'in' must be seconds"),
        (["--at", "tomorrow"], 2, "tomorrow"),
        (["--schedule", "@daily", "--timezone", "Mars"], 2, "unknown time zone"),
        (["--in", "5m"], 0, ""),
        (["--at", "2126-11-22T15:30Z"], 0, ""),
    ],
)
def test_an_error_in_a_new_ceremony_is_reported_and_no_file_is_written(
    shell: Shell, options: list[str], code: int, says: str
) -> None:
    done = shell.run("ceremony", "new", "tick", "--skill", "report", *options)
    assert done.returncode == code
    assert says in done.stderr
    assert (shell.home / "ceremonies" / "tick.yaml").exists() is (code == 0)


def test_an_id_that_leads_out_of_the_folder_is_refused(shell: Shell) -> None:
    for id_ in ("../up", "..", "a/b", ".x"):
        assert shell.run("ceremony", "new", "--skill", "x", "--schedule", "@daily", "--", id_).returncode == 2
    assert not (shell.home / "up.yaml").exists()


def test_files_are_checked_without_a_hub(shell: Shell) -> None:
    assert shell.run("ceremony", "validate").returncode == 6
    shell.write("ceremonies/a.yaml", 'id: tick\nname: T\nschedule: "@daily"\nskill: report\ntargets: [quinn]\n')
    fine = shell.run("ceremony", "validate")
    assert (fine.returncode, fine.stdout.startswith("ceremonies/a.yaml: tick ")) == (0, True)
    shell.write("ceremonies/b.yaml", 'id: tock\nname: T\nschedule: "@daily"\nskil: report\ntargets: [quinn]\n')
    for arguments in ((), ("ceremonies/b.yaml",)):
        wrong = shell.run("ceremony", "validate", *arguments)
        assert wrong.returncode == 2
        assert "ceremonies/b.yaml:4:1: unknown key 'skil' " in wrong.stdout
    assert shell.run("ceremony", "validate", "ceremonies/a.yaml").returncode == 0
    assert shell.run("ceremony", "validate", "ceremonies/none.yaml").returncode == 2


def test_a_target_off_the_allow_list_is_a_fault_of_the_file(shell: Shell) -> None:
    shell.write("agents.yaml", AGENTS + "ceremonies: {tick: {may: [{agent: quinn, skills: [audit]}]}}\n")
    for skill, code in (("audit", 0), ("report", 2)):
        shell.write("ceremonies/a.yaml", f'id: tick\nname: T\nschedule: "@daily"\nskill: {skill}\ntargets: [quinn]\n')
        for arguments in ((), ("ceremonies/a.yaml",)):
            checked = shell.run("ceremony", "validate", *arguments)
            assert (checked.returncode, "may not use" in checked.stdout) == (code, code == 2)
        dry = shell.run("ceremony", "run", "tick", "--dry-run")
        assert (dry.returncode, "may not use" in dry.stderr) == ((0, False) if code == 0 else (6, True))


def test_a_dry_run_names_the_agents_and_the_request(shell: Shell) -> None:
    more = "prompt: say what is new\n"
    shell.write("ceremonies/a.yaml", f'id: a\nname: T\nschedule: "@daily"\nskill: report\ntargets: [all]\n{more}')
    shell.write("ceremonies/b.yaml", 'id: b\nname: T\nschedule: "@daily"\nskill: report\ntargets: [quin]\n')
    told = shell.json("ceremony", "run", "a", "--dry-run", "--at", "2126-01-01T00:00Z")
    assert (told["isSlot"], told["nextFireAt"]) == (True, "2126-01-01T00:00:00+00:00")
    assert told["requests"] == [{"agent": "quinn", "skill": "report", "text": "say what is new", "timeoutS": 600.0}]
    between = shell.run("ceremony", "run", "a", "--dry-run", "--at", "2126-01-01T00:01Z")
    assert (between.returncode, "2126-01-02T00:00:00+00:00" in between.stdout) == (0, True)
    nobody = shell.run("ceremony", "run", "b", "--dry-run")
    assert (nobody.returncode, "did you mean “quinn”?" in nobody.stderr) == (6, True)
    shell.run("ceremony", "disable", "a")
    assert shell.run("ceremony", "run", "a", "--dry-run").returncode == 6
    assert shell.run("ceremony", "run", "a", "--at", "2126-01-01T00:00Z").returncode == 2


async def test_the_exit_code_gives_the_end_of_a_run_and_the_history_keeps_it(shell: Shell, agent: str) -> None:
    shell.write("agents.yaml", f"fleet: {{ poll_interval_s: 1 }}\nagents:\n  - name: scout\n    url: {agent}/a2a\n")
    base = "name: T\nschedule: '0 0 1 1 *'\nskill: echo\ntargets: [scout]\nprompt: hello\n"
    shell.write("ceremonies/good.yaml", f"id: good\n{base}")
    shell.write("ceremonies/bad.yaml", f"id: bad\n{base}expect: {{excludes: [hello]}}\n")
    with shell.up():
        assert (await shell.arun("ceremony", "run", "good", "--dry-run")).returncode == 0
        assert (await shell.arun("ceremony", "run", "good", "--wait")).returncode == 0
        bad = await shell.arun("ceremony", "run", "bad", "--wait")
        assert (bad.returncode, "“hello”" in bad.stdout) == (1, True)
        assert (await shell.arun("ceremony", "run", "none", "--wait")).returncode == 2
        listed = await shell.arun("ceremony", "history", "-o", "json")
        assert listed.returncode == 0
        assert [(run["ceremonyId"], run["status"], run["trigger"]) for run in json.loads(listed.stdout)] == [
            ("bad", "failure", "manual"),
            ("good", "success", "manual"),
        ]
        assert "failure" in (await shell.arun("ceremony", "history", "bad")).stdout
        assert (await shell.arun("ceremony", "history", "--since", "2126-01-01T00:00Z")).returncode == 6
        assert "last run: success" in (await shell.arun("ceremony", "show", "good")).stdout
        made = await shell.arun("ceremony", "new", "soon", "--skill", "echo", "--target", "scout", "--in", "1s")
        assert made.returncode == 0
        async with asyncio.timeout(30):  # the folder is read every 4.5 s
            ended = ""
            while '"success"' not in ended:
                ended = (await shell.arun("ceremony", "history", "soon", "-o", "json")).stdout
        assert "spent" in (await shell.arun("ceremony", "list")).stdout
    assert (await shell.arun("ceremony", "history")).returncode == 3


def test_a_running_hub_writes_into_its_own_folder_with_the_same_output(shell: Shell) -> None:
    new = ("ceremony", "new", "tick", "--skill", "report", "--target", "quinn")
    with shell.up("--ceremonies", "elsewhere"):
        made = shell.run(*new, "--schedule", "@daily")
        assert (made.returncode, "elsewhere/tick.yaml" in made.stdout) == (0, True), made.stderr
        assert [row["id"] for row in shell.json("ceremony", "list")["ceremonies"]] == ["tick"]
        again = shell.run(*new, "--schedule", "@daily")
        assert (again.returncode, "exists already" in again.stderr) == (1, True)
        lost = shell.run("ceremony", "new", "lost", "--skill", "report", "--target", "quin", "--schedule", "@daily")
        assert (lost.returncode, "“quin”" in lost.stderr) == (0, True)
        shell.write("ceremonies/odd.yaml", "id: odd\n")
        checked = shell.run("ceremony", "validate", "-o", "json")
        assert (checked.returncode, "“quin”" in checked.stderr) == (2, True)
        assert [row["id"] for row in json.loads(checked.stdout)] == ["odd", "lost", "tick"]
        assert shell.run("ceremony", "validate", "--folder", "elsewhere").stderr == ""
        (shell.home / "ceremonies" / "odd.yaml").unlink()
        assert shell.run("ceremony", "delete", "lost").returncode == 0
        wrong = shell.run("ceremony", "new", "tock", "--skill", "report", "--schedule", "R * * * *")
        assert (wrong.returncode, wrong.stderr.startswith("error: ")) == (2, True)
        assert shell.json("ceremony", "run", "tick", "--dry-run")["requests"][0]["agent"] == "quinn"
        assert "not while it is disabled" in shell.run("ceremony", "disable", "tick").stdout
        assert shell.json("ceremony", "enable", "tick")["enabled"] is True
        assert shell.run("ceremony", "delete", "tick").returncode == 0
        for verb in ("delete", "enable", "disable"):
            gone = shell.run("ceremony", verb, "tick")
            assert (gone.returncode, "tick" in gone.stderr) == (2, True), verb
        assert shell.run(*new, "--schedule", "@daily", "--folder", "mine").returncode == 0
        assert (shell.home / "mine" / "tick.yaml").exists()
    assert not any((shell.home / "ceremonies").iterdir())


def test_the_help_of_each_verb_shows_its_usage(shell: Shell) -> None:
    for verb in ("new", "next", "run"):
        assert f"fleetsim ceremony {verb} " in shell.run("ceremony", verb, "--help").stdout
