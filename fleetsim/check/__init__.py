"""``fleetsim check``: the gold-standard checklist as data, and the probes that hold an agent to it."""
