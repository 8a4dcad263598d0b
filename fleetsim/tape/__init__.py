"""Tapes: exchanges with a real agent in a file, and a server that acts as that agent.

Read ``tape`` first: the lines of the file, and what a request on them means. ``servers`` has the recorder and the
player. The core does not import this package; it names its verbs as text (``VERBS`` in ``cli/main.py``).
"""
