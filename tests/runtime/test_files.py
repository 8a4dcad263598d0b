"""Files on disk: limits, refusals, digests, atomic replacement (F-48)."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from fleetsim.model.errors import ConfigError
from fleetsim.runtime.files import IRREGULAR, DiskFiles

pytestmark = pytest.mark.sockets  # threads need the machine's own loop


@pytest.fixture
def files() -> DiskFiles:
    return DiskFiles()


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@pytest.mark.parametrize(("size", "passes"), [(9, True), (10, True), (11, False)])
async def test_a_file_is_read_up_to_its_limit(files: DiskFiles, tmp_path: Path, size: int, passes: bool) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * size)
    if passes:
        assert await files.read(path, bytes_max=10) == b"x" * size
    else:
        with pytest.raises(ConfigError):
            await files.read(path, bytes_max=10)


async def test_one_file_has_the_same_stamp_alone_and_in_its_folder(files: DiskFiles, tmp_path: Path) -> None:
    for name in ("a.yaml", ".a.yaml"):
        (tmp_path / name).write_text("x")
    (listed,) = await files.listing(tmp_path, suffixes=(".yaml",))
    assert await files.stamp(tmp_path / "a.yaml") == listed
    hidden = await files.stamp(tmp_path / ".a.yaml")
    assert hidden is not None
    assert hidden.digest == listed.digest
    (tmp_path / "link").symlink_to(tmp_path / "a.yaml")
    link = await files.stamp(tmp_path / "link")
    assert link is not None
    assert link.digest == IRREGULAR
    assert await files.stamp(tmp_path / "none") is None


async def test_an_irregular_file_is_refused_without_blocking(files: DiskFiles, tmp_path: Path) -> None:
    (tmp_path / "real").write_text("secret")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "dangling", "folder", "pipe", "missing", "nul\0byte"):
        with pytest.raises(ConfigError, match=name[:3]):
            await files.read(tmp_path / name, bytes_max=100)
    with pytest.raises(ConfigError):
        await files.read(Path("/dev/zero"), bytes_max=100)


async def test_a_file_without_read_permission_is_an_error_that_says_so(files: DiskFiles, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        await files.read(tmp_path / "missing", bytes_max=1)


async def test_a_listing_is_sorted_and_digested_and_marks_irregular_files(files: DiskFiles, tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text("b")
    (tmp_path / "a.yml").write_text("b")
    (tmp_path / "c.txt").write_text("c")
    (tmp_path / ".hidden.yaml").write_text("h")
    (tmp_path / "d.yaml").symlink_to(tmp_path / "b.yaml")
    listed = await files.listing(tmp_path, suffixes=(".yaml", ".yml"))
    assert [stamp.path.name for stamp in listed] == ["a.yml", "b.yaml", "d.yaml"]
    assert listed[0].digest == listed[1].digest != listed[2].digest == IRREGULAR


async def test_an_edit_of_the_same_size_changes_the_digest(files: DiskFiles, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("aaa")
    before = await files.listing(tmp_path, suffixes=(".yaml",))
    times = path.stat()
    path.write_text("bbb")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert await files.listing(tmp_path, suffixes=(".yaml",)) != before


async def test_a_folder_that_cannot_be_listed_is_an_error_that_says_so(files: DiskFiles, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none"):
        await files.listing(tmp_path / "none", suffixes=(".yaml",))


async def test_a_write_replaces_the_whole_file_with_the_requested_mode(files: DiskFiles, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("old")
    path.chmod(0o644)
    await files.write(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    await files.write(path, b"newer", mode=0o640)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert names(tmp_path) == ["key"]


async def test_a_write_replaces_a_link_and_not_its_target(files: DiskFiles, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    await files.write(tmp_path / "link", b"new")
    assert (tmp_path / "target").read_text() == "kept"
    assert not (tmp_path / "link").is_symlink()


async def test_a_failed_write_leaves_no_file(files: DiskFiles, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "full").mkdir()
    with pytest.raises(ConfigError):
        await files.write(tmp_path / "folder", b"x")
    with pytest.raises(ConfigError):
        await files.write(tmp_path / "none" / "a", b"x")
    assert names(tmp_path) == ["folder"]


async def test_removing_a_file_twice_is_no_error(files: DiskFiles, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    await files.remove(tmp_path / "a")
    await files.remove(tmp_path / "a")
    assert names(tmp_path) == []


async def test_the_folders_in_a_folder_are_listed_by_name_without_hidden_ones_and_links(
    files: DiskFiles, tmp_path: Path
) -> None:
    for name in ("b", "a", ".hidden"):
        (tmp_path / name).mkdir()
    (tmp_path / "c").symlink_to(tmp_path / "a")
    (tmp_path / "file").write_text("x")
    assert await files.folders(tmp_path) == (tmp_path / "a", tmp_path / "b")
    assert await files.folders(tmp_path / "none") == ()


async def test_a_new_file_is_written_with_its_folders_and_never_replaces_one(files: DiskFiles, tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "a"
    assert await files.create(path, b"first") is True
    assert await files.create(path, b"second") is False
    assert path.read_bytes() == b"first"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert await files.create(path.with_name("b"), b"x", mode=0o644) is True
    assert stat.S_IMODE(path.with_name("b").stat().st_mode) == 0o644
    assert names(path.parent) == ["a", "b"]


async def test_without_links_a_new_file_is_written_whole_and_never_replaces_one(
    files: DiskFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(source: str, target: Path) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refused)
    assert await files.create(tmp_path / "a", b"first", mode=0o640) is True
    assert await files.create(tmp_path / "a", b"second") is False
    assert (tmp_path / "a").read_bytes() == b"first"
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640
    assert names(tmp_path) == ["a"]


async def test_a_file_that_cannot_be_created_is_an_error_and_leaves_no_file(files: DiskFiles, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="file"):
        await files.create(tmp_path / "file" / "a", b"x")
    assert names(tmp_path) == ["file"]


async def test_a_replaced_file_keeps_its_mode_unless_one_is_requested(files: DiskFiles, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    path.chmod(0o644)
    await files.write(path, b"new", mode=None)
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o644)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o601])
async def test_a_private_file_is_read_only_if_it_is_the_owners_alone(
    files: DiskFiles, tmp_path: Path, mode: int
) -> None:
    path = tmp_path / "key"
    path.write_text("secret")
    path.chmod(mode)
    assert await files.read(path, bytes_max=10) == b"secret"
    with pytest.raises(ConfigError):
        await files.read(path, bytes_max=10, private=True)
    path.chmod(0o600)
    assert await files.read(path, bytes_max=10, private=True) == b"secret"


async def test_a_file_that_cannot_be_written_whole_leaves_no_file(
    files: DiskFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError):
        await files.create(tmp_path / "a", b"x")
    with pytest.raises(ConfigError):
        await files.write(tmp_path / "a", b"x")
    assert names(tmp_path) == []


async def test_a_file_is_synced_before_its_name_and_its_name_before_the_return(
    files: DiskFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of the system calls shows whether the file survives a loss of power."""
    told: list[str] = []
    sync, replace, link = os.fsync, os.replace, os.link

    def synced(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        told.append("folder" if is_folder else f"{os.fstat(descriptor).st_size} bytes")
        sync(descriptor)

    def named(does: Callable[..., None], source: str, target: Path) -> None:
        told.append("name")
        does(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", partial(named, replace))
    monkeypatch.setattr(os, "link", partial(named, link))
    await files.create(tmp_path / "a", b"new")
    await files.write(tmp_path / "a", b"newer")
    assert told == ["3 bytes", "name", "folder", "5 bytes", "name", "folder"]


async def test_no_descriptor_stays_open_after_a_file_is_accepted_or_refused(files: DiskFiles, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    await files.write(tmp_path / "a", b"x")  # from here on, the threads and their descriptors exist
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(8):
        await files.write(tmp_path / "a", b"x")
        await files.create(tmp_path / "b", b"x")
        await files.read(tmp_path / "a", bytes_max=1)
        await files.listing(tmp_path, suffixes=("a", "pipe"))
        await files.folders(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.sockets
async def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = asyncio.ensure_future(asyncio.to_thread(pipe.read_bytes))
    await DiskFiles().write(pipe, b"report")
    assert await reading == b"report"
    assert pipe.is_fifo()


async def test_a_path_to_an_open_descriptor_is_written_through_it(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        log.write(b"before ")
        log.flush()
        await DiskFiles().write(Path(f"/dev/fd/{log.fileno()}"), b"report")
    assert (tmp_path / "log").read_bytes() == b"before report"
