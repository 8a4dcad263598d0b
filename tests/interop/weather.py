"""One released server in every weather of ``driver/weather.py``, called by a running hub with its ledger on disk.

``python tests/interop/weather.py PEER [PART OF A ROW'S NAME …]``. Each row has a fault proxy and so an agent of its
own; all rows run at once against one server. Checked for each: the outcome, its text, how often the server
carried the message out, that the weather was met, and, from the file once the hub has left it, that there is
one outcome and one telling of it. Prints a line per row and exits 1 if any is not as the table says.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from driver.envs import command, ready
from driver.expected import WEATHER_PEERS
from driver.places import LOGS, SHARED
from driver.processes import server
from driver.weather import LATE_OFFSETS, ROWS, Row

from fleetsim.client import AgentClient, ClientLimits, Credential
from fleetsim.events.request import CallRetried, Event, OutcomeDecided, QuestionAsked
from fleetsim.fleet.settings import AgentEntry, FleetConfig, FleetSettings
from fleetsim.hub.hub import Hub
from fleetsim.hub.server import running_hub
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.model.work import Answer, Outcome, SkillRequest
from fleetsim.runtime.ports import Request, Runtime
from fleetsim.runtime.real import running_runtime
from fleetsim.testbed.faults import (
    HTML_ERROR,
    CutAfter,
    Data,
    Drip,
    DropAfter,
    EditChunk,
    EditStart,
    End,
    Fault,
    FaultInput,
    Latency,
    LoseReply,
    LoseRequest,
    Match,
    OnChunk,
    OnStart,
    Stall,
    Start,
    Status,
    Weather,
    called,
    html_error,
)
from fleetsim.testbed.proxy import FaultProxy

SCRIPT = json.loads((SHARED / "script.json").read_text(encoding="utf-8"))
FULL_TEXT = "".join(SCRIPT["chunks"])

POLL_S = 1.0
ANSWER_S = 4.0
"""How long a call may take here, and a send until its task is looked for; fifteen seconds otherwise."""

TASK_LIMIT_S, OUTCOME_S = 20.0, 40.0
SETTLE_S = 0.5
"""After the last outcome: whatever would run a second time has run by then."""

SENDS = {"message/send", "message/stream", "SendMessage", "SendStreamingMessage"}
POLLS = {"tasks/get", "GetTask"}
JOINS = {"tasks/resubscribe", "SubscribeToTask"}
CARD = "/.well-known/*"
COLOUR = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfClose(Fault):
    """Our sending side is closed after ``bytes_passed`` bytes, whatever length the head promised."""

    bytes_passed: int

    def on_chunk(self, moment: FaultInput, chunk: bytes) -> OnChunk:
        left = self.bytes_passed - moment.passed_bytes
        return (Data(chunk),) if len(chunk) < left else (Data(chunk[:left]), End())


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched(Fault):
    """A fault of the body, and whether it came to act: a body may be shorter than it lets pass."""

    fault: Fault
    acted: list[bool] = field(default_factory=list)

    def on_start(self, moment: FaultInput, start: Start) -> OnStart:
        return self.fault.on_start(moment, start)

    def on_chunk(self, moment: FaultInput, chunk: bytes) -> OnChunk:
        steps = tuple(self.fault.on_chunk(moment, chunk))
        self.acted.extend(True for step in steps if not isinstance(step, Data))
        return steps


@dataclass
class Trial:
    """A row on its way: its proxy, its weather and what came of it."""

    row: Row
    proxy: FaultProxy
    weather: list[Weather] = field(default_factory=list)
    cid: str = ""
    questions: int = 0
    outcome: Outcome | None = None
    took_s: float = 0.0
    trouble: str = ""

    @property
    def text(self) -> str:
        """The text that is sent; the server counts its executions by it."""
        return f"{self.row.skill} {self.row.name}"

    @property
    def answer(self) -> str:
        """The answer to the question."""
        return f"{COLOUR} {self.row.name}"


def main(peer: str, *parts: str) -> int:
    """Run the rows; 0 if all came out as expected."""
    logging.basicConfig(stream=sys.stderr, level=logging.ERROR)
    env, title = WEATHER_PEERS[peer]
    rows = [row for row in ROWS if peer in row.expected and (not parts or any(part in row.name for part in parts))]
    with tempfile.TemporaryDirectory(prefix="fleetsim-weather-") as name:
        folder = Path(name)
        book = folder / "executions"
        extra = {"INTEROP_BEARER": SCRIPT["bearer"], "INTEROP_EXECUTIONS": str(book)}
        started = time.monotonic()
        with server(command(env, ready(env), "server"), extra, LOGS / f"weather-{peer}-server.log") as url:
            trials = asyncio.run(run_all(url, peer, rows, folder / "ledger.db"))
        ran = Counter(book.read_text(encoding="utf-8").splitlines() if book.exists() else ())
    failed = sum(not tell(peer, trial, ran) for trial in trials)
    good = len(trials) - failed
    print(f"{title}: {good} of {len(trials)} weathers as expected, {time.monotonic() - started:.0f} s")
    return 1 if failed or not trials else 0


async def run_all(url: str, peer: str, rows: list[Row], file: Path) -> list[Trial]:
    """All rows at once through one hub, then a look into what it left on disk."""
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(running_runtime())
        trials = [Trial(row, await stack.enter_async_context(FaultProxy(url))) for row in rows]
        for trial in trials:
            edit_card(trial)
        async with (
            open_ledger(file, clock=runtime.clock) as ledger,
            running_hub(config(trials), runtime, ledger, client_factory=clients(runtime, peer)) as hub,
        ):
            async with asyncio.TaskGroup() as group:
                for trial in trials:
                    group.create_task(run_one(hub, trial))
            await asyncio.sleep(SETTLE_S)
        async with open_ledger(file, clock=runtime.clock) as ledger:
            told = Counter(
                e.correlation_id for e in await ledger.events(limit=100_000) if isinstance(e, OutcomeDecided)
            )
            left = {record.request.correlation_id for record in await ledger.open_requests()}
            for trial in trials:
                kept = await ledger.outcome(trial.cid)
                if trial.outcome and (kept != trial.outcome or told[trial.cid] != 1 or trial.cid in left):
                    trial.trouble = f"on disk {kept and kept.kind}, told {told[trial.cid]} times"
    return trials


def config(trials: list[Trial]) -> FleetConfig:
    """A fleet with an agent for each row, and intervals short enough to wait for."""
    agents = tuple(AgentEntry(name=t.row.name, url=t.proxy.url, push="inline" if t.row.push else "off") for t in trials)
    settings = FleetSettings(
        poll_interval_s=POLL_S, call_s=ANSWER_S, task_limit_s=TASK_LIMIT_S, retry_waits_s=(0.5, 1.0, 1.5)
    )
    return FleetConfig(agents=agents, settings=settings)


def clients(runtime: Runtime, peer: str) -> Callable[[AgentEntry], AgentClient]:
    """Clients as the hub makes them, with less patience."""
    credential = Credential.of("bearer", SCRIPT["bearer"]) if peer == "selectools" else None
    limits = ClientLimits(total_s=ANSWER_S)
    return lambda entry: AgentClient(entry.url, runtime=runtime, credential=credential, limits=limits)


def edit_card(trial: Trial) -> None:
    """Where a row sends plainly, the card no longer says that the server streams; its length stays."""
    if not trial.row.stream:
        for colon in (b":", b": "):
            said = b'"streaming"' + colon
            edit = EditChunk(edit=lambda chunk, said=said: chunk.replace(said + b"true", said + b"null"))
            trial.proxy.fault(edit, Match(path=CARD))


async def run_one(hub: Hub, trial: Trial) -> None:
    """Read the card in fair weather, put the row's weather up, ask, answer, wait."""
    view = await hub.broker.refresh(trial.row.name)
    if view.card is None or view.capabilities.streaming != trial.row.stream:
        trial.trouble = f"the card was not read as wanted: {view.capabilities if view.card else 'no card'}"
        return
    asked = SkillRequest(correlation_id=hub.runtime.ids.new(), text=trial.text, skill="mill", targets=(trial.row.name,))
    async with hub.events.subscribe() as news:
        await put_up(trial)
        started = time.monotonic()
        (trial.cid,) = await hub.submit(asked)
        try:
            async with asyncio.timeout(OUTCOME_S):
                async for batch in news:
                    for event in batch:
                        if event.correlation_id == trial.cid:
                            await react(hub, trial, event)
                    if any(e.correlation_id == trial.cid and isinstance(e, OutcomeDecided) for e in batch):
                        break
                trial.outcome = await hub.tracker.wait(trial.cid)
        except TimeoutError:
            trial.trouble = f"no outcome in {OUTCOME_S:.0f} s"
        trial.took_s = time.monotonic() - started


