"""The values of the domain: tasks, events, cards, requests, outcomes and errors. No wire format, event loop, clock or
chance; only the standard library and msgspec.
"""
