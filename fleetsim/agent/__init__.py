"""The reference agent: skills behind every dialect of A2A, hardened, and a library to build one's own.

A person needs these names; everything else is below them.
"""

from fleetsim.agent.agent import Agent
from fleetsim.agent.limits import AgentLimits
from fleetsim.agent.skills import Effect, Skill, SkillContext, SkillFailed, SkillRejected, skill, undeclared
from fleetsim.model.task import DataPart, FilePart, Part, TextPart
from fleetsim.runtime.collector import tune_gc

__all__ = [
    "Agent",
    "AgentLimits",
    "DataPart",
    "Effect",
    "FilePart",
    "Part",
    "Skill",
    "SkillContext",
    "SkillFailed",
    "SkillRejected",
    "TextPart",
    "skill",
    "tune_gc",
    "undeclared",
]
