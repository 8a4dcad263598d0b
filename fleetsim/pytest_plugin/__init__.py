"""What fleetsim brings to pytest: rows of the checklist as tests, a fleet in memory, and scenarios played."""
