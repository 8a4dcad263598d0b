"""One A2A client for every dialect: the public one, and what the caller's executor is made of.

Knows meaning (``wire``) and ground (``runtime``), nothing of fleets, hubs or agents' insides.
"""

from fleetsim.client.agent_client import AgentClient
from fleetsim.client.credential import Credential
from fleetsim.client.follow import Following, SentTask
from fleetsim.client.http import ClientLimits
from fleetsim.client.stream import EventStream

__all__ = ["AgentClient", "ClientLimits", "Credential", "EventStream", "Following", "SentTask"]
