"""Asking an agent through the running hub: recorded, tracked, counted, and safe from Ctrl-C."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from shlex import quote
from typing import Any

from fleetsim.api.part_rows import body_part, read_part_row
from fleetsim.cli import direct, render
from fleetsim.cli.ask import AskOptions, AskResult, reply_command, whole_at
from fleetsim.cli.exit_codes import Exit, NoAnswer
from fleetsim.cli.hub_client import connect, find_hub
from fleetsim.cli.main import CommonOptions
from fleetsim.cli.options import within
from fleetsim.cli.terminal import LivePieces, Progress
from fleetsim.client.hub_client import HubClient
from fleetsim.model.errors import ConfigError, ConnectionLost, FleetsimError, TimedOut, UnknownTarget, Unreachable
from fleetsim.model.work import KIND_OF_STATE, OutcomeKind
from fleetsim.runtime.workers import Workers

_WAIT_S = 20
_CODES = {"credential_refused": Exit.AUTH, "unreachable": Exit.UNREACHABLE, "never_sent": Exit.UNREACHABLE}
_NO_END = frozenset(OutcomeKind) - {*KIND_OF_STATE.values(), OutcomeKind.EXPIRED}
"""States that are no agent's own end."""

_AGENTS_OWN = frozenset(
    {"agent_said", "success_denied", "canceled_unasked", "canceled_by_person", "rejected_by_person"}
)
"""Causes of ends that the agent itself told; a ``failed`` of another cause is an error in place of a task."""


async def applies_to(common: CommonOptions, agent: str) -> bool:
    """Whether AGENT is to be asked through a hub: a name, and one runs.

    The demo's hub is for the demo's agents: a name of the person's own agents.yaml is asked as if there were no demo.
    """
    address = None if direct.is_url(agent) else find_hub(common)
    if address is None or not address.demo:
        return address is not None
    try:
        await direct.agent_entry(common, agent)
    except ConfigError:
        return True
    return False


async def send(common: CommonOptions, ask: AskOptions) -> AskResult:
    """Have the hub do it and wait for the outcome or a question."""
    async with connect(common) as hub:
        options = {
            "parts": [body_part(part) for part in ask.parts],
            "metadata": dict(ask.metadata),
            "skill": ask.skill,
            "contextId": ask.context_id,
            "taskId": ask.task_id,
            "parentId": ask.parent_id,
        }
        body: dict[str, Any] = {"text": ask.text, "targets": [ask.agent], "interface": "cli"}
        body |= {key: value for key, value in options.items() if value}
        not_taken = TimedOut(
            f"the hub did not say within {ask.timeout_s:g} s that it took the request; it may have",
            hint="look with `fleetsim task list` before you send it again",
        )
        began = asyncio.get_running_loop().time()
        async with within(ask.timeout_s, lambda: not_taken):
            accepted = await hub.post("/requests", body)
        (cid,) = accepted["correlationIds"]
        if ask.detach:
            return _result(ask, {"correlationId": cid, "state": "submitted"}, 0.0)
        try:
            async with Progress(f"{ask.agent} is at work on {cid}", quiet=common.quiet) as progress:
                if ask.stream and not common.as_json:
                    row = await _stream(hub, cid, accepted["seq"], began + ask.timeout_s, progress)
                else:
                    row = await until_news(hub, cid, began + ask.timeout_s)
        except asyncio.CancelledError:
            common.note(f"left running: fleetsim task get {cid}")
            raise
        except (Unreachable, ConnectionLost) as error:
            hint = f"start it again with `fleetsim up`, then `fleetsim task get {cid}`"
            raise ConnectionLost(f"the hub went away; it had taken the request {cid}", hint=hint) from error
        return _result(ask, row, asyncio.get_running_loop().time() - began)


async def _stream(hub: HubClient, cid: str, seq: int, deadline: float, progress: Progress) -> dict[str, Any]:
    """As ``until_news``, and live text is shown as it comes; ``shown`` is that text.

    What the agent says while it is at work, and is not its answer, are remarks of ``progress``.
    """
    from fleetsim.caller.event_wire import from_wire  # the events' classes: no other command needs them
    from fleetsim.caller.events import StreamReceived

    live = LivePieces()

    async def show() -> None:
        with suppress(FleetsimError):  # what is shown on the way may break off: the row has the whole text
            async for event in hub.events(after=seq):
                if event["topic"] == "events.dropped":
                    live.hold()
                elif event["correlationId"] == cid:
                    match from_wire(event):
                        case StreamReceived(type="artifact", text=text, append=append, artifact_id=name) as piece:
                            last = piece.last_chunk is True
                            new = live.more(str(name), text.text, append=append is True, last=last, cut=text.truncated)
                            progress.close()
                            render.say(new, end="")
                        case StreamReceived(type="task", text=text) if text.text:
                            live.hold()
                        case StreamReceived(type="status", state="working", text=text):
                            progress.remark(text.text)

    async with Workers("stream") as workers:
        workers.start(show(), name=cid)
        row = await until_news(hub, cid, deadline)
    return {**row, "shown": live.shown}


