"""The layout of a view's table: partitions, order, deletes, properties; what of it Tailrace does not leave to a view.

All but the properties belong to a generation: a rebuild gives them to its new one, and each snapshot records them.
Properties belong to the table: the first write of a process sets those that have changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

import orjson

from tailrace.schemas.config.model import View
from tailrace.schemas.errors import ConfigError
from tailrace.schemas.table_layout import PartitionField, SortField
from tailrace.sinks.spark.sql_types import base_of, quote

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

_REFUSED: Final[Mapping[str, str]] = {
    "format-version": "deletion vectors need version 3",
    "write.delete.mode": "each batch is one commit that writes deletion vectors",
    "write.update.mode": "each batch is one commit that writes deletion vectors",
    "write.merge.mode": "each batch is one commit that writes deletion vectors",
    "write.format.default": "small batches and the readers without Spark need Parquet",
    "write.delete.format.default": "deletion vectors have a format of their own",
    "write.wap.": "a batch would be staged, and no reader would see it",
    "gc.enabled": "expiry needs it; warehouse.upkeep_share = 0 turns expiry off",
    "history.expire.": "a tool could expire the states and generations that Tailrace needs; use warehouse.keep_s",
    "write.metadata.delete-after-commit.enabled": "each commit writes a metadata file, and old ones would stay",
    "write.spark.accept-any-schema": "columns are added by Tailrace alone",
    "encryption.": "the readers without Spark cannot decrypt",
    "tailrace.": "these are Tailrace's own",
    **dict.fromkeys(("external", "is_managed_location", "location", "owner", "provider"), "Spark sets it by itself"),
}
"""Properties and, with a dot at the end, beginnings of their names, that a view cannot set, and the reason."""

_TIMES: Final = frozenset(("timestamp", "timestamp_ntz"))
_TYPES: Final[Mapping[str, frozenset[str]]] = {
    **dict.fromkeys(("years", "months", "days"), _TIMES | {"date"}),
    "hours": _TIMES,
    "bucket": _TIMES | {"tinyint", "smallint", "int", "bigint", "decimal", "date", "string", "binary"},
    "truncate": frozenset(("tinyint", "smallint", "int", "bigint", "decimal", "string", "binary")),
}
"""The types that a transform can be applied to; Iceberg's specification."""

