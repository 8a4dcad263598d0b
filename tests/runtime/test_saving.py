"""A file that an agent names is saved in the folder a person named, under a plain name, and replaces no file."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetsim.model.errors import ConfigError
from fleetsim.runtime.files import NAME_BYTES_MAX, Folder, safe_name

NAMES = {
    "report.pdf": "report.pdf",
    "../../etc/passwd": "passwd",
    "..\\..\\windows\\system.ini": "system.ini",
    "/etc/shadow": "shadow",
    "C:\\boot.ini": "boot.ini",
    "C:boot.ini": "Cboot.ini",
    "a.txt:hidden": "a.txthidden",
    "..": "else",
    ".": "else",
    "": "else",
    None: "else",
    "   ": "else",
    "a/": "else",
    ".bashrc": "bashrc",
    "...x": "x",
    "-rf": "rf",
    "~root": "root",
    "a\x00b": "ab",
    "a\nb.txt": "a b.txt",
    "a\x1b[2Jb": "a[2Jb",
    "in\u202evoice\u202c.exe": "invoice.exe",
    "\u200d\u200c\ufeff": "else",
    "CON": "_CON",
    "con.txt": "_con.txt",
    "NUL .tar.gz": "_NUL .tar.gz",
    "com1": "_com1",
    "COM¹.log": "_COM¹.log",
    "console": "console",
    "trailing. . ": "trailing",
    'what?*<>|".txt': "what.txt",
    "n" * 300: "n" * NAME_BYTES_MAX,
    "n" * 300 + ".pdf": "n" * (NAME_BYTES_MAX - 4) + ".pdf",
    "\N{WOMAN}" * 100 + ".png": "\N{WOMAN}" * 49 + ".png",
    "übersicht – 2026.pdf": "übersicht – 2026.pdf",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_name_becomes_a_plain_one(name: str | None) -> None:
    assert safe_name(name, "else") == NAMES[name]


@given(st.text(st.characters(), max_size=400))
def test_any_name_becomes_one_file_in_the_folder(name: str) -> None:
    made = safe_name(name, "else")
    assert made == Path(made).name
    assert 0 < len(made.encode()) <= NAME_BYTES_MAX
    assert not made.startswith((".", "-", "~"))
    assert made == safe_name(made, "else")


def test_a_file_is_never_overwritten_and_equal_names_are_numbered(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("mine")
    with Folder(tmp_path) as folder:
        assert folder.save("a.txt", b"1").name == "a (2).txt"
        assert folder.save("a.txt", b"2").name == "a (3).txt"
    assert (tmp_path / "a.txt").read_text() == "mine"
    assert (tmp_path / "a (3).txt").read_bytes() == b"2"


def test_a_symlink_is_not_followed_even_if_its_target_is_missing(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("mine")
    out = tmp_path / "out"
    out.mkdir()
    (out / "a").symlink_to(secret)
    (out / "b").symlink_to(tmp_path / "nowhere")
    with Folder(out) as folder:
        assert [folder.save(name, b"x").name for name in ("a", "b")] == ["a (2)", "b (2)"]
    assert secret.read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()


def test_a_folder_replaced_meanwhile_gets_no_file(tmp_path: Path) -> None:
    """The file is written to the folder that was opened, whatever has its name by then."""
    out, other = tmp_path / "out", tmp_path / "other"
    other.mkdir()
    with Folder(out) as folder:
        out.rename(tmp_path / "moved")
        out.symlink_to(other)
        folder.save("a", b"x")
    assert not list(other.iterdir())
    assert (tmp_path / "moved" / "a").read_bytes() == b"x"


def test_the_folder_itself_may_be_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with Folder(tmp_path / "link" / "deeper") as folder:
        folder.save("a", b"x")
    assert (tmp_path / "real" / "deeper" / "a").read_bytes() == b"x"


def test_a_path_that_is_not_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError):
        Folder(tmp_path / "file").__enter__()


def test_a_file_that_cannot_be_written_whole_is_removed(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Folder(tmp_path) as folder:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, hard))
        try:
            with pytest.raises(ConfigError):
                folder.save("a", b"x" * 100_000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for n in range(5):
        with Folder(tmp_path) as folder:
            folder.save("a.txt", b"x" * n)
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("n" * 195 + ".pdf", "n" * 195 + ".pdf"),
        ("n" * 196 + ".pdf", "n" * 196 + ".pdf"),
        ("n" * 197 + ".pdf", "n" * 196 + ".pdf"),
        ("a." + "s" * 19, "a." + "s" * 19),
        ("n" * 190 + "." + "s" * 19, "n" * 180 + "." + "s" * 19),
        ("n" * 190 + "." + "s" * 20, "n" * 190 + "." + "s" * 9),
        ("x" * 900 + "y.pdf", "x" * 196 + ".pdf"),
        ("n" * 150 + " . " + "n" * 60, "n" * 150 + " . " + "n" * 47),
        ("n" * 198 + "  x" + "n" * 60, "n" * 198),
        ("LPT9.txt", "_LPT9.txt"),
        ("lpt", "lpt"),
        ("conin$", "_conin$"),
    ],
)
def test_a_long_name_is_cut_before_its_suffix(name: str, made: str) -> None:
    assert safe_name(name, "else") == made


@pytest.mark.slow
def test_the_thousandth_file_of_one_name_is_the_last(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    for number in range(2, 1_000):
        (tmp_path / f"a ({number}).txt").touch()
    with Folder(tmp_path) as folder:
        assert folder.save("a.txt", b"x") == tmp_path / "a (1000).txt"
        with pytest.raises(ConfigError) as caught:
            folder.save("a.txt", b"x")
    assert "a.txt" in str(caught.value)
    assert "--out" in str(caught.value.hint)


def test_a_saved_file_has_the_mode_of_the_users_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with Folder(tmp_path / "deep" / "er") as folder:
            made = folder.save("a", b"x")
    finally:
        os.umask(before)
    assert made.stat().st_mode & 0o777 == 0o640
    with Folder(tmp_path) as folder, pytest.raises(ConfigError):
        folder.save("n" * 300, b"x")
