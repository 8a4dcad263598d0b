"""The words of the field: tasks, events, cards, requests, outcomes and errors.

Values only. Nothing here knows a wire format, an event loop, a clock or a random number; every
other package may import this one, and this one imports only the standard library.
"""
