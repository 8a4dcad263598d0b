"""The ledger in one SQLite file: ``ledger`` has the verbs and their SQL, ``storage`` the transactions and threads.

``file`` opens it, ``schema`` brings it up to date, ``sums`` and ``checks`` find damage, and ``salvage`` makes a new one
of what can still be read.
"""

from fleetsim.ledger.sqlite.ledger import SqliteLedger, open_ledger, read_ledger

__all__ = ["SqliteLedger", "open_ledger", "read_ledger"]