async def react(hub: Hub, trial: Trial, event: Event) -> None:
    """Answer every question, and let a server that was away come back once it was missed."""
    match event:
        case QuestionAsked(question_id=question_id):
            trial.questions += 1
            await hub.tracker.answer(Answer(question_id=question_id, text=trial.answer))
        case CallRetried() if trial.row.name == "send-refused-once":
            await trial.proxy.up()


def first_sends(request: Request) -> bool:
    """The message itself, not the answer to a question."""
    return called(request).method in SENDS and COLOUR.encode() not in request.body


def answers(request: Request) -> bool:
    """The answer to a question."""
    return called(request).method in SENDS and COLOUR.encode() in request.body


def polls(request: Request) -> bool:
    """A poll."""
    return called(request).method in POLLS


def joins(request: Request) -> bool:
    """A stream joined again."""
    return called(request).method in JOINS


def anything(request: Request) -> bool:
    """Every request."""
    return True


Storm = tuple[Fault, Callable[[Request], bool], int | None]

SKIES: dict[str, tuple[Storm, ...]] = {
    "latency": ((Latency(low_s=0.1, high_s=0.4), anything, None),),
    "drip": ((Drip(size=16, every_s=0.005), first_sends, None),),
    "request-lost": ((LoseRequest(), first_sends, 1),),
    "reset-head": ((LoseReply(), first_sends, 1),),
    "silence": ((Stall(at="response"), first_sends, 1),),
    "silence-head": ((Stall(at="response"), first_sends, 1),),
    "silence-first": ((Stall(at="body"), first_sends, 1),),
    "gateway": (
        (EditStart(status=502, headers={"content-type": "text/html"}), first_sends, 1),
        (EditChunk(edit=lambda _: HTML_ERROR), first_sends, 1),
    ),
    "500-then-200": ((html_error(500), first_sends, 1),),
    "503-then-200": ((Status(status=503, headers={"retry-after": "1"}), first_sends, 1),),
    "429-then-200": ((Status(status=429), first_sends, 1),),
    "html": ((Status(status=200, body=HTML_ERROR, headers={"content-type": "text/html"}), first_sends, 1),),
    "poll-500-then-200": ((html_error(500), polls, 2),),
    "poll-reset": ((DropAfter(bytes_passed=30), polls, 2),),
    "poll-cut": ((CutAfter(bytes_passed=30), polls, 2),),
    "poll-silence": ((Stall(at="response"), polls, 1),),
    "push-stream-reset": ((DropAfter(), first_sends, 1),),
    "rejoin-reset": (
        (DropAfter(bytes_passed=LATE_OFFSETS[0]), first_sends, 1),
        (DropAfter(bytes_passed=5), joins, None),
    ),
    "rejoin-refused": ((DropAfter(bytes_passed=LATE_OFFSETS[0]), first_sends, 1), (html_error(500), joins, None)),
    "ask-reply-lost": ((LoseReply(), answers, 1),),
    "ask-answer-lost": ((LoseRequest(), answers, 1),),
    "ask-answer-503": ((Status(status=503), answers, 1),),
    "ask-reply-cut": ((DropAfter(bytes_passed=40), answers, 1),),
    "ask-silence": ((Stall(at="response"), answers, 1),),
    "ask-stream-reset": ((DropAfter(bytes_passed=LATE_OFFSETS[0]), first_sends, 1),),
}
"""The faults of each row, by the row's name, or by its name without the way it sends."""

