"""The SQL whose messages the golden vectors record: every kind of message, in a fixed order.

A row (name, xid) that a statement returns is stored, so that a reader can name the transactions.
"""

from __future__ import annotations

SYNC = "sync"
"""Not SQL: read all pending messages before the next statement, so that open transactions stream."""

TABLES = """
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TABLE by_key (id int PRIMARY KEY, a text, n numeric(10,2), b bool, m mood);
CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES by_key);
CREATE TABLE by_index (id int, u varchar(20) NOT NULL UNIQUE, a text);
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_u_key;
CREATE TABLE "by Full" (id int, a text, t text);
ALTER TABLE "by Full" REPLICA IDENTITY FULL, ALTER t SET STORAGE EXTERNAL;
CREATE TABLE by_nothing (id int, a text);
ALTER TABLE by_nothing REPLICA IDENTITY NOTHING;
CREATE TABLE large (id int PRIMARY KEY, t text, n int);
ALTER TABLE large ALTER t SET STORAGE EXTERNAL;
CREATE TABLE generated (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED);
CREATE TABLE unpublished (id int, pad text);
"""

PUBLICATION = (
    'CREATE PUBLICATION golden FOR TABLE by_key, child, by_index, "by Full", by_nothing, large, generated'
    " WITH (publish = 'insert, update, delete, truncate'{more})"
)

# More than logical_decoding_work_mem = 64 kB, and unpublished, so that nothing of it is in the recording.
_BULK = "INSERT INTO unpublished SELECT n, repeat('x', 1800) FROM generate_series(1, 45) n"
_LARGE = "repeat('0123456789', 210)"


def _begin(name: str) -> list[str]:
    return ["BEGIN", f"SELECT '{name}', pg_current_xact_id()::text"]


def _transaction(name: str, *statements: str) -> list[str]:
    return [*_begin(name), *statements, "COMMIT", SYNC]


STATEMENTS = [
    *_transaction(
        "insert",
        "INSERT INTO by_key VALUES (1, 'one', 1.5, true, 'happy'), (2, NULL, NULL, NULL, NULL)",
        "INSERT INTO by_key VALUES (3, '', -0.01, false, 'sad')",
        "INSERT INTO child VALUES (1, 1)",
        "INSERT INTO by_index VALUES (1, 'u1', 'ünï')",
        f"""INSERT INTO "by Full" VALUES (1, NULL, 'short'), (2, 'two', {_LARGE})""",
        "INSERT INTO by_nothing VALUES (1, 'x')",
        f"INSERT INTO large VALUES (1, {_LARGE}, 1)",
        "INSERT INTO generated VALUES (21)",
    ),
    *_transaction(
        "update",
        "UPDATE by_key SET a = 'uno' WHERE id = 1",
        "UPDATE by_key SET id = 20 WHERE id = 2",
        "UPDATE by_index SET a = 'kept key' WHERE id = 1",
        "UPDATE by_index SET u = 'u2' WHERE id = 1",
        """UPDATE "by Full" SET a = 'one' WHERE id = 1""",
        """UPDATE "by Full" SET a = 'large' WHERE id = 2""",
        "UPDATE large SET n = 2",
        "UPDATE generated SET id = 22",
    ),
    *_transaction(
        "delete",
        "DELETE FROM by_key WHERE id = 20",
        "DELETE FROM by_index",
        """DELETE FROM "by Full" WHERE id = 1""",
    ),
    *_transaction(
        "truncate",
        "TRUNCATE by_index",
        "TRUNCATE by_nothing RESTART IDENTITY",
        "TRUNCATE by_key, child RESTART IDENTITY CASCADE",
    ),
    *_transaction(
        "messages",
        "INSERT INTO by_nothing VALUES (2, 'before')",
        "SELECT pg_logical_emit_message(true, 'golden', 'inside')::text, NULL",
        "INSERT INTO by_nothing VALUES (3, 'after')",
    ),
    *_transaction(
        "only a message", "SELECT pg_logical_emit_message(true, 'golden.bytes', '\\x00ff'::bytea)::text, NULL"
    ),
    "BEGIN",
    "SELECT pg_logical_emit_message(false, 'golden', 'at once')::text, NULL",
    "ROLLBACK",
    SYNC,
    "SELECT pg_replication_origin_create('elsewhere')::text, NULL",
    "SELECT pg_replication_origin_session_setup('elsewhere')::text, NULL",
    *_begin("origin"),
    "SELECT pg_replication_origin_xact_setup('0/ABCDEF', '2026-01-02 03:04:05+00')::text, NULL",
    "INSERT INTO by_key VALUES (4, 'from elsewhere', 4, NULL, NULL)",
    "COMMIT",
    "SELECT pg_replication_origin_session_reset()::text, NULL",
    "SELECT pg_replication_origin_drop('elsewhere')::text, NULL",
    SYNC,
    # the second connection commits while the first is in the middle of its transaction
    *_begin("streamed"),
    "INSERT INTO by_key VALUES (100, 'kept', 1, true, 'sad')",
    "SAVEPOINT s",
    "INSERT INTO by_key VALUES (101, 'aborted', 1, true, 'sad')",
    "SELECT 'streamed, aborted part', xmin::text FROM by_key WHERE id = 101",
    "SELECT pg_logical_emit_message(true, 'golden', 'in the aborted part')::text, NULL",
    _BULK,
    SYNC,
    "ROLLBACK TO s",
    "SAVEPOINT s2",
    """INSERT INTO "by Full" VALUES (102, 'in a released part', NULL)""",
    """SELECT 'streamed, released part', xmin::text FROM "by Full" WHERE id = 102""",
    "RELEASE s2",
    "2: BEGIN",
    "2: SELECT 'between', pg_current_xact_id()::text",
    "2: INSERT INTO large VALUES (200, NULL, NULL)",
    "2: COMMIT",
    SYNC,
    # the savepoint is still there, and what follows is in a new subtransaction of it
    "UPDATE by_key SET id = 103 WHERE id = 100",
    "SELECT 'streamed, second try', xmin::text FROM by_key WHERE id = 103",
    "UPDATE large SET n = 3 WHERE id = 1",
    "DELETE FROM large WHERE id = 1",
    "TRUNCATE by_index",
    "SELECT pg_logical_emit_message(true, 'golden', 'streamed')::text, NULL",
    _BULK,
    SYNC,
    "INSERT INTO child VALUES (104, NULL)",
    "COMMIT",
    SYNC,
    *_begin("streamed and aborted"),
    "INSERT INTO by_key VALUES (300, NULL, NULL, NULL, NULL)",
    _BULK,
    SYNC,
    "ROLLBACK",
    SYNC,
    *_begin("prepared"),
    "INSERT INTO by_key VALUES (400, NULL, NULL, NULL, NULL)",
    "PREPARE TRANSACTION 'gid one'",
    SYNC,
    "COMMIT PREPARED 'gid one'",
    SYNC,
    *_begin("prepared and rolled back"),
    "INSERT INTO by_key VALUES (500, NULL, NULL, NULL, NULL)",
    "PREPARE TRANSACTION 'gid two'",
    SYNC,
    "ROLLBACK PREPARED 'gid two'",
    SYNC,
    *_begin("streamed and prepared"),
    "INSERT INTO by_key VALUES (600, NULL, NULL, NULL, NULL)",
    _BULK,
    SYNC,
    "PREPARE TRANSACTION 'gid three'",
    SYNC,
    "COMMIT PREPARED 'gid three'",
    SYNC,
]
