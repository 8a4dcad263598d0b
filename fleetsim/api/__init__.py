"""What the hub's HTTP API takes, as values: read by the hub, and checked by its client before it is sent.

Knows neither of the two.
"""
