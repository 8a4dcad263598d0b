"""The checks every client runs, over a small adapter that each client's script supplies.

One JSON line per check: ``{"op", "result": "works" | "absent" | "fails", "detail"}``. An adapter raises
``Absent`` for what its client or the card does not offer, and ``Refused`` for a JSON-RPC error.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any

from hooks import Hook, HookListener, hook_state, hook_text
from script import FULL_TEXT, SCRIPT

CHECK_LIMIT_S = 15.0
POLL_S = 0.05
UNSUPPORTED = -32004
BEARER = os.environ.get("INTEROP_BEARER")
HINT = {"skillHint": os.environ["INTEROP_SKILL"]} if "INTEROP_SKILL" in os.environ else None
ONLY = os.environ["INTEROP_OPERATIONS"].split(",") if "INTEROP_OPERATIONS" in os.environ else None
OUR_AGENT = "fleetsim"
OURS = bool(os.environ.get("INTEROP_OURS"))
WRONG_KEY = "not-the-key"
TERMINAL = {"completed", "failed", "canceled", "rejected"}


class Absent(Exception):
    """The client has no such method, or the card says the agent does not offer it."""


class Refused(Exception):
    """A JSON-RPC error. ``code`` is None when the client hides it."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(f"{code}: {message}" if code is not None else message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Asked:
    """A data part, of a question or of its answer."""

    data: dict[str, Any]
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskView:
    """A task in words that all dialects share; states in the 0.3 spelling."""

    id: str
    context: str
    state: str
    text: str = ""
    said: str = ""
    cost_usd: float | None = None
    asked: tuple[Asked, ...] = ()
    """The data parts of the status message: where a framework asks in a form of its own."""

    @property
    def answer(self) -> str:
        """The text of the artifacts; of a completed task without any, that of the status message."""
        return self.text or (self.said if self.state == "completed" else "")


@dataclass(frozen=True, slots=True)
class EventView:
    """One event of a stream."""

    kind: str
    state: str = ""
    text: str = ""
    task: str = ""
    final: bool | None = None
    """The 0.3 flag, None where the client has none."""

    whole: str | None = None
    """The text of the task so far, where the client itself puts the pieces together."""

    asked: tuple[Asked, ...] = ()


@dataclass(frozen=True, slots=True)
class CardView:
    """The facts of a card that the checks need."""

    name: str
    skills: int
    streaming: bool
    push: bool


@dataclass(slots=True)
class Adapter:
    """The results that a client's script fills in. A default that stays means absent."""

    hooks: HookListener
    cards: list[CardView] = field(default_factory=list)

    async def discover(self) -> CardView:
        raise Absent("no discovery in this client")

    async def send(
        self,
        text: str,
        *,
        wait: bool = False,
        task: str | None = None,
        context: str | None = None,
        hook: str | None = None,
        data: Asked | None = None,
    ) -> TaskView:
        """Send a message; ``data`` goes instead of the text."""
        raise Absent("no send in this client")

    def stream(self, text: str) -> AsyncIterator[EventView]:
        raise Absent("no streaming in this client")

    async def get(self, task: str) -> TaskView:
        raise Absent("no task query in this client")

    async def cancel(self, task: str) -> TaskView:
        raise Absent("no cancel in this client")

    def subscribe(self, task: str) -> AsyncIterator[EventView]:
        raise Absent("no resubscribe in this client")

    async def push_set(self, task: str, url: str) -> str:
        """Register and return the config's id."""
        raise Absent("no webhook registration in this client")

    async def push_get(self, task: str, config: str) -> str:
        """Return the registered URL."""
        raise Absent("no webhook query in this client")

    async def push_list(self, task: str) -> list[str]:
        """Return the registered URLs."""
        raise Absent("no webhook listing in this client")

    async def push_delete(self, task: str, config: str) -> None:
        raise Absent("no webhook removal in this client")

    async def list(self, context: str) -> list[str]:
        """Return the ids of a context's tasks."""
        raise Absent("no task listing in this client")

    async def extended_card(self) -> tuple[str, int]:
        """Return the extended card's name and number of skills."""
        raise Absent("no extended card in this client")

    def read_hook(self, body: Any) -> None:
        """Read a webhook body with the client's own types, if it has any; raises what they raise."""

    def stranger(self) -> Adapter:
        """The same client with a wrong credential."""
        raise Absent("no credential in this client")


