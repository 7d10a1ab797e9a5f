"""The tables of the store, version by version.

`MIGRATIONS[n]` leads from version n to version n + 1. A released entry is never edited: every change is a new
entry. The tables are named `flyball_…` because they may be in an application's own database, beside its tables
(that makes the outbox transactional), and their version is in a table of ours because the application may use
`user_version`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flyball.store.protocol import NewerSchema, Transaction

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # `seq` grows with every accepted message and is never used twice (AUTOINCREMENT), so it can serve as the
        # producer's sequence number at a broker that drops repeats.
        """CREATE TABLE flyball_outbox (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL,
            channel TEXT NOT NULL,
            urgency INTEGER NOT NULL CHECK (urgency BETWEEN 0 AND 9),
            accepted_s REAL NOT NULL,
            size_bytes INTEGER NOT NULL,
            key BLOB,
            headers TEXT,
            event_time_s REAL,
            content_type TEXT,
            body BLOB NOT NULL
        )""",
        "CREATE INDEX flyball_outbox_order ON flyball_outbox (urgency, seq)",
        # One row that triggers update, whoever writes, so that a count never has to read the messages.
        """CREATE TABLE flyball_outbox_total (
            one INTEGER PRIMARY KEY CHECK (one = 1),
            messages INTEGER NOT NULL,
            bytes INTEGER NOT NULL,
            max_bytes INTEGER
        )""",
        "INSERT INTO flyball_outbox_total VALUES (1, 0, 0, NULL)",
        """CREATE TRIGGER flyball_outbox_in AFTER INSERT ON flyball_outbox BEGIN
            UPDATE flyball_outbox_total SET messages = messages + 1, bytes = bytes + NEW.size_bytes;
        END""",
        """CREATE TRIGGER flyball_outbox_out AFTER DELETE ON flyball_outbox BEGIN
            UPDATE flyball_outbox_total SET messages = messages - 1, bytes = bytes - OLD.size_bytes;
        END""",
        # The row of a lease stays for ever: the token must continue to grow after a release.
        """CREATE TABLE flyball_lease (
            name TEXT PRIMARY KEY,
            holder TEXT,
            token INTEGER NOT NULL,
            boot TEXT NOT NULL,
            until_s REAL NOT NULL,
            ttl_s REAL NOT NULL
        )""",
        """CREATE TABLE flyball_candidate (
            lease TEXT NOT NULL,
            id TEXT NOT NULL,
            boot TEXT NOT NULL,
            until_s REAL NOT NULL,
            ttl_s REAL NOT NULL,
            PRIMARY KEY (lease, id)
        )""",
        # Versions come from one counter: a document that was deleted and made anew never repeats one.
        """CREATE TABLE flyball_document (
            space TEXT NOT NULL,
            key TEXT NOT NULL,
            version INTEGER NOT NULL,
            value TEXT NOT NULL,
            PRIMARY KEY (space, key)
        )""",
        "CREATE TABLE flyball_document_version (one INTEGER PRIMARY KEY CHECK (one = 1), last INTEGER NOT NULL)",
        "INSERT INTO flyball_document_version VALUES (1, 0)",
        "CREATE TABLE flyball_loop_state (name TEXT PRIMARY KEY, state TEXT NOT NULL)",
    ),
    (
        # When a broker confirmed a message that stays until its delivery receipt; NULL: not confirmed. The indexes
        # have such messages only, so others cost nothing.
        "ALTER TABLE flyball_outbox ADD COLUMN sent_s REAL",
        "CREATE INDEX flyball_outbox_sent ON flyball_outbox (sent_s) WHERE sent_s IS NOT NULL",
        "CREATE INDEX flyball_outbox_receipt ON flyball_outbox (id) WHERE sent_s IS NOT NULL",
    ),
    (
        # Messages that targets refused for good after they were accepted, under their numbers in the outbox.
        """CREATE TABLE flyball_outbox_dead (
            seq INTEGER PRIMARY KEY,
            id TEXT NOT NULL,
            channel TEXT NOT NULL,
            urgency INTEGER NOT NULL,
            accepted_s REAL NOT NULL,
            size_bytes INTEGER NOT NULL,
            key BLOB,
            headers TEXT,
            event_time_s REAL,
            content_type TEXT,
            body BLOB NOT NULL,
            rejected_s REAL NOT NULL,
            target TEXT NOT NULL,
            reason TEXT NOT NULL
        )""",
        # They count towards `bytes`, and so towards max_bytes: what nobody looks at must not fill the disk.
        "ALTER TABLE flyball_outbox_total ADD COLUMN dead_messages INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE flyball_outbox_total ADD COLUMN dead_bytes INTEGER NOT NULL DEFAULT 0",
        """CREATE TRIGGER flyball_outbox_dead_in AFTER INSERT ON flyball_outbox_dead BEGIN
            UPDATE flyball_outbox_total
            SET dead_messages = dead_messages + 1, dead_bytes = dead_bytes + NEW.size_bytes,
                bytes = bytes + NEW.size_bytes;
        END""",
        """CREATE TRIGGER flyball_outbox_dead_out AFTER DELETE ON flyball_outbox_dead BEGIN
            UPDATE flyball_outbox_total
            SET dead_messages = dead_messages - 1, dead_bytes = dead_bytes - OLD.size_bytes,
                bytes = bytes - OLD.size_bytes;
        END""",
    ),
    (
        # Sessions of the members of a group: one row each, removed when a session is over.
        """CREATE TABLE flyball_session (
            space TEXT NOT NULL,
            member TEXT NOT NULL,
            token INTEGER NOT NULL,
            boot TEXT NOT NULL,
            until_s REAL NOT NULL,
            ttl_s REAL NOT NULL,
            value TEXT NOT NULL,
            PRIMARY KEY (space, member, token)
        )""",
        # The largest generation under which something was written, by what it was written for.
        "CREATE TABLE flyball_generation (scope TEXT PRIMARY KEY, generation INTEGER NOT NULL)",
    ),
)


def version_of(transaction: Transaction) -> int:
    """Version of the tables; 0: there are none yet."""
    known = transaction.execute("SELECT 1 FROM sqlite_master WHERE name = 'flyball_schema'").fetchone()
    row = transaction.execute("SELECT version FROM flyball_schema").fetchone() if known else None
    return 0 if row is None else int(row[0])


def migrate(
    transaction: Transaction,
    path: str,
    migrations: Sequence[Sequence[str]] = MIGRATIONS,
    find_version: Callable[[Transaction], int] = version_of,
) -> tuple[int, int]:
    """Bring the tables to the newest version in this transaction; return (version before, version after)."""
    before = find_version(transaction)
    if before > len(migrations):
        raise NewerSchema(
            f"{path} has store version {before}, this Flyball supports versions up to {len(migrations)}; "
            "use the newer Flyball that wrote it, or another database"
        )
    if before == len(migrations):
        return before, before
    transaction.execute(
        "CREATE TABLE IF NOT EXISTS flyball_schema "
        "(one INTEGER PRIMARY KEY CHECK (one = 1), version INTEGER NOT NULL)"
    )
    for statements in migrations[before:]:
        for statement in statements:
            transaction.execute(statement)
    transaction.execute(
        "INSERT INTO flyball_schema VALUES (1, ?) ON CONFLICT (one) DO UPDATE SET version = excluded.version",
        (len(migrations),),
    )
    return before, len(migrations)
