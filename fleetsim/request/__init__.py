"""One request in flight, as a pure machine: its records, its track, and the one decision about each signal.

Read ``machine`` first: it draws the stages and shows the parts.
"""
