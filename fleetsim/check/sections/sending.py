"""Rows about a send: how soon its reply comes, in which shape, and which messages it accepts."""

from __future__ import annotations

from fleetsim.check.evidence import fail_unless, not_tested_unless
from fleetsim.check.raw_dialect import among, answer_text, listed, mapping, message_text, texts
from fleetsim.check.requirement import ALL, BUILD_GUIDE, V03, V10, ProbeBatch, must, should
from fleetsim.check.session import Session
from fleetsim.model.call import Operation
from fleetsim.model.task import INTERRUPTED, TERMINAL

LIFE = f"{BUILD_GUIDE}, checklist 'Transport & lifecycle'"


@must(
    "T-01: A send is answered by a task (or a message) in the shape of its dialect",
    ALL,
    source=f"{LIFE}; A2A 0.3 §7.1, 1.0 §3.1.1",
    remedy="Return the whole Task object; clients route by its shape.",
)
async def answered_by_a_task(session: Session) -> None:
    """Send a text and read id, context and status (kind: task in 0.3, the key task in 1.0)."""
    reply = await session.send()
    fail_unless(reply.granted, f"a plain text was answered with {reply}", reply)
    dialect, result = session.dialect, mapping(reply.result)
    if dialect.proto:
        fail_unless(len(result.keys() & {"task", "message"}) == 1, "the result is neither {task} nor {message}", reply)
        if "message" in result:
            return
    elif not dialect.legacy:
        fail_unless(among(result.get("kind"), ("task", "message")), f"kind is {result.get('kind')!r}", reply)
        if result.get("kind") == "message":
            return
    task = dialect.task(result)
    fail_unless(isinstance(task.get("id"), str) and task["id"], "the task has no id", reply)
    fail_unless(isinstance(dialect.context_id(task), str), "the task has no context", reply)
    fail_unless(
        dialect.spelled(task), f"the state {mapping(task.get('status')).get('state')!r} is not spelled so", reply
    )


async def _at_once(session: Session, wait: bool | None, what: str) -> None:
    reply = await session.send(session.hint("slow"), wait=wait)
    fail_unless(reply.granted, f"{what} gave {reply}", reply)
    rush = session.options.rush_s
    fail_unless(
        reply.seconds <= rush, f"{what} was answered after {reply.seconds:.2f} s; {rush:g} s are allowed", reply
    )
    state = session.state(reply)
    not_tested_unless(
        state not in TERMINAL, f"the slow skill was {state} at once: name a slower one with --skill-slow", reply
    )
    fail_unless(state, f"{what} was not answered by a task", reply)
    await session.cancel(session.dialect.task(reply.result).get("id"))


@must(
    "T-02: A send is answered within a second, whatever the work takes",
    V03,
    source=f"{LIFE}; {BUILD_GUIDE}, 'Task lifecycle'",
    remedy="Run the skill in a background task that the record owns, and return the task as submitted.",
    incident="Handlers that block lose timeouts, cancelling, progress and webhooks",
    against="A2A 0.3 §7.1 lets a send wait and answer with the final state; the fleet's seeds do not",
    needs=("slow",),
    batch=ProbeBatch.ALONE,
)
async def send_is_quick(session: Session) -> None:
    """Send to the slow skill without saying blocking; the answer must come within 1 s, not finished."""
    await _at_once(session, None, "a send")


@should(
    "T-03: A send that asks to block is answered at once too",
    V03,
    source=f"{LIFE}; reference interop, 'The original caller on the wire'",
    against="A2A 0.3 §7.1.1: with blocking: true the client waits for the end; the fleet's seeds answer at once",
    remedy="Treat blocking as a wish on 0.3: the caller polls, streams or takes webhooks.",
    needs=("slow",),
    batch=ProbeBatch.ALONE,
)
async def blocking_is_quick(session: Session) -> None:
    """Send to the slow skill with blocking: true, as the fleet's caller and the SDKs do by default."""
    await _at_once(session, True, "a send with blocking: true")


@must(
    "T-04: returnImmediately: true is answered at once",
    V10,
    source="A2A 1.0 §3.2.2",
    remedy="Return the task as soon as it is recorded.",
    needs=("slow",),
    batch=ProbeBatch.ALONE,
)
async def immediately(session: Session) -> None:
    """Send to the slow skill with returnImmediately: true; the answer comes within 1 s, not finished."""
    await _at_once(session, False, "a send with returnImmediately: true")


@must(
    "T-05: Without returnImmediately a send waits for the end",
    V10,
    source="A2A 1.0 §3.2.2",
    remedy="Wait for a terminal or interrupted state, bounded, before answering.",
    needs=("slow", "end"),
)
async def waits(session: Session) -> None:
    """Send to the slow skill without it; the answer is terminal or waits for input."""
    reply = await session.send(session.hint("slow"), wait=None)
    fail_unless(reply.granted, f"a waiting send gave {reply}", reply)
    state = session.state(reply)
    fail_unless(
        state in TERMINAL | INTERRUPTED, f"a waiting send was answered while the task was {state or '?'}", reply
    )


