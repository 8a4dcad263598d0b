"""The ledger in PostgreSQL (``fleetsim[pg]``): ``place`` needs no driver, ``ledger`` does."""
