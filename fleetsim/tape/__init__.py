"""Tapes: exchanges with a real agent in a file, and a server that acts as that agent.

Read ``tape`` first: the lines of the file. ``reading`` finds out what a request means, ``recorder`` and ``player`` are
the two servers. The core does not import this package; it names its verbs as text (``VERBS`` in ``cli/main.py``).
"""
