"""Parse a query into a normalized tree: names resolved, CTEs inlined, time windows in subqueries.

In the result, every column names its source, every source has an alias, and ``UNION`` is ``DISTINCT`` over
``UNION ALL``. Constructs that are never allowed have been refused, with a pointer to them.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Collection, Mapping

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import OptimizeError, ParseError, TokenError
from sqlglot.optimizer.qualify import qualify
from sqlglot.tokenizer_core import TokenType

from tailrace.schemas.errors import ConfigError
from tailrace.schemas.table_names import split_name
from tailrace.sinks.target.protocol import FIRST
from tailrace.spark_jobs.query.asof import check_histories, hide_first, is_history, put_back, take_out
from tailrace.spark_jobs.query.catalog import VIEWS, Catalog, is_view, name_of, not_captured
from tailrace.spark_jobs.query.commits import hide_commits
from tailrace.spark_jobs.query.dialect import DIALECT
from tailrace.spark_jobs.query.shape import inline_ctes, one_form, settle_unions
from tailrace.spark_jobs.query.text import QueryText
from tailrace.spark_jobs.query.times import name_windows, split_windows


def parse(raw: exp.Query, text: QueryText, catalog: Catalog, known: Mapping[str, bool] | None = None) -> exp.Query:
    """Return the normalized form of a result of `tree`, which is consumed.

    ConfigError points at a name that does not exist. `known` are all captured tables, for its hint; by default those
    of `catalog`.
    """
    raw = inline_ctes(raw, text)
    tables = dict.fromkeys((name for name in catalog if not is_view(name)), True)
    _check_tables(raw, text, catalog, tables if known is None else known)
    check_histories(raw, text, catalog)
    for view in raw.find_all(exp.Table):
        if not view.db:
            view.set("db", exp.to_identifier(VIEWS, quoted=True))
    one_form(raw, text)
    name_windows(raw)
    schema: dict[str, object] = {}
    for table, info in catalog.items():
        namespace, name = (VIEWS, table) if is_view(table) else split_name(table)
        first = [FIRST] if text.asof_first and is_history(info) else []
        schema.setdefault(namespace, {})[name] = dict.fromkeys((*info.columns, *first), "string")  # type: ignore[index]
    try:
        found = qualify(raw.copy(), schema=schema, dialect=DIALECT, identify=True)
    except OptimizeError as error:
        raise _unresolved(error, raw, text, catalog) from None
    assert isinstance(found, exp.Query)
    hide_first(found)
    hide_commits(found, text, catalog)
    return settle_unions(split_windows(found))


def tree(text: QueryText) -> exp.Query:
    """Parse a query without normalizing it. ConfigError if it is not one SELECT."""
    dialect = Dialect.get_or_raise(DIALECT)
    try:
        tokens = dialect.tokenize(text.sql)
        for token, following in itertools.pairwise(tokens):
            # sqlglot takes every WINDOW for the clause; ``window(ts, '1 hour')`` is Spark's function.
            if token.token_type is TokenType.WINDOW and following.token_type in (TokenType.L_PAREN, TokenType.DOT):
                token.token_type = TokenType.VAR
        tokens, moments = take_out(tokens, text)
        statements = dialect.parser().parse(tokens, text.sql)
    except ParseError as error:
        first = error.errors[0]
        lines = text.sql.split("\n")[: first["line"] - 1]
        offset = sum(len(line) + 1 for line in lines) + first["col"] - len(first["highlight"] or "")
        raise text.error("TR-540", "the query cannot be parsed", max(offset, 0)) from None
    except TokenError:
        raise text.error("TR-540", "the query cannot be parsed: unterminated quote or comment") from None
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        raise text.error("TR-540", "the query is not a single SELECT", 0)
    found = statements[0].unnest()
    assert isinstance(found, exp.Query)
    put_back(found, moments, text, DIALECT)
    return found


def tables_of(text: QueryText, views: Collection[str] = ()) -> tuple[str, ...]:
    """Return the names that a query reads: ``schema.table``, or a plain name of `views`.

    ConfigError for any other name, or if it reads nothing.
    """
    found: dict[str, None] = {}
    for table in inline_ctes(tree(text), text).find_all(exp.Table):
        if table.catalog or (not table.db and table.name not in views):
            close = difflib.get_close_matches(table.name, views, n=1)
            hint = f'Did you mean the view "{close[0]}"?' if close else f'Did you mean "public.{table.name}"?'
            if table.catalog:
                hint = f"Did you mean `{table.catalog}.{table.db}`.{table.name}? Names with dots need backquotes."
            raise text.error("TR-541", f'"{table.sql()}" is neither schema.table nor a view', table, hint=hint)
        found[name_of(table)] = None
    if not found:
        raise text.error("TR-541", "the query reads no captured table", 0)
    return tuple(found)


def _check_tables(tree: exp.Query, text: QueryText, catalog: Catalog, known: Mapping[str, bool]) -> None:
    for table in tree.find_all(exp.Table):
        name = name_of(table)
        if name in catalog and not table.catalog:
            _check_plain(table, text)
            continue
        if is_view(name):
            close = difflib.get_close_matches(name, catalog, n=1)
            hint = f'Did you mean "{close[0]}"?' if close else f'Did you mean "public.{name}"?'
        else:
            hint = not_captured(name, known)
        raise text.error("TR-541", f'"{name}" is not a captured table with a key', table, hint=hint)


def _check_plain(table: exp.Table, text: QueryText) -> None:
    """Raise ConfigError for a modifier of a table (AS OF, TABLESAMPLE): its states would replace it."""
    if any(part for name, part in table.args.items() if name not in ("this", "db", "alias")):
        raise text.error("TR-541", f'"{table.sql(DIALECT)}" does not read the whole table in its present state', table)


def _unresolved(error: OptimizeError, raw: exp.Query, text: QueryText, catalog: Catalog) -> ConfigError:
    """Return an error that points at the column named by sqlglot, which reports no position itself."""
    message = str(error).split("\n", 1)[0]
    named = re.match(r"(?:Unknown column: |Column ')\W*([^'\s]+)", message)
    name = named[1].strip("'\"`.").rpartition(".")[2] if named else ""
    columns = [column for column in raw.find_all(exp.Column) if column.name == name]
    if name and columns:
        known = sorted({column for info in catalog.values() for column in info.columns})
        close = difflib.get_close_matches(name, known, n=1)
        hint = f'Did you mean "{close[0]}"?' if close else ""
        ambiguous = "ambiguous" in message.lower()
        column = _least_known(columns, raw, catalog)
        said = f'column "{name}" is ambiguous' if ambiguous else f'column "{column.sql()}" does not exist'
        return text.error("TR-542", said, column, hint=hint)
    source = re.match(r"Unknown table: \W*(\w+)", message)
    at = next((c for c in raw.find_all(exp.Column) if source and c.table == source[1]), None)
    return text.error("TR-542", f"a name in the query cannot be resolved: {message[:200]}", at)


def _least_known(columns: list[exp.Column], raw: exp.Query, catalog: Catalog) -> exp.Column:
    """Return the first of several columns of one name whose own source lacks it; else the first."""
    tables = {table.alias_or_name: name_of(table) for table in raw.find_all(exp.Table)}
    for column in columns:
        info = catalog.get(tables.get(column.table, ""))
        if info is not None and column.name not in info.columns:
            return column
    return columns[0]
