"""The ledger in one SQLite file: ``ledger`` has the verbs and their SQL, ``storage`` the transactions and threads,
``file`` the opening, ``schema`` the migrations, ``sums`` and ``checks`` the search for damage, ``salvage`` the rescue.
"""

from fleetsim.ledger.sqlite.ledger import SqliteLedger, open_ledger, read_ledger

__all__ = ["SqliteLedger", "open_ledger", "read_ledger"]
