"""Advice about captured tables: keys, replica identities, large values, types, limits of the publication."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from tailrace.cdc.check.finding import Findings, Severity
from tailrace.cdc.check.tables import Tables
from tailrace.cdc.postgres import publication
from tailrace.cdc.postgres.capture_set import CaptureSet
from tailrace.cdc.postgres.catalog import Types
from tailrace.cdc.postgres.membership import missing_tables, shown, statements
from tailrace.schemas.config.columns import ColumnOptions
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import ConfigError
from tailrace.schemas.relation import Relation, quoted
from tailrace.schemas.types import Kind, value_type


def advise_about_tables(config: Config, connection: psycopg.Connection, tables: Tables, findings: Findings) -> None:
    """Report what a start accepts, but an operator should know."""
    relations = tables.inspected.relations
    _keys(connection, tables, findings)
    _toast(connection, relations, findings)
    _types(config, connection, tables, findings)
    if tables.are_planned:
        return
    publications = tables.published.publications
    for table, name in publication.failing_updates(connection, publications, tables.published.relations):
        paste = f"ALTER TABLE {_quoted(table)} REPLICA IDENTITY FULL;"
        seen = f'Updates of "{table}" fail: it has no replica identity, and is in publication "{name}".'
        findings.advise("TR-904", Severity.WARN, "source", seen, paste)
    if missing := missing_tables(connection, publications, CaptureSet(config.source.tables)):
        seen = f"In no publication: {', '.join(shown([each.name for each in missing]))}."
        findings.advise("TR-908", Severity.WARN, "source", seen, statements(missing, publications.names))
    _limits(connection, publications.names, relations, findings)


def _keys(connection: psycopg.Connection, tables: Tables, findings: Findings) -> None:
    keys = tables.inspected.keys
    keyless = []
    for relation in tables.inspected.relations:
        try:
            if not keys.of(relation):
                keyless.append(relation)
        except ConfigError:
            continue  # reported with the tables
    if keyless:
        seen = f"Tables without a key: {', '.join(shown([each.qualified_name for each in keyless]))}."
        findings.advise("TR-905", Severity.NOTE, "source", seen)
    rows = connection.execute(
        "SELECT n.nspname || '.' || c.relname, k.conname::text FROM pg_constraint k"
        " JOIN pg_class c ON c.oid = k.conrelid"
        " JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE k.contype = 'p' AND k.condeferrable AND c.relreplident = 'd' AND c.oid = ANY (%s) ORDER BY 1",
        (_oids(tables.published.all_relations),),
    ).fetchall()
    for table, constraint in rows:
        seen = f'The primary key "{constraint}" of "{table}" is deferrable.'
        paste = f"ALTER TABLE {_quoted(table)} REPLICA IDENTITY FULL;"
        findings.advise("TR-919", Severity.WARN, "source", seen, paste)


def _toast(connection: psycopg.Connection, relations: Sequence[Relation], findings: Findings) -> None:
    rows = connection.execute(
        "SELECT DISTINCT c.oid::int8 FROM unnest(%s::oid[]) o JOIN pg_class p ON p.oid = o JOIN LATERAL ("
        "  SELECT p.oid UNION SELECT relid::oid FROM pg_partition_tree(p.oid::regclass)) part (oid) ON true"
        " JOIN pg_class l ON l.oid = part.oid JOIN pg_class c ON c.oid = p.oid"
        " WHERE l.relreplident <> 'f' AND l.reltoastrelid <> 0 AND pg_relation_size(l.reltoastrelid) > 0",
        (_oids(relations),),
    ).fetchall()
    exposed = {oid for (oid,) in rows}
    names = [each.qualified_name for each in relations if each.oid in exposed]
    if names:
        findings.advise("TR-906", Severity.NOTE, "source", f"Tables with large values: {', '.join(shown(names))}.")


def _types(config: Config, connection: psycopg.Connection, tables: Tables, findings: Findings) -> None:
    types, options = Types(connection), ColumnOptions(config.source)
    narrow = []
    for relation in tables.inspected.relations:
        try:
            found = options.applied(relation, tables.inspected.keys.of(relation))
        except ConfigError:
            continue  # reported with the tables
        columns = (column for column in found.columns if value_type(column, types).kind is Kind.DECIMAL)
        narrow += [f"{relation.qualified_name}.{column.name}" for column in columns]
    if narrow:
        listed = ", ".join(f'"{name}"' for name in narrow[:20])
        seen = f"Columns of type numeric(p,s): {', '.join(shown(narrow))}."
        findings.advise(
            "TR-907", Severity.NOTE, "source", seen, f"as_text = [{listed}]  # under [source]; only if NaN occurs"
        )


def _limits(
    connection: psycopg.Connection, names: Sequence[str], relations: Sequence[Relation], findings: Findings
) -> None:
    if connection.info.server_version < 150000:  # without row filters and column lists
        return
    rows = connection.execute(
        "SELECT DISTINCT n.nspname || '.' || c.relname, r.prqual IS NOT NULL, r.prattrs IS NOT NULL"
        " FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid JOIN pg_class c ON c.oid = r.prrelid"
        " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE p.pubname = ANY (%s) AND c.oid = ANY (%s)"
        " AND (r.prqual IS NOT NULL OR r.prattrs IS NOT NULL) ORDER BY 1",
        (list(names), _oids(relations)),
    ).fetchall()
    for table, filters, lists in rows:
        by = " and ".join(["a row filter"] * filters + ["a column list"] * lists)
        findings.advise("TR-910", Severity.NOTE, "source", f'The publication limits "{table}" by {by}.')


def _oids(relations: Sequence[Relation]) -> list[int]:
    return [relation.oid for relation in relations]


def _quoted(name: str) -> str:
    schema, _, table = name.partition(".")
    return f"{quoted(schema)}.{quoted(table)}"
