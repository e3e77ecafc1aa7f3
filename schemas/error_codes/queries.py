"""TR-5xx for the text of a view's query; each error shows the position in it."""

from __future__ import annotations

from typing import Final

from tailrace.schemas.error_codes.entry import ErrorCode, Retry
from tailrace.schemas.errors import ConfigError

CODES: Final = (
    ErrorCode(
        "TR-540",
        ConfigError,
        "The query of a view is not one SELECT in Spark's SQL",
        cause="The text has a syntax error, a quote or comment that does not end, is another statement, or has a part"
        " that our parser cannot pass on to Spark unchanged.",
        remedy="Correct `query` of `[views.NAME]` at the place that DETAIL shows.",
    ),
    ErrorCode(
        "TR-541",
        ConfigError,
        "The query reads something that is not a captured table or a view",
        Retry.BATCH,
        cause="A name in FROM is misspelled, lacks its schema, is not captured or has no key, is read in part (`VERSION"
        " AS OF`, `TABLESAMPLE`), or there is none at all.",
        remedy="Write tables as `schema.table` and views by their plain names. The hint has the nearest name.",
    ),
    ErrorCode(
        "TR-542",
        ConfigError,
        "A column of the query cannot be resolved",
        Retry.BATCH,
        cause="No table of the query has the column, or several have it and the name is not qualified.",
        remedy="Correct the name, or qualify it with the alias of its table. The hint has the nearest name.",
    ),
    ErrorCode(
        "TR-543",
        ConfigError,
        "A part of the query cannot be maintained from changes",
        Retry.BATCH,
        cause="The query has a clause, a join or an operation in which a change of one row can affect all rows of the"
        " result: LIMIT, ORDER BY, FULL JOIN, EXCEPT, a recursive query, functions that return several rows.",
        remedy='Rewrite it as the hint says, or set `refresh = "full"` in `[views.NAME]` to compute the whole query for'
        " each batch that touches its tables.",
    ),
    ErrorCode(
        "TR-544",
        ConfigError,
        "The query has no key that is known to be unique",
        Retry.BATCH,
        cause="`key` is missing or names no column of the query, or the keys of the tables do not prove that it is"
        " unique: rows are multiplied by a join, or a branch of UNION ALL has the same keys.",
        remedy="Set `key` in `[views.NAME]` to the columns that the hint names, and select them in the query.",
    ),
    ErrorCode(
        "TR-545",
        ConfigError,
        "Each change would recompute the whole query",
        Retry.BATCH,
        cause="An aggregate or a window function covers all rows, so that no change can be limited to some of them.",
        remedy='Add GROUP BY or PARTITION BY; or, if this is intended, set `refresh = "full"` in `[views.NAME]`.',
    ),
    ErrorCode(
        "TR-546",
        ConfigError,
        "The order of a window or an aggregate is not total",
        Retry.BATCH,
        cause="Rows that are equal in the ORDER BY have no defined order, so the result would not be deterministic.",
        remedy="Add the columns of the hint to the ORDER BY.",
    ),
    ErrorCode(
        "TR-547",
        ConfigError,
        "A column of the query has no name, or one that is used twice",
        Retry.BATCH,
        cause="An expression in SELECT has no alias, or two columns have the same name.",
        remedy="Name each column with AS.",
    ),
    ErrorCode(
        "TR-552",
        ConfigError,
        "A subquery cannot be maintained from changes",
        Retry.BATCH,
        cause="The subquery is in a place (ON, QUALIFY, ALL, ANY) or of a correlated form whose dependence on the outer"
        " rows cannot be followed.",
        remedy="Write it as a join, or as EXISTS with the condition in its WHERE.",
    ),
    ErrorCode(
        "TR-553",
        ConfigError,
        "One alias names two sources of the query",
        Retry.BATCH,
        cause="A subquery defines an alias that the outer query uses, too, so a column could belong to either.",
        remedy="Rename one of them.",
    ),
    ErrorCode(
        "TR-554",
        ConfigError,
        "A function of the query can return different results for the same rows",
        Retry.BATCH,
        cause="The result depends on the time, on chance or on the session (`now()`, `rand()`), or on the order in"
        " which"
        " an aggregate sees its rows (`first()`, `collect_list()`).",
        remedy="Use a column of the row, or an aggregate with a defined order: `min_by(value, order)`,"
        " `sort_array(collect_list(value))`.",
    ),
    ErrorCode(
        "TR-555",
        ConfigError,
        "A window on time cannot be maintained from changes",
        Retry.BATCH,
        cause="`window()` has a slide and is not in GROUP BY, or GROUP BY has two windows: one row would become"
        " several.",
        remedy="Group by the window, and by one window only.",
    ),
    ErrorCode(
        "TR-568",
        ConfigError,
        "An ASOF join has a form that cannot be used",
        Retry.BATCH,
        cause='ASOF needs a view of shape "history", by its plain name, a condition on its columns in ON, and a time'
        " column of the row.",
        remedy="Write `... JOIN dim ASOF row.ts ON dim.id = row.dim_id`.",
    ),
    ErrorCode(
        "TR-569",
        ConfigError,
        "`lateness_s` needs a window on a time column of a captured table",
        Retry.BATCH,
        cause="The query has no `window()`, or the time of its window is computed and not a column of a table, or that"
        " table lacks a column of `lateness_by`.",
        remedy="Group by `window(column, '1 hour')`, and name columns of that table in `lateness_by`; or remove"
        " `lateness_s` from `[views.NAME]`.",
    ),
)
