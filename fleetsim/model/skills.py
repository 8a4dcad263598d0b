"""The skill of a request that names none, for our records and as the ``skillHint`` that the agent receives. Pure."""

from __future__ import annotations

from fleetsim.model.card import AgentCard
from fleetsim.model.extensions import EFFECT_DOMAIN, declared

DEFAULT_SKILL = "chat"
"""The skill of a request without one, in topics, health and cooldowns (Workstacean's default), unless the agent's card
has a skill that fits better (``skill_hint``)."""

HINT_CHARS_MAX = 200
"""A longer skill id of a card is not sent back to it; the API takes no longer one either."""


def skill_hint(card: AgentCard | None, named: str | None = None, *, continues: bool = False) -> str | None:
    """The ``skillHint`` a message goes out with; None: none, and the agent chooses.

    The skill that is ``named``; else ``chat``, if the card has it; else the card's only skill, unless that declares
    effects (effect-domain-v1): what changes the world is asked for by name. A hint that an agent does not know is
    refused by careful ones, so there is no other guess. A message that ``continues`` a task says no more than
    its sender did: the task has its skill.
    """
    if named or continues or card is None:
        return named or None
    offered = {skill.skill_id for skill in card.skills if skill.skill_id}
    if DEFAULT_SKILL in offered:
        return DEFAULT_SKILL
    if len(offered) != 1:
        return None
    (only,) = offered
    effects = (declared(card, EFFECT_DOMAIN, only) or {}).get("effects")
    return None if effects or len(only) > HINT_CHARS_MAX else only
