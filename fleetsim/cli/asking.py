"""What a person asks an agent for, and what came of it: what the ways of asking share."""

from __future__ import annotations

from dataclasses import dataclass

from fleetsim.cli.exits import Exit


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line asks for."""

    agent: str
    text: str
    skill: str | None = None
    stream: bool = False
    detach: bool = False
    timeout_s: float = 300.0
    task_id: str | None = None
    context_id: str | None = None
    api_key_env: str | None = None
    bearer_env: str | None = None
    dialect: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of it. ``code`` is the exit code without ``--exit-status``."""

    state: str
    text: str = ""
    reason: str = ""
    task_id: str | None = None
    context_id: str | None = None
    correlation_id: str | None = None
    duration_s: float = 0.0
    cost_usd: float | None = None
    code: Exit = Exit.OK
    next_step: str = ""
    shown: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What one turn of a conversation brought. ``task_id`` is set while the agent waits for the next turn."""

    state: str
    text: str
    context_id: str | None
    task_id: str | None
    warnings: tuple[str, ...] = ()