Check = Callable[[Adapter], Awaitable[str]]


async def run(adapter: Adapter, extra: dict[str, Check] | None = None) -> None:
    """Run every check, one after the other, and report each."""
    ours = {"webhook-late": webhook_late} if OURS else {}
    await _run(adapter, {**CHECKS, **ours, **(extra or {})})


async def run_agent(adapter: Adapter) -> None:
    """Run what there is for a framework's client, which runs an agent to its end and knows little of tasks."""
    await _run(adapter, {**{op: CHECKS[op] for op in AGENT_CHECKS}, "stream-fail": stream_fail, "long": long})


async def _run(adapter: Adapter, checks: dict[str, Check]) -> None:
    guarded = {"wrong-key": wrong_key} if BEARER else {}
    for op, check in {**checks, **guarded}.items():
        if ONLY is None or op in ONLY:
            await report(op, check(adapter))


async def report(op: str, check: Awaitable[str]) -> None:
    """Run one check within its limit and print its line."""
    started = time.monotonic()
    try:
        async with asyncio.timeout(CHECK_LIMIT_S):
            result, detail = "works", await check
    except Absent as why:
        result, detail = "absent", str(why)
    except AssertionError as why:
        result, detail = "fails", str(why)
    except Exception as why:  # noqa: BLE001 (whatever a peer raises is one failed check)
        result, detail = "fails", f"{type(why).__name__}: {why}"
    took = round(time.monotonic() - started, 2)
    print(json.dumps({"op": op, "result": result, "detail": " ".join(detail.split())[:300], "s": took}), flush=True)


def expect(value: object, wanted: object, what: str) -> None:
    """Fail the check with both values unless they are equal."""
    if value != wanted:
        raise AssertionError(f"{what}: wanted {wanted!r}, got {value!r}")


async def until(adapter: Adapter, task: TaskView, wanted: set[str]) -> TaskView:
    """Ask for the task until its state is wanted; the check's own limit bounds the loop."""
    while task.state not in wanted:
        if task.state in TERMINAL:
            raise AssertionError(f"ended {task.state} ({task.said}) before {sorted(wanted)}")
        await asyncio.sleep(POLL_S)
        task = await adapter.get(task.id)
    return task


async def discover(adapter: Adapter) -> str:
    card = await adapter.discover()
    adapter.cards.append(card)
    if not card.name or card.skills < 1:
        raise AssertionError(f"name {card.name!r}, {card.skills} skills")
    return f"{card.name}, {card.skills} skill(s), streaming {card.streaming}, webhooks {card.push}"


async def complete(adapter: Adapter) -> str:
    first = await adapter.send("complete alpha")
    done = await until(adapter, first, {"completed"})
    expect(done.answer, SCRIPT["echo_prefix"] + "complete alpha", "text")
    return f"{first.state} first"


async def cost(adapter: Adapter) -> str:
    done = await until(adapter, await adapter.send("complete cost"), {"completed"})
    if done.cost_usd is None:
        raise Absent("no cost part")
    expect(done.cost_usd, SCRIPT["cost"]["costUsd"], "cost in US dollars")
    return f"{done.cost_usd} USD"


async def wait(adapter: Adapter) -> str:
    reply = await adapter.send("complete beta", wait=True)
    if reply.state in {"submitted", "working"}:
        raise Absent(f"answers {reply.state} at once")
    expect(reply.state, "completed", "state in the reply")
    expect(reply.answer, SCRIPT["echo_prefix"] + "complete beta", "text")
    return "completed in the reply"


async def stream_fail(adapter: Adapter) -> str:
    events = [event async for event in adapter.stream("fail please")]
    expect(last_state(events), "failed", "last state")
    expect(events[-1].text, SCRIPT["failure"], "reason")
    return events[-1].text


async def long(adapter: Adapter) -> str:
    done = await adapter.send("slow", wait=True)
    expect((done.state, done.text), ("completed", SCRIPT["echo_prefix"] + "slow"), "end")
    return f"waited {SCRIPT['slow_s']} s"


async def get(adapter: Adapter) -> str:
    done = await until(adapter, await adapter.send("complete gamma"), {"completed"})
    again = await adapter.get(done.id)
    expect((again.id, again.state, again.text), (done.id, "completed", done.text), "task")
    return again.state


