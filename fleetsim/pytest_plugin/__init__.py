"""The pytest plugin: rows of the checklist as tests, a fleet in memory, and scenarios."""
