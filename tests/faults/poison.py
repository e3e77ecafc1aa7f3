"""Tables that are poisoned in a round, one for each reason to park a table; the checker does not look at them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Poison:
    """A table with the columns id and v: `strike` makes its next change impossible, `mend` undoes that."""

    table: str
    code: str
    create: str
    strike: str
    mend: str


POISONS = (
    Poison(
        "refused_value",
        "TR-220",
        "CREATE TABLE refused_value (id int PRIMARY KEY, v numeric(10,2))",
        "UPDATE refused_value SET v = 'NaN' WHERE id = 3",
        "UPDATE refused_value SET v = 0 WHERE id = 3",
    ),
    Poison(
        "large_record",
        "TR-304",
        "CREATE TABLE large_record (id int PRIMARY KEY, v text)",
        "UPDATE large_record SET v = repeat('x', 2000000) WHERE id = 3",
        "UPDATE large_record SET v = 'small' WHERE id = 3",
    ),
    Poison(
        "lost_key",
        "TR-406",
        "CREATE TABLE lost_key (id int PRIMARY KEY, v text)",
        "ALTER TABLE lost_key DROP CONSTRAINT lost_key_pkey, REPLICA IDENTITY FULL;"
        " UPDATE lost_key SET v = 'lost' WHERE id = 3",
        "ALTER TABLE lost_key ADD PRIMARY KEY (id), REPLICA IDENTITY DEFAULT",
    ),
    Poison(
        "unusable_key",
        "TR-124",
        "CREATE TABLE unusable_key (id int NOT NULL, v text); ALTER TABLE unusable_key REPLICA IDENTITY FULL;"
        " CREATE UNIQUE INDEX by_id ON unusable_key (id)",
        "DROP INDEX by_id; UPDATE unusable_key SET v = 'not unique' WHERE id = 3",
        "CREATE UNIQUE INDEX by_id ON unusable_key (id)",
    ),
)
"""A value that cannot be stored exactly, a record that Kafka refuses, a missing key, and one that is not unique."""

SETTINGS = 'keys = { "public.unusable_key" = ["id"] }\n'
"""The configuration of these tables, in the section [source]."""

LIMIT = "max_message_bytes = 1048576\n"
"""The configuration that makes a record too large, in the section [kafka]."""
