"""The ledger in PostgreSQL: several hubs may share one database (``fleetsim[pg]``)."""

from fleetsim.caller.ledger.postgres.ledger import PostgresLedger, open_postgres

__all__ = ["PostgresLedger", "open_postgres"]
