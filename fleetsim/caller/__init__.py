"""The caller's end of the wire: from a request to exactly one outcome."""
