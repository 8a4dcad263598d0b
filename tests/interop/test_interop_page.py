"""The page, the expectations and the notes they cite agree; what the lanes show is for ``make interop``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def driver_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))


def test_the_page_is_what_the_expectations_say() -> None:
    from driver.main import REWRITE
    from driver.places import PAGE
    from driver.table import page

    assert PAGE.read_text(encoding="utf-8") == page(), f"write it with: {REWRITE}"


def test_the_page_about_frameworks_is_what_was_recorded() -> None:
    from driver.frameworks import RELEASED, RESULTS, page
    from driver.places import FRAMEWORKS_PAGE
    from driver.verdicts import CHECKED

    assert FRAMEWORKS_PAGE.read_text(encoding="utf-8") == page(), "write it with: make sdks"
    assert json.loads(RESULTS.read_text(encoding="utf-8")).keys() == CHECKED.keys()
    assert {" ".join(checked.title.split()[:2]) for checked in CHECKED.values()} == RELEASED.keys()


def test_every_absence_names_an_operation_of_its_lane_and_a_reason() -> None:
    from driver.expected import LANES, OPERATIONS

    for lane in LANES:
        assert set(lane.operations) <= set(OPERATIONS), lane.name
        assert set(lane.absent) <= set(lane.operations), lane.name
        assert all(absent.why for absent in lane.absent.values()), lane.name


def test_only_what_no_client_or_no_sdk_finds_either_goes_without_a_line() -> None:
    from driver.expected import LANES, LANES_S

    seen_by_sdk = {lane.server.name: set(lane.absent.values()) for lane in LANES_S}
    for lane in LANES:
        for op, absent in lane.absent.items():
            alike = absent in seen_by_sdk.get(lane.server.name, set())
            told = absent.why.startswith(("the client of ", "over HTTP+JSON the server of "))
            assert absent.line or told or alike, f"{lane.name} {op}"


def test_what_a_framework_does_with_an_sdk_it_must_do_with_us() -> None:
    from driver.expected import FRAMEWORKS, LANES, OURS, Lane

    def works(lane: Lane) -> set[str]:
        return {op for op in lane.operations if op not in lane.absent and op != "legacy"}

    pair = {(lane.server.name, lane.client.name): lane for lane in LANES if lane.program == "client"}
    assert len(FRAMEWORKS) >= 3
    for framework in FRAMEWORKS:
        name, sdk = framework.env.name, framework.sdk.name
        assert works(pair[name, sdk]) <= works(pair[name, OURS.name]), name
        assert works(pair[sdk, name]) <= works(pair[OURS.name, name]), name


def test_the_lines_cited_hold_the_words_cited() -> None:
    from driver.expected import LANES
    from driver.places import FACTS

    if not FACTS.exists():
        pytest.skip("the notes lie beside the project and are not here")
    lines = FACTS.read_text(encoding="utf-8").splitlines()
    cited = {absent.line for lane in LANES for absent in lane.absent.values() if absent.line}
    assert cited
    for line in cited:
        assert line.words in lines[line.number - 1], line


def test_both_languages_run_the_same_checks_in_the_same_order() -> None:
    shared = HERE / "peers" / "shared"
    table = shared.joinpath("checks.py").read_text(encoding="utf-8").split("CHECKS: dict")[1]
    in_python = re.findall(r'^    "([a-z-]+)":', table, re.MULTILINE)
    table = shared.joinpath("checks.mjs").read_text(encoding="utf-8").split("export const CHECKS")[1]
    in_javascript = re.findall(r'^  "?([a-z-]+)"?: (?:async )?\(a\)', table, re.MULTILINE)
    assert in_python == in_javascript
    assert len(in_python) == 25


def test_every_weather_has_a_name_of_its_own_and_can_be_put_up() -> None:
    from driver.expected import WEATHER_PEERS
    from driver.weather import ROWS
    from weather import storms

    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert row.expected.keys() <= WEATHER_PEERS.keys(), row.name
        if not row.name.startswith("send-refused"):
            assert storms(row), row.name


def test_every_server_the_check_is_held_against_is_started_with_its_environment() -> None:
    from driver.expected import CHECK_PEERS
    from driver.verdicts import CHECKED

    assert {name: checked.env for name, checked in CHECKED.items()} == dict(CHECK_PEERS)


def test_pinned_files_pin_everything_and_name_no_host() -> None:
    pinned = [*HERE.glob("peers/*/requirements.txt"), *HERE.glob("peers/*/package-lock.json")]
    assert len(pinned) == 15
    for file in pinned:
        text = file.read_text(encoding="utf-8")
        assert "://" not in text, file
        assert '"resolved"' not in text, file
        if file.name == "requirements.txt":
            for block in re.split(r"\n(?=\S)", text.strip()):
                assert re.match(r"[\w.-]+==\S+ \\\n\s+--hash=sha256:", block) or block.startswith("#"), block