async def unknown_task(adapter: Adapter) -> str:
    return await refused(adapter.get("no-such-task"), {-32001})


async def fail(adapter: Adapter) -> str:
    done = await until(adapter, await adapter.send("fail please"), {"failed"})
    if not done.said:
        raise Absent("no reason in status.message")
    return done.said


async def ask(adapter: Adapter) -> str:
    waiting = await until(adapter, await adapter.send("ask"), {"input-required", "completed"})
    if waiting.state == "completed":
        raise Absent("never asks")
    expect_question(waiting.said, waiting.asked)
    reply = await adapter.send("blue", task=waiting.id, context=waiting.context, **form_of(waiting.asked, "blue"))
    if reply.id != waiting.id:
        raise Absent("the answer became another task")
    while reply.state == "input-required":
        await asyncio.sleep(POLL_S)
        reply = await adapter.get(reply.id)
    done = await until(adapter, reply, {"completed"})
    expect(done.answer, SCRIPT["answer_prefix"] + "blue", "text")
    return waiting.said


async def finished_task(adapter: Adapter) -> str:
    done = await until(adapter, await adapter.send("complete delta"), {"completed"})
    return await refused(adapter.send("complete again", task=done.id, context=done.context), None)


async def cancel(adapter: Adapter) -> str:
    running = await adapter.send("slow")
    if running.state in TERMINAL:
        return await refused(adapter.cancel(running.id), {-32002}, absent="tasks end within the request")
    stopped = await adapter.cancel(running.id)
    if stopped.state == "working" and not OURS:  # an agent may only begin to cancel
        stopped = await until(adapter, stopped, {"canceled"})
    if stopped.state == "completed":
        raise Absent("canceled only after its end")
    expect(stopped.state, "canceled", "state in the reply")
    expect((await adapter.get(running.id)).state, "canceled", "state afterwards")
    return "canceled"


async def cancel_again(adapter: Adapter) -> str:
    running = await adapter.send("slow")
    if running.state not in TERMINAL:
        await adapter.cancel(running.id)
    return await refused(adapter.cancel(running.id), {-32002})


async def stream(adapter: Adapter) -> str:
    demand(adapter, "streaming")
    events = [event async for event in adapter.stream("stream epsilon")]
    pieces = [e for e in events if e.kind == "artifact"]
    text = max(("".join(e.text for e in pieces), pieces[-1].text if pieces else ""), key=lambda t: t == FULL_TEXT)
    # Some tell the pieces in status messages, and the whole as one artifact.
    spoken = [e for e in events if e.kind == "status" and e.text]
    if max(len(pieces), len(spoken)) < 2:
        raise AssertionError(f"{len(pieces)} artifact events in {[e.kind for e in events]}")
    if text != FULL_TEXT:
        raise AssertionError(f"text {text!r}")
    expect(last_state(events), "completed", "last state")
    if events[-1].final is False:
        raise AssertionError("the last event is not final")
    if events[-1].whole is not None:
        expect(events[-1].whole, FULL_TEXT, "text as the client put it together")
    return f"{len(events)} events, {events[0].kind} first"


async def dropped_stream(adapter: Adapter) -> str:
    demand(adapter, "streaming")
    task = ""
    async with aclosing(adapter.stream("stream nu")) as events:
        async for event in events:
            task = task or event.task
            if event.kind == "artifact":
                break
    done = await until(adapter, await adapter.get(task), {"completed"})
    expect(done.text, FULL_TEXT, "text")
    return "done without us"


async def stream_ask(adapter: Adapter) -> str:
    demand(adapter, "streaming")
    events = [event async for event in adapter.stream("ask")]
    if last_state(events) == "completed":
        raise Absent("never asks")
    expect(last_state(events), "input-required", "last state")
    expect_question(events[-1].text, events[-1].asked)
    with suppress(Absent):
        await adapter.cancel(events[-1].task)
    return "ends with the question"


def expect_question(said: str, asked: tuple[Asked, ...]) -> None:
    """The question is the text of the status message, or stands in it or in the data beside it."""
    if asked and SCRIPT["question"] in said + json.dumps([part.data for part in asked]):
        return
    expect(said, SCRIPT["question"], "question")


