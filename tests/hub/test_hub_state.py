from __future__ import annotations

import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fleetsim.hub.keys import HubKeys, next_epoch
from fleetsim.hub.state import StateDir, state_path
from fleetsim.model.errors import ConfigError
from fleetsim.testbed.runtime import CountedIds

IDS = CountedIds(1)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_state_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "deep" / "state").open()
    state.keys(IDS)
    state.announce("http://127.0.0.1:1", os.getpid(), "p")
    assert mode(state.path) == 0o700
    assert {path.name: mode(path) for path in state.path.iterdir()} == {
        "api-key": 0o600,
        "callback-keys.json": 0o600,
        "hub.json": 0o600,
    }


@pytest.mark.parametrize("open_to", [0o777, 0o770, 0o707, 0o720, 0o1777])
def test_a_directory_that_others_could_write_in_is_refused_with_the_reason(tmp_path: Path, open_to: int) -> None:
    state = StateDir(tmp_path).open()
    state.keys(IDS)
    state.announce("http://127.0.0.1:7", os.getpid(), "p")
    tmp_path.chmod(open_to)
    for use in (state.open, state.find):
        with pytest.raises(ConfigError) as refused:
            use()
        assert f"chmod 700 {tmp_path}" in (refused.value.hint or "")
    assert mode(tmp_path) == open_to, "a person must look first"
    state.withdraw(os.getpid())


def test_an_empty_directory_that_others_could_write_in_is_made_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    StateDir(tmp_path).open()
    assert mode(tmp_path) == 0o700


def test_a_readable_directory_is_made_private_with_a_warning_and_a_readable_key_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "hub.log").touch()
    tmp_path.chmod(0o755)
    state = StateDir(tmp_path).open()
    assert mode(tmp_path) == 0o700
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    state.keys(IDS)
    state.key_path.chmod(0o644)
    with pytest.raises(ConfigError):
        state.keys(IDS)


def test_keys_are_created_once_and_kept(tmp_path: Path) -> None:
    first = StateDir(tmp_path).open().keys(IDS)
    again = StateDir(tmp_path).open().keys(CountedIds(2))
    assert (first.api_key, first.callback, first.epoch) == (again.api_key, again.callback, again.epoch)
    assert len(first.api_key) == 43
    assert first.api_key not in repr(first)
    assert "callback" not in repr(first)


def test_tokens_of_the_previous_epoch_stay_valid() -> None:
    keys = HubKeys.fresh(IDS)
    old = keys.tokens().mint("quinn", "c-1")
    for valid in (True, False):
        epoch, callback = next_epoch(keys.epoch, keys.callback, IDS)
        keys = replace(keys, epoch=epoch, callback=callback)
        assert (keys.tokens().verify(old) is not None) is valid
        assert keys.tokens().verify(keys.tokens().mint("quinn", "c-2")) is not None


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"current": 2, "keys": {"1": "YQ=="}}', '{"current": 1, "keys": {"1": "a"}}']
)
def test_damaged_keys_are_refused_and_not_replaced(tmp_path: Path, text: str) -> None:
    state = StateDir(tmp_path).open()
    state.keys(IDS)
    (tmp_path / "callback-keys.json").write_text(text)
    with pytest.raises(ConfigError):
        state.keys(IDS)
    assert (tmp_path / "callback-keys.json").read_text() == text
    state.key_path.write_text("short")
    with pytest.raises(ConfigError):
        state.keys(IDS)


def test_a_running_hub_is_found_with_its_key(tmp_path: Path) -> None:
    state = StateDir(tmp_path).open()
    assert state.find() is None
    keys = state.keys(IDS)
    state.announce("http://127.0.0.1:7", os.getpid(), keys.proof)
    found = StateDir(tmp_path).find()
    assert found is not None
    assert (found.url, found.pid, found.api_key) == ("http://127.0.0.1:7", os.getpid(), keys.api_key)
    assert found.proof == keys.proof != state.keys(IDS).proof, "one of its own for each run"
    assert keys.api_key not in repr(found)
    assert keys.proof not in repr(found)
    state.withdraw(os.getpid())
    assert state.find() is None


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "{}", '{"url": 7, "pid": 1}', '{"url": "x", "pid": "1", "proof": "p"}', '{"url": "x", "pid": 1}'],
)
def test_a_broken_announcement_is_ignored(tmp_path: Path, text: str) -> None:
    state = StateDir(tmp_path).open()
    state.keys(IDS)
    state.announce("http://127.0.0.1:7", os.getpid(), "p")
    (tmp_path / "hub.json").write_text(text)  # in place: the process that wrote it still lives
    assert state.find() is None


@pytest.mark.slow
def test_the_announcement_of_a_dead_hub_is_ignored_even_if_its_pid_is_used_again(tmp_path: Path) -> None:
    state = StateDir(tmp_path).open()
    state.keys(IDS)
    script = f"""
import os
from dataclasses import replace
from pathlib import Path
from fleetsim.hub.state import StateDir
StateDir(Path({str(tmp_path)!r})).announce("http://127.0.0.1:7", {os.getpid()}, "p")
print("here", flush=True)
input()
os._exit(9)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1, text=True) as hub:
        assert hub.stdout is not None
        assert hub.stdout.readline() == "here\n"
        found = state.find()
        assert found is not None, "while it lives"
        hub.communicate("die\n")
    assert (tmp_path / "hub.json").exists(), "it did not take it back"
    assert state.find() is None


def test_another_hubs_announcement_is_not_removed(tmp_path: Path) -> None:
    state = StateDir(tmp_path).open()
    state.announce("http://127.0.0.1:7", os.getpid(), "p")
    state.withdraw(os.getpid() + 1)
    assert (tmp_path / "hub.json").exists()


def test_a_copy_of_the_directory_on_another_machine_has_no_id_of_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "boot").write_text("one-boot")
    monkeypatch.setattr("fleetsim.hub.state.BOOT", tmp_path / "boot")
    state = StateDir(tmp_path / "state").open()
    first = state.processes(IDS)
    assert state.processes(IDS)[:-1] == first
    (tmp_path / "boot").write_text("another-boot")
    assert not {*first} & {*state.processes(IDS)}


def test_a_key_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("x" * 43)
    (tmp_path / "elsewhere").chmod(0o600)
    state = StateDir(tmp_path / "state").open()
    (state.path / "api-key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError):
        state.keys(IDS)


def test_a_directory_that_cannot_be_created_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file"):
        StateDir(tmp_path / "file" / "state").open()


def test_the_state_directory_is_the_configured_one() -> None:
    assert state_path({}, Path("given")) == Path("given")
    assert state_path({"FLEETSIM_STATE": "there", "XDG_STATE_HOME": "/x"}) == Path("there")
    assert state_path({"XDG_STATE_HOME": "/x"}) == Path("/x/fleetsim")
    assert state_path({"XDG_STATE_HOME": "relative"}) == Path.home() / ".local/state/fleetsim"
    assert state_path({}) == Path.home() / ".local/state/fleetsim"