_NESTED: Final = frozenset(("array", "map", "struct"))


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The layout of a table; by default one without partitions and order."""

    partition_by: tuple[PartitionField, ...] = ()
    sort_by: tuple[SortField, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    soft_deletes: bool = False
    """Whether deleted rows are retained, with the time of their deletion in `DELETED_AT`."""

    @classmethod
    def of(cls, name: str, view: View) -> Self:
        """Return the layout that a view declares. ConfigError (TR-536) for a property that it cannot set."""
        properties = {key: _text(value) for key, value in view.table_properties.items()}
        for given in properties:
            if reason := next((why for key, why in _REFUSED.items() if _matches(given, key)), None):
                raise ConfigError(
                    "TR-536",
                    f'view "{name}" cannot set the table property "{given}"',
                    detail=f"{reason[:1].upper()}{reason[1:]}.",
                    hint=f'Take "{given}" out of `table_properties` of [views.{name}].',
                )
        return cls(*_fields(view.partition_by, view.sort_by), properties, view.deletes == "soft")

    @classmethod
    def from_json(cls, text: str | None) -> Self:
        """Return the layout that a snapshot records, without properties."""
        found = orjson.loads(text) if text else {}
        fields = _fields(found.get("partition_by", ()), found.get("sort_by", ()))
        return cls(*fields, soft_deletes=found.get("deletes") == "soft")

    def to_json(self) -> str | None:
        """Return what a snapshot records; None if there is nothing."""
        if not self.partition_by and not self.sort_by and not self.soft_deletes:
            return None
        found: dict[str, list[str] | str] = {
            "partition_by": list(map(str, self.partition_by)),
            "sort_by": list(map(str, self.sort_by)),
        }
        # left out otherwise: generations of earlier revisions lack it
        if self.soft_deletes:
            found["deletes"] = "soft"
        return orjson.dumps(found).decode()

    @property
    def identity(self) -> str | None:
        """The identity of what only a rebuild can change; None if there is nothing."""
        text = self.to_json()
        return None if text is None else hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def distribution(self) -> dict[str, str]:
        """The properties that bring rows of one partition, or neighbors in the order, into one file."""
        # The rows of a batch are few: they are not sampled for ranges.
        merged = {"write.merge.distribution-mode": "hash"} if self.partition_by else {}
        if self.sort_by:
            return {"write.distribution-mode": "range", **merged}
        return {"write.distribution-mode": "hash", **merged} if self.partition_by else {}

    def partitioned(self) -> str:
        """Return the clause PARTITIONED BY of a CREATE TABLE; empty without partitions."""
        fields = (quote(each.column) if each.transform == "identity" else str(each) for each in self.partition_by)
        return f"PARTITIONED BY ({', '.join(fields)})" if self.partition_by else ""

    def ordered(self, catalog: str) -> str:
        """Return the clause ORDER BY of a query whose rows fill a new table; empty without a sort order."""
        fields = (
            quote(each.column) if each.transform == "identity" else f"{quote(catalog)}.system.{each}"
            for each in self.partition_by
        )
        return f"ORDER BY {', '.join((*fields, *map(str, self.sort_by)))}" if self.sort_by else ""

    def written_order(self) -> str:
        """Return the clause of an ALTER TABLE that sets the sort order."""
        return f"WRITE ORDERED BY {', '.join(map(str, self.sort_by))}" if self.sort_by else "WRITE UNORDERED"

    def is_order_of(self, table: Any) -> bool:
        """Whether Java's table has this sort order."""
        schema = table.schema()
        found = [
            (str(schema.findColumnName(each.sourceId())), str(each.direction()), str(each.nullOrder()))
            for each in table.sortOrder().fields()
        ]
        return found == [
            (each.column, "DESC" if each.descending else "ASC", f"NULLS {'FIRST' if each.nulls_first else 'LAST'}")
            for each in self.sort_by
        ]

    def check(self, view: str, columns: Mapping[str, DataType]) -> None:
        """Raise ConfigError (TR-535) if a column is not there, or a transform or an order does not fit its type."""
        wanted: list[tuple[str, str, str]] = [
            ("partition_by", each.transform, each.column) for each in self.partition_by
        ]
        wanted += [("sort_by", "identity", each.column) for each in self.sort_by]
        for key, transform, column in wanted:
            if column not in columns:
                raise no_column(view, key, column, columns)
            kind = columns[column].simpleString()
            fits = base_of(kind) in _TYPES[transform] if transform in _TYPES else base_of(kind) not in _NESTED
            if not fits:
                what = "sorted by" if key == "sort_by" else f"partitioned by {transform} of"
                raise ConfigError(
                    "TR-535",
                    f'view "{view}" cannot be {what} column "{column}"',
                    detail=f"Its type is {kind}.",
                    hint=f"Change `{key}` of [views.{view}].",
                )


def no_column(view: str, key: str, column: str, columns: Mapping[str, object]) -> ConfigError:
    """Return the error for a setting of a layout that names a column which a view lacks."""
    return ConfigError(
        "TR-535",
        f'view "{view}" has no column "{column}", which its `{key}` names',
        detail=f"Its columns: {', '.join(columns)}.",
        hint=f"Change `{key}` of [views.{view}].",
    )


def _fields(
    partition_by: Sequence[str], sort_by: Sequence[str]
) -> tuple[tuple[PartitionField, ...], tuple[SortField, ...]]:
    return tuple(map(PartitionField.parse, partition_by)), tuple(map(SortField.parse, sort_by))


def _matches(name: str, refused: str) -> bool:
    return name.lower().startswith(refused) if refused.endswith(".") else name.lower() == refused


def _text(value: str | int | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
