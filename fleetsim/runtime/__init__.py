"""The ground: everything that touches the outside, behind ports that are handed in.

Knows the model's errors and values, nothing of dialects or rooms.
"""
