"""The base of tests and simulations: virtual time, a network in memory, faults as values, a fault proxy.

Public: what a test of an agent or a caller needs. Production packages never import it.
"""

from fleetsim.testbed.loop import Deadlock, LeftOver, VirtualLoop, run
from fleetsim.testbed.network import MemoryNetwork, in_process
from fleetsim.testbed.proxy import FaultProxy
from fleetsim.testbed.runtime import virtual_runtime

__all__ = ["Deadlock", "FaultProxy", "LeftOver", "MemoryNetwork", "VirtualLoop", "in_process", "run", "virtual_runtime"]
