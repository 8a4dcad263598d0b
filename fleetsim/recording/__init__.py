"""Recordings: the events of a run or of a hub in a file, one JSON object a line.

Read ``events`` first: the lines that no hub publishes. ``reader`` and ``writer`` are the file.
"""
