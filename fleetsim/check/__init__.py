"""The conformance check: the checklist as data, and its probes."""