def expect_shown(text: str) -> None:
    """The question as a person reads it: alone, or in the words or the form of a framework."""
    if SCRIPT["question"] not in text:
        raise AssertionError(f"question: wanted {SCRIPT['question']!r} in {text!r}")


def form_of(asked: tuple[Asked, ...], answer: str) -> dict[str, Asked]:
    """The ``data`` a framework wants for an answer; nothing where it asked in words alone."""
    for part in asked:
        if "interrupts" in part.data:
            told = {"interruptId": part.data["interrupts"][0]["interruptId"], "response": answer}
            return {"data": Asked({"interruptResponse": told})}
        if part.metadata.get("adk_type") == "function_call":
            told = {"id": part.data["id"], "name": part.data["name"], "response": {"result": answer}}
            return {"data": Asked(told, {"adk_type": "function_response"})}
    return {}


async def resubscribe(adapter: Adapter) -> str:
    demand(adapter, "streaming")
    running = await adapter.send("stream zeta")
    events = [event async for event in adapter.subscribe(running.id)]
    expect(last_state(events), "completed", "last state")
    if not any(e.kind == "artifact" for e in events):
        raise AssertionError(f"no artifact in {[e.kind for e in events]}")
    return f"{len(events)} events, {events[0].kind} first"


async def snapshot(adapter: Adapter) -> str:
    demand(adapter, "streaming")
    running = await adapter.send("stream eta")
    events = [event async for event in adapter.subscribe(running.id)]
    if events[0].kind != "task":
        raise Absent(f"the rejoined stream begins with {events[0].kind}")
    return "task first"


async def resubscribe_unknown(adapter: Adapter) -> str:
    demand(adapter, "streaming")

    async def join() -> None:
        async for _ in adapter.subscribe("no-such-task"):
            pass

    return await refused(join(), {-32001})


async def webhook(adapter: Adapter) -> str:
    demand(adapter, "push")
    path = "/hook/set"
    running = await adapter.send("stream theta")
    config = await adapter.push_set(running.id, adapter.hooks.base + path)
    hook = await adapter.hooks.wait(path, lambda h: hook_state(h.body) == "completed")
    return told(adapter, hook) + f"; config {bool(config)}"


async def webhook_late(adapter: Adapter) -> str:
    demand(adapter, "push")
    path = "/hook/late"
    done = await until(adapter, await adapter.send("stream xi"), {"completed"})
    await adapter.push_set(done.id, adapter.hooks.base + path)
    return told(adapter, await adapter.hooks.wait(path, lambda h: hook_state(h.body) == "completed"))


async def webhook_inline(adapter: Adapter) -> str:
    demand(adapter, "push")
    path = "/hook/inline"
    await adapter.send("stream iota", hook=adapter.hooks.base + path)
    hook = await adapter.hooks.wait(path, lambda h: hook_state(h.body) == "completed")
    return told(adapter, hook)


async def webhook_cancel(adapter: Adapter) -> str:
    demand(adapter, "push")
    path = "/hook/cancel"
    running = await adapter.send("slow")
    await adapter.push_set(running.id, adapter.hooks.base + path)
    await adapter.cancel(running.id)
    try:
        await adapter.hooks.wait(path, lambda h: hook_state(h.body) == "canceled", limit_s=3.0)
    except TimeoutError:
        raise Absent("no webhook on cancel") from None
    return "canceled"


async def push_get(adapter: Adapter) -> str:
    demand(adapter, "push")
    running = await adapter.send("slow")
    url = adapter.hooks.base + "/hook/get"
    config = await adapter.push_set(running.id, url)
    try:
        expect(await adapter.push_get(running.id, config), url, "url")
    finally:
        await adapter.cancel(running.id)
    return "the url registered"


async def push_list(adapter: Adapter) -> str:
    demand(adapter, "push")
    running = await adapter.send("slow")
    url = adapter.hooks.base + "/hook/list"
    await adapter.push_set(running.id, url)
    try:
        expect(await adapter.push_list(running.id), [url], "urls")
    finally:
        await adapter.cancel(running.id)
    return "one config"


