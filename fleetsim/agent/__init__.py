"""The reference agent: skills behind every dialect of A2A, hardened, and a library to build one's own.

A person needs six names; everything else is below them.
"""

from fleetsim.agent.agent import Agent
from fleetsim.agent.limits import AgentLimits
from fleetsim.agent.skills import Effect, Skill, SkillContext, SkillFailed, SkillRejected, skill

__all__ = [
    "Agent",
    "AgentLimits",
    "Effect",
    "Skill",
    "SkillContext",
    "SkillFailed",
    "SkillRejected",
    "skill",
]
