"""Every limit of the agent in one frozen value (docs/reference/limits.md). Names end in their unit."""

from __future__ import annotations

from dataclasses import dataclass

from fleetsim.model.errors import LimitReached, RpcError
from fleetsim.model.limits import MIB, PARTS_BYTES_MAX, TEXT_CHARS_MAX, WIRE_BYTES_MAX
from fleetsim.runtime.limits import ServerLimits


class AtCapacity(RpcError):
    """The agent holds as many tasks or streams as it may; try later. HTTP carries it as ``http_status``."""

    code, title = -32000, "The agent is at its limit"
    http_status = 429


class OutputLimit(LimitReached):
    """A skill produced more than one task may hold; the task fails with this as its reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLimits(ServerLimits):
    """Limits of one agent: seconds, bytes, characters or plain counts, as each name says."""

    tasks_max: int = 10_000
    tasks_per_caller_max: int = 1_000
    store_chars_max: int = 256 * MIB
    terminal_ttl_s: float = 3600.0
    task_life_s: float = 24 * 3600.0
    sweep_interval_s: float = 60.0
    text_chars_max: int = TEXT_CHARS_MAX
    output_chars_max: int = TEXT_CHARS_MAX + PARTS_BYTES_MAX * 4 // 3
    events_per_task_max: int = 20_000
    history_messages_max: int = 100
    history_chars_max: int = 2 * (TEXT_CHARS_MAX + PARTS_BYTES_MAX * 4 // 3)
    inbox_messages_max: int = 32
    page_tasks_max: int = 100
    page_tasks_default: int = 50
    page_chars_max: int = WIRE_BYTES_MAX
    id_chars_max: int = 128

    body_bytes_max: int = WIRE_BYTES_MAX
    bodies_bytes_max: int = 256 * MIB
    body_deadline_s: float = 10.0

    wait_s_max: float = 300.0
    stream_keepalive_s: float = 15.0
    stream_write_s: float = 30.0
    streams_per_task_max: int = 4
    streams_max: int = 200

    pushes_per_task_max: int = 5
    notices_queued_max: int = 256
    notices_in_flight_max: int = 32
    notices_per_s_max: float = 100.0
    notices_burst_max: int = 100
    notice_bytes_max: int = WIRE_BYTES_MAX
    drain_s: float = 5.0
    stop_s: float = 5.0
