"""How an agent differs from the reference, as data: paths, manners, wordings, refusals.

The defaults are the reference agent. A profile is another value of this and a set of skills; the rooms
read it and hold no profile's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fleetsim.agent.dialect_behaviour import MANNERS, DialectBehaviour
from fleetsim.model.call import Operation
from fleetsim.model.task import Message

CARD_PATHS = ("/.well-known/agent-card.json", "/.well-known/agent.json")
SERVER_ERROR = -32000


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirks:
    """One kind of agent.

    ``rpc_paths`` take every call, ``stream_paths`` only those answered by a stream. ``operations`` None
    means all. ``card_url`` is put on the card instead of the endpoint's URL, ``card_versions`` names the
    protocol version of a dialect there. ``direct_reply`` may answer a message without a task.
    ``needs_text`` refuses messages without a text part, ``needs_message_id`` those without an id of their own,
    which 0.x readers otherwise do without; ``forgets_tasks`` takes every message for a new task; ``matches_text``
    gives a message without a hint only to a skill that its words name; ``cancels`` false refuses every cancel.
    ``oversize_status`` is the HTTP status of a body too large, ``content_type_status`` that of one that is not
    JSON, ``full_code`` the JSON-RPC code of a full agent, ``bare_401`` words a 401 as plain JSON instead of a
    JSON-RPC error. ``webhook_schemes`` are the only ones a webhook may have, refused with ``webhook_scheme_code``;
    ``drop_webhook_on_give_up`` removes one that was not taken. ``crash_reason`` words an unforeseen error, given
    its type.
    """

    manners: Mapping[str, DialectBehaviour] = field(default_factory=lambda: MANNERS)
    rpc_paths: tuple[str, ...] = ("/a2a", "/a2a/")
    stream_paths: tuple[str, ...] = ()
    card_paths: tuple[str, ...] = CARD_PATHS
    rest: bool = True
    operations: frozenset[Operation] | None = None
    card_url: str | None = None
    card_versions: Mapping[str, str] = field(default_factory=dict)
    direct_reply: Callable[[Message], str | None] | None = None
    needs_text: bool = False
    needs_message_id: bool = False
    forgets_tasks: bool = False
    matches_text: bool = False
    cancels: bool = True
    oversize_status: int = 413
    content_type_status: int = 415
    full_code: int = SERVER_ERROR
    bare_401: bool = False
    webhook_schemes: tuple[str, ...] = ("http", "https")
    webhook_scheme_code: int = -32602
    drop_webhook_on_give_up: bool = False
    crash_reason: str = "the skill failed ({error})"


REFERENCE = Quirks()
"""The reference agent's own shape."""
