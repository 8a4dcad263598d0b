"""Rows about one stream from beginning to end: its frames, their order, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from fleetsim.check.agent_under_test import DEFAULT_TEXTS, Hint
from fleetsim.check.evidence import Exchange, Frame, fail_unless, not_tested_unless
from fleetsim.check.raw_dialect import KINDS, among, answer_text, listed, mapping, snake_keys, texts
from fleetsim.check.requirement import BUILD_GUIDE, V03, V10, must, should
from fleetsim.check.session import (
    STREAM_S,
    Session,
    all_streams,
    longest_stream,
    quick_stream,
    slow_stream,
    stream_in_pieces,
)
from fleetsim.model.call import Operation
from fleetsim.model.task import INTERRUPTED, TERMINAL

SSE = f"{BUILD_GUIDE}, checklist 'SSE semantics'"
FILLS_CHARS = 512 * 1024
"""A stream of less fits into the buffers between agent and reader: its agent was never made to wait."""

NO_PIECES = "needs a stream with an artifact-update: none had one"


@must(
    "S-01: A stream is text/event-stream",
    source=f"{BUILD_GUIDE}, 'Streaming'; A2A 0.3 §3.3.1, 1.0 §9.4.2",
    remedy="Answer HTTP 200 with Content-Type: text/event-stream.",
    needs=("streaming",),
)
async def is_sse(session: Session) -> None:
    """Ask for a stream and read status and Content-Type."""
    async with session.stream(Operation.STREAM, session.params(session.quick())) as stream:
        reply = stream.exchange
        fail_unless(reply.status == 200, f"a stream gave {reply}", reply)
        fail_unless(reply.media_type == "text/event-stream", f"a stream came as {reply.media_type or 'nothing'}", reply)
        fail_unless(await stream.next(10), "no event came", reply)


def events(session: Session, reply: Exchange) -> Iterator[tuple[str, Mapping[str, Any], Frame]]:
    """(kind, content, frame) of each event, in the words of 0.3 whatever the dialect."""
    for frame in reply.frames:
        kind, content = session.dialect.event(frame.result)
        yield kind, content, frame


@must(
    "S-02: The first event is the task",
    source=f"{BUILD_GUIDE}, 'Streaming'; A2A 1.0 §3.1.2",
    remedy="Send one snapshot of the task before any update: callers attach to its id.",
    needs=("streaming",),
)
async def task_first(session: Session) -> None:
    """Read the first event of a stream."""
    for reply in await all_streams(session):
        kind, content, _ = next(events(session, reply))
        fail_unless(kind in {"task", "message"}, f"the first event is a {kind or 'riddle'}, not the task", reply)
        fail_unless(kind == "message" or isinstance(content.get("id"), str), "the first event's task has no id", reply)


@must(
    "S-03: Every event is a JSON-RPC answer with the request's id",
    source="A2A 0.3 §7.2, 1.0 §9.4.2; reference interop, 'Pitfalls'",
    remedy="Wrap each event as {jsonrpc, id, result}; keep the id's type.",
    needs=("json-rpc", "streaming"),
)
async def ids_in_events(session: Session) -> None:
    """Stream with a number and with a string as id and read each event."""
    for request_id in (4711, "forty-seven"):
        params = session.params(session.quick())
        async with session.stream(Operation.STREAM, params, request_id=request_id) as stream:
            reply = await stream.drain(STREAM_S)
        not_tested_unless(reply.frames and reply.error is None, f"the stream gave {reply}", reply)
        for frame in reply.frames:
            value = mapping(frame.value)
            fail_unless(value.get("jsonrpc") == "2.0" and "result" in value, "an event is no JSON-RPC answer", reply)
            back: Any = value.get("id")
            same = back == request_id and type(back) is type(request_id)
            fail_unless(same, f"the id {request_id!r} is {back!r} in an event", reply)


@must(
    "S-04: Every event has a kind",
    V03,
    source=SSE,
    remedy="Write kind on each event: task, status-update, artifact-update or message.",
    incident="Quinn #40: events without kind were dropped silently",
    needs=("streaming",),
)
async def kinds(session: Session) -> None:
    """Read the kind of each event: task, status-update, artifact-update or message; over HTTP+JSON the wrapping key."""
    for reply in await all_streams(session):
        for frame in reply.frames:
            kind = session.dialect.event(frame.result)[0] if session.dialect.proto else frame.result.get("kind")
            fail_unless(among(kind, KINDS), f"an event's kind is {kind or 'missing'}", reply)


@must(
    "S-05: Every event has exactly one wrapping key",
    V10,
    source="A2A 1.0 §3.2.3",
    remedy="Wrap each event in exactly one of task, message, statusUpdate and artifactUpdate.",
    needs=("streaming",),
)
async def wrapped(session: Session) -> None:
    """Each event is one of task, message, statusUpdate, artifactUpdate."""
    wrappers = {"task", "message", "statusUpdate", "artifactUpdate"}
    for reply in await all_streams(session):
        for frame in reply.frames:
            keys = set(frame.result)
            fail_unless(len(keys & wrappers) == 1, f"an event has the keys {', '.join(sorted(keys))}", reply)


@must(
    "S-06: Wire fields of events are camelCase",
    source=SSE,
    remedy="Write taskId, contextId, lastChunk and artifactId; only Python variables are snake case.",
    needs=("streaming",),
)
async def camel_case(session: Session) -> None:
    """Look for keys with underscores in every event, outside of data and metadata."""
    for reply in await all_streams(session):
        for frame in reply.frames:
            fail_unless(
                not (bad := snake_keys(frame.result)), f"written with an underscore: {', '.join(bad[:5])}", reply
            )


@must(
    "S-07: Status updates carry final, true on the last one",
    V03,
    source=SSE,
    remedy="Write final on every status-update.",
    needs=("streaming",),
)
async def final_is_told(session: Session) -> None:
    """Read final of each status-update: a boolean, true exactly on the one that ends the stream."""
    for reply in await all_streams(session):
        not_tested_unless(reply.ended, "the stream did not end", reply)
        updates = [content for kind, content, _ in events(session, reply) if kind == "status-update"]
        not_tested_unless(updates, "the stream had no status updates", reply)
        # In ProtoJSON, false is left out.
        said = [content.get("final", False if session.dialect.proto else None) for content in updates]
        fail_unless(all(isinstance(f, bool) for f in said), "a status update without a boolean final", reply)
        fail_unless(said[-1] is True, "the last status update is not final", reply)
        fail_unless(not any(said[:-1]), "a status update before the last is final", reply)


@must(
    "S-08: The stream ends after the task's end",
    source="A2A 0.3 §7.2, 1.0 §3.1.2",
    remedy="Close the response after the terminal event.",
    needs=("streaming",),
)
async def closes(session: Session) -> None:
    """Read on after the terminal event; the connection must close within 2 s, with no further event."""
    async with session.streaming(session.quick()) as stream:
        last = await stream.until(lambda _kind, content: session.dialect.state(content) in TERMINAL, STREAM_S)
        reply = stream.exchange
        if last is not None and session.dialect.event(last.result)[0] == "task":
            await stream.drain(2)  # a snapshot of a finished task may be followed by its closing pair
        else:
            not_tested_unless(last, "no terminal event came", reply)
            more = await stream.next(2)
            fail_unless(more is None, "an event came after the terminal one", reply)
        fail_unless(reply.ended, "the stream was still open 2 s after the terminal event", reply)


def fold(session: Session, reply: Exchange) -> tuple[dict[str, str], str]:
    """The text of each artifact after all updates, and what was wrong on the way (empty if nothing)."""
    held: dict[str, str] = {}
    closed: set[str] = set()
    for kind, content, _ in events(session, reply):
        if kind == "task":
            for artifact in map(mapping, listed(content.get("artifacts"))):
                held[str(artifact.get("artifactId"))] = texts(artifact.get("parts"))
            continue
        if kind != "artifact-update":
            continue
        artifact = mapping(content.get("artifact"))
        name, piece = str(artifact.get("artifactId")), texts(artifact.get("parts"))
        before = held.get(name, "")
        if content.get("append") is True:
            if len(before) > 2 and piece.startswith(before):
                return held, "an appended piece repeats the text sent before it"
            held[name] = before + piece
        else:
            partial = content.get("lastChunk") is not True and name in held and name not in closed
            if partial and len(before) > 2 and piece.startswith(before):
                return held, "the whole text is sent again on an update"
            held[name] = piece
        if content.get("lastChunk") is True:
            closed.add(name)
    return held, ""


@must(
    "S-09: Text comes in deltas that add up to the answer",
    source=f"{SSE}; {BUILD_GUIDE}, hardening 7",
    remedy="Send only the new suffix with append: true.",
    incident="Clients showed duplicated text after a reconnect",
    needs=("streaming", "stream"),
)
async def deltas_only(session: Session) -> None:
    """Fold the artifact updates of the streaming skill: appended pieces must never repeat text already sent, and the
    result must be what get returns.
    """
    reply = await session.fixture(stream_in_pieces)
    not_tested_unless(reply.ended, "the stream did not end", reply)
    held, wrong = fold(session, reply)
    fail_unless(not wrong, wrong, reply)
    updates = [content for kind, content, _ in events(session, reply) if kind == "artifact-update"]
    fail_unless(updates, "the streaming skill's answer did not come in pieces", reply)
    if len(updates) > 2:
        fail_unless(any(u.get("append") is True for u in updates), "no piece says append: true", reply)
    kind, content, _ = next(events(session, reply))
    read = await session.get(session.dialect.task_id(kind, content))
    whole = answer_text(session.dialect.task(read.result))
    joined = "".join(held.values())
    fail_unless(joined == whole, f"the pieces add up to {joined[:80]!r}, get says {whole[:80]!r}", reply, read)


@must(
    "S-10: Completion is two events: the whole artifact, then the status",
    V03,
    source=SSE,
    against="A2A 0.3 §9.3 lets the last piece be appended: it need not repeat the whole text, as the seeds want it",
    remedy="On completion send the authoritative artifact, then the final status.",
    needs=("streaming",),
)
async def closing_pair(session: Session) -> None:
    """The last two events are artifact-update (append: false, lastChunk: true) and status-update (final: true)."""
    for reply in await all_streams(session):
        pieces = list(events(session, reply))
        not_tested_unless(
            pieces and session.dialect.state(pieces[-1][1]) == "completed", "the stream did not end in completed", reply
        )
        fail_unless(len(pieces) > 1, "the stream has no closing pair", reply)
        (kind, artifact, _), (last, status, _) = pieces[-2:]
        fail_unless(kind == "artifact-update", f"the last event but one is a {kind}, no artifact-update", reply)
        fail_unless(
            last == "status-update" and status.get("final") is True, "the last event is not a final status", reply
        )
        fail_unless(artifact.get("append") in (False, None), "the closing artifact is appended, not whole", reply)
        fail_unless(artifact.get("lastChunk") is True, "the closing artifact does not say lastChunk: true", reply)
        text = texts(mapping(artifact.get("artifact")).get("parts"))
        read = await session.get(session.dialect.task_id("status-update", status))
        whole = answer_text(session.dialect.task(read.result))
        fail_unless(
            text == whole or not whole, f"the closing artifact holds {text[:60]!r}, get {whole[:60]!r}", reply, read
        )


@must(
    "S-11: Artifacts in events have an artifactId",
    source=SSE,
    remedy="Give each artifact one id, and repeat it in each of its events.",
    needs=("streaming",),
)
async def artifact_ids(session: Session) -> None:
    """Read artifact.artifactId of each artifact update; the pieces of one answer share it."""
    pieces = 0
    for reply in await all_streams(session):
        updates = [content for kind, content, _ in events(session, reply) if kind == "artifact-update"]
        pieces += len(updates)
        for content in updates:
            name = mapping(content.get("artifact")).get("artifactId")
            fail_unless(isinstance(name, str) and name, "an artifact update without an artifactId", reply)
        text = [content for content in updates if content.get("append") is True]
        names = {str(mapping(c.get("artifact")).get("artifactId")) for c in text}
        fail_unless(len(names) <= 1 or len(names) < len(text), "every piece has an artifactId of its own", reply)
    not_tested_unless(pieces, NO_PIECES)


@must(
    "S-12: Events name their task and context",
    source=f"{SSE}; A2A 0.3 §7.2.2, 1.0 §4.2",
    remedy="Write taskId and contextId on each update.",
    needs=("streaming",),
)
async def events_name_their_task(session: Session) -> None:
    """Compare taskId and contextId of each update with the first event's."""
    updates = 0
    for reply in await all_streams(session):
        found = list(events(session, reply))
        kind, content, _ = found[0]
        task_id, context = session.dialect.task_id(kind, content), session.dialect.context_id(content)
        for kind, content, _ in found[1:]:
            if kind == "task":
                continue
            fail_unless(
                session.dialect.task_id(kind, content) == task_id, f"a {kind} has another taskId or none", reply
            )
            fail_unless(
                session.dialect.context_id(content) == context, f"a {kind} has another contextId or none", reply
            )
            updates += 1
    not_tested_unless(updates, "needs a stream with an update: each had one event alone")


