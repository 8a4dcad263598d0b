"""The verbs over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from fleetsim.agent.builtin import reference_agent
from fleetsim.cli.main import Exit, cli, run

pytestmark = pytest.mark.sockets

KEY = "a-key-nobody-may-see"
QUICK = ["--only", "C-*", "--only", "E-*", "--only", "S-0*", "--only", "P-19"]


async def called(*words: str) -> int:
    def work() -> int:
        return run(lambda: cli.main(args=list(words), prog_name="fleetsim", standalone_mode=False), list(words))

    return await asyncio.to_thread(work)


async def test_check_passes_the_reference_agent_and_writes_every_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], free_port: int
) -> None:
    kinds = {"junit": "r.xml", "html": "r.html", "json": "r.json", "markdown": "r.md"}
    reports = [word for kind, name in kinds.items() for word in ("--report", f"{kind}={tmp_path / name}")]
    async with reference_agent(allow_webhook=(f"127.0.0.1:{free_port}",)).serving() as url:
        words = ["check", url, "--webhook-listen", f"127.0.0.1:{free_port}", *QUICK, *reports]
        assert await called(*words) == Exit.OK
    told = capsys.readouterr().out
    assert f"Listener:  http://127.0.0.1:{free_port}" in told
    assert "PASSED:" in told
    assert "Content-Security-Policy" in (tmp_path / "r.html").read_text()
    assert (tmp_path / "r.xml").read_text().startswith("<?xml")
    assert (tmp_path / "r.md").read_text().startswith("# fleetsim check")
    found = {entry["id"]: entry["verdict"] for entry in json.loads((tmp_path / "r.json").read_text())["findings"]}
    assert found["P-19"] == found["S-09"] == "pass"


async def test_check_with_a_key_shows_the_key_nowhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CHECK_KEY", KEY)
    async with reference_agent(api_key=KEY).serving() as url:
        code = await called("-o", "json", "check", url, "--api-key-env", "CHECK_KEY", "--only", "A-*", "--only", "T-02")
    told = capsys.readouterr()
    assert code == Exit.OK
    assert json.loads(told.out)["totals"]["pass"] >= 5
    assert KEY not in told.out + told.err


async def test_a_wrong_or_missing_key_has_its_own_error(capsys: pytest.CaptureFixture[str]) -> None:
    async with reference_agent(api_key=KEY).serving() as url:
        assert await called("check", url) == Exit.AUTH
    told = capsys.readouterr().err
    assert "wants a credential" in told
    assert "WWW-Authenticate: " in told
    assert "its card requests " in told


async def test_an_address_without_a_listener_is_unreachable(capsys: pytest.CaptureFixture[str], free_port: int) -> None:
    assert await called("check", f"http://127.0.0.1:{free_port}") == Exit.UNREACHABLE
    assert "connection refused" in capsys.readouterr().err


async def test_a_failing_agent_fails_and_passes_with_a_baseline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    accepted = str(tmp_path / "accepted.yaml")
    async with reference_agent(url="http://127.0.0.1:1/nowhere").serving() as url:
        words = ["check", url, "--only", "C-03"]
        assert await called(*words, "--write-baseline", accepted) == Exit.FAILED
        assert "POST to the card's url" in capsys.readouterr().out
        assert await called(*words, "--baseline", accepted) == Exit.OK
    assert "Accepted failures" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["check"], Exit.USAGE),
        (["check", "http://127.0.0.1:1", "--only", "nothing like it"], Exit.USAGE),
        (["check", "http://127.0.0.1:1", "--report", "pdf=x"], Exit.USAGE),
        (["check", "http://127.0.0.1:1", "--webhook-listen", "nowhere"], Exit.USAGE),
        (["check", "--list", "--only", "P-*"], Exit.OK),
        (["explain", "P-17"], Exit.OK),
        (["explain", "P-71"], Exit.USAGE),
    ],
)
async def test_a_usage_error_differs_from_a_failure(words: Sequence[str], code: Exit) -> None:
    assert await called(*words) == code


async def test_a_check_without_a_tested_row_is_not_a_pass() -> None:
    async with reference_agent(push_notifications=False).serving() as url:
        assert await called("check", url, "--only", "P-*") == Exit.NOTHING_RAN
