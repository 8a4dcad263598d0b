"""The records of a request and of a question: all that a restart needs to continue. Pure."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from fleetsim.model.extensions import SkillPolicy
from fleetsim.model.task import Task
from fleetsim.model.work import DEFAULT_SKILL, Answer, Question, SkillRequest
from fleetsim.request.limits import Booking


class Phase(StrEnum):
    """The progress of a request.

    ``INTENT``: recorded, nothing sent. ``SENDING``: bytes may have left. ``ACCEPTED``: the agent's answer
    bound it to a task. ``CLOSED``: it has its outcome.
    """

    INTENT = "intent"
    SENDING = "sending"
    ACCEPTED = "accepted"
    CLOSED = "closed"


class OtherWay(Struct, frozen=True, kw_only=True):
    """A further way to call an agent that refuses the one before: the card's next interface, or another dialect."""

    dialect: str
    rpc_url: str
    tenant: str | None = None
    rejoin: bool = True
    other: OtherWay | None = None


class AgentRoute(Struct, frozen=True, kw_only=True):
    """How an agent is called for a request, from its card and entry at dispatch; later cards leave it alone (T-09).

    ``skill`` is the one that its work is booked under, ``hint`` the ``skillHint`` that it receives. ``url`` is its
    address in agents.yaml: the work stays at that origin, wherever the agent is later ("" in records older than this
    field). ``rejoin`` is about a broken stream, and ``declared`` is the card's policy for the skill. ``register_push``
    asks for a registration of the webhook after the reply instead of one inside the send. ``warnings`` are for the
    requester. ``retry_waits_s`` replaces that of the fleet, and ``fallback`` are the routes to the agents that get the
    request if this one does not accept it.
    """

    agent: str
    skill: str = DEFAULT_SKILL
    url: str = ""
    dialect: str | None = None
    rpc_url: str = ""
    tenant: str | None = None
    other: OtherWay | None = None
    hint: str | None = None
    declared: SkillPolicy = SkillPolicy()
    streaming: bool = False
    rejoin: bool = True
    push: bool = False
    register_push: bool = False
    warnings: tuple[str, ...] = ()
    retry_waits_s: tuple[float, ...] | None = None
    fallback: tuple[AgentRoute, ...] = ()


class RequestRecord(AgentRoute, frozen=True, kw_only=True):
    """One accepted request, its route and what is known of its task; all that a restart needs to go on.

    ``request`` has exactly one target, ``agent``. ``bound_at`` is the time at which a reply or update bound it to a
    task. ``answers`` counts the answers that the agent accepted. ``over`` names the closed questions, the last one
    last, and ``over_at`` is the agent's time of the status with that question. ``message_id`` stays the same over every
    repeat of the first send. ``earlier``, for a follow-up, is the earlier state of its task (``request/track.py``).
    ``shortened``: the caller asked for less time than is configured. ``rejected``:
    it is canceled because somebody rejected the agent's question. ``agent_s`` are the seconds the agent has had it so
    far, and ``agent_since`` is since when it has it again; None while the request waits to leave, or for a person.

    ``other`` is the way that has not been tried yet, and ``other_taken`` says that it was taken. ``hint`` is "" for
    none, and None in records older than this field, whose agent gets the ``skill`` they are booked under. With a
    policy for the skill, ``attempt`` counts the repeats of the send, the next one of which is due at ``retry_at``.
    ``bookings`` are what it booked in limits. ``held``: a limit has no room for it, and a person is asked.
    """

    request: SkillRequest
    accepted_at: datetime
    deadline_at: datetime
    message_id: str
    phase: Phase = Phase.INTENT
    other_taken: bool = False
    token_epoch: int = 1
    task: Task | None = None
    bound_at: datetime | None = None
    answers: int = 0
    over: tuple[str, ...] = ()
    over_at: datetime | None = None
    cancel_wanted: bool = False
    earlier: str = ""
    rejected: bool = False
    shortened: bool = False
    agent_s: float = 0.0
    agent_since: datetime | None = None
    attempt: int = 0
    retry_at: datetime | None = None
    bookings: tuple[Booking, ...] = ()
    held: bool = False

    @property
    def sent_to(self) -> str:
        """An address of the origin that this work is at; "" if none was noted."""
        return self.url or self.rpc_url


class QuestionState(StrEnum):
    OPEN = "open"
    ANSWERED = "answered"
    DELIVERED = "delivered"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"


class QuestionRecord(Struct, frozen=True, kw_only=True):
    """A question, its state and, once given, its answer."""

    question: Question
    state: QuestionState = QuestionState.OPEN
    answer: Answer | None = None
    answered_at: datetime | None = None
