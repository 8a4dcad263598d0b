"""The verbs ``check`` and ``explain``."""
