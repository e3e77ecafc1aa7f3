"""The kind of target `warehouse`: Iceberg tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.schemas.config.model import Config, View, Warehouse
from tailrace.sinks.control.views_topic import ViewRecord
from tailrace.sinks.iceberg import catalog, reader
from tailrace.sinks.iceberg.layout import TableLayout
from tailrace.sinks.target.kind import There, ViewState
from tailrace.sinks.target.protocol import DELETED_AT, VALIDITY, Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class WarehouseKind:
    """Iceberg tables; the catalog is in [warehouse]."""

    name: Final = "warehouse"
    example: Final = 'uri = "jdbc:sqlite:/path/catalog.db" and location = "/path/warehouse"'
    records_per_s: Final = 100_000
    keeps_states: Final = True

    def configured(self, config: Config) -> bool:
        return config.warehouse is not None

    def check(self, config: Config) -> None:
        catalog.check(_section(config))

    def layout_identity(self, name: str, view: View) -> str | None:
        return TableLayout.of(name, view).identity

    def open(self, config: Config, session: SparkSession, view: str, definition: str | None) -> Target:
        from tailrace.sinks.iceberg.target import IcebergTarget

        layout = TableLayout.of(view, config.views[view])
        return IcebergTarget(session, _section(config), view, definition, layout)

    def read(self, config: Config, view: str, record: ViewRecord | None, *, versions: bool) -> ViewState:
        stored = reader.stored_view(_section(config), view, record)
        if versions:
            # those that are valid at the cut have no end
            rows = stored.rows("valid_to_lsn IS NULL", VALIDITY)
        else:
            rows = stored.rows(f"{DELETED_AT} IS NULL", (DELETED_AT,)) if stored.soft_deletes else stored.rows()
        return ViewState(stored.cut, stored.generation, rows)

    def generations(self, config: Config, view: str) -> There:
        return reader.stored_generations(_section(config), view)


def _section(config: Config) -> Warehouse:
    assert config.warehouse is not None
    return config.warehouse
