"""The kind of target `search`: indexes of OpenSearch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.schemas.config.model import Config, Search, View
from tailrace.sinks.control.views_topic import ViewRecord
from tailrace.sinks.opensearch import bulk, reader
from tailrace.sinks.opensearch.layout import IndexLayout
from tailrace.sinks.opensearch.target import OpenSearchTarget
from tailrace.sinks.target.kind import There, ViewState
from tailrace.sinks.target.protocol import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SearchKind:
    """Indexes of OpenSearch; the cluster is in [search]."""

    name: Final = "search"
    example: Final = 'hosts = ["http://localhost:9200"]'
    records_per_s: Final = 12_000
    keeps_states: Final = False

    def configured(self, config: Config) -> bool:
        return config.search is not None

    def check(self, config: Config) -> None:
        bulk.check(_section(config))

    def layout_identity(self, name: str, view: View) -> str | None:
        return IndexLayout.of(name, view).identity

    def open(self, config: Config, session: SparkSession, view: str, definition: str | None) -> Target:
        layout = IndexLayout.of(view, config.views[view])
        return OpenSearchTarget(_section(config), view, definition, layout)

    def read(self, config: Config, view: str, record: ViewRecord | None, *, versions: bool) -> ViewState:
        return reader.read_documents(_section(config), view)

    def generations(self, config: Config, view: str) -> There:
        target = OpenSearchTarget(_section(config), view)
        return There(target.generations(), target.live())


def _section(config: Config) -> Search:
    assert config.search is not None
    return config.search
