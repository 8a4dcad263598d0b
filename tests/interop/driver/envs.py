"""The peers' environments: built once from pinned files, kept under a digest of them, never shared with ours."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from driver.places import CACHE, LOGS, PEERS

BUILD_LIMIT_S = 240
NODE_MAJOR_MIN = 18
DONE = ".complete"


class Kind(StrEnum):
    """The packages of an environment."""

    VENV = "venv"
    NODE = "node"
    PROJECT = "project"


@dataclass(frozen=True, slots=True, kw_only=True)
class Env:
    """One environment. ``name`` is the folder of its pinned files under ``peers/``. ``programs`` is the folder of its
    server and client, if another's serve it too."""

    name: str
    kind: Kind
    programs: str = ""

    @property
    def folder(self) -> Path:
        """Where its programs are."""
        return PEERS / (self.programs or self.name)


class CannotBuild(Exception):
    """An environment cannot be had here; the message says why, on one line."""


PINS = {Kind.VENV: ("requirements.txt",), Kind.NODE: ("package.json", "package-lock.json")}


def ready(env: Env) -> Path:
    """The environment's folder, built if need be.

    Raises:
        CannotBuild: node or npm is missing or too old, or the installer failed; its log is named.
    """
    if env.kind is Kind.PROJECT:
        return env.folder
    if env.kind is Kind.NODE:
        _demand_node()
    home = CACHE / f"{env.name}-{_digest(env)}"
    with _lock(env.name):
        if not (home / DONE).exists():
            _drop_old(env.name)
            home.mkdir(parents=True)
            (_build_venv if env.kind is Kind.VENV else _build_node)(env, home)
            (home / DONE).touch()
    return home


def command(env: Env, home: Path, program: str) -> list[str]:
    """How to start a peer's ``server`` or ``client``."""
    if env.kind is Kind.NODE:
        # Node finds packages beside the script, so the script goes to where they are.
        script = home / f"{program}.mjs"
        shutil.copyfile(env.folder / script.name, script)
        return ["node", str(script)]
    return [python(env, home), str(env.folder / f"{program}.py")]


def python(env: Env, home: Path) -> str:
    """The interpreter of a Python environment."""
    return sys.executable if env.kind is Kind.PROJECT else str(home / "bin" / "python")


def _digest(env: Env) -> str:
    digest = hashlib.sha256(f"{sys.version_info[:2]}".encode() if env.kind is Kind.VENV else b"node")
    for pinned in PINS[env.kind]:
        digest.update((PEERS / env.name / pinned).read_bytes())
    return digest.hexdigest()[:12]


def _drop_old(name: str) -> None:
    for old in CACHE.glob(f"{name}-????????????"):
        shutil.rmtree(old)


@contextmanager
def _lock(name: str) -> Iterator[None]:
    CACHE.mkdir(exist_ok=True)
    LOGS.mkdir(exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _build_venv(env: Env, home: Path) -> None:
    _install(env, [sys.executable, "-m", "venv", str(home)])
    pip = [str(home / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    # pip 23 fails where a dependency wants one with an extra of which a newer release than the lock's is out.
    locked = ["--no-deps", "--require-hashes", "-r", str(PEERS / env.name / "requirements.txt")]
    _install(env, [*pip, "install", "-q", *locked])


def _build_node(env: Env, home: Path) -> None:
    for pinned in PINS[Kind.NODE]:
        shutil.copyfile(PEERS / env.name / pinned, home / pinned)
    npm = ["npm", "ci", "--omit=dev", "--omit=peer", "--omit=optional", "--ignore-scripts"]
    _install(env, [*npm, "--no-audit", "--no-fund", "--loglevel=error"], home)


def _install(env: Env, words: list[str], where: Path | None = None) -> None:
    log = LOGS / f"build-{env.name}.log"
    with log.open("ab") as out:
        try:
            subprocess.run(
                words, cwd=where, stdout=out, stderr=out, stdin=subprocess.DEVNULL, check=True, timeout=BUILD_LIMIT_S
            )
        except (OSError, subprocess.SubprocessError) as why:
            raise CannotBuild(f"{env.name} could not be built, see {os.path.relpath(log)}") from why


def _demand_node() -> None:
    if not (shutil.which("node") and shutil.which("npm")):
        raise CannotBuild("node and npm are not installed")
    said = subprocess.run(["node", "--version"], capture_output=True, text=True, check=False, timeout=20).stdout
    major = said.strip().lstrip("v").split(".")[0]
    if not major.isdigit() or int(major) < NODE_MAJOR_MIN:
        raise CannotBuild(f"node {said.strip() or '?'} is older than {NODE_MAJOR_MIN}")
