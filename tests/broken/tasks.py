"""Agents whose tasks or task store are broken."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace

from fleetsim.agent import SkillContext, SkillFailed
from fleetsim.agent.skills import ArtifactWriter, SkillFunction
from fleetsim.model.call import Operation
from fleetsim.model.task import Message, TaskState
from fleetsim.runtime.ports import Ids
from tests.broken.build import Catalogue, with_behaviour, with_limits, with_skills
from tests.broken.editors import (
    SENDS,
    answer_as,
    each_object,
    edit_everything,
    edit_params,
    edit_reply,
    edit_request,
    in_dialect,
    member,
    renamed,
    without,
)
from tests.broken.senders import ChattySender, SilentSender, WeakSender, silent_about
from tests.broken.services import (
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
from tests.broken.wire import Edit, HttpRequest, HttpResponse, Json

GET, LIST, SEND = Operation.GET, Operation.LIST, Operation.SEND


def _params(dialect: str, operation: Operation, to: Callable[[Json], Json]) -> Edit:
    return edit_request(in_dialect(dialect, operation), member("params", to))


def _crash(_asked: HttpRequest, answer: HttpResponse) -> None:
    if "result" in (answer.json or {}):
        answer.crash()


def _has_data(asked: HttpRequest) -> bool:
    parts = asked.message.get("parts") if asked.operation in SENDS else None
    return isinstance(parts, list) and any(isinstance(part, dict) and "data" in part for part in parts)


def _no_output_modes(asked: HttpRequest) -> bool:
    configuration = asked.params.get("configuration")
    return (
        asked.operation in SENDS
        and not asked.method.startswith("tasks/")
        and not (isinstance(configuration, dict) and "acceptedOutputModes" in configuration)
    )


def _first_text(parts: Json) -> Json:
    if not isinstance(parts, list):
        return parts
    texts = [part for part in parts if isinstance(part, dict) and "text" in part]
    return [part for part in parts if part not in texts[1:]]


async def _boasting(run: SkillFunction, task: SkillContext) -> str | None:
    """A skill that fails has completed, with an error text for an answer."""
    try:
        return await run(task)
    except SkillFailed as failure:
        return f"Error: {failure}"


class _Unanswered:
    """The writer of a skill; answers to its questions never reach it."""

    def __init__(self, writer: ArtifactWriter) -> None:
        self.put, self.note = writer.put, writer.note
        self.unread, self.breathe = writer.unread, writer.breathe
        self._ask = writer.ask

    async def ask(self, question: str, *, auth: bool) -> Message:
        await self._ask(question, auth=auth)
        unheard: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        return await unheard


async def _unanswered(run: SkillFunction, task: SkillContext) -> str | None:
    return await run(replace(task, writer=_Unanswered(task.writer)))


class _CountedIds:
    """Ids that count up, and random secrets."""

    def __init__(self, ids: Ids) -> None:
        self._made = 0
        self.secret = ids.secret

    def new(self) -> str:
        self._made += 1
        return f"task-{self._made}"


catalogue = Catalogue()
add = catalogue.add

add(
    "T-01 task-without-kind: the task of an answer has no kind",
    edit_reply(SEND, to=without("kind"), dialect="0.3"),
    incident="Quinn #64",
)
add(
    "T-02 blocking-send: a send waits for the whole work",
    settings=with_behaviour("0.3", wait_s=math.inf),
    intercept=AlwaysWaiting.in_dialect("0.3"),
    incident="Quinn #11",
    also={
        "P-04 P-30 R-05": "what is looked at while a task runs is over by then",
        "T-03": "a send that asks to block is a send",
    },
)
add(
    "T-03 blocking-if-asked: a 0.3 send that asks to block does",
    intercept=Blocking,
    incident="the fleet's caller always asks to",
)
add(
    "T-04 no-return-at-once: returnImmediately is ignored",
    intercept=AlwaysWaiting.in_dialect("1.0"),
    also={"P-04 P-30": "what is looked at while a task runs is over by then"},
)
add("T-05 never-waits: a 1.0 send never waits", settings=with_behaviour("1.0", wait_s=0.0))
add(
    "T-06 answer-lost: a finished task has no artifacts",
    edit_reply(GET, to=without("artifacts")),
    also={
        "S-09": "what streamed is not what get returns",
        "X-03 X-04 X-05": "the extensions' parts are in the artifacts",
    },
)
add(
    "T-07 queued: a new task is in the state queued",
    edit_everything(
        member("state", lambda state: "queued" if state in {"submitted", "TASK_STATE_SUBMITTED"} else state)
    ),
    also={"L-01 T-01": "the first state is not a state"},
)
add(
    "T-07 undead: a canceled task is completed later",
    intercept=WorkingOn,
    incident="Quinn #19",
    also={"P-17 S-26": "only a call for the task shows the cancel"},
)
add(
    "T-08 cancel-in-words: a cancel is answered and not done",
    intercept=LyingCancel,
    also={"P-17 R-05 S-26": "nothing was canceled", "T-07": "the state goes on"},
)
add("T-08 cancel-refused: a running task cannot be canceled", intercept=NoCancel, also={"R-05": "nothing was canceled"})
add(
    "T-09 cancel-clobbers: a finished task can be canceled",
    intercept=Clobbering,
    incident="Quinn #19",
    also={"T-07": "a terminal state is left", "T-10": "canceled is finished"},
)
add("T-10 second-cancel: a second cancel is accepted", intercept=Cancelable, incident="@a2a-js/sdk 1.3.0")
add(
    "T-11 finished-restarts: a message to a finished task begins another",
    intercept=BeginsAfterTheEnd,
    incident="the original agent",
)
add(
    "T-12 context-lost: the message's contextId is ignored",
    edit_params(*SENDS, to=member("message", without("contextId"))),
    incident="the original agent",
    also={"T-13": "the context of an answer is not seen", "T-22 T-23": "lists by context are empty"},
)
add("T-13 any-context: 1.0 takes an answer of any context", settings=with_behaviour("1.0", other_context_refused=False))
add(
    "T-14 context-decides: 0.3 refuses an answer of another context",
    settings=with_behaviour("0.3", other_context_refused=True),
    incident="every server but @a2a-js/sdk 0.3",
)
add(
    "T-15 task-id-ignored: every message is a new task",
    edit_params(*SENDS, to=member("message", without("taskId"))),
    incident="the original agent",
    also={"E-15": "no message asks for a task", "T-11 T-13 T-14": "no message reaches a task"},
)
add(
    "T-15 answers-unheard: an answer never reaches the work",
    settings=with_skills(_unanswered),
    also={"L-08 T-14": "the answer is not heard"},
)
add("T-16 counted-ids: task ids count up", runtime=lambda runtime: replace(runtime, ids=_CountedIds(runtime.ids)))
add(
    "T-17 zoneless: timestamps have no zone",
    edit_everything(member("timestamp", lambda time: time.removesuffix("Z").removesuffix("+00:00"))),
    incident="fasta2a",
)
add(
    "T-18 bare-status-message: status.message has role and parts only",
    edit_everything(
        member("status", member("message", lambda message: {"role": message["role"], "parts": message["parts"]}))
    ),
    incident="the original agent",
)
add("T-32 no-history: a task holds no messages", edit_everything(lambda found: found.pop("history", None)))
add(
    "T-31 first-part-alone: all text parts but the first are dropped",
    edit_params(*SENDS, to=member("message", member("parts", _first_text))),
)
add("T-19 history-always: 1.0 ignores historyLength", _params("1.0", GET, without("historyLength")))
add(
    "T-20 history-always-old: 0.3 ignores historyLength",
    _params("0.3", GET, without("historyLength")),
    incident="a2a-sdk 0.3.26",
)
add(
    "T-21 failures-completed: a failure is completed, with an error text",
    settings=with_skills(_boasting),
    incident="fleet health took failures for successes",
    also={"P-18": "no failure is delivered"},
)
add(
    "T-21 failures-stuck: a failed task works for ever",
    intercept=Stuck,
    sender=silent_about(TaskState.FAILED),
    incident="a producer that ended without done",
    also={"P-18": "no failure is delivered"},
)
add("T-22 one-page: a list has one page", edit_reply(LIST, to=lambda page: {**page, "nextPageToken": ""}))
add(
    "T-23 lists-everything: a list's filters are ignored",
    _params("1.0", LIST, without("contextId", "status", "state")),
    also={"T-22": "others' tasks are on the pages"},
)
add(
    "T-24 page-size-clamped: a page size out of bounds is bent",
    _params("1.0", LIST, member("pageSize", lambda size: min(max(size, 1), 100) if isinstance(size, int) else size)),
)
add(
    "T-25 artifacts-always: a list always has artifacts",
    _params("1.0", LIST, lambda params: {**params, "includeArtifacts": True}),
)
add(
    "T-26 artifact-without-id: artifacts of a task have no id",
    edit_reply(GET, to=lambda task: each_object(task, lambda found: found.pop("artifactId", None))),
)
add(
    "T-27 ascii-only: other scripts become question marks",
    edit_params(
        *SENDS,
        to=lambda params: each_object(
            params, member("text", lambda text: str(text).encode("ascii", "replace").decode())
        ),
    ),
)
add("T-28 data-part-500: a data part is HTTP 500", answer_as(_has_data, _crash))
add(
    "T-29 output-modes-demanded: a send without acceptedOutputModes is HTTP 500",
    answer_as(_no_output_modes, _crash),
    incident="fasta2a 0.6.1",
)
add(
    "T-30 snake-history: messages of a task are in snake case",
    edit_reply(
        GET,
        SEND,
        to=lambda task: each_object(task, member("history", lambda history: renamed(history, {"taskId": "task_id"}))),
    ),
    incident="Quinn #42",
)

add(
    "H-01 leaked-store: finished tasks are never let go",
    settings=with_limits(terminal_ttl_s=1000000000.0),
    incident="Quinn #11",
)
add("H-02 evicts-work: tasks at work are let go by age", intercept=Evicting)
add("H-03 shared-state: sends of one moment share a task", intercept=Sharing)
add(
    "H-04 cancel-race: a task that ended just now is reported as canceled, and is not",
    intercept=Racy,
    incident="Quinn #19",
    also={"T-07": "the answer said canceled, and the task is completed"},
)
add(
    "H-05 aborted-readers: readers that left are kept",
    intercept=LeakingReaders,
    settings=with_limits(streams_max=12, streams_per_task_max=12),  # its row drops a dozen; the others fewer in all
)
add(
    "H-06 deliveries-unseen: the log does not say which task a delivery was for",
    sender=SilentSender,
    incident="Quinn #61",
)
add("H-07 tokens-logged: tokens and bodies are logged", sender=ChattySender)
add(
    "H-08 retries-collected: a waiting retry can be collected",
    sender=WeakSender,
    incident="Quinn #19",
    also={"P-31": "a retry that was not collected comes after the end, since nobody waits for it"},
)

MUTANTS = tuple(catalogue.mutants)
