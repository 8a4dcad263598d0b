"""What a person asks an agent for, and what came of it: what the ways of asking share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from shlex import quote
from typing import Any

from fleetsim.cli.exit_codes import Exit
from fleetsim.model.limits import TEXT_CHARS_MAX
from fleetsim.model.parts import ListedPart
from fleetsim.model.task import Part

REASON_MAX = 500
"""Characters of the reason of a failure on its one line; the text has all of it."""


def whole_at(agent: str, task_id: str | None, chars: int) -> str:
    """The command that reads so long a text from the agent that keeps it."""
    return f"fleetsim task get {quote(task_id or 'TASK')} --agent {quote(agent)} --text-max {chars}"


def reply_command(question_id: str, *, data: bool) -> str:
    """The command that answers a question, with data where that is what it asks for."""
    return f"fleetsim inbox reply {question_id} " + ("--data '{…}'" if data else '"your answer"')


@dataclass(frozen=True, slots=True, kw_only=True)
class AskOptions:
    agent: str
    text: str
    parts: tuple[Part, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    skill: str | None = None
    stream: bool = False
    detach: bool = False
    timeout_s: float = 300.0
    task_id: str | None = None
    context_id: str | None = None
    parent_id: str | None = None
    api_key_env: str | None = None
    bearer_env: str | None = None
    dialect: str | None = None
    rpc_url: str | None = None
    card_url: str | None = None
    text_max: int = TEXT_CHARS_MAX

    @classmethod
    def given(cls, **options: Any) -> AskOptions:
        """From the options of a command; one that was not given (None) has its default."""
        return cls(**{name: value for name, value in options.items() if value is not None})


@dataclass(frozen=True, slots=True, kw_only=True)
class AskResult:
    """What came of it, or of one turn of a conversation. ``code`` is the exit code without ``--exit-status``.

    ``text`` is what the agent said, whatever came of it; ``text_chars`` how much that was in all, and ``rest`` the
    command that shows all of it. ``download`` is the command that saves its ``parts``. ``denied``: the agent said
    completed, and its own payload says ``success: false``. ``shown`` is what stdout has of a streamed text already.
    In a conversation ``task_id`` is set while the agent waits for the next turn.
    """

    state: str
    text: str = ""
    reason: str = ""
    parts: tuple[ListedPart, ...] = ()
    parts_total: int = 0
    task_id: str | None = None
    context_id: str | None = None
    correlation_id: str | None = None
    duration_s: float = 0.0
    cost_usd: float | None = None
    code: Exit = Exit.OK
    next_step: str = ""
    shown: str | None = None
    download: str = ""
    warnings: tuple[str, ...] = ()
    text_chars: int = 0
    rest: str = ""
    denied: bool = False

    @property
    def truncated(self) -> bool:
        """Whether ``text`` is only the beginning of what the agent said."""
        return self.text_chars > len(self.text)