@must(
    "T-12: The message's contextId is kept",
    source="Seed: A2A Runtime, 'Multi-turn conversations'; A2A 1.0 §3.4.1",
    remedy="Read message.contextId; make one only if there is none.",
    incident="The original agent read params.contextId, which no SDK sends",
)
async def context_is_kept(session: Session) -> None:
    """Send with a contextId of our own; task, get and events must carry it."""
    context = session.new()
    task_id, reply = await session.begin(contextId=context)
    got = session.dialect.task(reply.result).get("contextId")
    fail_unless(got == context, f"our contextId came back as {got!r}", reply)
    read = await session.get(task_id)
    fail_unless(session.dialect.task(read.result).get("contextId") == context, "get shows another contextId", read)


@should(
    "T-16: Task ids are the server's, new for each task and hard to guess",
    source="Seed: implement-a2a-server, 'Common Pitfalls'; reference reliability T-27",
    remedy="Use UUIDs.",
)
async def ids_are_new(session: Session) -> None:
    """Compare the ids of several tasks: distinct, 16 characters at least, not counting up."""
    ids = [(await session.begin())[0] for _ in range(3)]
    last = (await session.begin())[1]
    fail_unless(len(set(ids)) == 3, "two tasks have one id", last)
    fail_unless(all(len(name) >= 16 for name in ids), f"task ids are short: {ids[0]!r}", last)
    fail_unless(not all(name.isdigit() for name in ids), "task ids are plain numbers", last)


@must(
    "T-27: Text of any script is taken",
    source="A2A 0.3 §3.2 (UTF-8), JSON (RFC 8259)",
    remedy="Read and write UTF-8 everywhere.",
)
async def any_script(session: Session) -> None:
    """Send emoji, right-to-left text and a very long word; the history must hold it unchanged if it is kept."""
    text = "Grüße 🛰️ العربية 漢字 \u200d e\u0301 \U0001f469\u200d\U0001f680 " + "w" * 500
    params = session.params()
    params["message"]["parts"] = [session.dialect.part(text)]
    reply = await session.call(Operation.SEND, params)
    fail_unless(reply.granted, f"a text of many scripts gave {reply}", reply)
    task = session.dialect.task(reply.result)
    not_tested_unless(task, "the answer is not a task", reply)
    read = await session.get(task.get("id"))
    history = [mapping(m) for m in listed(session.dialect.task(read.result).get("history"))]
    sent = [texts(m.get("parts")) for m in history if str(m.get("role", "")).lower().endswith("user")]
    fail_unless(not sent or text in sent, "the history holds another text than was sent", read)


@must(
    "T-31: Every text part of a message is read",
    source=f"{BUILD_GUIDE}, 'Task lifecycle'; A2A 0.3 §6.5, 1.0 §4.1.6",
    remedy="Join the text of all parts; a message is not its first part.",
)
async def every_part_is_read(session: Session) -> None:
    """Send two text parts; an answer (or a history) that repeats the first must repeat the second."""
    first, second = "one" + session.new()[:8], "two" + session.new()[:8]
    parts = [session.dialect.part(f"{session.quick().text} {first}"), session.dialect.part(second)]
    task_id, _ = await session.finished(parts=parts)
    read = await session.get(task_id)
    task = session.dialect.task(read.result)
    asked = [texts(mapping(m).get("parts")) for m in listed(task.get("history"))]
    repeated = [text for text in (answer_text(task) or message_text(task), *asked) if first in text]
    not_tested_unless(repeated, "needs a skill that repeats its text: name one with --skill-quick", read)
    fail_unless(all(second in text for text in repeated), "the second text part of the message is lost", read)


@should(
    "T-28: A data part is taken, or refused as a content type",
    source="Seed: A2A Protocol (selectools), 'Text-first v1'; A2A 0.3 §8.2 (-32005)",
    remedy="Accept data parts, or answer -32005.",
)
async def data_part(session: Session) -> None:
    """Send a text part with a data part."""
    params = session.params()
    params["message"]["parts"].append(session.dialect.data_part({"answer": 42, "nested": {"a": [1, 2]}}))
    reply = await session.call(Operation.SEND, params)
    taken = reply.granted or reply.refused_with(-32005)
    fail_unless(taken, f"a data part gave {reply}", reply)


@must(
    "T-29: A message as the fleet's caller sends it is accepted",
    source="Reference interop, 'The original caller on the wire'; seed: A2A Runtime, 'Request shape'",
    remedy="Ignore metadata you do not use; demand nothing that the specification does not.",
    incident="fasta2a 0.6.1 answers HTTP 500 to a configuration without acceptedOutputModes",
)
async def the_fleet_caller(session: Session) -> None:
    """Send with metadata (correlationId, skillHint of a skill on the card), trace headers and no
    acceptedOutputModes.
    """
    skills = session.agent.skills()
    hint = session.quick().skill or (str(skills[0].get("id")) if skills else None)
    correlation = session.new()
    metadata = {"correlationId": correlation, "parentId": session.new(), "content": "check", "targets": []}
    params = session.params(metadata={**metadata, **({"skillHint": hint} if hint else {})}, contextId=correlation)
    del params["configuration"]["acceptedOutputModes"]
    headers = {"x-correlation-id": correlation, "x-parent-id": session.new()}
    reply = await session.call(Operation.SEND, params, headers=headers)
    fail_unless(reply.granted, f"the fleet's own send gave {reply}", reply)
