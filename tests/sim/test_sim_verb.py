"""``fleetsim sim`` as a person and a script use it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from fleetsim.recording.reader import FORMAT
from tests.command import run, start
from tests.sim.scenes import MINE

pytestmark = pytest.mark.slow


def invoke(*args: str) -> tuple[int, str, str]:
    done = run(("sim", *args), Path.cwd(), os.environ)
    return done.returncode, done.stdout, done.stderr


def written(folder: Path, text: str = MINE) -> str:
    path = folder / "mine.yaml"
    path.write_text(text)
    return str(path)


def test_a_scenario_that_meets_its_expectations_ends_with_0_and_prints_how_to_play_it_again(tmp_path: Path) -> None:
    code, out, _ = invoke(written(tmp_path), "--seed", "7")
    assert code == 0
    assert "mine, seed 7: " in out
    assert out.splitlines()[-1].startswith("play it again: fleetsim sim ")
    assert "--seed 7" in out


def test_a_broken_expectation_ends_with_1_and_names_figure_time_and_agent(tmp_path: Path) -> None:
    code, out, _ = invoke(written(tmp_path, MINE + "  - quinn.success_rate >= 99%\n"))
    assert code == 1
    assert "BROKEN quinn.success_rate >= 99%" in out
    assert "failed at quinn, first at 00:0" in out


def test_a_wrong_scenario_ends_with_2_and_its_place(tmp_path: Path) -> None:
    code, _, err = invoke(written(tmp_path, MINE.replace("duration", "durations")))
    assert code == 2
    assert "mine.yaml:3:1: unknown key 'durations' " in err


def test_the_json_report_is_one_document_and_the_run_can_be_kept(tmp_path: Path) -> None:
    kept = tmp_path / "run.jsonl"
    code, out, _ = invoke(written(tmp_path), "--record", str(kept), "-o", "json")
    found = json.loads(out)
    assert code == 0
    assert found["schema"] == "fleetsim-sim/1"
    assert found["result"] == "ok"
    assert found["figures"]["fleet"]["outcomes"] > 5
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    assert lines[0]["kind"] == "start"
    assert [line["kind"] for line in lines[-3:]] == ["end", "played", "verdict"]
    assert lines[-2]["digest"] == found["digest"]
    assert lines[-1]["result"] == found["result"]


def test_a_kept_run_is_reported_on_without_playing_it(tmp_path: Path) -> None:
    kept, page = tmp_path / "run.jsonl", tmp_path / "run.html"
    file = written(tmp_path, MINE + "  - quinn.success_rate >= 99%\n")
    code, out, _ = invoke(file, "--seed", "7", "--record", str(kept))
    (tmp_path / "mine.yaml").unlink()
    assert invoke("--replay", str(kept), "--report", f"html={page}") == (code, out, "")
    assert code == 1
    assert f"play it again: fleetsim sim {file} --seed 7" in out
    assert "Not as expected" in page.read_text()


@pytest.mark.parametrize(
    ("number", "line", "why"),
    [
        (1, '{"kind": "end", "t": 0}', "not a recording of this version of fleetsim"),
        (2, "what is this", "not a line of a recording"),
        (3, '{"kind": "event", "t": 0, "type": "OutcomeDecided", "event": {}}', "event: "),
        (3, '{"kind": "hits", "t": -1, "fault": "hang", "hits": 1}', "hits: "),
        (3, '{"kind": "start", "t": 0}', "one start"),
    ],
)
def test_a_file_that_is_not_a_recording_is_refused_with_its_line(
    tmp_path: Path, number: int, line: str, why: str
) -> None:
    kept = tmp_path / "run.jsonl"
    start = {"kind": "start", "t": 0, "format": FORMAT, "scenario": "x", "seed": 1, "start": "2026-03-02T00:00:00Z"}
    start |= {"duration_s": 60, "agents": [], "replicas": {}, "expect": []}
    lines = [json.dumps(start), '{"kind": "calm", "t": 60}', '{"kind": "end", "t": 60, "kept": {}}']
    lines[number - 1] = line
    kept.write_text("\n".join(lines) + "\n")
    code, out, err = invoke("--replay", str(kept))
    assert (code, out) == (2, "")
    assert f"run.jsonl:{number}: " in err
    assert why in err


def test_a_scenario_beside_a_recording_is_refused() -> None:
    code, _, err = invoke("agent-restart", "--replay", "run.jsonl")
    assert code == 2
    assert "takes no SCENARIO" in err


def test_reports_are_written_beside_the_printed_text(tmp_path: Path) -> None:
    page, cases = tmp_path / "run.html", tmp_path / "run.xml"
    code, out, _ = invoke(written(tmp_path), "--report", f"html={page}", "--report", f"junit={cases}")
    assert code == 0
    assert "as expected" in out
    assert page.read_text().startswith("<!doctype html>")
    assert 'name="fleet.outcomes &gt; 5"' in cases.read_text()


def test_a_report_of_an_unknown_format_is_refused_before_the_run(tmp_path: Path) -> None:
    code, out, err = invoke(written(tmp_path), "--report", "pdf=x")
    assert (code, out) == (2, "")
    assert "FORMAT=PATH" in err


def test_the_counts_of_many_seeds_are_added_up_and_the_unexpected_counted(tmp_path: Path) -> None:
    expecting = MINE.replace("10m", "1m").replace("> 5", "> 500")
    code, out, _ = invoke(written(tmp_path, expecting), "--seeds", "2", "--first", "8")
    assert code == 1
    assert "mine, seeds 8 to 9: " in out
    assert "fleet.outcomes > 500: 2 seeds" in out
    assert "\n  I-01 " in out
    assert "  lost-webhooks                  0        0         0" in out


def test_invariants_that_no_seed_exercised_are_named_and_fail_a_run_that_must_cover_all(tmp_path: Path) -> None:
    words = (written(tmp_path, MINE.replace("> 5", ">= 0")), "--seeds", "1")
    plain, covered = invoke(*words), invoke(*words, "--covered")
    assert (plain[0], covered[0]) == (0, 1)
    for _, out, _ in (plain, covered):
        (named,) = (line for line in out.splitlines() if line.startswith("never met or looked at: "))
        assert "agent-down, agent-restart, hub-restart" in named
        assert "I-08" in named


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl_c", "sigterm"])
def test_an_interrupt_of_many_seeds_prints_the_played_ones_and_leaves_no_process(
    tmp_path: Path, number: signal.Signals
) -> None:
    words = ("sim", written(tmp_path, MINE.replace("10m", "1m")), "--seeds", "100000", "--keep-going")
    with (tmp_path / "said").open("w") as out:
        playing = start(words, tmp_path, os.environ, stdout=out.fileno(), new_session=True)
    assert playing.stderr is not None
    with playing.stderr as told:
        line = told.readline()
        assert line.startswith("1 of 100,000 seeds, ")
        if number is signal.SIGINT:  # a terminal signals all of them
            os.killpg(playing.pid, number)
        else:
            playing.send_signal(number)
        playing.communicate(timeout=60)  # once no process holds the pipe any more
    said = (tmp_path / "said").read_text()
    assert playing.returncode == 130
    assert re.match(r"mine, seeds 1 to \d+: .* \([\d,]+ of 100,000 played\)\n", said)


def test_one_seed_and_many_seeds_exclude_each_other(tmp_path: Path) -> None:
    code, _, err = invoke(written(tmp_path), "--seeds", "2", "--seed", "1")
    assert code == 2
    assert "--seeds plays many runs" in err


def test_a_cluster_without_dask_or_with_a_wrong_address_is_refused_with_the_next_step(tmp_path: Path) -> None:
    (tmp_path / "distributed.py").write_text("raise ModuleNotFoundError(__name__)")
    words = ("sim", written(tmp_path), "--seeds", "2", "--cluster")
    with start((*words, "tcp://127.0.0.1:1"), tmp_path, {**os.environ, "PYTHONPATH": str(tmp_path)}) as playing:
        _, err = playing.communicate(timeout=60)
    assert (playing.returncode, "pip install 'fleetsim[dask]'" in err) == (2, True), err
    for address in ("http://127.0.0.1:1", "tcp://somebody:secret@127.0.0.1:1", "tcp://127.0.0.1"):
        code, _, err = invoke(*words[1:], address)
        assert (code, "tcp://HOST:PORT" in err, "secret" in err) == (2, True, False), err
    code, _, err = invoke(*words[1:], "tcp://127.0.0.1:1", "--jobs", "2")
    assert (code, "--jobs" in err) == (2, True), err
    code, _, err = invoke(words[1], "--clock", "real", "--cluster", "tcp://127.0.0.1:1")
    assert (code, "mine.yaml:5:3: " in err, "url" in err) == (2, True, True), err
    code, _, err = invoke(words[1], "--cluster", "tcp://127.0.0.1:1")
    assert (code, "--clock real" in err) == (2, True), err


def test_a_ceremony_of_a_scenario_is_compared_with_its_slots(tmp_path: Path) -> None:
    (tmp_path / "rounds").mkdir()
    (tmp_path / "rounds" / "r.yaml").write_text(
        'id: rounds\nname: Rounds\nschedule: "*/2 * * * *"\nskill: review\ntargets: [quinn]\n'
    )
    code, out, _ = invoke(written(tmp_path, MINE + "ceremonies: rounds\n"), "--verbose")
    assert code == 0
    (slots,) = (line for line in out.splitlines() if line.strip().startswith("I-06 "))
    assert ": 0 cases" not in slots


def test_the_shipped_scenarios_are_listed_and_shown() -> None:
    code, out, _ = invoke("list")
    assert code == 0
    assert "agent-restart: " in out
    assert invoke("show", "agent-restart")[1].startswith("name: agent-restart")


def test_an_unknown_name_is_an_error_that_names_the_nearest() -> None:
    code, _, err = invoke("agent-restrat")
    assert code == 2
    assert "'agent-restart'" in err


LIVE = """
name: live
duration: 60s
fleet:
  quinn:
    skills:
      review: {takes: 20ms}
