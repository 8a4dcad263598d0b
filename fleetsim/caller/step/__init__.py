"""The one decision about a request in flight. ``machine`` shows its parts."""

from fleetsim.caller.step.machine import new_track, step

__all__ = ["new_track", "step"]
