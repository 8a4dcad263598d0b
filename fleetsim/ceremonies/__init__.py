"""Scheduled skill requests: the folder of ceremony files, the scheduler that fires each slot once, and the runs.

Read ``scheduler`` first. The keys of a file and its due times are in the pure package ``ceremony``.
"""
