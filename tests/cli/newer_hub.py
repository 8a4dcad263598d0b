"""``fleetsim`` as later versions may be, with more columns: ``OLDEST="1 3" python -m tests.cli.newer_hub VERB …``.

``OLDEST`` has, for each later version of the tables, the oldest version that continues beside it.
"""

from __future__ import annotations

import os

from fleetsim.ledger.postgres import schema

_MORE = """DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = current_schema() LOOP
        EXECUTE format('ALTER TABLE %I ADD COLUMN later_{0} int NOT NULL DEFAULT 7', name);
    END LOOP;
END $$;
CREATE TABLE later_{0} (since timestamptz NOT NULL DEFAULT now())"""

for oldest in os.environ["OLDEST"].split():
    schema.VERSION += 1
    schema.MIGRATIONS += (schema.Migration(_MORE.format(schema.VERSION), oldest=int(oldest)),)

if __name__ == "__main__":
    from fleetsim.cli.main import main

    main()
