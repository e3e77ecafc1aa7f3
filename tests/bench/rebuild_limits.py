"""What a rebuild cannot be faster than: to read the topic of public.orders, and to read and decode it.

python -m tests.bench.rebuild_limits CONFIG
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import functions as F

from cdc.ops.spark import job
from schemas.configfile import load
from schemas.topics import Topics
from spark_jobs.command import opened
from spark_jobs.latest import changes, facts
from spark_jobs.source import records


def main(path: Path) -> None:
    config = load(path)
    os.environ.update(job(config, "follow", []).environment)
    with opened(config) as shared:
        topic = Topics(config.kafka.prefix).table("public", "orders")
        end = shared.cuts.wait().cut.offsets[topic]
        raw = records(shared.session, config.kafka, topic, [], end)
        assert raw is not None
        known = facts(raw)
        decoded = changes(raw, known, shared.records.shapes(topic, known.schema_ids))

        def rate(run: Callable[[], object]) -> int:
            run()
            began = time.monotonic()
            run()
            return round(known.rows / (time.monotonic() - began))

        read = rate(lambda: raw.select(F.sum(F.length("value"))).collect())
        decode = rate(lambda: decoded.write.format("noop").mode("overwrite").save())
    print(json.dumps({"read": read, "read_and_decode": decode}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
