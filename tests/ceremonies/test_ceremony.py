from __future__ import annotations

from datetime import UTC, datetime

import pytest

from fleetsim.ceremonies.runs import child_request, request_text
from fleetsim.ceremony.file import Ceremony, Overlap, next_due, parse_ceremony
from fleetsim.model.errors import ConfigError
from fleetsim.runtime.yaml import load

GOOD = """\
id: quinn.daily-digest
name: "Quinn Daily QA Digest"
schedule: "0 14 * * *"
skill: qa_report
targets: [quinn]
notifyChannel: "1469080556720623699"
enabled: true
"""


def parse(text: str) -> Ceremony:
    return parse_ceremony(load(text, "ceremonies/x.yaml"))


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    return f"{caught.value} | {caught.value.hint}"


def test_the_seeds_example_is_read_unchanged() -> None:
    ceremony = parse(GOOD)
    assert (ceremony.ceremony_id, ceremony.name, ceremony.skill) == (
        "quinn.daily-digest",
        "Quinn Daily QA Digest",
        "qa_report",
    )
    assert (ceremony.targets, ceremony.notify_channel, ceremony.enabled) == (("quinn",), "1469080556720623699", True)
    assert ceremony.system_actor == "ceremony.quinn.daily-digest"
    assert (ceremony.timeout_s, ceremony.catch_up_s, ceremony.overlap) == (600, 600, Overlap.SKIP)
    assert next_due(ceremony, datetime(2026, 11, 21, 14, tzinfo=UTC)) == datetime(2026, 11, 22, 14, tzinfo=UTC)


def test_every_key_is_read() -> None:
    ceremony = parse(
        GOOD + "createdBy: ava\ndescription: about\ntimezone: Europe/Berlin\ntimeoutMs: 1500\n"
        "prompt: do it\noverlap: allow\ncatchUp: 0\n"
    )
    assert (ceremony.created_by, ceremony.description, ceremony.timezone) == ("ava", "about", "Europe/Berlin")
    assert (ceremony.timeout_s, ceremony.text, ceremony.overlap, ceremony.catch_up_s) == (1.5, "do it", "allow", 0)
    assert next_due(ceremony, datetime(2026, 11, 21, 12, tzinfo=UTC)) == datetime(2026, 11, 21, 13, tzinfo=UTC)


def test_the_schedule_is_utc_unless_a_zone_is_named() -> None:
    assert next_due(parse(GOOD), datetime(2026, 7, 1, tzinfo=UTC)).hour == 14
    summer = parse(GOOD + "timezone: America/New_York\n")
    assert next_due(summer, datetime(2026, 7, 1, tzinfo=UTC)).hour == 18


@pytest.mark.parametrize(
    "id_", ["a", "A1", "quinn.daily-digest", "0_x", "x" * 128, "a..b", "trailing.", "board.pr-audit", "_x"]
)
def test_ids_of_plain_letters_digits_and_marks_are_accepted(id_: str) -> None:
    assert parse(GOOD.replace("quinn.daily-digest", id_)).ceremony_id == id_


@pytest.mark.parametrize(
    "id_", ["", "..", ".hidden", "-x", "bad\\n", "é", "１２３", "a b", "a/b", "x" * 129, "a\\u0000"]
)
def test_an_id_that_could_be_a_path_is_refused(id_: str) -> None:
    assert ":1:5: 'id'" in refusal(GOOD.replace("quinn.daily-digest", f'"{id_}"'))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("skill: qa_report\n", ""), "'skill' is missing"),
        (("skill:", "skil:"), "x.yaml:4:1: unknown key 'skil' (did you mean 'skill'?)"),
        (("targets: [quinn]", "targets: []"), "x.yaml:5:10: 'targets' must name at least one agent, or [all]"),
        (("targets: [quinn]\n", ""), "'targets' is missing"),
        (("[quinn]", "[quinn, all]"), "x.yaml:5:10: “all” stands alone"),
        (("[quinn]", "quinn"), "'targets' must be a list"),
        (("0 14 * * *", "0 14 * *"), "x.yaml:3:11: 'schedule': a schedule has exactly five fields"),
        (("0 14 * * *", "0 0 30 2 *"), "x.yaml:3:11: 'schedule': the schedule “0 0 30 2 *” never fires"),
        (("enabled: true", 'enabled: "false"'), "'enabled' must be true or false"),
        (("enabled: true", "enabled: no"), "'enabled' must be true or false"),
        (("enabled: true", "timezone: Mars/Olympus"), "'timezone': unknown time zone “Mars/Olympus”"),
        (("enabled: true", "timezone: ../../etc/passwd"), "unknown time zone"),
        (("enabled: true", "timeoutMs: -5"), "timeoutMs"),
        (("enabled: true", "overlap: maybe"), "overlap"),
        (("enabled: true", "prompt: a\ncontent: b"), "x.yaml:8:1: prompt and content are the same thing"),
        (("id: quinn.daily-digest", "id: 7"), "'id' must be text, not 7 | put it in quotes"),
        (("enabled: true", "projectPaths: [a]"), "unknown key 'projectPaths'"),
    ],
)
def test_an_error_is_named_with_its_place(change: tuple[str, str], says: str) -> None:
    assert says in refusal(GOOD.replace(*change))


def test_several_problems_are_reported_together() -> None:
    said = refusal(GOOD.replace("0 14 * * *", "x").replace("enabled: true", "timezone: Nowhere"))
    assert "'schedule'" in said
    assert "'timezone'" in said


def test_a_list_is_not_a_ceremony() -> None:
    assert "one mapping" in refusal("- id: x\n")


def test_an_unquoted_channel_number_is_kept_digit_for_digit() -> None:
    assert parse(GOOD.replace('"1469080556720623699"', "146908055672062369")).notify_channel == "146908055672062369"


def test_no_environment_variable_is_filled_in() -> None:
    ceremony = parse(GOOD.replace("[quinn]", '["${HOME}"]') + "prompt: 'key ${SECRET_KEY}'\n")
    assert ceremony.targets == ("${HOME}",)
    assert ceremony.text == "key ${SECRET_KEY}"


def test_without_a_prompt_the_agent_gets_the_generated_text() -> None:
    assert request_text(parse(GOOD), "run-1").splitlines() == [
        "Execute skill: qa_report",
        "ceremonyId: quinn.daily-digest",
        "ceremonyName: Quinn Daily QA Digest",
        'targets: ["quinn"]',
        "runId: run-1",
        'projectPaths: ["quinn"]',
        'meta: {"systemActor": "ceremony.quinn.daily-digest"}',
    ]


def test_a_child_names_its_run_its_actor_and_one_target() -> None:
    request = child_request(parse(GOOD + "content: report please\n"), "run-1", "c-1", "quinn")
    assert (request.correlation_id, request.parent_id, request.targets) == ("c-1", "run-1", ("quinn",))
    assert (request.system_actor, request.source.interface) == ("ceremony.quinn.daily-digest", "cron")
    assert (request.text, request.skill, request.timeout_s) == ("report please", "qa_report", 600)
