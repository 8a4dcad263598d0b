"""Probes of one stream from beginning to end: its frames, their order, and how it closes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from fleetsim.check.exchange import Exchange, Frame
from fleetsim.check.fixtures import STREAM_S, all_streams, longest_stream, quick_stream, stream_in_pieces
from fleetsim.check.options import DEFAULT_TEXTS, Hint
from fleetsim.check.probe import probe
from fleetsim.check.raw_dialect import (
    INTERRUPTED,
    KINDS,
    TERMINAL,
    among,
    answer_text,
    listed,
    mapping,
    snake_keys,
    texts,
)
from fleetsim.check.session import Session
from fleetsim.check.verdict import fail_unless, not_tested_unless
from fleetsim.model.call import Operation

FILLS_CHARS = 512 * 1024
"""A stream of less fits into the buffers between agent and reader: its agent was never made to wait."""


def events(session: Session, made: Exchange) -> Iterator[tuple[str, Mapping[str, Any], Frame]]:
    """(kind, content, frame) of each event."""
    for frame in made.frames:
        kind, content = session.dialect.event(frame.result)
        yield kind, content, frame


@probe("S-01")
async def is_sse(session: Session) -> None:
    """The head of a stream."""
    async with session.stream(Operation.STREAM, session.params(session.quick())) as stream:
        made = stream.exchange
        fail_unless(made.status == 200, f"a stream gave {made.says()}", made)
        fail_unless(made.media_type == "text/event-stream", f"a stream came as {made.media_type or 'nothing'}", made)
        fail_unless(await stream.next(10), "no event came", made)


@probe("S-02")
async def task_first(session: Session) -> None:
    """The first event."""
    for made in await all_streams(session):
        not_tested_unless(made.frames, "the stream had no events", made)
        kind, content, _ = next(events(session, made))
        fail_unless(kind in {"task", "message"}, f"the first event is a {kind or 'riddle'}, not the task", made)
        fail_unless(kind == "message" or isinstance(content.get("id"), str), "the first event's task has no id", made)


@probe("S-03")
async def ids_in_events(session: Session) -> None:
    """The envelope of every event."""
    for asked in (4711, "forty-seven"):
        params = session.params(session.quick())
        async with session.stream(Operation.STREAM, params, request_id=asked) as stream:
            made = await stream.drain(STREAM_S)
        not_tested_unless(made.frames, f"the stream gave {made.says()}", made)
        for frame in made.frames:
            value = mapping(frame.value)
            fail_unless(value.get("jsonrpc") == "2.0" and "result" in value, "an event is no JSON-RPC answer", made)
            back: Any = value.get("id")
            same = back == asked and type(back) is type(asked)
            fail_unless(same, f"the id {asked!r} is {back!r} in an event", made)


@probe("S-04")
async def kinds(session: Session) -> None:
    """The discriminator."""
    for made in await all_streams(session):
        for frame in made.frames:
            kind = frame.result.get("kind")
            fail_unless(among(kind, KINDS), f"an event's kind is {kind!r}", made)


@probe("S-05")
async def wrapped(session: Session) -> None:
    """The wrapping key."""
    wrappers = {"task", "message", "statusUpdate", "artifactUpdate"}
    for made in await all_streams(session):
        for frame in made.frames:
            keys = set(frame.result)
            fail_unless(len(keys & wrappers) == 1, f"an event has the keys {', '.join(sorted(keys))}", made)


@probe("S-06")
async def camel_case(session: Session) -> None:
    """Underscores."""
    for made in await all_streams(session):
        for frame in made.frames:
            fail_unless(
                not (bad := snake_keys(frame.result)), f"written with an underscore: {', '.join(bad[:5])}", made
            )


@probe("S-07")
async def final_is_told(session: Session) -> None:
    """final on every status update."""
    for made in await all_streams(session):
        not_tested_unless(made.ended, "the stream did not end", made)
        updates = [content for kind, content, _ in events(session, made) if kind == "status-update"]
        not_tested_unless(updates, "the stream had no status updates", made)
        for content in updates:
            fail_unless(isinstance(content.get("final"), bool), "a status update without a boolean final", made)
        fail_unless(updates[-1]["final"] is True, "the last status update is not final", made)
        fail_unless(not any(u["final"] for u in updates[:-1]), "a status update before the last is final", made)


@probe("S-08")
async def closes(session: Session) -> None:
    """What comes after the end."""
    async with session.stream(Operation.STREAM, session.params(session.quick())) as stream:
        not_tested_unless(stream.is_stream, f"a stream gave {stream.exchange.says()}", stream.exchange)
        last = await stream.until(lambda _kind, content: session.dialect.state(content) in TERMINAL, STREAM_S)
        made = stream.exchange
        if last is not None and session.dialect.event(last.result)[0] == "task":
            await stream.drain(2)  # a snapshot of a finished task may be followed by its closing pair
        else:
            not_tested_unless(last, "no terminal event came", made)
            more = await stream.next(2)
            fail_unless(more is None, "an event came after the terminal one", made)
        fail_unless(made.ended, "the stream was still open 2 s after the terminal event", made)


def fold(session: Session, made: Exchange) -> tuple[dict[str, str], str]:
    """The text of each artifact after all updates, and what was wrong on the way (empty if nothing)."""
    held: dict[str, str] = {}
    closed: set[str] = set()
    for kind, content, _ in events(session, made):
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


@probe("S-09")
async def deltas_only(session: Session) -> None:
    """Fold, and compare with get."""
    made = await session.fixture(stream_in_pieces)
    not_tested_unless(made.ended, "the stream did not end", made)
    held, wrong = fold(session, made)
    fail_unless(not wrong, wrong, made)
    updates = [content for kind, content, _ in events(session, made) if kind == "artifact-update"]
    fail_unless(updates, "the streaming skill's answer did not come in pieces", made)
    if len(updates) > 2:
        fail_unless(any(u.get("append") is True for u in updates), "no piece says append: true", made)
    kind, content, _ = next(events(session, made))
    read = await session.get(session.dialect.task_id(kind, content))
    whole = answer_text(session.dialect.task(read.result))
    joined = "".join(held.values())
    fail_unless(joined == whole, f"the pieces add up to {joined[:80]!r}, get says {whole[:80]!r}", made, read)


@probe("S-10")
async def closing_pair(session: Session) -> None:
    """The last two events."""
    for made in await all_streams(session):
        found = list(events(session, made))
        not_tested_unless(
            found and session.dialect.state(found[-1][1]) == "completed", "the stream did not end in completed", made
        )
        fail_unless(len(found) > 1, "the stream has no closing pair", made)
        (kind, artifact, _), (last, status, _) = found[-2:]
        fail_unless(kind == "artifact-update", f"the last event but one is a {kind}, no artifact-update", made)
        fail_unless(last == "status-update" and status.get("final") is True, "the last event is no final status", made)
        fail_unless(artifact.get("append") in (False, None), "the closing artifact is appended, not whole", made)
        fail_unless(artifact.get("lastChunk") is True, "the closing artifact does not say lastChunk: true", made)
        text = texts(mapping(artifact.get("artifact")).get("parts"))
        read = await session.get(session.dialect.task_id("status-update", status))
        whole = answer_text(session.dialect.task(read.result))
        fail_unless(
            text == whole or not whole, f"the closing artifact holds {text[:60]!r}, get {whole[:60]!r}", made, read
        )


@probe("S-11")
async def artifact_ids(session: Session) -> None:
    """artifactId."""
    for made in await all_streams(session):
        for kind, content, _ in events(session, made):
            if kind == "artifact-update":
                name = mapping(content.get("artifact")).get("artifactId")
                fail_unless(isinstance(name, str) and name, "an artifact update without an artifactId", made)
        text = [c for k, c, _ in events(session, made) if k == "artifact-update" and c.get("append") is True]
        names = {str(mapping(c.get("artifact")).get("artifactId")) for c in text}
        fail_unless(len(names) <= 1 or len(names) < len(text), "every piece has an artifactId of its own", made)


@probe("S-12")
async def events_name_their_task(session: Session) -> None:
    """taskId and contextId."""
    for made in await all_streams(session):
        found = list(events(session, made))
        not_tested_unless(found, "the stream had no events", made)
        kind, content, _ = found[0]
        task_id, context = session.dialect.task_id(kind, content), session.dialect.context_id(content)
        for kind, content, _ in found[1:]:
            if kind == "task":
                continue
            fail_unless(session.dialect.task_id(kind, content) == task_id, f"a {kind} has another taskId or none", made)
            fail_unless(session.dialect.context_id(content) == context, f"a {kind} has another contextId or none", made)


@probe("S-13")
async def one_snapshot(session: Session) -> None:
    """Task events."""
    for made in await all_streams(session):
        count = sum(kind == "task" for kind, _, _ in events(session, made))
        fail_unless(count <= 1, f"the stream has {count} task events", made)


@probe("S-23")
async def keeps_alive(session: Session) -> None:
    """A silent minute and a half."""
    hint = session.hint("slow")
    async with session.stream(Operation.STREAM, session.params(type(hint)(hint.skill, "400"))) as stream:
        not_tested_unless(stream.is_stream, f"a stream gave {stream.exchange.says()}", stream.exchange)
        made = await stream.drain(100)
    times = [made.began, *made.arrivals]
    gap = max(after - before for before, after in zip(times, [*times[1:], made.at], strict=True))
    fail_unless(gap <= 30, f"nothing at all came for {gap:.0f} s", made)


@probe("S-24")
async def question_ends_the_stream(session: Session) -> None:
    """A question on a stream."""
    async with session.stream(Operation.STREAM, session.params(session.hint("ask"))) as stream:
        not_tested_unless(stream.is_stream, f"a stream gave {stream.exchange.says()}", stream.exchange)
        asked = await stream.until(lambda _kind, content: session.dialect.state(content) in INTERRUPTED, 10)
        made = stream.exchange
        not_tested_unless(asked, "no question came over the stream", made)
        assert asked is not None
        kind, content = session.dialect.event(asked.result)
        fail_unless(kind == "task" or content.get("final") is True, "the question is not final", made)
        await stream.drain(3)
        fail_unless(made.ended, "the stream stays open while the task waits for an answer", made)


@probe("S-25")
async def events_come_early(session: Session) -> None:
    """The times of the events."""
    async with session.stream(Operation.STREAM, session.params(session.hint("slow"))) as stream:
        not_tested_unless(stream.is_stream, f"a stream gave {stream.exchange.says()}", stream.exchange)
        made = await stream.drain(STREAM_S)
    not_tested_unless(made.frames, "the stream had no events", made)
    first, last = made.frames[0].at - made.began, made.frames[-1].at - made.began
    fail_unless(first <= 2, f"the first event came after {first:.1f} s", made)
    not_tested_unless(last > 1.5, "the slow skill was over too soon: name a slower one with --skill-slow", made)
    fail_unless(first < last - 0.5, "all events came at once, at the end", made)


@probe("S-27")
async def not_cached(session: Session) -> None:
    """Cache-Control."""
    made = await session.fixture(quick_stream)
    control = made.headers.get("cache-control", "").lower()
    fail_unless("no-cache" in control or "no-store" in control, f"Cache-Control is {control or 'missing'}", made)


@probe("S-29")
async def first_piece_is_new(session: Session) -> None:
    """append of the first update of each artifact."""
    pieces = 0
    for made in await all_streams(session):
        told: set[str] = set()
        for kind, content, _ in events(session, made):
            if kind == "task":
                told |= {str(mapping(artifact).get("artifactId")) for artifact in listed(content.get("artifacts"))}
            if kind != "artifact-update":
                continue
            name = str(mapping(content.get("artifact")).get("artifactId"))
            first = name not in told
            fail_unless(
                not first or content.get("append") is not True, "the first piece of an artifact is appended", made
            )
            told.add(name)
            pieces += 1
    not_tested_unless(pieces, "no stream had an artifact-update")


@probe("S-28", lasts_s=2)
async def slow_reader(session: Session) -> None:
    """Read nothing for a while."""
    hint = session.agent.hints.get("stream", session.quick())
    if hint.text == DEFAULT_TEXTS["stream"]:
        hint = Hint(hint.skill, " ".join(["word" * 15_000] * 12))  # more than the buffers in between can hold
    async with session.stream(Operation.STREAM, session.params(hint)) as stream:
        not_tested_unless(stream.is_stream, f"a stream gave {stream.exchange.says()}", stream.exchange)
        await asyncio.sleep(2)
        made = await stream.drain(STREAM_S)
    said = sum(len(frame.text) for frame in made.frames)
    short = f"the stream is too short ({said} characters) to make the agent wait: --skill-stream with a longer one"
    not_tested_unless(said >= FILLS_CHARS or made.problem, short, made)
    found = list(events(session, made))
    fail_unless(made.ended and not made.problem, f"the stream broke: {made.problem or 'it is still open'}", made)
    fail_unless(found and session.dialect.state(found[-1][1]) in TERMINAL, "the terminal event is missing", made)
    best = await session.fixture(longest_stream)
    if len(best.frames) > 1 and [k for k, _, _ in events(session, best)][-2] == "artifact-update":
        fail_unless(len(found) > 1 and found[-2][0] == "artifact-update", "the closing artifact is missing", made)
