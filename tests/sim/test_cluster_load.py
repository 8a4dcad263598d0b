"""Load from several workers of a real Dask cluster, on a real agent."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.command import start
from tests.sim.dask_cluster import DaskCluster

pytestmark = [pytest.mark.dask, pytest.mark.sockets, pytest.mark.slow]

LOAD = """
name: load
duration: {seconds}s
fleet:
  ref: {{url: "{url}", skills: {{echo: {{}}}}}}
traffic:
  - {{skill: echo, rate: 4/s, arrivals: steady}}
expect:
  - success_rate == 100%
"""


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[DaskCluster]:
    (tmp_path / "dask" / "recordings").mkdir(parents=True)
    cluster = DaskCluster(tmp_path / "dask", {**os.environ, "TMPDIR": str(tmp_path / "dask" / "recordings")})
    for name in "abc":
        cluster.add(name)
    yield cluster
    cluster.close()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[str]:
    """The address of a reference agent in a process of its own."""
    with (
        (tmp_path / "agent.log").open("w") as log,
        start(("agent", "--port", "0"), tmp_path, os.environ, stderr=log.fileno()) as process,
    ):
        while not (found := re.search(r"A2A at (\S+)", (tmp_path / "agent.log").read_text())):
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=0.1)
        yield found[1]
        process.kill()


def scenario(folder: Path, url: str, seconds: int) -> list[int]:
    """Writes the scenario. Returns the number of requests in each of three parts."""
    (folder / "load.yaml").write_text(LOAD.format(url=url, seconds=seconds))
    numbers = [number % 3 for number in range(4 * seconds - 1)]
    return [numbers.count(part) for part in range(3)]


def begun(dask: DaskCluster, folder: Path) -> subprocess.Popen[str]:
    words = ("sim", "load.yaml", "--clock", "real", "--cluster", dask.address, "-o", "json")
    with (folder / "out").open("w") as out:
        return start(words, folder, os.environ, stdout=out.fileno(), new_session=True)


def ended(playing: subprocess.Popen[str], folder: Path) -> tuple[int, Any]:
    _, err = playing.communicate(timeout=500)
    assert (folder / "out").read_text(), err
    return playing.returncode, json.loads((folder / "out").read_text())


def until_requests_come(playing: subprocess.Popen[str], folder: Path) -> None:
    """Returns once the recordings of all workers have an outcome."""
    while sum('"OutcomeDecided"' in path.read_text() for path in folder.glob("dask/recordings/*/run.jsonl")) < 3:
        try:
            playing.wait(timeout=0.1)
        except subprocess.TimeoutExpired:
            continue
        raise AssertionError(ended(playing, folder))


def test_workers_send_a_scenario_in_parts_and_the_report_is_of_all(
    dask: DaskCluster, agent: str, tmp_path: Path
) -> None:
    wanted = scenario(tmp_path, agent, seconds=6)
    code, found = ended(begun(dask, tmp_path), tmp_path)
    assert code == 0
    assert [(worker["worker"], worker["requests"]) for worker in found["workers"]] == list(
        zip("abc", wanted, strict=True)
    )
    fleet = found["figures"]["fleet"]
    assert fleet["requests"] == fleet["successes"] == sum(wanted)
    assert found["load"]["meantPerSecond"] == pytest.approx(sum(wanted) / 6, rel=0.01)
    slowest = max(worker["load"]["responseSeconds"]["max"] for worker in found["workers"])
    assert found["load"]["responseSeconds"]["max"] == slowest
    assert found["load"]["limit"] in {"agent", "hub", "caller"}
    for worker in found["workers"]:
        assert abs(worker["clockAheadSeconds"]) <= worker["clockErrorSeconds"] + 0.05  # one machine, one clock
        assert worker["lateStartSeconds"] >= 0.0
        assert worker["load"]["latenessSeconds"]["p50"] is not None


def test_a_lost_worker_is_named_and_its_part_is_not_sent_again(dask: DaskCluster, agent: str, tmp_path: Path) -> None:
    wanted = scenario(tmp_path, agent, seconds=20)
    playing = begun(dask, tmp_path)
    until_requests_come(playing, tmp_path)
    dask.kill("b")
    code, found = ended(playing, tmp_path)
    assert code == 1
    assert [worker["lostAtSeconds"] is None for worker in found["workers"]] == [True, False, True]
    assert [worker["requests"] for worker in found["workers"]] == [wanted[0], 0, wanted[2]]
    assert found["figures"]["fleet"]["outcomes"] == wanted[0] + wanted[2]


def test_ctrl_c_ends_the_traffic_of_all_workers_and_reports(dask: DaskCluster, agent: str, tmp_path: Path) -> None:
    wanted = scenario(tmp_path, agent, seconds=600)
    playing = begun(dask, tmp_path)
    until_requests_come(playing, tmp_path)
    os.killpg(playing.pid, signal.SIGINT)
    code, found = ended(playing, tmp_path)
    assert code == 130
    assert 0 < found["figures"]["fleet"]["outcomes"] < sum(wanted)
    assert found["stoppedAtSeconds"] < 600


def test_a_lost_scheduler_ends_a_load_run_with_1(dask: DaskCluster, agent: str, tmp_path: Path) -> None:
    scenario(tmp_path, agent, seconds=600)
    playing = begun(dask, tmp_path)
    until_requests_come(playing, tmp_path)
    dask.kill("scheduler")
    _, err = playing.communicate(timeout=500)
    assert (playing.returncode, "FLEETSIM_ERR_CLUSTER_LOST" in err) == (1, True), err