@should(
    "S-13: There is one task event per stream",
    source="Reference interop, 'Pitfalls'",
    remedy="Send one snapshot, then updates: a2a-sdk 0.3 clients raise on a second one.",
    needs=("streaming",),
)
async def one_snapshot(session: Session) -> None:
    """Count the task events."""
    for reply in await all_streams(session):
        count = sum(kind == "task" for kind, _, _ in events(session, reply))
        fail_unless(count <= 1, f"the stream has {count} task events", reply)


@should(
    "S-23: A quiet stream shows that it lives",
    source=f"{BUILD_GUIDE}, hardening 6 (keepalive after 25 s)",
    remedy="Send an SSE comment every 15 s.",
    needs=("streaming", "slow", "time"),
)
async def keeps_alive(session: Session) -> None:
    """Stream from the slow skill and leave it silent for a minute: something must come every 30 s."""
    hint = session.hint("slow")
    async with session.streaming(type(hint)(hint.skill, "400")) as stream:
        reply = await stream.drain(100)
    times = [reply.began, *reply.arrivals]
    gap = max(after - before for before, after in zip(times, [*times[1:], reply.at], strict=True))
    fail_unless(gap <= 30, f"nothing at all came for {gap:.0f} s", reply)


@should(
    "S-24: A question ends the stream with final: true",
    V03,
    source="A2A 0.3 §7.2; reference interop, section 7",
    remedy="Set final: true on input-required and close.",
    needs=("streaming", "ask"),
)
async def question_ends_the_stream(session: Session) -> None:
    """Stream from the asking skill: the input-required update is final and the stream ends."""
    async with session.streaming(session.hint("ask")) as stream:
        asked = await stream.until(lambda _kind, content: session.dialect.state(content) in INTERRUPTED, 10)
        reply = stream.exchange
        asked = not_tested_unless(asked, "no question came over the stream", reply)
        kind, content = session.dialect.event(asked.result)
        fail_unless(kind == "task" or content.get("final") is True, "the question is not final", reply)
        await stream.drain(3)
        fail_unless(reply.ended, "the stream stays open while the task waits for an answer", reply)


