"""``fleetsim agent``: its files, lists and refusals. Tests over sockets show that it serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetsim.cli.main import Exit, cli, run


def called(*words: str) -> int:
    return run(lambda: cli.main(args=list(words), prog_name="fleetsim", standalone_mode=False), list(words))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_new_writes_an_agent_and_its_test(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called("agent", "new", "my-greeter") == Exit.OK
    assert capsys.readouterr().out.splitlines() == ["my_greeter.py", "test_my_greeter.py"]
    assert 'Agent("my-greeter"' in (here / "my_greeter.py").read_text()


def test_new_overwrites_only_when_forced(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "test_greeter.py").write_text("mine")
    assert called("agent", "new", "greeter") == Exit.USAGE
    assert "test_greeter.py" in capsys.readouterr().err
    assert not (here / "greeter.py").exists()
    assert (here / "test_greeter.py").read_text() == "mine"
    assert called("agent", "new", "greeter", "--force") == Exit.OK
    assert (here / "test_greeter.py").read_text() != "mine"


def test_new_creates_the_folder_or_gives_the_reason_why_it_cannot(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called("agent", "new", "greeter", "--dir", "a/b") == Exit.OK
    assert (here / "a/b/greeter.py").exists()
    assert called("agent", "new", "greeter", "--dir", "a/b/greeter.py") == Exit.USAGE
    assert called("agent", "new", "../evil") == Exit.USAGE
    assert "no name for an agent" in capsys.readouterr().err


def test_the_profiles_on_the_command_line_are_all_profiles() -> None:
    from fleetsim.agent.builtin import PROFILES
    from fleetsim.cli.agent import PROFILES as OFFERED

    assert tuple(PROFILES) == OFFERED


def test_an_unset_secret_is_a_usage_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    assert called("agent", "--api-key-env", "NO_SUCH_KEY") == Exit.USAGE
    assert "NO_SUCH_KEY is not set" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "expected"), [(("--state", "tasks.db"), "tasks.db"), ((), None)])
def test_tasks_are_kept_in_the_named_file_and_not_in_the_hubs_folder(
    words: tuple[str, ...], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fleetsim.agent import Agent

    monkeypatch.setenv("FLEETSIM_STATE", "/var/lib/hub")
    served: list[Agent] = []
    monkeypatch.setattr(Agent, "serve", lambda self, **_: served.append(self))
    assert called("agent", *words) == Exit.OK
    assert served[0].settings.state == (None if expected is None else Path(expected))
