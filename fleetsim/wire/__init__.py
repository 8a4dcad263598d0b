"""Bytes and values: the three dialects of A2A, without input or output."""
