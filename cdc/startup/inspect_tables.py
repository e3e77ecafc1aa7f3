"""Inspect the tables that would be captured: keys, rights, conditions, column options, topics. Nothing is changed.

`cdc.startup.captured` does it at a start and raises what it finds; `tailrace check` reports it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import psycopg
import structlog

from tailrace.cdc.backfill.exported_snapshot import CONDITION_NOT_CAPTURED, condition_errors
from tailrace.cdc.postgres import publication
from tailrace.cdc.postgres.capture_set import CaptureSet
from tailrace.cdc.postgres.catalog import permanent_tables, row_security_errors
from tailrace.cdc.postgres.keys import NOT_CAPTURED, Keys
from tailrace.cdc.postgres.membership import missing_tables, shown, statements
from tailrace.cdc.postgres.publication import Publications, Published
from tailrace.cdc.postgres.rights import lacking_rights
from tailrace.cdc.startup import recovery
from tailrace.cdc.startup.one_table import Refusals
from tailrace.cdc.tables.destinations import clash_errors
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import ConfigError, StateError
from tailrace.schemas.evolution import key_column_names
from tailrace.schemas.records.topics import Topics
from tailrace.schemas.relation import Relation
from tailrace.sinks.control.positions import read_schemas

log = structlog.get_logger()


NO_TABLE: Final = "TR-120"
"""The error code for patterns without a table, and publications without a captured one."""


@dataclass(frozen=True, slots=True)
class Inspected:
    """The tables of a start that can be captured, and their keys.

    `keyed` says, for each table whose topic has had records, whether these have keys.
    """

    relations: list[Relation]
    keys: Keys
    keyed: Mapping[str, bool]


def inspect_tables(
    config: Config,
    connection: psycopg.Connection,
    published: Published,
    refusals: Refusals,
    topic_keys: Mapping[str, Sequence[str]],
    cut_short: Mapping[str, StateError],
) -> Inspected:
    """Add everything that cannot be captured to `refusals`, which raise what refuses the start.

    `topic_keys` are the key columns of topics with records, `cut_short` the tables whose topics have lost records.
    """
    source, first = config.source, refusals.is_first
    captured, insert_only, publications = published.relations, published.insert_only, published.publications
    for error in published.partial_keys:
        refusals.add(error.relation, error)
    for relation in published.all_relations:
        if relation.qualified_name in cut_short:
            refusals.add(relation, cut_short[relation.qualified_name])
    refusals.check()
    if first and not captured:
        refusals.add(None, nothing_captured(connection, publications, CaptureSet(source.tables)))
        refusals.check()
    ask = partial(publication.insert_only, connection, publications)
    known = [relation.oid for relation in captured]
    keys = Keys(connection, source.keys, insert_only, known=known, ask=ask, logs=source.publish == "insert")
    _find_errors(config, connection, published.all_relations, refusals, keys)
    lost = [each for each in refusals.left(captured) if each.oid in insert_only and topic_keys.get(each.qualified_name)]
    _refuse_lost_updates(config, lost, refusals)
    keyed = {name: bool(columns) for name, columns in topic_keys.items()}
    return Inspected(refusals.left(captured), keys, keyed)


def topic_keys(config: Config, relations: Sequence[Relation]) -> dict[str, list[str]]:
    """Return the key columns of each table whose topic has had records; none if these have no keys."""
    topics = Topics(config.kafka.prefix)
    newest = {stored.subject: stored.schema for stored in read_schemas(config.kafka, topics)}
    named = {relation.qualified_name: topics.table(relation.schema, relation.name) for relation in relations}
    return {
        name: key_column_names(newest[f"{topic}-key"]) if f"{topic}-key" in newest else []
        for name, topic in named.items()
        if f"{topic}-value" in newest
    }


def _refuse_lost_updates(config: Config, relations: Sequence[Relation], refusals: Refusals) -> None:
    """Refuse tables (TR-428) without published updates whose topics have keys.

    Such topics promise the newest row of each key. If the configuration declares that, the start is refused.
    """
    if relations and config.source.publish == "insert":
        refusals.add(None, _lost_updates(config, relations))
        refusals.check()
        return
    for relation in relations:
        refusals.add(relation, _lost_updates(config, [relation]))
    refusals.check()


def _lost_updates(config: Config, relations: Sequence[Relation]) -> StateError:
    lost = [each.qualified_name for each in relations]
    tables, left_out = " ".join(lost), ", ".join(f'"!{name}"' for name in lost)
    again = f"tailrace table remove {tables} && tailrace table add {tables}  # publishes them and reads them again"
    anew = recovery.copy_anew(config.kafka.prefix, config.source.slot)
    return StateError(
        "TR-428",
        f"updates and deletes of {', '.join(shown(lost))} are no longer published",
        detail="Their topics promise the newest row of each key, but lack later updates and deletes.",
        hint=f"{anew if config.source.publish == 'insert' else again}\n"
        f"       tables = [..., {left_out}]  # under [source]; or stop capturing them",
    )


def _find_errors(
    config: Config,
    connection: psycopg.Connection,
    published: Sequence[Relation],
    refusals: Refusals,
    keys: Keys,
) -> None:
    """Add everything that cannot be captured as configured; raise one error with all that refuse the start."""
    first = refusals.is_first
    captured = refusals.left(published)
    hidden = row_security_errors(connection, captured)
    if hidden and not first:
        for relation in captured:
            for hides in row_security_errors(connection, [relation]):
                refusals.add(relation, hides)
    else:
        refusals.add_all(hidden)
    if first and (lacking := lacking_rights(connection, captured)) is not None:
        refusals.add(None, lacking.error())
    conditions = [(None, unusable) for unusable in condition_errors(connection, config, captured)]
    for of, wrong in (*keys.errors(published), *conditions):
        if not first and wrong.code in (NOT_CAPTURED, CONDITION_NOT_CAPTURED):
            refusals.notes.append(wrong)
        else:
            refusals.add(of, wrong)
    for relation in captured:
        try:
            refusals.options.applied(relation, keys.of(relation))
        except ConfigError as error:
            refusals.add(relation, error)
    named = {relation.qualified_name: relation for relation in captured}
    for names, clash in clash_errors(Topics(config.kafka.prefix), {(each.schema, each.name) for each in captured}):
        for name in refusals.newcomers(names):
            refusals.add(named[name], clash)
    refusals.check()


def check_patterns(connection: psycopg.Connection, name: str, capture_set: CaptureSet, *, first: bool) -> None:
    """Refuse invalid patterns and, at a first start, patterns without a table; later, log the latter."""
    for pattern in unmatched_patterns(connection, name, capture_set, first=first):
        log.warning("source.tables pattern unmatched", pattern=pattern)


def unmatched_patterns(connection: psycopg.Connection, name: str, capture_set: CaptureSet, *, first: bool) -> list[str]:
    """Return the patterns without a table. ConfigError for invalid ones and, at a first start, for any without one."""
    found = publication.find(connection, name)
    tables = {*permanent_tables(connection), *(publication.published(connection, found) if found else ())}
    names = sorted(f"{schema}.{table}" for schema, table in tables)
    capture_set.check(names)
    if first:
        capture_set.refuse_unmatched(names)
    return capture_set.unmatched(names)


def nothing_captured(
    connection: psycopg.Connection, publications: Publications, capture_set: CaptureSet
) -> ConfigError:
    """Return the error for publications without a table that matches ``source.tables``."""
    names = [f"{schema}.{table}" for schema, table in publication.published(connection, publications)]
    missing = missing_tables(connection, publications, capture_set)
    return ConfigError(
        NO_TABLE,
        f'publication "{publications.first.name}" has no table that matches source.tables',
        detail=f"Published tables: {', '.join(shown(names)) or 'none'}.",
        hint="\n       ".join(statements(missing, publications.names)) or 'tables = ["public.*"]  # under [source]',
    )
