"""A released client calls a released server through `fleetsim tape record`, and then the tape alone: each check must
have the same result. The first word names the pair.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from driver.envs import command, ready
from driver.expected import OURS, TAPE_PAIRS
from driver.places import LOGS, ROOT, SHARED
from driver.processes import client, environment, server

sys.path.insert(0, str(ROOT))

from tests.ports import held_port

LIMIT_S = 100.0


@contextmanager
def tape(*words: str) -> Iterator[str]:
    """Run a verb of `fleetsim tape` for the length of the block; yields the address that it prints."""
    argv = [sys.executable, "-m", "fleetsim", "tape", *words]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=environment({}))
    assert process.stderr is not None
    try:
        yield next(found[1] for line in process.stderr if (found := re.search(r"call it at (\S+)", line)))
    finally:
        process.send_signal(signal.SIGINT)
        print(process.communicate(timeout=30)[1], file=sys.stderr)


def main(name: str) -> int:
    called, calling, serve_words, call_words = TAPE_PAIRS[name]
    extra = {"INTEROP_BEARER": json.loads((SHARED / "script.json").read_text())["bearer"]} if called is OURS else {}
    serve = [*command(called, ready(called), "server"), *serve_words]
    call = command(calling, ready(calling), "client")
    with tempfile.TemporaryDirectory() as folder, held_port() as held, held_port() as ours:
        file, port, here = Path(folder) / "peer.tape", str(held), ("--port", str(ours))
        serve += here[1:] if called is OURS else []  # the one address to which our agent sends webhooks
        results = []
        with ExitStack() as running:
            url = running.enter_context(server(serve, extra, LOGS / f"tape-{name}-server.log"))
            at = running.enter_context(tape("record", url, "--out", str(file), *here))
            results.append(client([*call, at, port, *call_words], extra, LOGS / f"tape-{name}-agent.log", LIMIT_S))
        with tape("play", str(file), *here) as at:
            results.append(client([*call, at, port, *call_words], extra, LOGS / f"tape-{name}-tape.log", LIMIT_S))
        if kept := os.environ.get("INTEROP_TAPES"):
            file.replace(Path(kept) / f"{name}.tape")
    first, second = ({row["op"]: row for row in rows} for rows in results)
    wrong = 0
    for op in {**first, **second}:
        agent, taped = (rows.get(op, {"result": "missing", "detail": ""}) for rows in (first, second))
        same = agent["result"] == taped["result"]
        wrong += not same
        print(f"{'ok' if same else 'FAILED'} {op}: {agent['result']} ({agent['detail']})", end="")
        print("" if same else f", by tape {taped['result']} ({taped['detail']})")
    return 1 if wrong or not first else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
