"""What each dialect expects where dialects disagree about behaviour, as one table.

The service reads these flags and never asks which version is spoken; the wire's shapes are the
dialect's own business. Sources: docs/reference/interop.md, A2A 0.3.0 section 7, A2A 1.0 section 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fleetsim.model.errors import (
    ExtendedCardNotConfigured,
    InvalidParams,
    RpcError,
    TaskNotCancelable,
    UnsupportedOperation,
)
from fleetsim.model.task import TaskState


@dataclass(frozen=True, slots=True, kw_only=True)
class DialectBehaviour:
    """How one dialect wants things done.

    ``waits``: a send waits for a terminal or interrupted state unless it asks not to.
    ``waits_always``: it waits even if asked not to.
    ``finished_send``: the error for a message to a finished task.
    ``finished_subscribe``: the error for joining a finished task; None replays snapshot and closing pair.
    ``other_context_refused``: a message whose contextId is not its task's is refused.
    ``stream_errors_as_events``: a refused stream is one SSE error event instead of plain JSON.
    ``question_closes_subscription``: joining a task that waits for input ends after the snapshot.
    ``client_names_task``: a send carries the id of the task it makes.
    ``repeats_artifact``: a stream ends with its main artifact whole, pieces of which it has told (seed "Streaming");
    without it, with what was not told yet, appended: some clients join whatever they are sent.
    ``artifact_notice``: a webhook gets each artifact in a notice of its own too, before the final status.
    ``push_id_is_task_id``: a webhook registered without an id is the task's one default.
    ``no_extended_card``: the error when there is no extended card.
    ``refused``: how a task ends that the agent does not take on.
    ``notice_type``: the content type of a webhook's body.
    """

    dialect: str
    waits: bool = False
    waits_always: bool = False
    finished_send: type[RpcError] = InvalidParams
    finished_subscribe: type[RpcError] | None = None
    other_context_refused: bool = False
    stream_errors_as_events: bool = True
    question_closes_subscription: bool = True
    client_names_task: bool = False
    repeats_artifact: bool = True
    artifact_notice: bool = False
    push_id_is_task_id: bool = True
    no_extended_card: type[RpcError] = ExtendedCardNotConfigured
    refused: TaskState = TaskState.REJECTED
    notice_type: str = "application/json"

    def will_wait(self, wait: bool | None) -> bool:
        """Whether a send that asked for ``wait`` (None if it did not say) is answered only at the end."""
        return self.waits_always or (self.waits and wait is not False)


MANNERS: Mapping[str, DialectBehaviour] = {
    "1.0": DialectBehaviour(
        dialect="1.0",
        waits=True,
        finished_send=UnsupportedOperation,
        finished_subscribe=UnsupportedOperation,
        other_context_refused=True,
        stream_errors_as_events=False,
        question_closes_subscription=False,
        repeats_artifact=False,
        push_id_is_task_id=False,
        no_extended_card=UnsupportedOperation,
        notice_type="application/a2a+json",
    ),
    "0.3": DialectBehaviour(dialect="0.3"),
    "0.1": DialectBehaviour(
        dialect="0.1",
        finished_send=TaskNotCancelable,
        client_names_task=True,
        artifact_notice=True,
        refused=TaskState.FAILED,  # 0.1 knows no rejected
    ),
}
"""One row a dialect. A new dialect is a new row."""