CUTS: dict[str, Callable[[int], Fault]] = {
    "reset": lambda at: DropAfter(bytes_passed=at),
    "half-close": lambda at: HalfClose(bytes_passed=at),
    "cut": lambda at: CutAfter(bytes_passed=at),
    "silence-inside": lambda at: Stall(at="body", after_bytes=at),
}


def storms(row: Row) -> tuple[Storm, ...]:
    """The weather of a row."""
    kind = row.name.partition("-")[2]
    found = SKIES.get(row.name) or SKIES.get(kind)
    if found is not None:
        return found
    how, _, at = kind.rpartition("-")
    if at.isdigit():
        return ((CUTS[how](int(at)), first_sends, 1),)
    return ((CUTS[kind](LATE_OFFSETS[0] if row.stream else 40), first_sends, 1),)


async def put_up(trial: Trial) -> None:
    """Put the row's weather up."""
    if trial.row.name.startswith("send-refused"):
        await trial.proxy.down()
        return
    for fault, meant, times in storms(trial.row):
        inside = isinstance(fault, DropAfter | HalfClose | CutAfter | Drip) or (
            isinstance(fault, Stall) and fault.at == "body"
        )
        felt = Watched(fault=fault) if inside else fault
        trial.weather.append(trial.proxy.fault(felt, Match(where=meant), times=times))


