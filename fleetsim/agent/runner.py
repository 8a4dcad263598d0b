"""Runs skills. The worker belongs to the task, never to a connection (seed "Producer must be independent"). Every run
ends in exactly one terminal state; a worker that dies in any other way fails the task with that reason.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from fleetsim.agent.limits import AgentLimits, OutputLimit
from fleetsim.agent.skills import Skill, SkillContext, SkillFailed, SkillRejected
from fleetsim.agent.store import Store
from fleetsim.agent.tasks import Record, TaskEnded, TaskKey
from fleetsim.model.errors import InvalidMove, TaskNotFound
from fleetsim.model.limits import TEXT_CHARS_MAX
from fleetsim.model.task import INTERRUPTED, TERMINAL, Artifact, JsonObject, Message, TaskState
from fleetsim.model.text import neutralise, one_line
from fleetsim.runtime.ports import Rng
from fleetsim.runtime.workers import Workers

log = logging.getLogger(__name__)

NOTE_CHARS_MAX = 4_000
CUT_OFF = "the agent stopped before the skill ended"


@dataclass(slots=True, eq=False)
class Job:
    """One skill at work on one task: what its context writes with. ``refused`` ends it if the skill says no."""

    store: Store
    key: TaskKey
    inbox_max: int
    refused: TaskState = TaskState.REJECTED
    inbox: list[Message] = field(default_factory=list)
    answer: asyncio.Future[Message] | None = None
    worker: asyncio.Task[None] | None = None

    def put(self, artifact: Artifact, *, append: bool, last_chunk: bool) -> None:
        self.store.put(self.key, artifact, append=append, last_chunk=last_chunk)

    def note(self, text: str) -> None:
        if self.answer is None and self.store.state(self.key) in INTERRUPTED:
            self.store.move(self.key, TaskState.WORKING)  # it waited when an earlier run of the agent stopped
        cut = len(text) > NOTE_CHARS_MAX
        self.store.note(self.key, text[: NOTE_CHARS_MAX - 1] + "…" if cut else text)

    async def ask(self, question: str, *, auth: bool) -> Message:
        if self.answer is not None:
            raise RuntimeError("a skill asks one question at a time")
        self.answer = asyncio.get_running_loop().create_future()
        try:
            waiting = TaskState.AUTH_REQUIRED if auth else TaskState.INPUT_REQUIRED
            status = self.store.read(self.key).task.status
            if status.state is not waiting or status.message is None or status.message.text != question:
                if status.state in INTERRUPTED:
                    self.store.move(self.key, TaskState.WORKING)
                self.store.move(self.key, waiting, question)
            return await self.answer  # an earlier run may have asked the same: its message id and timestamp stay
        finally:
            self.answer = None

    def unread(self) -> tuple[Message, ...]:
        taken = tuple(self.inbox)
        self.inbox.clear()
        return taken

    async def breathe(self) -> None:
        """Let other workers run; a skill that only talks would starve its readers."""
        await asyncio.sleep(0)

    def pass_on(self, message: Message) -> None:
        """Pass on a message: the answer if one is awaited, else one to be read."""
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(message)
        elif len(self.inbox) < self.inbox_max:
            self.inbox.append(message)


class Runner:
    """All skills at work. ``workers`` owns them."""

    def __init__(self, *, store: Store, workers: Workers, rng: Rng, limits: AgentLimits) -> None:
        self._store, self._workers, self._rng, self._limits = store, workers, rng, limits
        self._jobs: dict[TaskKey, Job] = {}
        self._leaving = False

    def __len__(self) -> int:
        return len(self._jobs)

    def start(
        self,
        record: Record,
        skill: Skill,
        message: Message,
        metadata: JsonObject,
        *,
        refused: TaskState,
        traceparent: str = "",
    ) -> None:
        """Begin work on a task just created; ``refused`` is how it ends if the skill does not take it on.

        The task fails at once if no more workers may run.
        """
        job = Job(self._store, record.key, self._limits.inbox_messages_max, refused)
        context = SkillContext(
            task_id=record.task.task_id,
            context_id=record.task.context_id,
            caller=record.key[0],
            skill=skill,
            message=message,
            metadata=metadata,
            traceparent=traceparent,
            rng=self._rng.stream(f"skill/{skill.skill_id}"),
            writer=job,
            usage=self._store.usage(record.key),
        )
        try:
            job.worker = self._workers.start(self._run(job, skill, context), name=f"skill {skill.skill_id}")
        except RuntimeError:
            self._end(record.key, TaskState.FAILED, reason="the agent runs as many skills as it may")
            return
        self._jobs[record.key] = job
        job.worker.add_done_callback(lambda _worker: self._reap(record.key))

    def pass_on(self, key: TaskKey, message: Message) -> None:
        """Pass a message to the skill at work on the task, if there is one."""
        if job := self._jobs.get(key):
            job.pass_on(message)

    def stop(self, key: TaskKey) -> None:
        """Stop working on a task that is over."""
        if (job := self._jobs.get(key)) and job.worker:
            job.worker.cancel()

    def leave(self) -> None:
        """Stop all work and leave the tasks open, for the next start to take up."""
        self._leaving = True
        for key in tuple(self._jobs):
            self.stop(key)

    async def _run(self, job: Job, skill: Skill, context: SkillContext) -> None:
        """One skill from ``working`` to its end. A cancel passes through; ``_reap`` sees to the rest."""
        try:
            if self._store.state(job.key) not in {TaskState.WORKING, *INTERRUPTED}:  # an earlier run may have moved it
                self._store.move(job.key, TaskState.WORKING)
            text = await skill.run(context)
            self._store.finish(job.key, TaskState.COMPLETED, text)
        except (TaskEnded, TaskNotFound):
            log.debug("task %s was over before its skill", one_line(job.key[1], 128))
        except SkillFailed as failure:
            reason = _reason(failure, "the skill failed")
            self._end(job.key, TaskState.FAILED, reason=reason, metadata=failure.metadata)
        except SkillRejected as refusal:
            reason = _reason(refusal, "the skill refused")
            self._end(job.key, job.refused, reason=reason, metadata=refusal.metadata)
        except OutputLimit as limit:
            self._end(job.key, TaskState.FAILED, reason=str(limit))
        except Exception as error:
            log.exception("skill %s failed on task %s", skill.skill_id, one_line(job.key[1], 128))
            self._end(job.key, TaskState.FAILED, reason=f"the skill failed ({type(error).__name__})")

    def _reap(self, key: TaskKey) -> None:
        """End the task if its worker ended without ending it."""
        self._jobs.pop(key, None)
        if self._leaving:
            return
        self._end(key, TaskState.FAILED, reason=CUT_OFF)

    def _end(self, key: TaskKey, state: TaskState, *, reason: str, metadata: JsonObject | None = None) -> None:
        """Finish the task unless it is over or gone."""
        try:
            if self._store.state(key) not in TERMINAL:
                self._store.finish(key, state, reason=reason, metadata=metadata)
        except (TaskNotFound, InvalidMove):
            return


def _reason(error: Exception, otherwise: str) -> str:
    return neutralise(str(error), limit=TEXT_CHARS_MAX) or otherwise