@must(
    "S-25: Events come while the work goes on",
    source=f"{BUILD_GUIDE}, 'Streaming'; seed: implement-a2a-server, 'Validation'",
    remedy="Flush each event; switch off buffering in front of the agent.",
    needs=("streaming", "slow"),
)
async def events_come_early(session: Session) -> None:
    """The first event of the slow skill's stream must come within 2 s, well before the last."""
    reply, _ = await session.fixture(slow_stream)
    not_tested_unless(reply.frames, "the stream had no events", reply)
    first, last = reply.frames[0].at - reply.began, reply.frames[-1].at - reply.began
    fail_unless(first <= 2, f"the first event came after {first:.1f} s", reply)
    not_tested_unless(last > 1.5, "the slow skill was over too soon: name a slower one with --skill-slow", reply)
    fail_unless(first < last - 0.5, "all events came at once, at the end", reply)


@should(
    "S-27: Streams are not cached",
    source="Seed: implement-a2a-server, step 4",
    remedy="Send Cache-Control: no-cache (or no-store).",
    needs=("streaming",),
)
async def not_cached(session: Session) -> None:
    """Read Cache-Control of the stream."""
    reply = await session.fixture(quick_stream)
    control = reply.headers.get("cache-control", "").lower()
    fail_unless("no-cache" in control or "no-store" in control, f"Cache-Control is {control or 'missing'}", reply)


