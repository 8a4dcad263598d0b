"""Runs released A2A peers against ours: environments, processes, lanes, and the table of what must come out.

Standard library only, so that it runs wherever the project runs. It knows no A2A: peers speak it.
"""
