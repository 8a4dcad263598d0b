"""The defects of the original system, planted one at a time in a copy of ours; a named test must detect each.

A test that has never been red proves nothing. Every row names a fault of the original, the edit that repeats
it here, and the test that must then fail. ``python -m tests.storms.planted`` plants them all; ``--only U4``
one of them.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Planted:
    """One defect: in ``file``, ``old`` becomes ``new``; ``test`` (a pytest selection) must then fail."""

    name: str
    wrong: str
    file: str
    old: str
    new: str
    test: str


STEP, FAULTS = "tests/request/test_step.py", "tests/caller/test_caller_faults.py"
DEFECTS = (
    Planted(
        "U1",
        "news for a task that has ended is applied once more: several answers for one task",
        "request/machine.py",
        "        TaskUpdate: _to(following.late_update, _ENDED),\n",
        "        TaskUpdate: _to(following.task_update, _ENDED),\n",
        f"{STEP} -k lands_during_a_poll",
    ),
    Planted(
        "U1b",
        "every hub that closes a request publishes its outcome, even if another decided it",
        "ledger/sqlite/ledger.py",
        "        if closed.rowcount != 1:\n            return False\n        add_outcome",
        "        if closed.rowcount != 1:\n            return True\n        add_outcome",
        "tests/ledger/test_ledger.py -k first_outcome_stays",
    ),
    Planted(
        "U2",
        "a poll starts while one is in the air",
        "request/signals.py",
        "        if polling.began is None:\n",
        "        if True:\n",
        "tests/request/test_step_storm.py -x",
    ),
    Planted(
        "U3",
        "calls to different agents wait for each other",
        "caller/agent_limiter.py",
        "        return not taken or (taken < self._per_owner and self._free > 0)\n\n"
        "    def _add(self, owner: str) -> None:\n"
        "        self._free -= bool(self._taken[owner])\n",
        "        return taken < self._per_owner and self._free > 0\n\n"
        "    def _add(self, owner: str) -> None:\n"
        "        self._free -= 1\n",
        "tests/caller/test_agent_limiter.py -k hang_with_eight_calls",
    ),
    Planted(
        "U4",
        "a webhook puts the safety poll off",
        "request/following.py",
        "    if polled or (Timer.POLL not in track.timers and track.polling.next_at is None):\n",
        "    track.timers.pop(Timer.POLL, None)\n    if True:\n",
        f"{STEP} -k never_postpone",
    ),
    Planted(
        "U5",
        "a task the agent does not know is polled like any other trouble",
        "request/following.py",
        "isinstance(error, TaskNotFound | AuthRefused) or",
        "isinstance(error, AuthRefused) or",
        f"{STEP} -k forgot_is_lost",
    ),
    Planted(
        "U6",
        "a request is sent before the ledger says that it may have been",
        "caller/tracker.py",
        "        await self._ledger.update(replace(track.record if track else record, phase=Phase.SENDING))\n",
        "",
        f"{FAULTS} -k no_byte_leaves",
    ),
    Planted(
        "U6b",
        "what is saved during the send takes that word back",
        "request/sending.py",
        "        track.record = replace(track.record, phase=Phase.SENDING)\n",
        "        pass\n",
        f"{FAULTS} -k no_byte_leaves",
    ),
    Planted(
        "U7",
        "an outcome decided before a restart is never told",
        "hub/hub.py",
        "        for outcome in await self.ledger.unannounced(limit=UNANNOUNCED_BATCH):\n",
        "        for outcome in ():\n",
        "tests/hub/test_hub.py -k decided_outcome_without",
    ),
    Planted(
        "U8",
        "an outcome that comes twice counts twice",
        "health/fleet_health.py",
        "        if outcome.correlation_id in self._ids:\n",
        "        if False:\n",
        "tests/health/test_health.py",
    ),
    Planted(
        "U9",
        "commits are not synced before they are acknowledged",
        "ledger/sqlite/file.py",
        "PRAGMA synchronous = FULL",
        "PRAGMA synchronous = NORMAL",
        "tests/ledger/test_ledger_file.py -k synced_before",
    ),
    Planted(
        "U9b",
        "storage that refuses is taken for storage that wrote",
        "caller/record_writer.py",
        "            except NotAccepting:\n                await asyncio.sleep(AGAIN_S)\n",
        "            except NotAccepting:\n                return None  # type: ignore[return-value]\n",
        "tests/hub/test_hub_faults.py -k 'full_disk or cannot_be_recorded'",
    ),
    Planted(
        "U10",
        "a token is not held to the agent and task it was made for",
        "caller/receiver.py",
        "not named <= {bound}",
        "False",
        "tests/caller/test_receiver.py",
    ),
    Planted(
        "U11",
        "a token proves nothing by itself",
        "caller/webhooks.py",
        "epoch not in self._keys or not hmac.compare_digest(signature_bytes, self._mac(epoch, claims))",
        "epoch not in self._keys",
        "tests/caller/test_receiver.py",
    ),
    Planted(
        "U12",
        "a reply has no deadline once it began",
        "runtime/exchange.py",
        "    return None if limits.total_s is None else asyncio.get_running_loop().time() + limits.total_s\n",
        "    return None\n",
        "tests/runtime/test_exchange.py -k whole_deadline",
    ),
    Planted(
        "U13",
        "redirects are followed",
        "client/http.py",
        '        if not said or AgentUrl.parse(there.partition("#")[0]).origin != address.origin:\n',
        "        if said:\n            return there\n        if not said:\n",
        "tests/client/test_client_sockets.py -k redirect",
    ),
    Planted(
        "U14",
        "a long wait for a slot is cut short and fires",
        "ceremonies/scheduler.py",
        "            slots = await self._slots_until(entry, now)\n",
        "            slots = [entry.next_at or now]\n            now = slots[0]\n",
        "tests/ceremonies/test_scheduler.py -k 'yearly or catch or missed or ahead'",
    ),
    Planted(
        "U15",
        "the next slot is looked for from now, not from the one that fired",
        "ceremonies/scheduler.py",
        "                entry.look_from(slots[-1])\n",
        "                entry.look_from(now - timedelta(seconds=1))\n",
        "tests/ceremonies/test_scheduler.py -x",
    ),
    Planted(
        "U16",
        "two hubs may claim one slot",
        "ledger/sqlite/ledger.py",
        "                return False\n            for record in records:",
        "                pass\n            for record in records:",
        "tests/ceremonies/test_scheduler.py tests/ledger/test_ledger.py -k 'two_hubs or of_one_slot_at_once'",
    ),
    Planted(
        "U17",
        "a ceremony's file is read again only if its size changed",
        "testbed/runtime.py",
        "digest=hashlib.sha256(content).hexdigest())\n                for",
        "digest=str(len(content)))\n                for",
        "tests/ceremonies/test_scheduler.py -k equal_size",
    ),
    Planted(
        "U20",
        "a caller without a key is accepted",
        "hub/keys.py",
        "        if len(given) != 1:\n            return None\n",
        "        if len(given) != 1:\n            return self._holders[0][1]\n",
        "tests/hub/test_permissions.py -k each_key_opens",
    ),
    Planted(
        "U21",
        "firing a ceremony has a door of its own",
        "hub/http.py",
        "        if endpoint is not None and endpoint.who is Who.ANYONE:\n",
        '        if path.endswith("/run") or (endpoint is not None and endpoint.who is Who.ANYONE):\n',
        "tests/hub/test_permissions.py -k each_key_opens",
    ),
    Planted(
        "F-22",
        "after a restart an answer is sent again without asking",
        "request/asking.py",
        "    if key == track.record.over[-1]:\n        context.effects",
        "    if True:\n        context.effects",
        "tests/request/test_step_faults.py",
    ),
    Planted(
        "F-42",
        "polls that are due at once go out at once",
        "caller/poll_turns.py",
        "POLLS_PER_S, POLLS_HEADROOM = 400, 1.4",
        "POLLS_PER_S, POLLS_HEADROOM = 400_000, 1.4",
        f"{FAULTS} -k due",
    ),
    Planted(
        "F-43",
        "what passed while nobody looked ends the request",
        "request/machine.py",
        "        _excuse(context)\n",
        "        pass\n",
        "tests/request/test_step_faults.py",
    ),
)
"""U18 and U19 were in calls that create and change ceremonies over HTTP: there are none here (files do)."""

NOT_A_DEFECT = re.compile(r"^E +(NameError|ImportError|SyntaxError|IndentationError).*", re.MULTILINE)
"""A test that fails by one of these fails for another reason than the defect."""


def plant(defect: Planted, tree: Path) -> str | None:
    """Plant the defect, run its test, and remove it; returns the test's first failure, or None if all passed."""
    path = tree / "fleetsim" / defect.file
    before = path.read_text(encoding="utf-8")
    if before.count(defect.old) != 1:
        raise SystemExit(f"{defect.name}: {defect.file} no longer contains the old text exactly once")
    path.write_text(before.replace(defect.old, defect.new), encoding="utf-8")
    try:
        command = f"{sys.executable} -m pytest -q -p no:cacheprovider {defect.test}"
        done = subprocess.run(command, cwd=tree, shell=True, capture_output=True, text=True, timeout=300, check=False)
    finally:
        path.write_text(before, encoding="utf-8")
    if error := NOT_A_DEFECT.search(done.stdout):
        raise SystemExit(f"{defect.name}: the planted text is not today's code: {error[0]}")
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED tests", "ERROR tests"))]
    return failed[0].split(" - ")[0] if done.returncode == 1 and failed else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="the names of defects to plant")
    options = parser.parse_args()
    missed = []
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        tree = Path(folder)
        for part in ("fleetsim", "tests"):
            ignored = shutil.ignore_patterns("__pycache__", "interop")
            shutil.copytree(TOP / part, tree / part, ignore=ignored)
        for part in ("pyproject.toml", "agents.example.yaml"):
            shutil.copy(TOP / part, tree / part)
        for defect in DEFECTS:
            if options.only and defect.name not in options.only:
                continue
            began = time.perf_counter()
            caught = plant(defect, tree)
            print(
                f"{defect.name:5} {defect.wrong}\n      {caught or 'NOT CAUGHT'} ({time.perf_counter() - began:.0f} s)",
                flush=True,
            )
            missed += [] if caught else [defect.name]
    if missed:
        raise SystemExit(f"not caught: {', '.join(missed)}")


if __name__ == "__main__":
    main()