def tell(peer: str, trial: Trial, ran: Counter[str]) -> bool:
    """Print one row; whether it is as expected."""
    outcome, expected = trial.outcome, trial.row.expected[peer]
    times = {0: "never", 1: "once"}.get(ran[trial.text], f"{ran[trial.text]} times")
    got = f"{outcome.kind.value}, {times}" if outcome else "nothing"
    wrong = [trial.trouble] if trial.trouble else []
    if got != expected:
        wrong.append(f"expected {expected}")
    if not all(met(weather) for weather in trial.weather):
        wrong.append("the weather was not met")
    if outcome and outcome.kind.value == "completed":
        wrong += misread(trial, outcome, ran)
    reason = f" ({outcome.reason})" if outcome and outcome.reason else ""
    via = f" via {outcome.via.value}" if outcome else ""
    said = f"{trial.row.name}: {got}{via}, {trial.took_s:.1f} s{reason}"
    print(f"FAILED {said}: {'; '.join(wrong)}" if wrong else f"ok {said}")
    return not wrong


def met(weather: Weather) -> bool:
    """Whether a fault was there to be felt."""
    return bool(weather.fault.acted) if isinstance(weather.fault, Watched) else weather.hits > 0


def misread(trial: Trial, outcome: Outcome, ran: Counter[str]) -> list[str]:
    """The problems of a completed outcome's text, and of the number of times that the answer was used."""
    wrong = []
    wanted = {"stream": FULL_TEXT, "ask": SCRIPT["answer_prefix"] + trial.answer}.get(trial.row.skill)
    if outcome.text != (wanted or SCRIPT["echo_prefix"] + trial.text):
        wrong.append(f"text {outcome.text!r}")
    if trial.row.skill == "ask" and ran[trial.answer] != 1:
        wrong.append(f"the answer was used {ran[trial.answer]} times")
    questions = 0 if trial.row.skill != "ask" else 2 if trial.row.name == "ask-answer-lost" else 1
    if trial.questions != questions:
        wrong.append(f"{trial.questions} questions")
    return wrong


if __name__ == "__main__":
    os.environ.pop("FLEETSIM_STATE", None)
    sys.exit(main(*sys.argv[1:]))
