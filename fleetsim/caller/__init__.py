"""The caller's end of the wire: it carries out what ``request.machine`` decides, from a request to one outcome.

Read ``tracker`` first; ``dispatcher`` accepts requests and ``executor`` carries each call.
"""
