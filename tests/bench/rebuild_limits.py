"""Upper limits of a rebuild's speed: read the topic, read and decode it, send finished documents.

The topic is that of public.orders; the documents, of public.documents, are sent to the index.

    python -m tests.bench.rebuild_limits CONFIG
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tailrace.cdc.launch.spark_job import job
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Search
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.opensearch.bulk import connect, write_documents
from tailrace.sinks.opensearch.documents import documents
from tailrace.sinks.opensearch.target import OpenSearchTarget
from tailrace.sinks.target.protocol import DELETED
from tailrace.spark_jobs.jobs.command import opened
from tailrace.spark_jobs.maintain.kept_view import Shared
from tailrace.spark_jobs.topics.latest import Facts, changes, facts
from tailrace.spark_jobs.topics.source import records
from tailrace.spark_jobs.views import Declared

_CONNECTIONS = 2


def main(path: Path) -> None:
    config = load(path)
    os.environ.update(job(config, "follow", []).environment)
    with opened(config) as shared:
        raw, known, decoded = _span(shared, "orders")

        def rate(run: Callable[[], object]) -> int:
            run()
            began = time.monotonic()
            run()
            return round(known.rows / (time.monotonic() - began))

        found = {
            "read": rate(lambda: raw.select(F.sum(F.length("value"))).collect()),
            "read_and_decode": rate(lambda: decoded.write.format("noop").mode("overwrite").save()),
        }
        if config.search is not None:
            _, _, rows = _span(shared, "documents")
            found["index"] = _index(config.search, rows.drop(DELETED))
    print(json.dumps(found))


def _span(shared: Shared, table: str) -> tuple[DataFrame, Facts, DataFrame]:
    """Return a whole topic that has one record for each key, its facts, and its rows."""
    topic = Topics(shared.config.kafka.prefix).table("public", table)
    reader = Declared(table, "warehouse", (topic,), None, captured=(f"public.{table}",))
    cut = shared.cuts.wait(reader).cut
    raw = records(shared.session, shared.config.kafka, topic, [], cut.offsets[topic])
    assert raw is not None
    known = facts(raw)
    return raw, known, changes(raw, known, shared.records.shapes(topic, known.schema_ids))


def _index(search: Search, rows: DataFrame) -> int:
    """Return documents per second, until searchable, over as many connections as concurrent tasks."""
    columns = {field.name: field.dataType for field in rows.schema}
    target = OpenSearchTarget(search, "limit")
    made = documents(rows, ["id"]).collect()
    index = target.index(target.stage(columns, ["id"]))
    send = partial(write_documents, search=search, index=index, version=1)
    try:
        began = time.monotonic()
        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            list(pool.map(send, (made[number::_CONNECTIONS] for number in range(_CONNECTIONS))))
        connect(search).indices.refresh(index=index)
        return round(len(made) / (time.monotonic() - began))
    finally:
        target.remove()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
