"""Agents whose tasks or task store are broken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fleetsim.agent import SkillContext, SkillFailed
from fleetsim.agent.skills import ArtifactWriter, SkillFunction
from fleetsim.check.broken.build import Catalogue, with_behaviour, with_limits, with_skills
from fleetsim.check.broken.editors import (
    SENDS,
    answer_as,
    each_object,
    edit_everything,
    edit_params,
    edit_reply,
    edit_request,
    in_dialect,
    renamed,
    without,
)
from fleetsim.check.broken.senders import ChattySender, SilentSender, WeakSender, silent_about
from fleetsim.check.broken.services import (
    AlwaysWaiting,
    BeginsAfterTheEnd,
    Blocking,
    Cancelable,
    Clobbering,
    Evicting,
    LeakingReaders,
    LyingCancel,
    NoCancel,
    Racy,
    Sharing,
    Stuck,
    WorkingOn,
)
from fleetsim.check.broken.wire import Answer, Asked, Edit, Json
from fleetsim.model.call import Operation
from fleetsim.model.task import Message, TaskState
from fleetsim.runtime.ports import Ids, Runtime

GET, LIST, SEND = Operation.GET, Operation.LIST, Operation.SEND


def _queued(found: dict[str, Any]) -> None:
    if found.get("state") in {"submitted", "TASK_STATE_SUBMITTED"}:
        found["state"] = "queued"


def _no_zone(found: dict[str, Any]) -> None:
    if isinstance(found.get("timestamp"), str):
        found["timestamp"] = found["timestamp"].removesuffix("Z").removesuffix("+00:00")


def _bare_status_message(found: dict[str, Any]) -> None:
    status = found.get("status")
    if isinstance(status, dict) and isinstance(status.get("message"), dict):
        status["message"] = {k: v for k, v in status["message"].items() if k in {"role", "parts"}}


def _nameless_artifacts(task: Json) -> Json:
    for artifact in task.get("artifacts", []) if isinstance(task, dict) else []:
        artifact.pop("artifactId", None)
    return task


def _snake_history(task: Json) -> Json:
    if isinstance(task, dict) and task.get("history"):
        task["history"] = renamed(task["history"], {"taskId": "task_id"})
    return task


def _own_context(params: Json) -> Json:
    message = params.get("message")
    return {**params, "message": without("contextId")(message)} if isinstance(message, dict) else params


def _no_task_id(params: Json) -> Json:
    message = params.get("message")
    return {**params, "message": without("taskId")(message)} if isinstance(message, dict) else params


def _plain_ascii(params: Json) -> Json:
    def ask(found: dict[str, Any]) -> None:
        if isinstance(found.get("text"), str):
            found["text"] = found["text"].encode("ascii", "replace").decode()

    return each_object(params, ask)


def _has_data(asked: Asked) -> bool:
    message = asked.params.get("message")
    parts = message.get("parts") if isinstance(message, dict) else None
    return (
        asked.operation in SENDS and isinstance(parts, list) and any(isinstance(p, dict) and "data" in p for p in parts)
    )


def _no_output_modes(asked: Asked) -> bool:
    configuration = asked.params.get("configuration")
    return (
        asked.operation in SENDS
        and not asked.method.startswith("tasks/")
        and not (isinstance(configuration, dict) and "acceptedOutputModes" in configuration)
    )


def _crash(_asked: Asked, answer: Answer) -> None:
    if answer.status == 200 and "result" in (answer.json or {}):
        answer.status, answer.body = 500, b"Internal Server Error"


def _current_params(operation: Operation, to: Callable[[Json], Json], dialect: str = "1.0") -> Edit:
    return edit_request(
        in_dialect(dialect, operation),
        lambda body: {**body, "params": to(body["params"])} if isinstance(body.get("params"), dict) else body,
    )


def _clamped(params: Json) -> Json:
    size = params.get("pageSize")
    return {**params, "pageSize": min(max(size, 1), 100)} if isinstance(size, int) else params


def _one_page(page: Json) -> Json:
    return {**page, "nextPageToken": ""}


async def _boasting(run: SkillFunction, task: SkillContext) -> str | None:
    """A skill that fails has completed, with an error text for an answer."""
    try:
        return await run(task)
    except SkillFailed as failure:
        return f"Error: {failure}"


class _Unanswered:
    """What a skill writes with; answers to its questions never reach it."""

    def __init__(self, writer: ArtifactWriter) -> None:
        self.put, self.note = writer.put, writer.note
        self.unread, self.breathe = writer.unread, writer.breathe
        self._ask = writer.ask

    async def ask(self, question: str, *, auth: bool) -> Message:
        """Ask, and wait for ever."""
        await self._ask(question, auth=auth)
        unheard: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        return await unheard


async def _unanswered(run: SkillFunction, task: SkillContext) -> str | None:
    return await run(replace(task, writer=_Unanswered(task.writer)))


class _CountedIds:
    """Ids that count up; secrets as ever."""

    def __init__(self, ids: Ids) -> None:
        self._made = 0
        self.secret = ids.secret

    def new(self) -> str:
        """The next number, behind a word."""
        self._made += 1
        return f"task-{self._made}"


def _counted(runtime: Runtime) -> Runtime:
    return replace(runtime, ids=_CountedIds(runtime.ids))


catalogue = Catalogue()
add = catalogue.add

add(
    "task-without-kind",
    "T-01",
    "the task of an answer has no kind",
    edit_reply(SEND, to=without("kind"), dialect="0.3"),
    incident="Quinn #64",
)
add(
    "blocking-send",
    "T-02",
    "a send waits for the whole work",
    settings=with_behaviour("0.3", waits=True),
    intercept=AlwaysWaiting.in_dialect("0.3"),
    incident="Quinn #11",
    also={
        "P-04 P-30 R-05": "what is looked at while a task runs is over by then",
        "T-03": "a send that asks to block is a send",
    },
)
add(
    "blocking-if-asked",
    "T-03",
    "a 0.3 send that asks to block does",
    intercept=Blocking,
    incident="the fleet's caller always asks to",
)
add(
    "no-return-at-once",
    "T-04",
    "returnImmediately is ignored",
    intercept=AlwaysWaiting.in_dialect("1.0"),
    also={"P-04 P-30": "what is looked at while a task runs is over by then"},
)
add("never-waits", "T-05", "a 1.0 send never waits", settings=with_behaviour("1.0", waits=False))
add(
    "answer-lost",
    "T-06",
    "a finished task has no artifacts",
    edit_reply(GET, to=without("artifacts")),
    also={"S-09": "what streamed is not what get returns", "X-03 X-04": "the extensions' parts are in the artifacts"},
)
add(
    "queued",
    "T-07",
    "a new task is in the state queued",
    edit_everything(_queued),
    also={"L-01 T-01": "the first state is no state"},
)
add(
    "undead",
    "T-07",
    "a canceled task is completed later",
    intercept=WorkingOn,
    incident="Quinn #19",
    also={"P-17 S-26": "only who asks for the task hears of the cancel"},
)
add(
    "cancel-in-words",
    "T-08",
    "a cancel is answered and not done",
    intercept=LyingCancel,
    also={"P-17 R-05 S-26": "nothing was canceled", "T-07": "the state goes on"},
)
add(
    "cancel-refused",
    "T-08",
    "a running task cannot be canceled",
    intercept=NoCancel,
    also={"R-05": "nothing was canceled"},
)
add(
    "cancel-clobbers",
    "T-09",
    "a finished task can be canceled",
    intercept=Clobbering,
    incident="Quinn #19",
    also={"T-07": "a terminal state is left", "T-10": "canceled is finished"},
)
add("second-cancel", "T-10", "a second cancel is accepted", intercept=Cancelable, incident="@a2a-js/sdk 1.3.0")
add(
    "finished-restarts",
    "T-11",
    "a message to a finished task begins another",
    intercept=BeginsAfterTheEnd,
    incident="the original agent",
)
add(
    "context-lost",
    "T-12",
    "the message's contextId is ignored",
    edit_params(*SENDS, to=_own_context),
    incident="the original agent",
    also={"T-13": "the context of an answer is not seen", "T-22 T-23": "lists by context are empty"},
)
add(
    "any-context",
    "T-13",
    "1.0 takes an answer of any context",
    settings=with_behaviour("1.0", other_context_refused=False),
)
add(
    "context-decides",
    "T-14",
    "0.3 refuses an answer of another context",
    settings=with_behaviour("0.3", other_context_refused=True),
    incident="every server but @a2a-js/sdk 0.3",
)
add(
    "task-id-ignored",
    "T-15",
    "every message is a new task",
    edit_params(*SENDS, to=_no_task_id),
    incident="the original agent",
    also={"E-15": "no message asks for a task", "T-11 T-13 T-14": "no message reaches a task"},
)
add(
    "answers-unheard",
    "T-15",
    "an answer never reaches the work",
    settings=with_skills(_unanswered),
    also={"L-08 T-14": "the answer is not heard"},
)
add("counted-ids", "T-16", "task ids count up", runtime=_counted)
add("zoneless", "T-17", "timestamps have no zone", edit_everything(_no_zone), incident="fasta2a")
add(
    "bare-status-message",
    "T-18",
    "status.message has role and parts only",
    edit_everything(_bare_status_message),
    incident="the original agent",
)
add("history-always", "T-19", "1.0 ignores historyLength", _current_params(GET, without("historyLength")))
add(
    "history-always-old",
    "T-20",
    "0.3 ignores historyLength",
    _current_params(GET, without("historyLength"), "0.3"),
    incident="a2a-sdk 0.3.26",
)
add(
    "failures-completed",
    "T-21",
    "a failure is completed, with an error text",
    settings=with_skills(_boasting),
    incident="fleet health took failures for successes",
    also={"P-18": "there is no failure to deliver"},
)
add(
    "failures-stuck",
    "T-21",
    "a failed task works for ever",
    intercept=Stuck,
    sender=silent_about(TaskState.FAILED),
    incident="a producer that ended without done",
    also={"P-18": "there is no failure to deliver"},
)
add("one-page", "T-22", "a list has one page", edit_reply(LIST, to=_one_page))
add(
    "lists-everything",
    "T-23",
    "a list's filters are ignored",
    _current_params(LIST, without("contextId", "status", "state")),
    also={"T-22": "others' tasks are on the pages"},
)
add("page-size-clamped", "T-24", "a page size out of bounds is bent", _current_params(LIST, _clamped))
add(
    "artifacts-always",
    "T-25",
    "a list always has artifacts",
    _current_params(LIST, lambda params: {**params, "includeArtifacts": True}),
)
add("artifact-without-id", "T-26", "artifacts of a task have no id", edit_reply(GET, to=_nameless_artifacts))
add("ascii-only", "T-27", "other scripts become question marks", edit_params(*SENDS, to=_plain_ascii))
add("data-part-500", "T-28", "a data part is HTTP 500", answer_as(_has_data, _crash))
add(
    "output-modes-demanded",
    "T-29",
    "a send without acceptedOutputModes is HTTP 500",
    answer_as(_no_output_modes, _crash),
    incident="fasta2a 0.6.1",
)
add(
    "snake-history",
    "T-30",
    "messages of a task are in snake case",
    edit_reply(GET, SEND, to=_snake_history),
    incident="Quinn #42",
)

add(
    "leaked-store",
    "H-01",
    "finished tasks are never let go",
    settings=with_limits(terminal_ttl_s=1e9),
    incident="Quinn #11",
)
add("evicts-work", "H-02", "tasks at work are let go by age", intercept=Evicting)
add("shared-state", "H-03", "sends of one moment share a task", intercept=Sharing)
add(
    "cancel-race",
    "H-04",
    "a task that ended just now is told to be canceled, and is not",
    intercept=Racy,
    incident="Quinn #19",
    also={"T-07": "the answer said canceled, and the task is completed"},
)
add(
    "aborted-readers",
    "H-05",
    "readers that left are kept",
    intercept=LeakingReaders,
    settings=with_limits(streams_max=10, streams_per_task_max=10),
)
add(
    "deliveries-unseen",
    "H-06",
    "the log does not say which task a delivery was for",
    sender=SilentSender,
    incident="Quinn #61",
)
add("tokens-logged", "H-07", "tokens and bodies are logged", sender=ChattySender)
add(
    "retries-collected",
    "H-08",
    "a waiting retry can be collected",
    sender=WeakSender,
    incident="Quinn #19",
)

MUTANTS = tuple(catalogue.mutants)
