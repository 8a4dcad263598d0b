"""Whether a request that ended may be sent again, and the new request. Pure."""

from __future__ import annotations

from uuid import UUID, uuid5

from msgspec.structs import replace

from fleetsim.model.errors import FleetsimError, MayHaveRun
from fleetsim.model.text import one_line
from fleetsim.model.work import Outcome, OutcomeKind, SkillRequest
from fleetsim.request.records import RequestRecord

RETRIED_KINDS = (OutcomeKind.UNDELIVERABLE, OutcomeKind.UNKNOWN, OutcomeKind.FAILED)
"""The outcomes after which a request may be sent again."""


class RetryRefused(FleetsimError):
    """The request cannot be sent again, also not after a confirmation."""


_IDS = UUID("3d0b6a52-6f0e-4c37-9d0e-1f6b8f6b2c11")


def retry_id(correlation_id: str) -> str:
    """The id of the request that sends this one again. It follows from the old id, so the ledger admits only one, at
    any hub of the fleet.
    """
    return str(uuid5(_IDS, correlation_id))


def require_first(newer: RequestRecord | None) -> None:
    """Raise RetryRefused if ``newer``, the request of ``retry_id``, exists."""
    if newer is not None:
        hint = f"look at that one, and retry it if it failed: fleetsim task get {newer.request.correlation_id}"
        raise RetryRefused("it was sent again already", hint=hint)


def retry_request(
    record: RequestRecord, outcome: Outcome | None, *, idempotent: bool, may_repeat: bool
) -> SkillRequest:
    """Return the request that sends ``record`` again, with the id of ``retry_id``; it names the old one (``retry_of``).

    ``idempotent``: agents.yaml declares that the skill may run twice. ``may_repeat``: the caller confirmed it.

    Raises:
        RetryRefused: it is open, ended in another way, continues a task, or retention deleted its content.
        MayHaveRun: the agent may have done the work already, and neither a declaration nor the caller allows a repeat.
    """
    old, agent = record.request, one_line(record.agent, 64)
    if outcome is None:
        raise RetryRefused("it has no outcome yet", hint=f"wait for it: fleetsim task get {old.correlation_id} --wait")
    if outcome.kind not in RETRIED_KINDS:
        kinds = ", ".join(RETRIED_KINDS)
        raise RetryRefused(f"it ended as {outcome.kind}; only these are sent again: {kinds}")
    if old.task_id is not None:
        raise RetryRefused("it continues a task of the agent", hint="send the message to that task again")
    if not old.text and not old.parts:  # retention deletes both at once
        raise RetryRefused("the ledger has no text and no files of it (any more)")
    if outcome.kind is not OutcomeKind.UNDELIVERABLE and not (idempotent or may_repeat):
        what = f"{agent} may have done {one_line(record.skill, 64)} already (the request ended as {outcome.kind})"
        raise MayHaveRun(what, hint="confirm with --may-repeat (API: mayRepeat), or declare the skill idempotent")
    # An empty hint: the sender named no skill, and the agent chose.
    skill = None if record.hint == "" else old.skill
    new = {"correlation_id": retry_id(old.correlation_id), "retry_of": old.correlation_id, "skill": skill}
    return replace(old, **new, parent_id=None, traceparent="")