async def until_news(hub: HubClient, cid: str, deadline: float) -> dict[str, Any]:
    """The request's row once it ended or needs somebody, or at ``deadline`` (the loop's time) as ``late``.

    Raises:
        TimedOut: the hub said nothing of it at all by then.
    """
    loop = asyncio.get_running_loop()
    limit = asyncio.timeout_at(None if math.isinf(deadline) else deadline)
    row: dict[str, Any] | None = None
    try:
        async with limit:
            row = await hub.task(cid)
            while row["open"] and not row.get("questionId"):
                row = await hub.task(cid, wait_s=max(1, int(min(_WAIT_S, deadline - loop.time()))))
            return row
    except TimeoutError:
        if not limit.expired():
            raise
        if row is None:
            raise TimedOut("the hub does not answer; it has the request", hint=f"fleetsim task get {cid}") from None
        return {**row, "late": True}


def _result(ask: AskOptions, row: dict[str, Any], took_s: float) -> AskResult:
    cid, state, cause = row["correlationId"], row["state"], row.get("cause") or "agent_said"
    waiting = bool(row.get("questionId"))
    late = bool(row.get("late"))
    follow = f"fleetsim task get {cid}"
    if waiting:
        follow = reply_command(row["questionId"], data=bool(row.get("asksForData")))
    code = Exit.OK  # while it is under way, waits, or has ended as its agent said
    if late or state == "expired":
        code = Exit.TIMEOUT
    elif state in _NO_END or cause not in _AGENTS_OWN:
        code = _CODES.get(cause, Exit.FAILED)
    refused = ask.task_id is not None and cause == "request_wrong"
    if refused:  # the agent does not have the task, or takes nothing for it any more
        context = f" --context-id {quote(row['contextId'])}" if row.get("contextId") else ""
        follow = f'without the task: fleetsim send {quote(ask.agent)}{context} "…"'
    text, chars = row.get("text") or "", row.get("textChars") or 0
    rest = whole_at(ask.agent, row.get("taskId"), chars) if chars > len(text) else f"fleetsim task get {cid}"
    return AskResult(
        state=state,
        text=text,
        text_chars=chars,
        rest=rest,
        reason=f"not ended after {ask.timeout_s:g} s; it was left running" if late else row.get("reason") or "",
        task_id=row.get("taskId"),
        context_id=row.get("contextId"),
        correlation_id=cid,
        duration_s=(row.get("durationMs") or took_s * 1000) / 1000,
        cost_usd=row.get("costUsd"),
        code=code,
        next_step=follow if waiting or late or refused or ask.detach else "",
        shown=row.get("shown"),
        denied=cause == "success_denied",
        warnings=tuple(row.get("warnings") or ()),
        parts=tuple(read_part_row(part) for part in row.get("parts") or ()),
        parts_total=row.get("partsTotal") or 0,
        download=f"fleetsim task download {cid}",
    )


@asynccontextmanager
async def chat(common: CommonOptions, ask: AskOptions) -> AsyncIterator[HubChat]:
    async with connect(common) as hub:
        yield HubChat(hub, ask, common)


class HubChat:
    """Turns with one agent, each a request of the hub's: the rules are those of ``client.conversation``.

    What the agent asks is a question in the inbox, and the next turn its answer: the same request goes on.
    """

    def __init__(self, hub: HubClient, ask: AskOptions, common: CommonOptions) -> None:
        self.context_id = ask.context_id
        self._hub = hub
        self._options = ask
        self._common = common
        self._request: str | None = None
        self._question: str | None = None

    async def say(self, text: str) -> AskResult:
        """Say ``text`` and wait for the answer or the agent's next question.

        Raises:
            NoAnswer: the agent gave no end of its own.
            UnknownTarget: the question is not open any more; the hub sent nothing, and the next turn is a new request.
            FleetsimError: as ``HubClient``; an open question stays the one that the next turn answers.
        """
        ask = self._options
        if self._question is not None:
            try:
                await self._hub.answer(self._question, text, by="user")
            except UnknownTarget as error:
                self._question = None
                hint = f"see what became of it: fleetsim task get {self._request}"
                raise UnknownTarget(f"{error}; nothing was sent", hint=hint) from None
            self._question = None
        else:
            body: dict[str, Any] = {"text": text, "targets": [ask.agent], "interface": "chat"}
            if ask.skill:
                body["skill"] = ask.skill
            body |= {"contextId": self.context_id} if self.context_id else {"conversation": True}
            (self._request,) = await self._hub.submit(body)
        assert self._request is not None
        async with Progress(f"{ask.agent} is at work on {self._request}", quiet=self._common.quiet):
            row = await until_news(self._hub, self._request, math.inf)
        self._question = row.get("questionId")
        self._request = self._request if self._question else None
        self.context_id = row.get("contextId") or self.context_id
        result = _result(ask, row, 0.0)
        if result.code is not Exit.OK:
            raise NoAnswer(result.reason or f"the request ended as {result.state}", result.code, row["correlationId"])
        if not row.get("success") and self._question is None:
            result = replace(result, text=result.reason, text_chars=0)
        return replace(result, context_id=self.context_id, task_id=result.task_id if self._question else None)

    def left(self) -> str:
        """What becomes of what was asked: the hub follows it on."""
        if self._question is not None:
            return f'the question stays open: fleetsim inbox reply {self._question} "your answer"'
        return f"the work goes on at the hub: fleetsim task get {self._request}" if self._request else ""
