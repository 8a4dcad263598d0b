"""Notices to people: channels and their sinks, alerts about the fleet, and delivery.

Read ``channel`` first; ``notice`` writes the texts and ``delivery`` sends them.
"""
