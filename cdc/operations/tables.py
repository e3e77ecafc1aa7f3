"""`tailrace table add|remove`: add tables to the publications or remove them; needs no running daemon."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import psycopg

from tailrace.cdc.postgres import publication
from tailrace.cdc.postgres.capture_set import CaptureSet
from tailrace.cdc.postgres.catalog import permanent_tables
from tailrace.cdc.postgres.connect import connect
from tailrace.cdc.postgres.membership import explain, missing_tables, statements
from tailrace.cdc.postgres.publication import Publications
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import ConfigError, SourceError
from tailrace.schemas.relation import quoted
from tailrace.schemas.table_names import known_name, split_name

_LOCK_TIMEOUT: Final = "SET lock_timeout = '5s'"


@dataclass(frozen=True, slots=True)
class Change:
    """Result for one table; `publication` is the one that now has it, or had it."""

    table: str
    publication: str | None
    outcome: str


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Reason that a table cannot be added or removed, with lines to paste that help, if any."""

    table: str
    reason: str
    hint: str = ""


def add(config: Config, names: Sequence[str]) -> list[Change]:
    """Add tables to the publications, each to that of its replica identity; all of them or none.

    Raises ConfigError TR-132 for tables that do not match the patterns, do not exist, are published by their partitions
    or have no replica identity; SourceError TR-234 with the statements to run if the role may not alter the
    publications.
    """
    with _connected(config) as connection:
        found, capture_set = _publications(connection, config), CaptureSet(config.source.tables)
        missing = {each.name: each for each in missing_tables(connection, found, capture_set)}
        there = [f"{schema}.{table}" for schema, table in permanent_tables(connection)]
        names = [known_name(name, there) for name in names]
        refused: list[_Refusal] = []
        for name in names:
            if there.count(name) > 1:
                refused.append(_Refusal(name, "two tables have this name, with the dot between schema and table moved"))
            elif name not in there or not capture_set.captures(*split_name(name)):
                answer = explain(connection, found, capture_set, name)
                refused.append(_Refusal(name, answer.reason, answer.hint))
            elif name in missing and (missing[name].by_leaf or missing[name].publication is None):
                reason = (
                    "it is published under its partitions' names"
                    if missing[name].by_leaf
                    else "it has no replica identity"
                )
                refused.append(_Refusal(name, reason, "\n       ".join(statements([missing[name]], found.names))))
        _refuse("add", refused)
        _alter(connection, statements((missing[name] for name in names if name in missing), found.names))
        return [
            Change(name, missing[name].publication, "added")
            if name in missing
            else Change(name, None, "published already")
            for name in names
        ]


def remove(config: Config, names: Sequence[str]) -> list[Change]:
    """Remove tables from the publications; all of them or none. Their topics do not change.

    Raises ConfigError TR-132 for tables that are published FOR ALL TABLES or FOR TABLES IN SCHEMA.
    """
    with _connected(config) as connection:
        found = _publications(connection, config)
        members = _members(connection, found)
        published = {f"{schema}.{table}" for schema, table in publication.published(connection, found)}
        names = [known_name(name, published | members.keys()) for name in names]
        _refuse(
            "remove",
            [
                _Refusal(
                    name,
                    "it is published FOR ALL TABLES or FOR TABLES IN SCHEMA",
                    f'tables = [..., "!{name}"]  # under [source]: stops capturing it',
                )
                for name in names
                if name in published and name not in members
            ],
        )
        dropped: dict[str, list[str]] = {}
        for name in names:
            for table, of in members.get(name, ()):
                dropped.setdefault(of, []).append(table)
        _alter(
            connection,
            [f"ALTER PUBLICATION {quoted(of)} DROP TABLE {', '.join(tables)};" for of, tables in dropped.items()],
        )
        return [
            Change(name, members[name][0][1], "removed") if name in members else Change(name, None, "not published")
            for name in names
        ]


def _connected(config: Config) -> psycopg.Connection:
    connection = connect(config.source.dsn.get_secret_value(), application_name="tailrace table")
    connection.execute(_LOCK_TIMEOUT)
    return connection


def _publications(connection: psycopg.Connection, config: Config) -> Publications:
    found = publication.find(connection, config.source.publication)
    if found is None:
        raise SourceError(
            "TR-235",
            f'publication "{config.source.publication}" does not exist',
            detail="The first start creates it, for all tables that match source.tables.",
            hint="tailrace run",
        )
    return found


def _members(connection: psycopg.Connection, found: Publications) -> dict[str, list[tuple[str, str]]]:
    """Return the tables that the publications list: for each name, pairs (quoted name, publication)."""
    rows = connection.execute(
        "SELECT n.nspname::text, c.relname::text, p.pubname::text FROM pg_publication_rel r JOIN pg_publication p"
        " ON p.oid = r.prpubid JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE p.pubname = ANY (%s) ORDER BY 1, 2, 3",
        (found.names,),
    ).fetchall()
    members: dict[str, list[tuple[str, str]]] = {}
    for schema, table, of in rows:
        members.setdefault(f"{schema}.{table}", []).append((f"{quoted(schema)}.{quoted(table)}", of))
    return members


def _refuse(action: str, refused: Iterable[_Refusal]) -> None:
    refused = list(refused)
    if refused:
        hints = dict.fromkeys(each.hint for each in refused if each.hint)
        raise ConfigError(
            "TR-132",
            f"cannot {action} {', '.join(each.table for each in refused)}",
            detail="; ".join(f"{each.table}: {each.reason}" for each in refused) + ". Nothing was changed.",
            hint="\n       ".join(hints) or "tailrace status  # lists the tables that can be added",
        )


def _alter(connection: psycopg.Connection, lines: Sequence[str]) -> None:
    try:
        with connection.transaction():
            for line in lines:
                connection.execute(line.encode())
    except psycopg.Error as error:
        owner = "Have the owner of the publication and of the tables run:"
        raise SourceError(
            "TR-234",
            "cannot alter the publication",
            detail=(error.diag.message_primary or str(error)) + ". Nothing was changed.",
            hint="\n".join([owner, *(f"       {line}" for line in lines)]),
        ) from None