@must(
    "S-28: A slow reader still gets the end",
    source=f"{SSE}; reference reliability T-26",
    remedy="Bound each subscriber's buffer by coalescing, and never drop the terminal pair.",
    needs=("streaming",),
    lasts_s=2,
)
async def slow_reader(session: Session) -> None:
    """Open a stream, read nothing for two seconds, then read all: the closing events must be there."""
    hint = session.agent.hints.get("stream", session.quick())
    if hint.text == DEFAULT_TEXTS["stream"]:
        hint = Hint(hint.skill, " ".join(["word" * 15_000] * 12))  # more than the buffers in between can hold
    async with session.streaming(hint) as stream:
        await asyncio.sleep(2)
        reply = await stream.drain(STREAM_S)
    said = sum(len(frame.text) for frame in reply.frames)
    short = f"the stream is too short ({said} characters) to make the agent wait: --skill-stream with a longer one"
    not_tested_unless(said >= FILLS_CHARS or reply.problem, short, reply)
    found = list(events(session, reply))
    fail_unless(reply.ended and not reply.problem, f"the stream broke: {reply.problem or 'it is still open'}", reply)
    fail_unless(found and session.dialect.state(found[-1][1]) in TERMINAL, "the terminal event is missing", reply)
    best = await session.fixture(longest_stream)
    if len(best.frames) > 1 and [k for k, _, _ in events(session, best)][-2] == "artifact-update":
        fail_unless(len(found) > 1 and found[-2][0] == "artifact-update", "the closing artifact is missing", reply)


@should(
    "S-29: The first piece of an artifact does not append",
    source=f"A2A 0.3 §7.2.3, 1.0 §4.2.2; {BUILD_GUIDE}, hardening 7 (append: true on every subsequent update)",
    remedy="Send append: false (or leave it out) with the first piece, true with every later one.",
    incident="Strict clients refuse an append to an artifact they were never given; the original agent sent one",
    needs=("streaming",),
)
async def first_piece_is_new(session: Session) -> None:
    """Read append of the first artifact-update of each artifact that the stream's first event did not hold."""
    pieces = 0
    for reply in await all_streams(session):
        told: set[str] = set()
        for kind, content, _ in events(session, reply):
            if kind == "task":
                told |= {str(mapping(artifact).get("artifactId")) for artifact in listed(content.get("artifacts"))}
            if kind != "artifact-update":
                continue
            name = str(mapping(content.get("artifact")).get("artifactId"))
            first = name not in told
            fail_unless(
                not first or content.get("append") is not True, "the first piece of an artifact is appended", reply
            )
            told.add(name)
            pieces += 1
    not_tested_unless(pieces, NO_PIECES)
