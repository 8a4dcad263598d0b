"""The ledger in PostgreSQL (``fleetsim[pg]``): its driver is an extra."""
