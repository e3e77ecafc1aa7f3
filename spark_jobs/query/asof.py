"""``JOIN dim ASOF row.ts ON ...``: join the versions of a view of shape `history` valid at ``row.ts``.

The clause is removed from the tokens before they are parsed, and added as two conditions of the join. The other
modules know only these conditions: with them, a key of the table identifies at most one version for each row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from tailrace.sinks.target.protocol import FIRST, FROM_LSN, FROM_ORDINAL, VALID_FROM, VALID_TO
from tailrace.spark_jobs.query.catalog import Catalog, TableInfo
from tailrace.spark_jobs.query.text import QueryText, offset_of

_WRITTEN: Final = "tailrace_asof"


@dataclass(frozen=True, slots=True)
class Moment:
    """The words between ASOF and ON, as offsets into the text."""

    start: int
    end: int


def take_out(tokens: Sequence[Token], text: QueryText) -> tuple[list[Token], list[Moment]]:
    """Return the tokens without ``ASOF moment``, and the moments. ConfigError for one without ON."""
    left: list[Token] = []
    moments: list[Moment] = []
    rest = iter(enumerate(tokens))
    for number, token in rest:
        following = tokens[number + 1 : number + 2]
        # ``ASOF JOIN`` is a different construct, which Spark does not have.
        if token.text.upper() != "ASOF" or not left or (following and following[0].token_type is TokenType.JOIN):
            left.append(token)
            continue
        depth, last = 0, token
        for _, part in rest:
            if part.token_type is TokenType.ON and depth == 0:
                moments.append(Moment(token.end + 1, last.end + 1))
                left.append(part)
                break
            depth += (part.token_type is TokenType.L_PAREN) - (part.token_type is TokenType.R_PAREN)
            last = part
        else:
            raise _refused(text, "ASOF must be between a joined view and its ON", token.start)
    return left, moments


def put_back(query: exp.Expr, moments: Iterable[Moment], text: QueryText, dialect: str) -> None:
    """Add the ASOF conditions to the joins whose ON follows a moment. ConfigError for an invalid one."""
    for moment in moments:
        on = {
            place: join
            for join in reversed(list(query.find_all(exp.Join)))
            if (place := offset_of(join.args.get("on"))) is not None and place >= moment.end
        }
        raw = " " * moment.start + text.sql[moment.start : moment.end]
        try:
            at = sqlglot.parse_one(raw, dialect=dialect)
        except SqlglotError:
            raise _refused(text, "the expression after ASOF cannot be parsed", moment.start) from None
        if not on or not at.find(exp.Column):
            raise _refused(text, "ASOF needs a column of the row, and a join whose ON names columns", moment.start)
        join = on[min(on)]
        if not isinstance(join.this, exp.Table):
            raise _refused(text, 'ASOF needs a view of shape "history", by its plain name', moment.start)
        join.meta[_WRITTEN] = moment.start
        conditions = _conditions(join.this.alias_or_name, at, first=text.asof_first)
        join.set("on", exp.and_(join.args["on"], *conditions))


def check_written(query: exp.Query, text: QueryText) -> None:
    """Raise ConfigError if a query has the option for ASOF joins but no such join."""
    if text.asof_first and not any(_WRITTEN in join.meta for join in query.find_all(exp.Join)):
        raise _refused(text, 'asof_before = "first" is set, but the query has no ASOF join', 0)


def _conditions(alias: str, at: exp.Expr, *, first: bool) -> Iterator[exp.Expr]:
    """Yield the conditions of a join; with `first`, a key's first version is also valid before its start."""
    begins, ends = (exp.column(name, alias, quoted=True) for name in (VALID_FROM, VALID_TO))
    begun = exp.LTE(this=begins, expression=at.copy())
    yield exp.paren(exp.or_(begun, exp.column(FIRST, alias, quoted=True))) if first else begun
    is_open = exp.Is(this=ends.copy(), expression=exp.Null())
    yield exp.paren(exp.or_(exp.LT(this=at.copy(), expression=ends), is_open))


def check_histories(query: exp.Query, text: QueryText, catalog: Catalog) -> None:
    """Raise ConfigError for an ASOF join with anything but a view of shape `history`."""
    for join in query.find_all(exp.Join):
        if (at := join.meta.get(_WRITTEN)) is not None:
            table = join.this
            info = catalog.get(f"{table.db}.{table.name}" if table.db else table.name)
            if info is None or not is_history(info):
                raise _refused(text, f'"{table.name}" is not a view of shape "history"', at)


def moment_of(alias: str, on: Iterable[exp.Expr], info: TableInfo) -> exp.Expr | None:
    """Return the moment at which the versions of an ASOF join are valid; None for any other join.

    The join is recognized by its conditions, however they were written.
    """
    if not is_history(info):
        return None
    conditions = {part.unnest().sql(): part.unnest() for part in on}
    for part in conditions.values():
        begun, first = (part.this.unnest(), True) if _is_or_first(part, alias) else (part, False)
        if isinstance(begun, exp.LTE) and begun.this.name == VALID_FROM and begun.this.args.get("table") is not None:
            at: exp.Expr = begun.expression
            both = {each.unnest().sql() for each in _conditions(alias, at, first=first)}
            if begun.this.table == alias and both <= conditions.keys() and not _names(at, alias):
                return at
    return None


def _is_or_first(part: exp.Expr, alias: str) -> bool:
    other = part.expression if isinstance(part, exp.Or) else None
    return isinstance(other, exp.Column) and (other.name, other.table) == (FIRST, alias)


def hide_first(query: exp.Query) -> None:
    """Remove the column that marks first versions (`FIRST`) from the expansion of ``*``."""
    for select in query.find_all(exp.Select):
        shown = [part for part in select.expressions if part.alias_or_name != FIRST]
        if len(shown) < len(select.expressions):
            select.set("expressions", shown)


def is_history(info: TableInfo) -> bool:
    """Whether it is a view of shape `history`: the start of a version is part of its key."""
    return {VALID_FROM, VALID_TO} <= set(info.columns) and {FROM_LSN, FROM_ORDINAL} <= set(info.key)


def key_at(info: TableInfo) -> tuple[str, ...]:
    """Return the columns that identify a version among those valid at one moment."""
    return tuple(name for name in info.key if name not in (FROM_LSN, FROM_ORDINAL))


def _names(part: exp.Expr, alias: str) -> bool:
    return any(column.table == alias for column in part.find_all(exp.Column))


def _refused(text: QueryText, message: str, at: int) -> Exception:
    return text.error("TR-568", message, at, hint="... JOIN dim ASOF row.ts ON dim.id = row.dim_id")
