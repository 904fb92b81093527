"""The table of the spool: its columns, its versions, and the step from each version to the next.

A new column is one step of `UPGRADES`, and in `COLUMNS` and `INSERT`; `rows` reads and checks it, `Spool.keep`
writes it.
"""

from typing import Final

SCHEMA_VERSION: Final = 1
SCHEMA: Final = """
CREATE TABLE calls (
    id INTEGER PRIMARY KEY,  -- in order of arrival: each commit writes one page, an index of keys would add others
    key TEXT NOT NULL,
    route TEXT NOT NULL,
    event TEXT NOT NULL,
    topic TEXT NOT NULL,
    payload BLOB NOT NULL,
    timestamp REAL NOT NULL,
    hops INTEGER NOT NULL,
    client_id TEXT,          -- who published, while the ACL has not decided; NULL afterwards
    username TEXT
) STRICT
"""
UPGRADES: Final[dict[int, str]] = {0: SCHEMA}  # from that version to the next; one at a time, at the start
COLUMNS: Final = "key, route, event, topic, payload, timestamp, hops, client_id, username"
"""All but the id, in the order in which they are written and read."""
INSERT: Final = f"INSERT INTO calls ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608  # constants
