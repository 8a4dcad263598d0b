"""Fleet health: the outcomes of 24 hours as figures of agents, skills and requesters. Pure.

Read ``fleet_health`` first; ``outcome_stats`` has the figures of a set of outcomes, ``figures`` their comparisons.
"""
