"""The verbs ``sim`` and ``ceremony play``."""
