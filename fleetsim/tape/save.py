"""``fleetsim task save``: a request of the hub as a tape, or as a pytest that plays it."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import click
from msgspec import structs, to_builtins

from fleetsim.api.answers import AgentFacts, EndedRequest, WireExchange
from fleetsim.api.part_rows import read_part_row
from fleetsim.cli import render
from fleetsim.cli.hub_client import connect
from fleetsim.cli.main import CommonOptions
from fleetsim.client.hub_client import HubClient
from fleetsim.client.hub_follow import request_id
from fleetsim.client.wire_log import BODY_BYTES_MAX
from fleetsim.events.request import Event, Excerpt, QuestionAnswered, QuestionAsked
from fleetsim.events.wire import from_wire
from fleetsim.model.call import Call, GetTask, SendMessage
from fleetsim.model.card import AgentCard, AgentInterface, AgentSkill, Capabilities
from fleetsim.model.errors import ConfigError, RpcError
from fleetsim.model.extensions import COST_TYPE
from fleetsim.model.masking import MASK
from fleetsim.model.task import (
    TERMINAL,
    Artifact,
    DataPart,
    Message,
    Part,
    Role,
    Task,
    TaskState,
    TaskStatus,
    TextPart,
    with_text,
)
from fleetsim.model.text import one_line
from fleetsim.runtime.exchange import origin_of
from fleetsim.runtime.sse import EventReader, StreamLimits
from fleetsim.tape import tape as tapes
from fleetsim.tape.replay import conversations, last_seen, recorded
from fleetsim.tape.tape import HOOKS, TOKENS, Tape, TapeFacts, TapeFrame, TapeRow, params_of
from fleetsim.wire import binding, jsonrpc
from fleetsim.wire.base import Dialect
from fleetsim.wire.dialect import DIALECTS, write_card

JOURNAL_PAGE = 1_000
RPC_ID = "1"
FROM_LEDGER = "all exchanges, from ledger and journal: the steps between a message and its end are not known"


def environment_secrets() -> set[str]:
    """The values of variables whose names say that they hold a secret."""
    return {value for name, value in os.environ.items() if render.SECRET_NAME.search(name.upper())}


@click.command()
@click.argument("task_id", metavar="ID")
@click.option(
    "--as", "form", type=click.Choice(["tape", "pytest"]), required=True, help="A tape, or a test that plays one."
)
@click.option("--out", type=click.Path(path_type=Path), help="The file  [default: named after agent and ID, here].")
@click.pass_obj
def save(common: CommonOptions, /, task_id: str, form: str, out: Path | None) -> None:
    """Save an ended request of the hub as a tape, or as a pytest with its tape beside it.

    With `fleetsim up --wire-log`, the exchanges are the real ones, while the hub still has them. Without it, they are
    rebuilt from ledger and journal; the first line of the tape says what is rebuilt. Secrets are *** as in
    `fleetsim tape record`. The test asserts that the request completes with its text. If it did not, the test is
    expected to fail until you put a mended agent in the place of the tape.

    \b
    fleetsim task save 4f6b1c2e --as tape --out quinn.tape
    fleetsim task save 4f6b1c2e --as pytest && pytest test_quinn_4f6b1c2e.py

    Only you can read the files. Exit codes: 0, 2 if a file exists already or the request has no outcome yet.
    """
    asyncio.run(_save(common, task_id, form, out))


async def _save(common: CommonOptions, task_id: str, form: str, out: Path | None) -> None:
    async with connect(common) as hub:
        row = await hub.task(await request_id(hub, task_id))
        if not isinstance(row, EndedRequest):
            raise ConfigError("the request has no outcome yet", hint=f"fleetsim task get {row.correlation_id} --wait")
        tape = await _tape_of(hub, row)
        name = re.sub(r"\W+", "_", f"{row.agent}_{row.correlation_id[:8]}", flags=re.ASCII)
        out = out or Path(f"test_{name}.py" if form == "pytest" else f"{name}.tape")
        first = out.with_suffix(".tape") if form == "pytest" else out
        content, doubts = tape.written(environment_secrets())
        files = {first: content}
        if form == "pytest":
            files[out.with_suffix(".py")] = (await _test(Tape.read(content, ""), row, first.name, name)).encode()
        for path in files:
            if path.exists():
                raise ConfigError(f"{path} exists already", hint="give another name with --out")
        for path, text in files.items():
            await hub.runtime.files.write(path, text)
    if common.as_json:
        render.emit_json({"schema": "fleetsim/saved/1", "files": [*map(str, files)], "rebuilt": tape.head.rebuilt})
    else:
        render.lines("".join(f"{path}\n" for path in files))
    common.note(f"rebuilt: {tape.head.rebuilt}")
    common.warn(*doubts)
    verb = "pytest" if form == "pytest" else "fleetsim tape play"
    common.note(f"  next: read it, then {verb} {shlex.quote(str(list(files)[-1]))}")


async def _tape_of(hub: HubClient, row: EndedRequest) -> Tape:
    """The exchanges of the wire log, if it has all of them; else what ledger and journal have."""
    agent = next((one for one in await hub.list_agents() if one.name == row.agent), None)
    url, spoken, card, skills = "http://agent", DIALECTS["1.0"], None, agent.skills if agent else ()
    if isinstance(agent, AgentFacts):
        url, spoken = agent.rpc_url or agent.url, DIALECTS.get(agent.dialect or "", spoken)
        for one in await hub.wire(agent=row.agent):
            card = tapes.readdress(tapes.pack(one.reply.encode()), str(origin_of(url))) or card
    rebuilt = "" if card else "the card, and "
    if card is None:
        way = AgentInterface(url=url, binding=spoken.binding, protocol_version=spoken.card_version)
        known = tuple(AgentSkill(skill_id=name, name=name) for name in skills)
        streaming = Capabilities(streaming=bool(agent and agent.streaming))
        card = write_card(AgentCard(name=row.agent, interfaces=(way,), capabilities=streaming, skills=known))
    log = await hub.wire(task=row.correlation_id)
    head = TapeFacts(tape=1, url=url, recorded=row.started_at, agent=row.agent, card=card)
    tape = Tape(head, list(_taped(log)))
    turns = [turn for talk in conversations(tape) for turn in talk]
    if not turns or any(max(one.body_bytes, one.reply_bytes) > BODY_BYTES_MAX for one in log):
        events = [event async for event in _journal(hub, row)]
        hint = row.skill if row.skill in skills else ""
        rows = [*_rebuilt(row, hint, events, partial(_exchange, spoken, url))]
        return Tape(structs.replace(head, rebuilt=rebuilt + FROM_LEDGER), rows)
    sent = {turn[0].asked.ids[2]: turn for turn in turns}.values()  # the last send of each
    refused = [entry.row for turn in turns if turn not in sent for entry in turn]
    tape.rows = [kept for kept in tape.rows if kept not in refused]
    for turn in sent:
        with suppress(RpcError):
            task, at_s = await last_seen(*turn)
            if task is not None and task.task_id:
                tape.rows.append(_exchange(spoken, url, GetTask(task_id=task.task_id), task, at_s))
    return Tape(structs.replace(head, rebuilt=rebuilt + "the last read of the task"), tape.rows)


# -- from the wire log --------------------------------------------------------------------------------------------


def _taped(log: Sequence[WireExchange]) -> Iterator[TapeRow]:
    """Exchanges of the wire log as rows of a tape."""
    began, hooks = None, 0
    for one in log:
        at = datetime.fromisoformat(one.at)
        began = began or at
        row = TapeRow(
            at=round((at - began).total_seconds(), 3),
            method=one.method,
            path=urlsplit(one.url)._replace(scheme="", netloc="").geturl(),
            keyed=MASK in one.headers.values(),
            headers=tapes.kept(one.headers),
            body=tapes.pack(one.body.encode()),
            status=one.status,
            ended=one.seconds or 0.0,
            reply_headers=tapes.kept(one.reply_headers),
            reply=tapes.pack(one.reply.encode()),
            broke=one.problem,
        )
        if one.kind == "webhook":
            row.hook, row.path = max(hooks, 1), ""
            row.headers |= {name: MASK for name in one.headers if name in TOKENS}
        elif one.frames_total:
            events = ((f, EventReader(StreamLimits()).read(f"{f.text}\n\n".encode())) for f in one.frames)
            row.frames = [
                TapeFrame(f.after_s, tapes.pack(e.data.encode()), e.event, e.id) for f, es in events for e in es
            ]
        for config in tapes.push_configs(params_of(row.body)):
            hooks += 1
            config["url"] = f"{HOOKS}{hooks}"
        yield row


# -- from ledger and journal --------------------------------------------------------------------------------------


async def _journal(hub: HubClient, row: EndedRequest) -> AsyncIterator[Event]:
    """The recorded events of a request."""
    after = 0
    while page := await hub.get("/journal", after=after, limit=JOURNAL_PAGE):
        after = page[-1]["seq"]
        for event in map(from_wire, page):
            if event is not None and event.correlation_id == row.correlation_id:
                yield event


def _rebuilt(
    row: EndedRequest, hint: str, events: Sequence[Event], written: Callable[..., TapeRow]
) -> Iterator[TapeRow]:
    """The messages of a request and its answers, each with a reply that is the next question, or the end."""
    task_id, context_id = row.task_id or "task", row.context_id or "context"
    parts = with_text(row.prompt or "", tuple(read_part_row(part).part for part in row.sent or ()))
    began, said_s, asked_s, question, answers = datetime.fromisoformat(row.started_at), 0.0, 0.0, "", 0

    def exchange(ended_s: float, state: TaskState, text: str, artifacts: tuple[Artifact, ...] = ()) -> TapeRow:
        said = Message(message_id=f"said-{answers}", role=Role.AGENT, parts=(TextPart(text=text),)) if text else None
        task = Task(
            task_id=task_id, context_id=context_id, status=TaskStatus(state=state, message=said), artifacts=artifacts
        )
        message = Message(message_id=f"message-{answers}", role=Role.USER, parts=parts)
        if answers:
            message = structs.replace(message, task_id=task_id, context_id=context_id)
        call = SendMessage(message=message, task_id=task_id, metadata={"skillHint": hint} if hint else {})
        return written(call, task, said_s, max(0.0, ended_s - said_s))

    for event in events:
        at_s = (event.at - began).total_seconds()
        match event:
            case QuestionAsked():
                asked_s, question = at_s, event.question.text
            case QuestionAnswered(decision="answer", answer=Excerpt(text=text)):
                yield exchange(asked_s, TaskState.INPUT_REQUIRED, question)
                said_s, parts, answers = at_s, (TextPart(text=text),), answers + 1
    done: tuple[Part, ...] = (TextPart(text=row.text), *(read_part_row(part).part for part in row.parts))
    if row.usage or row.cost_usd is not None:
        cost = {"usage": to_builtins(row.usage) or {}, "costUsd": row.cost_usd, "success": row.success}
        done = (*done, DataPart(data=cost, metadata={"mimeType": COST_TYPE}))
    state = TaskState(row.kind) if row.kind in TERMINAL else TaskState.FAILED
    completed = state is TaskState.COMPLETED
    result = (Artifact(artifact_id="result", parts=done),) if completed else ()
    last = exchange(row.duration_ms / 1000, state, "" if completed else row.text or row.reason, result)
    if row.kind not in TERMINAL:  # the caller ended it: the agent sent no end
        last.status, last.reply, last.broke = None, None, row.reason or row.kind
    yield last


def _exchange(spoken: Dialect, url: str, call: Call, reply: Task, at_s: float, ended_s: float = 0.0) -> TapeRow:
    sent, said = binding.write_call(spoken, call, url, request_id=RPC_ID, tenant=None), spoken.encode_reply(call, reply)
    return TapeRow(
        at=round(at_s, 3),
        method=sent.method,
        path=urlsplit(sent.url)._replace(scheme="", netloc="").geturl(),
        headers=tapes.kept({name.lower(): value for name, value in spoken.headers(call.operation).items()}),
        body=tapes.pack(sent.body),
        status=200,
        ended=round(ended_s, 3),
        reply_headers={"content-type": "application/json"},
        reply=said if spoken.paths else jsonrpc.result(RPC_ID, said),
    )


# -- as a test ----------------------------------------------------------------------------------------------------

_TEST = """\
\"\"\"Request {row.correlation_id} to {row.agent}, which ended as {row.kind}; saved by `fleetsim task save`.

Rebuilt on the tape: {rebuilt}.
\"\"\"

import pytest


{mark}def test_{name}(fleet, virtual_clock):
    agent = fleet.tape({file!r})
    replay = virtual_clock.run(lambda: fleet.replay({file!r}, agent))
    last = replay.compared[-1].here
    assert last.success, last.reason
{texts}"""


async def _test(tape: Tape, row: EndedRequest, file: str, name: str) -> str:
    """A test that sends the messages of a tape. If the request did not succeed, it is expected to fail."""
    *_, last = [turn for talk in conversations(tape) for turn in talk]
    result = await recorded(*last)
    mark = f"@pytest.mark.xfail(strict=True, reason={one_line(f'{row.kind}: {row.reason}', 200)!r})\n"
    good = result is not None and result.success
    texts = f"    assert last.text == {result.text!r}\n" if result is not None and good else ""
    return _TEST.format(
        row=row, rebuilt=tape.head.rebuilt, mark="" if good else mark, name=name, file=file, texts=texts
    )
