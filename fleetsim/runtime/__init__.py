"""Everything that touches the outside, behind ports that are handed in, and the generic parts of our servers.

Knows the model's errors and values, nothing of dialects or of the packages above.
"""