async def push_delete(adapter: Adapter) -> str:
    demand(adapter, "push")
    running = await adapter.send("slow")
    config = await adapter.push_set(running.id, adapter.hooks.base + "/hook/delete")
    try:
        await adapter.push_delete(running.id, config)
        expect(await adapter.push_list(running.id), [], "urls left")
    finally:
        await adapter.cancel(running.id)
    return "gone"


async def list_tasks(adapter: Adapter) -> str:
    done = await until(adapter, await adapter.send("complete kappa"), {"completed"})
    try:
        ids = await adapter.list(done.context)
    except Refused as why:
        if why.code != UNSUPPORTED:
            raise
        raise Absent(f"refused, {why.code}") from None
    if done.id not in ids:
        raise AssertionError(f"task {done.id} not among {ids}")
    return f"{len(ids)} in the context"


async def extended_card(adapter: Adapter) -> str:
    name, skills = await adapter.extended_card()
    if name == OUR_AGENT and skills <= adapter.cards[-1].skills:
        raise AssertionError(f"{skills} skill(s), no more than the public card has")
    return f"{name}, {skills} skill(s)"


async def wrong_key(adapter: Adapter) -> str:
    stranger = adapter.stranger()
    await stranger.discover()
    try:
        await stranger.send("complete secret")
    except Exception as why:
        if "401" not in str(why):
            raise AssertionError(f"refused with {why!r}") from why
        return "HTTP 401"
    raise AssertionError("every key is taken")


def last_state(events: list[EventView]) -> str:
    """The last state a stream told."""
    return next((e.state for e in reversed(events) if e.state), "none")


def demand(adapter: Adapter, flag: str) -> None:
    """Leave the check if the card does not offer it, as a careful caller would."""
    if adapter.cards and not getattr(adapter.cards[-1], flag):
        raise Absent(f"the card says {flag} false")


def told(adapter: Adapter, hook: Hook) -> str:
    """The webhook of the end: the body read with the client's types, the token's headers; ours has all of it."""
    adapter.read_hook(hook.body)
    names = token_headers(hook.headers)
    if adapter.cards[-1].name == OUR_AGENT:
        expect(len(names), 2, "headers with the token")
        expect(hook_text(hook.body), FULL_TEXT, "text in the webhook")
    return " and ".join(names)


def token_headers(headers: dict[str, str]) -> list[str]:
    """Which of the two headers brought the token."""
    token = SCRIPT["token"]
    names = []
    if headers.get("x-a2a-notification-token") == token:
        names.append("X-A2A-Notification-Token")
    if headers.get("authorization") == f"Bearer {token}":
        names.append("Authorization")
    if not names:
        raise AssertionError("no token in the webhook's headers")
    return names


async def refused(call: Awaitable[Any], codes: set[int] | None, *, absent: str = "") -> str:
    """The call must end in a JSON-RPC error; ``absent`` says what that refusal means, if anything."""
    try:
        got = await call
    except Refused as why:
        if codes is not None and why.code is not None and why.code not in codes:
            raise AssertionError(f"refused with {why}, wanted {sorted(codes)}") from None
        if absent:
            raise Absent(f"{absent} ({why.code})") from None
        return f"refused, {why.code if why.code is not None else why}"
    raise Absent(f"not refused: {getattr(got, 'state', got)}")


CHECKS: dict[str, Check] = {
    "discover": discover,
    "complete": complete,
    "cost": cost,
    "wait": wait,
    "stream": stream,
    "dropped-stream": dropped_stream,
    "fail": fail,
    "ask": ask,
    "stream-ask": stream_ask,
    "cancel": cancel,
    "cancel-again": cancel_again,
    "finished-task": finished_task,
    "get": get,
    "unknown-task": unknown_task,
    "list": list_tasks,
    "resubscribe": resubscribe,
    "snapshot": snapshot,
    "resubscribe-unknown": resubscribe_unknown,
    "webhook": webhook,
    "webhook-inline": webhook_inline,
    "webhook-cancel": webhook_cancel,
    "push-get": push_get,
    "push-list": push_list,
    "push-delete": push_delete,
    "extended-card": extended_card,
}
"""Every check by the name the table uses."""

AGENT_CHECKS = (
    "discover",
    "complete",
    "wait",
    "stream",
    "fail",
    "ask",
    "stream-ask",
    "get",
    "unknown-task",
    "resubscribe",
    "snapshot",
)
