"""The scenarios on the pages of the documentation have the results that the pages give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fleetsim.agent.builtin import reference_agent
from fleetsim.sim.clocks import ClockRate
from fleetsim.sim.live import check_clock
from fleetsim.sim.report import Result
from fleetsim.sim.scenario import parse_scenario
from tests.sim.scenes import report, scenario
from tests.sim.test_live import played

TOP = Path(__file__).resolve().parents[2]
BLOCKS = [
    (f"{page.name}:{text[: block.start()].count(chr(10)) + 1}", block[1])
    for page in (TOP / "README.md", *sorted((TOP / "docs").rglob("*.md")))
    for text in [page.read_text(encoding="utf-8")]
    for block in re.finditer(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    if re.search(r"^duration:", block[1], re.MULTILINE)
]
SIMULATED = [block for block in BLOCKS if "url:" not in block[1]]
REAL = [block for block in BLOCKS if "url:" in block[1]]


def test_there_are_scenarios_of_both_kinds_on_the_pages() -> None:
    assert SIMULATED
    assert REAL


@pytest.mark.slow
@pytest.mark.parametrize("text", [text for _, text in SIMULATED], ids=[place for place, _ in SIMULATED])
def test_a_simulated_scenario_on_a_page_meets_its_own_expectations(text: str) -> None:
    found = report(scenario(text))
    assert found.result is Result.OK, [(e.text, figure) for e, figure, holds in found.expectations if not holds]


@pytest.mark.sockets
@pytest.mark.slow
@pytest.mark.parametrize("text", [text for _, text in REAL], ids=[place for place, _ in REAL])
async def test_a_real_agents_scenario_on_a_page_meets_its_own_expectations(text: str, tmp_path: Path) -> None:
    async with reference_agent().serving() as url:
        text = re.sub(r"http://127\.0\.0\.1:\d+", url.rstrip("/"), text.replace("duration: 20s", "duration: 2s"))
        text = text.replace("p99 < 2s", "p99 < 60s")  # the machine may be busy
        check_clock(*parse_scenario(text, "page.yaml"), ClockRate.read("real"))
        found, _ = await played(text, tmp_path, "real")
    assert found.result is Result.OK, [(e.text, figure) for e, figure, holds in found.expectations if not holds]
