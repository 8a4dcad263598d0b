"""Ten broken agents over real sockets: the row of each must fail.

``python tests/interop/mutants.py [ID...]``. For each: ``python -m tests.broken ID`` in a process of its own, then
``fleetsim check URL --only ROW``. The healthy agent must pass all those rows. Prints a line each and exits 1 if one
was not caught.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.broken.catalogue import mutant  # noqa: E402
from tests.ports import held_port  # noqa: E402

TEN = (
    "missing-kind",
    "token-shape",
    "card-url-root",
    "cancel-without-push",
    "closed-over-push-config",
    "producer-tied",
    "full-text-deltas",
    "no-push-list",
    "blocking-send",
    "failures-completed",
)
FLEETSIM = (sys.executable, "-c", "from fleetsim.cli.main import main; main()")
START_S, CHECK_S, SIDE_BY_SIDE = 30.0, 200.0, 5
_SERVES = re.compile(r"serves A2A at (http://\S+?)/a2a")


@contextlib.contextmanager
def _agent(broken: str | None, place: str) -> Iterator[str]:
    """An agent in a process of its own; yields its root URL."""
    agent = (sys.executable, "-m", "tests.broken", broken) if broken else (*FLEETSIM, "agent")
    process = subprocess.Popen(
        [*agent, "--port", "0", "--allow-webhook", place],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with ThreadPoolExecutor(1) as pool:
        try:
            yield pool.submit(_address, process).result(START_S)
        finally:
            process.terminate()
            process.wait(10)


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    told = ""
    for line in process.stderr:
        told += line
        if found := _SERVES.search(line):
            # Somebody has to go on reading, or the agent would wait for its log one day.
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return found.group(1)
    raise SystemExit(f"the agent did not start: {told.strip() or 'it said nothing'}")


def _verdicts(broken: str | None, rows: Sequence[str], tries: int = 2) -> dict[str, set[str]]:
    """The check's verdict about each row of an agent, over all dialects. Repeated if the agent could not be reached."""
    with held_port() as port, _agent(broken, place := f"127.0.0.1:{port}") as url:
        only = [word for row in rows for word in ("--only", row)]
        words = ["check", url, *only, "--webhook-listen", place, "--allow-side-effects", "-o", "json", "-q"]
        done = subprocess.run(
            [*FLEETSIM, *words], capture_output=True, text=True, timeout=CHECK_S, check=False, stdin=subprocess.DEVNULL
        )
    if not done.stdout.strip() and tries > 1:
        return _verdicts(broken, rows, tries - 1)
    if not done.stdout.strip():
        raise SystemExit(f"{broken or 'healthy'}: the check said nothing: {done.stderr.strip()}")
    found: dict[str, set[str]] = {}
    for finding in json.loads(done.stdout)["findings"]:
        found.setdefault(finding["id"], set()).add(finding["verdict"])
    return found


def _line(mutant_id: str) -> tuple[bool, str]:
    row, began = mutant(mutant_id).row, time.monotonic()
    verdicts = _verdicts(mutant_id, [row]).get(row, set())
    caught = "fail" in verdicts
    said = "caught" if caught else f"SURVIVED: {', '.join(sorted(verdicts)) or 'nothing was found'}"
    return caught, f"{mutant_id:26} {row}  {said}  {time.monotonic() - began:.1f} s"


def _healthy(ids: Sequence[str]) -> tuple[bool, str]:
    verdicts = _verdicts(None, [mutant(mutant_id).row for mutant_id in ids])
    bad = {row: sorted(said) for row, said in verdicts.items() if said != {"pass"}}
    return not bad, f"{'healthy':26} {len(verdicts)} rows  {'pass' if not bad else f'NOT PASSED: {bad}'}"


def main(words: Sequence[str]) -> int:
    """0 when each was caught and the healthy agent passes."""
    ids = tuple(words) or TEN
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        lines = [pool.submit(_healthy, ids), *(pool.submit(_line, mutant_id) for mutant_id in ids)]
        good = 0
        for line in lines:
            fine, said = line.result()
            good += fine
            print(said, flush=True)
    print(f"{good - lines[0].result()[0]} of {len(ids)} broken agents caught over sockets")
    return 0 if good == len(lines) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
