"""Determine and check the captured tables at a start: publications, tables, keys and topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import psycopg
import structlog

from tailrace.cdc.backfill.exported_snapshot import CONDITION_NOT_CAPTURED, condition_errors
from tailrace.cdc.changes.dead_letters import make_dead_topic
from tailrace.cdc.postgres import publication
from tailrace.cdc.postgres.capture_set import CaptureSet
from tailrace.cdc.postgres.catalog import permanent_tables, row_security_errors
from tailrace.cdc.postgres.keys import NOT_CAPTURED, Keys
from tailrace.cdc.postgres.membership import missing_tables, shown, statements
from tailrace.cdc.postgres.publication import Publications
from tailrace.cdc.postgres.rights import lacking_rights
from tailrace.cdc.postgres.source_catalog import SourceCatalog
from tailrace.cdc.postgres.timeline import Identity
from tailrace.cdc.startup import recovery
from tailrace.cdc.startup.decide import Found
from tailrace.cdc.tables.destinations import make_topics
from tailrace.schemas.config.columns import ColumnOptions
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import ConfigError, StateError, TailraceError, all_of
from tailrace.schemas.records.topics import Topics
from tailrace.schemas.relation import Relation
from tailrace.sinks.control.positions import read_schemas

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Captured:
    """The captured tables as of a start.

    `identity` is the server's, `columns` are the column options, `partitions` the partition counts of all topics.
    `keyed` are the tables whose topics have records with keys.
    """

    catalog: SourceCatalog
    identity: Identity
    relations: list[Relation]
    columns: ColumnOptions
    partitions: dict[str, int]
    keyed: frozenset[str]

    @property
    def without_key(self) -> set[str]:
        return {relation.qualified_name for relation in self.relations if not self.catalog.keys.of(relation)}


def capture(config: Config, connection: psycopg.Connection, found: Found, *, first: bool) -> Captured:
    """Create missing publications and topics. TailraceError if the configured capture is impossible.

    `first`: the topics are still empty. Later, patterns whose tables are missing do not stop a pipeline.
    """
    source = config.source
    columns = ColumnOptions(source)
    capture_set = CaptureSet(source.tables)
    check_patterns(connection, source.publication, capture_set, first=first)
    publications = publication.ensure(connection, source.publication, capture_set, source.publish)
    captured, insert_only = publication.relations(connection, publications, capture_set)
    if first and not captured:
        raise nothing_captured(connection, publications, capture_set)
    publication.log_left_out(connection, publications, captured, insert_only)
    ask = partial(publication.insert_only, connection, publications)
    known = [relation.oid for relation in captured]
    keys = Keys(connection, source.keys, insert_only, known=known, ask=ask, logs=source.publish == "insert")
    _refuse_all(config, connection, captured, keys, columns, first=first)
    for key, pattern, nearest in columns.unmatched(captured):
        log.warning("column pattern unmatched", key=key, pattern=pattern, did_you_mean=nearest)
    keyed = {} if first else _keyed(config, captured)
    _refuse_lost_updates(config, [relation for relation in captured if relation.oid in insert_only], keyed)
    partitions = make_topics(config.kafka, captured, keys, keyed)
    if source.on_table_error == "divert":
        make_dead_topic(config)
    catalog = SourceCatalog(connection, found.server.database, publications, capture_set, keys)
    with_keys = frozenset(name for name in keyed if keyed[name])
    return Captured(catalog, found.identity, captured, columns, partitions, with_keys)


def check_logs(captured: Captured, config: Config) -> None:
    """Raise the error of a start if a publication does not publish what its topics without keys need.

    Such tables cannot be read again while the daemon runs.
    """
    source = config.source
    found = publication.find(captured.catalog.connection, source.publication)
    if found is not None:
        hint = recovery.copy_anew(config.kafka.prefix, source.slot)
        publication.check_publishes(found, source.publish, begun=True, hint=hint, logs_only=True)


def _keyed(config: Config, relations: Sequence[Relation]) -> dict[str, bool]:
    """Return, for each table whose topic has had records, whether these records have keys."""
    topics = Topics(config.kafka.prefix)
    subjects = {stored.subject for stored in read_schemas(config.kafka, topics)}
    named = {relation.qualified_name: topics.table(relation.schema, relation.name) for relation in relations}
    return {name: f"{topic}-key" in subjects for name, topic in named.items() if f"{topic}-value" in subjects}


def _refuse_lost_updates(config: Config, relations: Sequence[Relation], keyed: Mapping[str, bool]) -> None:
    """Raise StateError (TR-428) for tables without published updates whose topics have keys.

    Such topics promise the newest row of each key.
    """
    lost = [each.qualified_name for each in relations if keyed.get(each.qualified_name)]
    if lost:
        tables, left_out = " ".join(lost), ", ".join(f'"!{name}"' for name in lost)
        again = f"tailrace table remove {tables} && tailrace table add {tables}  # publishes them and reads them again"
        anew = recovery.copy_anew(config.kafka.prefix, config.source.slot)
        raise StateError(
            "TR-428",
            f"updates and deletes of {', '.join(shown(lost))} are no longer published",
            detail="Their topics promise the newest row of each key, but lack later updates and deletes.",
            hint=f"{anew if config.source.publish == 'insert' else again}\n"
            f"       tables = [..., {left_out}]  # under [source]; or stop capturing them",
        )


def _refuse_all(
    config: Config,
    connection: psycopg.Connection,
    captured: Sequence[Relation],
    keys: Keys,
    columns: ColumnOptions,
    *,
    first: bool,
) -> None:
    """Raise one error with everything that cannot be captured as configured."""
    errors: list[TailraceError] = [*row_security_errors(connection, captured)]
    if first and (lacking := lacking_rights(connection, captured)) is not None:
        errors.append(lacking.error())
    for each in (*keys.errors(captured), *condition_errors(connection, config, captured)):
        if not first and each.code in (NOT_CAPTURED, CONDITION_NOT_CAPTURED):
            log.warning("configured table not captured", code=each.code, reason=each.message)
        else:
            errors.append(each)
    for relation in captured:
        try:
            columns.applied(relation, keys.of(relation))
        except ConfigError as error:
            if str(error) not in map(str, errors):
                errors.append(error)
    if errors:
        raise all_of(errors)


def check_patterns(connection: psycopg.Connection, name: str, capture_set: CaptureSet, *, first: bool) -> None:
    """Refuse invalid patterns and, at a first start, patterns without a table; later, log the latter."""
    found = publication.find(connection, name)
    tables = {*permanent_tables(connection), *(publication.published(connection, found) if found else ())}
    names = sorted(f"{schema}.{table}" for schema, table in tables)
    capture_set.check(names)
    if first:
        capture_set.refuse_unmatched(names)
    for pattern in capture_set.unmatched(names):
        log.warning("source.tables pattern unmatched", pattern=pattern)


def nothing_captured(
    connection: psycopg.Connection, publications: Publications, capture_set: CaptureSet
) -> ConfigError:
    """Return the error for publications without a table that matches ``source.tables``."""
    names = [f"{schema}.{table}" for schema, table in publication.published(connection, publications)]
    missing = missing_tables(connection, publications, capture_set)
    return ConfigError(
        "TR-120",
        f'publication "{publications.first.name}" has no table that matches source.tables',
        detail=f"Published tables: {', '.join(shown(names)) or 'none'}.",
        hint="\n       ".join(statements(missing, publications.names)) or 'tables = ["public.*"]  # under [source]',
    )
