"""The one decision about a request in flight. See ``decide`` for how it is divided."""

from fleetsim.caller.step.machine import new_track, step

__all__ = ["new_track", "step"]
