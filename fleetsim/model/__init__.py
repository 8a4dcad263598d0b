"""The values of the domain: tasks, events, cards, requests, outcomes and errors.

This package does not use a wire format, an event loop, a clock or a random number. Every other package may import
it. It imports only the standard library and msgspec.
"""
