"""Seeds on a real Dask cluster: the report equals that of this machine alone, even if workers are lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.command import run, start
from tests.runtime.authority import Authority
from tests.sim.dask_cluster import DaskCluster

pytestmark = [pytest.mark.dask, pytest.mark.sockets, pytest.mark.slow]

TINY = """
name: tiny
duration: 20m
fleet:
  quinn: {skills: {review: {takes: 2s}}}
traffic:
  - {skill: review, rate: 5/m}
mix: {scale: 20}
expect:
  - fleet.success_rate >= 97%
"""
SEEDS = 24


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[DaskCluster]:
    (tmp_path / "dask").mkdir()
    (tmp_path / "tiny.yaml").write_text(TINY)
    cluster = DaskCluster(tmp_path / "dask")
    yield cluster
    cluster.close()


def words(*more: str, seeds: int = SEEDS) -> tuple[str, ...]:
    return ("sim", "tiny.yaml", "--seeds", str(seeds), "-o", "json", *more)


def ended(playing: subprocess.Popen[str], out: Path) -> tuple[int, Any, str]:
    _, err = playing.communicate(timeout=500)
    return playing.returncode, json.loads(out.read_text() or "null"), err


def invoke(folder: Path, *more: str, environment: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    done = run(more, folder, {**os.environ, **(environment or {})})
    return done.returncode, done.stdout, done.stderr


def results(found: dict[str, Any]) -> dict[str, Any]:
    """The report without workers and times."""
    return {key: value for key, value in found.items() if key not in {"workers", "wallSeconds", "cpuSeconds"}}


def begun(dask: DaskCluster, folder: Path, *more: str, seeds: int = SEEDS) -> subprocess.Popen[str]:
    """The command, once it has its first result and so work on every worker."""
    with (folder / "out").open("w") as out:
        playing = start(
            words("--cluster", dask.address, *more, seeds=seeds),
            folder,
            os.environ,
            stdout=out.fileno(),
            new_session=True,
        )
    assert playing.stderr is not None
    lines = []
    for line in playing.stderr:
        if line.startswith("1 of "):
            return playing
        lines.append(line)
    raise AssertionError(lines, ended(playing, folder / "out"))


def test_after_a_killed_worker_each_seed_has_the_result_of_a_local_run_once(dask: DaskCluster, tmp_path: Path) -> None:
    code, out, _ = invoke(tmp_path, *words("--jobs", "2"))
    alone = json.loads(out)
    for name in "abc":
        dask.add(name)
    playing = begun(dask, tmp_path)
    dask.kill("b")
    there, found, err = ended(playing, tmp_path / "out")
    assert (there, results(found)) == (code, results(alone)), err
    assert alone["unexpected"], "a report without a difference between seeds shows little"
    assert alone["workers"] == []
    assert sorted(seed for worker in found["workers"] for seed in worker["seeds"]) == list(range(1, SEEDS + 1))
    played = {worker["worker"]: worker["seeds"] for worker in found["workers"]}
    assert {"a", "c"} <= played.keys() <= {"a", "b", "c"}
    assert all(worker["seconds"] > 0 for worker in found["workers"])
    assert "Remove worker" in dask.log("scheduler")


def test_ctrl_c_reports_the_played_seeds_and_frees_the_cluster(dask: DaskCluster, tmp_path: Path) -> None:
    dask.add("a")
    playing = begun(dask, tmp_path, seeds=5_000)
    os.killpg(playing.pid, signal.SIGINT)
    code, found, err = ended(playing, tmp_path / "out")
    assert code == 130, err
    assert found["seeds"]["played"] == len(found["workers"][0]["seeds"]) >= 1
    code, out, err = invoke(tmp_path, *words("--cluster", dask.address, "--keep-going", seeds=1))
    assert json.loads(out)["seeds"]["played"] == 1, err


def test_a_lost_scheduler_ends_with_1_after_the_played_seeds(dask: DaskCluster, tmp_path: Path) -> None:
    dask.add("a")
    playing = begun(dask, tmp_path, seeds=5_000)
    dask.kill("scheduler")
    code, found, err = ended(playing, tmp_path / "out")
    assert code == 1
    assert found["seeds"]["played"] >= 1
    assert "FLEETSIM_ERR_CLUSTER_LOST" in err


def test_a_cluster_that_cannot_play_is_refused_with_the_next_step(dask: DaskCluster, tmp_path: Path) -> None:
    code, _, err = invoke(tmp_path, *words("--cluster", dask.address))
    assert (code, f"dask worker {dask.address}" in err) == (3, True), err
    other = tmp_path / "other" / "fleetsim-9.9.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: fleetsim\nVersion: 9.9\n")
    dask.add("old", {"PYTHONPATH": str(other.parent)})
    code, _, err = invoke(tmp_path, *words("--cluster", dask.address))
    assert (code, "9.9" in err, "pip install" in err) == (2, True, True), err
    dask.kill("scheduler")
    code, _, err = invoke(tmp_path, *words("--cluster", dask.address))
    assert (code, "dask scheduler" in err) == (3, True), err


def test_tls_uses_the_certificates_of_dasks_settings_and_shows_no_secret(tmp_path: Path) -> None:
    files = Authority(tmp_path).client()
    prefix = "DASK_DISTRIBUTED__COMM__"
    tls = {f"{prefix}REQUIRE_ENCRYPTION": "True", f"{prefix}TLS__CA_FILE": files.ca}
    for side in ("SCHEDULER", "WORKER", "CLIENT"):
        tls |= {f"{prefix}TLS__{side}__CERT": files.certificate, f"{prefix}TLS__{side}__KEY": files.key}
    (tmp_path / "tiny.yaml").write_text(TINY)
    dask = DaskCluster(tmp_path, {**os.environ, **tls}, scheme="tls")
    try:
        dask.add("a")
        assert dask.address.startswith("tls://")
        code, out, err = invoke(tmp_path, *words("--cluster", dask.address, seeds=2), environment=tls)
        assert json.loads(out)["seeds"]["played"] == 2, err
        code, _, err = invoke(tmp_path, *words("--cluster", dask.address, seeds=2))
        assert code == 2, err
        assert "certificates" in err
        plain = dask.address.replace("tls:", "tcp:")
        assert invoke(tmp_path, *words("--cluster", plain, seeds=2))[0] == 3
    finally:
        dask.close()
