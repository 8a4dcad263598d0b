"""The configured fleet: agents.yaml as values, the cards and routes of its agents, and their credentials.

Read ``settings`` first; ``config`` reads the file, ``cards`` keeps the cards.
"""
