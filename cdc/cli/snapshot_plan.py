"""`tailrace snapshot plan`: the tables and chunks that a first snapshot would read."""

from __future__ import annotations

from tailrace.cdc.cli import output
from tailrace.cdc.cli.display import Display
from tailrace.cdc.cli.options import ConfigFile, Json


def plan(config: ConfigFile = None, json: Json = False) -> None:
    """Show the tables in reading order with chunks, bytes and estimated rows. Nothing is changed."""
    with Display("asking PostgreSQL", json=json):
        from tailrace.cdc.operations.snapshot_plan import plan as planned
        from tailrace.schemas.config.file import load

        loaded = load(config)
        plans = planned(loaded)
    if json:
        output.json(
            {
                "tables": [
                    {
                        "table": each.relation.qualified_name,
                        "bytes": each.size,
                        "rows": each.rows,
                        "chunks": [chunk.to_dict() for chunk in each.chunks],
                    }
                    for each in plans
                ]
            }
        )
        return
    rows = [
        [each.relation.qualified_name, str(len(each.chunks)), output.bytes_text(each.size), _rows(each.rows)]
        for each in plans
    ]
    output.table(["table", "chunks", "bytes", "rows (estimated)"], rows)


def _rows(estimate: int | None) -> str:
    return "unknown until ANALYZE" if estimate is None else str(estimate)