traffic:
  - {skill: review, rate: 10/s, arrivals: steady}
expect:
  - success_rate == 100%
"""


@pytest.mark.sockets
def test_an_interrupted_run_in_real_time_reports_its_part(tmp_path: Path) -> None:
    kept = tmp_path / "run.jsonl"
    words = ("sim", written(tmp_path, LIVE), "--clock", "real", "--record", str(kept))
    with (tmp_path / "said").open("w") as said:
        process = start(words, tmp_path, os.environ, stdout=said.fileno())
    assert process.stderr is not None
    with process.stderr:
        while '"asked"' not in (kept.read_text() if kept.exists() else ""):
            with pytest.raises(subprocess.TimeoutExpired):  # it has not ended
                process.wait(timeout=0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    out = (tmp_path / "said").read_text()
    assert process.returncode == 130, err
    assert "on the clock real from 2" in out
    assert ", stopped after " in out
    assert "holds  success_rate == 100%" in out
    assert "load:" in out
    assert out.splitlines()[-1].endswith("--clock real --record run.jsonl")


def test_a_malformed_clock_and_trouble_that_real_time_cannot_have_end_with_2(tmp_path: Path) -> None:
    code, _, err = invoke(written(tmp_path), "--clock", "fast")
    assert code == 2
    assert "'--clock'" in err
    code, _, err = invoke(written(tmp_path, f"{MINE}weather:\n  - {{fault: hub-restart}}\n"), "--clock", "x10")
    assert code == 2
    assert "mine.yaml:13:13: " in err
