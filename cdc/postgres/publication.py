"""Publications with the captured tables, created at the first start or by the owner of the tables.

There are two. The second is for tables without a replica identity and publishes inserts and truncates only: in the
first publication, updates of these tables would fail on the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import psycopg
import structlog

from tailrace.cdc.postgres.capture_set import CaptureSet
from tailrace.cdc.postgres.catalog import PartOfKey, permanent_tables, table_relation
from tailrace.cdc.postgres.keys import may_be_updated
from tailrace.cdc.postgres.recipe import Recipe
from tailrace.schemas.config.model import Publish
from tailrace.schemas.errors import SourceError, StateError, all_of
from tailrace.schemas.relation import Relation, quoted

log = structlog.get_logger()

_CHANGES = ("insert", "update", "delete", "truncate")
_EVENTS = ("insert", "truncate")
"""The operations that the publication for tables without a key must publish."""
_INSERTS = ("insert",)
"""The operations that both publish if ``source.publish`` is "insert": topics are logs of inserts."""


@dataclass(frozen=True, slots=True)
class Publication:
    """A publication; `publishes` is a subset of insert, update, delete, truncate."""

    name: str
    oid: int
    publishes: frozenset[str]

    @property
    def publishes_updates(self) -> bool:
        """Whether updates of a table without a replica identity fail once it is in this publication."""
        return not self.publishes.isdisjoint(("update", "delete"))


@dataclass(frozen=True, slots=True)
class Publications:
    """The publications for START_REPLICATION; `nokey` is None if only the first exists."""

    first: Publication
    nokey: Publication | None

    @property
    def names(self) -> list[str]:
        return [self.first.name] + ([self.nokey.name] if self.nokey else [])

    @property
    def oids(self) -> tuple[int, int]:
        """The oids of both publications, 0 for none; they are stored with each position."""
        return self.first.oid, self.nokey.oid if self.nokey else 0


@dataclass(frozen=True, slots=True)
class Published:
    """The captured tables of publications; `partial_keys` are published with only a part of their key.

    `insert_only` are the oids of the tables whose updates are not published.
    """

    publications: Publications
    relations: list[Relation]
    insert_only: set[int]
    partial_keys: list[PartOfKey]

    @property
    def all_relations(self) -> list[Relation]:
        """The relations, those with only a part of their key included."""
        return [*self.relations, *(error.relation for error in self.partial_keys)]


def check_same(found: Publications | None, name: str, stored: tuple[int, int], hint: str) -> Publications:
    """Raise StateError (TR-404) unless the publications are those that the topics were filled from.

    The stream of recreated publications lacks the changes before their creation.
    """
    for each, then, now in zip((name, nokey_name(name)), stored, found.oids if found else (0, 0), strict=True):
        if then != now:
            what = "is missing" if not now else "was dropped and recreated" if then else "was created after the slot"
            raise StateError(
                "TR-404",
                f'publication "{each}" {what}',
                detail=f"Its oid was {then} and is now {now} (0: missing). Changes committed in the meantime, or rows"
                " that its tables had before, are not on the topics.",
                hint=hint if now else _to_create(each, hint, is_first=each == name),
            )
    assert found is not None
    return found


def _to_create(name: str, hint: str, *, is_first: bool) -> str:
    """Return the hint for a missing publication; a start creates the first one, with its second."""
    if is_first:
        return f"{hint}  # creates the publication again; TR-207 has the statement if the role may not"
    events = ", ".join(_EVENTS)
    return f"CREATE PUBLICATION {quoted(name)} FOR TABLE ... WITH (publish = '{events}');  -- its tables\n       {hint}"


def publish_all(name: str, changes: Iterable[str] = _CHANGES) -> str:
    """Return the statement after which a publication publishes `changes`."""
    return f"ALTER PUBLICATION {quoted(name)} SET (publish = '{', '.join(changes)}');"


def check_publishes(
    found: Publications, publish: Publish = "all", *, begun: bool, hint: str, logs_only: bool = False
) -> None:
    """Raise an error for publications that leave out an operation.

    SourceError (TR-233), or if `begun` StateError (TR-426), because the topics may lack changes already. With
    `publish` = "insert", publications with more operations raise SourceError (TR-233), because a log of inserts cannot
    represent an update. With `logs_only`, publications of tables with a key are not checked: such a table is read again
    once all its changes are published.
    """
    inserts = publish == "insert"
    checked = ((found.first, _CHANGES), (found.nokey, _EVENTS))
    for publication, all_changes in checked if inserts or not logs_only else checked[1:]:
        needed = _INSERTS if inserts else all_changes
        if publication is not None and inserts and publication.publishes - set(_INSERTS):
            raise _publishes_more(publication)
        if publication is None or publication.publishes.issuperset(needed):
            continue
        left_out = [each for each in _CHANGES if each in needed and each not in publication.publishes]
        message = f'publication "{publication.name}" does not publish: {", ".join(left_out)}'
        statement = publish_all(publication.name, needed)
        if not begun:
            raise SourceError(
                "TR-233",
                message,
                detail="The topics would differ from the tables.",
                hint=f"{statement}\n"
                '       publish = "insert"  # under [source], if it publishes only inserts: topics are logs',
            )
        raise StateError(
            "TR-426",
            message,
            detail="Such changes made since it was altered are not on the topics, and no slot will send them.",
            hint=f"{statement}  -- then, if there were such changes:\n       {hint}",
        )


def _publishes_more(publication: Publication) -> SourceError:
    more = [each for each in _CHANGES if each in publication.publishes and each not in _INSERTS]
    return SourceError(
        "TR-233",
        f'publication "{publication.name}" publishes more than inserts: {", ".join(more)}',
        detail='source.publish = "insert" declares that the topics are logs of inserts.',
        hint=f'ALTER PUBLICATION "{publication.name}" SET (publish = \'insert\');\n       publish = "all"  # under'
        " [source]: instead; with another kafka.prefix (and slot) if tables were copied before",
    )


def nokey_name(publication: str) -> str:
    return f"{publication}_nokey"


def ensure(
    connection: psycopg.Connection, name: str, capture_set: CaptureSet, publish: Publish = "all"
) -> Publications:
    """Return the publications; if the first is missing, create them for the tables of `capture_set`.

    With `publish` = "insert" one is enough, because it makes no update fail. SourceError if the server refuses.
    """
    found = find(connection, name)
    if found is None:
        _create(connection, planned(connection, name, capture_set, publish), publish)
        found = find(connection, name)
    assert found is not None
    return found


def find(connection: psycopg.Connection, name: str) -> Publications | None:
    """Return the present publications; None if the first does not exist."""
    second = nokey_name(name)
    rows = connection.execute(
        "SELECT pubname, oid::int8, array_remove(ARRAY[CASE WHEN pubinsert THEN 'insert' END, CASE WHEN pubupdate"
        " THEN 'update' END, CASE WHEN pubdelete THEN 'delete' END, CASE WHEN pubtruncate THEN 'truncate' END], NULL)"
        " FROM pg_publication WHERE pubname = ANY (%s)",
        ([name, second],),
    ).fetchall()
    found = {each: Publication(each, oid, frozenset(publishes)) for each, oid, publishes in rows}
    return Publications(found[name], found.get(second)) if name in found else None


def published(connection: psycopg.Connection, publications: Publications) -> list[tuple[str, str]]:
    """Return (schema, table) of all published tables, captured or not."""
    return connection.execute(
        "SELECT DISTINCT schemaname::text, tablename::text FROM pg_publication_tables WHERE pubname = ANY (%s)"
        " ORDER BY 1, 2",
        (publications.names,),
    ).fetchall()


def table_names(
    connection: psycopg.Connection, publications: Publications | None, capture_set: CaptureSet
) -> list[tuple[str, str]]:
    """Return (schema, table) of the captured tables; without publications, of those to be published."""
    names = permanent_tables(connection) if publications is None else published(connection, publications)
    return [each for each in names if capture_set.captures(*each)]


def relations(
    connection: psycopg.Connection, publications: Publications, capture_set: CaptureSet
) -> tuple[list[Relation], set[int]]:
    """Return the captured tables' shapes, as in Relation messages, and the oids of those without updates.

    Updates are not published for tables that are only in the second publication, or for all if the first publishes
    neither updates nor deletes. SourceError for tables whose published columns have only a part of their key.
    """
    found = inspect(connection, publications, capture_set)
    if found.partial_keys:
        raise all_of(found.partial_keys)
    return found.relations, found.insert_only


def inspect(connection: psycopg.Connection, publications: Publications, capture_set: CaptureSet) -> Published:
    """Return what `relations` returns, and in place of an error the tables with only a part of their key."""
    errors: list[PartOfKey] = []
    # PostgreSQL 14 has no column lists
    columns = "attnames" if connection.info.server_version >= 150000 else "NULL"
    rows = connection.execute(
        f"SELECT schemaname, tablename, min({columns}), bool_and(pubname <> %s) FROM pg_publication_tables"
        " WHERE pubname = ANY (%s) GROUP BY 1, 2 ORDER BY 1, 2".encode(),
        (publications.first.name, publications.names),
    ).fetchall()
    found: list[Relation] = []
    insert_only: set[int] = set()
    for schema, table, columns_published, only_second in rows:
        if not capture_set.captures(schema, table):
            continue
        try:
            relation = table_relation(connection, schema, table, columns_published, publications.names)
        except PartOfKey as error:
            errors.append(error)
            continue
        if relation is not None:
            found.append(relation)
            if only_second or not publications.first.publishes_updates:
                insert_only.add(relation.oid)
    return Published(publications, found, insert_only, errors)


def insert_only(connection: psycopg.Connection, publications: Publications) -> set[int]:
    """Return the oids of the tables that are only in the second publication."""
    rows = connection.execute(
        "SELECT c.oid::int8 FROM pg_publication_tables t JOIN pg_namespace n ON n.nspname = t.schemaname"
        " JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename WHERE t.pubname = ANY (%s)"
        " GROUP BY c.oid HAVING bool_and(t.pubname <> %s)",
        (publications.names, publications.first.name),
    ).fetchall()
    return {oid for (oid,) in rows}


def planned(connection: psycopg.Connection, name: str, capture_set: CaptureSet, publish: Publish = "all") -> Published:
    """Return what `ensure` would create: the publications, with oid 0, and their tables."""
    matching = table_names(connection, None, capture_set)
    found = [relation for each in matching if (relation := table_relation(connection, *each))]
    logs = publish == "insert"
    rest = set() if logs else {each.oid for each in found if not may_be_updated(connection, each)}
    first = Publication(name, 0, frozenset(_INSERTS if logs else _CHANGES))
    nokey = None if logs else Publication(nokey_name(name), 0, frozenset(_EVENTS))
    insert_only = {each.oid for each in found} if logs else rest
    return Published(Publications(first, nokey), found, insert_only, [])


def creation_error(connection: psycopg.Connection, plan: Published, publish: Publish = "all") -> SourceError | None:
    """Return the error (TR-207) that creating the publications of `plan` would raise; None if the role may.

    By the catalogs, in the order of PostgreSQL's own checks: nothing is tried.
    """
    name = plan.publications.first.name
    row = connection.execute(
        "SELECT pg_is_in_recovery(), has_database_privilege(current_database(), 'CREATE'), current_database()::text,"
        " (SELECT min(pubname::text) FROM pg_publication WHERE pubname = ANY (%(names)s)),"
        " (SELECT min(c.oid::regclass::text) FROM pg_class c WHERE c.oid = ANY (%(oids)s)"
        "  AND NOT pg_has_role(c.relowner, 'USAGE'))",
        {"names": plan.publications.names, "oids": [each.oid for each in plan.relations]},
    ).fetchone()
    assert row is not None
    in_recovery, may_create, database, existing, not_owned = row
    reason = ""
    if in_recovery:
        reason = "cannot execute CREATE PUBLICATION in a read-only transaction"
    elif not may_create:
        reason = f"permission denied for database {database}"
    elif existing is not None:
        reason = f'publication "{existing}" already exists'
    elif not_owned is not None:
        reason = f"must be owner of table {not_owned}"
    return _cannot_create(name, recipe(connection, plan, publish), reason) if reason else None


def _create(connection: psycopg.Connection, plan: Published, publish: Publish) -> None:
    """Create the publications, even without tables: earlier WAL cannot be decoded with a later one."""
    name = plan.publications.first.name
    plan_recipe = recipe(connection, plan, publish)
    try:
        with connection.transaction():
            for statement in plan_recipe.publications():
                connection.execute(statement.encode())
    except psycopg.errors.LockNotAvailable:
        raise
    except psycopg.Error as error:
        raise _cannot_create(name, plan_recipe, error.diag.message_primary or str(error)) from None


def _cannot_create(name: str, of_plan: Recipe, reason: str) -> SourceError:
    return SourceError(
        "TR-207",
        f'cannot create publication "{name}"',
        detail=f"{reason}.",
        hint="Have the owner of the tables run (skip what exists already):\n"
        + "\n".join(f"       {statement}" for statement in of_plan.statements()[1:]),
    )


def recipe(
    connection: psycopg.Connection, plan: Published, publish: Publish = "all", role: str | None = None
) -> Recipe:
    """Return the statements for the publications of `plan` and the rights of a role, by default the present one."""
    name = plan.publications.first.name
    split = {} if publish == "insert" else plan.insert_only
    whole = [each for each in plan.relations if each.oid not in split]
    insert_only = [each for each in plan.relations if each.oid in split]
    owners = connection.execute(
        "SELECT DISTINCT pg_get_userbyid(c.relowner)::text, n.nspname::text FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY (%s)",
        ([relation.oid for relation in (*whole, *insert_only)],),
    ).fetchall()
    row = connection.execute("SELECT current_user::text").fetchone()
    assert row is not None
    return Recipe(
        role or row[0],
        name,
        nokey_name(name),
        [(relation.schema, relation.name) for relation in whole],
        [(relation.schema, relation.name) for relation in insert_only],
        owners,
        connection.info.server_version,
        publish,
    )


def log_left_out(
    connection: psycopg.Connection, publications: Publications, captured: Sequence[Relation], insert_only: set[int]
) -> None:
    """Log unpublished changes and columns of captured tables, and tables whose updates would fail."""
    if not publications.first.publishes_updates:
        log.info("publication limited to inserts: topics are logs of inserts", publication=publications.first.name)
    elif insert_only:
        names = [relation.qualified_name for relation in captured if relation.oid in insert_only]
        log.info("tables without a replica identity: inserts and truncates only", tables=names)
    rows = connection.execute(
        "SELECT attrelid::int8, attname FROM pg_attribute WHERE attrelid = ANY (%s) AND attgenerated <> ''"
        " AND NOT attisdropped ORDER BY 1, attnum",
        ([relation.oid for relation in captured],),
    ).fetchall()
    by_oid = {relation.oid: relation for relation in captured}
    left_out = [
        f"{by_oid[oid].qualified_name}.{name}"
        for oid, name in rows
        if name not in {column.name for column in by_oid[oid].columns}
    ]
    if left_out:
        log.info("generated columns not published", columns=left_out)
    for table, name in failing_updates(connection, publications, captured):
        log.warning("updates and deletes fail on the source: no replica identity", table=table, publication=name)


def failing_updates(
    connection: psycopg.Connection, publications: Publications, relations: Sequence[Relation]
) -> list[tuple[str, str]]:
    """Return (table, publication) of `relations` whose updates PostgreSQL refuses: they have no replica identity."""
    return connection.execute(
        "SELECT t.schemaname || '.' || t.tablename, p.pubname FROM pg_publication p JOIN pg_publication_tables t"
        " USING (pubname) JOIN pg_namespace n ON n.nspname = t.schemaname"
        " JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename"
        " WHERE (p.pubupdate OR p.pubdelete) AND c.oid = ANY (%s) AND p.pubname = ANY (%s) ORDER BY 1",
        ([r.oid for r in relations if not any(column.is_key for column in r.columns)], publications.names),
    ).fetchall()
