"""Follow-ups: one more message on a task that its agent has already. Pure.

The task has a past, and the past must not be taken for the answer: an agent that takes the message may still
show the task as it stood before (ended, or waiting), in its reply or at the head of its stream. Only a poll
asked for afterwards is believed about that.
"""

from __future__ import annotations

from hashlib import sha256

from fleetsim.caller.ledger import RequestRecord
from fleetsim.model.asking import text_of
from fleetsim.model.changing import replace
from fleetsim.model.event import Snapshot, TaskEvent
from fleetsim.model.task import INTERRUPTED, Task, TaskState, TaskStatus
from fleetsim.model.work import KIND_OF_STATE, Outcome

_DIGEST_CHARS = 24


def follow_up(record: RequestRecord, last: Outcome | None, last_record: RequestRecord | None) -> RequestRecord:
    """The follow-up with what is known of its task's past: its context, and how it stood.

    ``last`` is the newest outcome of the same task and ``last_record`` its request. Without them the agent
    finds the context by the task.
    """
    if last is None:
        return record
    context = record.request.context_id or last.context_id or None
    return replace(record, request=replace(record.request, context_id=context), earlier=_earlier(last, last_record))


def _earlier(last: Outcome, record: RequestRecord | None) -> str:
    state = next((state for state, kind in KIND_OF_STATE.items() if kind is last.kind), None)
    if state is not None:
        return _digest(state, last.text)
    return how_it_stands(record.task) if record is not None and record.task is not None else ""


def how_it_stands(task: Task) -> str:
    """A digest of a task that does nothing by itself (ended, or waiting); the empty string for any other."""
    return _digest(task.state, text_of(task)[0]) if task.terminal or task.state in INTERRUPTED else ""


def _digest(state: TaskState, text: str) -> str:
    return sha256(f"{state.value}\0{text}".encode("utf-8", "replace")).hexdigest()[:_DIGEST_CHARS]


def shows_the_past(record: RequestRecord, event: TaskEvent) -> bool:
    """Whether an event shows a follow-up's task exactly as it stood before the message."""
    return isinstance(event, Snapshot) and record.earlier != "" and how_it_stands(event.task) == record.earlier


def just_taken(event: TaskEvent) -> TaskEvent:
    """The past, read for what it says of the present: the message was taken, and nothing has moved yet."""
    assert isinstance(event, Snapshot)
    return Snapshot(task=replace(event.task, status=TaskStatus(state=TaskState.SUBMITTED)))


def shows_the_message(record: RequestRecord, task: Task) -> bool:
    """Whether a task tells that the message arrived, its own reply being lost."""
    if any(message.message_id == record.message_id for message in task.history):
        return True
    stands = how_it_stands(task)
    return stands == "" or (record.earlier != "" and stands != record.earlier)
