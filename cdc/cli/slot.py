"""`tailrace slot`: show the replication slot, or drop it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cdc.cli import output
from tailrace.cdc.cli.display import Display
from tailrace.cdc.cli.options import ConfigFile, Json
from tailrace.cdc.cli.tree import App

if TYPE_CHECKING:
    from tailrace.cdc.operations.slots import SlotReport

app = App(help="The replication slot: show it, drop it.")


@app.command()
def show(config: ConfigFile = None, json: Json = False) -> None:
    """Show the slot's position, reader and status, the WAL that it retains, and what the topics lack."""
    with Display("asking PostgreSQL and Kafka", json=json):
        from tailrace.cdc.operations.slots import read_slot
        from tailrace.schemas.config.file import load

        found = read_slot(load(config))
    if json:
        output.json(found.to_dict())
        return
    rows = list(_rows(found))
    widest = max(len(name) for name, _ in rows)
    for name, text in rows:
        for part in output.wrapped(f"{name.ljust(widest)}  {text}", output.width()):
            output.line(part)


@app.command()
def drop(
    config: ConfigFile = None,
    json: Json = False,
    confirm: Annotated[
        str | None, typer.Option(metavar="SLOT", help="The slot's name, to drop it without being asked.")
    ] = None,
) -> None:
    """Drop the slot, confirmed with its name, after saying which changes are lost. An active slot is refused."""
    import sys

    with Display("asking PostgreSQL and Kafka", json=json):
        from tailrace.cdc.operations.slots import drop_slot, read_slot, refuse_drop
        from tailrace.schemas.config.file import load

        loaded = load(config)
        asked = confirm is None and sys.stdin.isatty()
        seen = read_slot(loaded) if asked else None
        if seen is not None:
            refuse_drop(seen)
    if seen is not None:
        output.note(seen.loss)
        confirm = typer.prompt(f'Type the name of slot "{seen.slot.name}" to drop it', err=True)
    with Display("dropping the slot", json=json):
        dropped = drop_slot(loaded, confirm)
    if json:
        output.json({"dropped": dropped.slot.name, "slot": dropped.to_dict()})
        return
    output.line(f"dropped slot {dropped.slot.name}")
    output.note(dropped.loss)
    if dropped.unread_from is not None:
        output.note("To recover: tailrace snapshot start --all --reconcile, then tailrace run")


def _rows(found: SlotReport) -> Iterator[tuple[str, str]]:
    """Yield name and text of each line."""
    from tailrace.schemas.lsn import format_lsn

    slot = found.slot
    yield "slot", f"{slot.name} ({slot.slot_type}, plugin {slot.plugin}, database {slot.database})"
    if slot.active_pid is None:
        yield "active", "no: no process reads it"
    else:
        yield "active", f"process {slot.active_pid} of the server{f', client {found.reader}' if found.reader else ''}"
    reason = f": {slot.invalidation_reason}" if slot.invalidation_reason else ""
    yield "status", f"{'lost' if slot.is_lost else slot.wal_status or 'unknown'}{reason}"
    confirmed = format_lsn(slot.confirmed_flush_lsn) if slot.confirmed_flush_lsn else "none"
    yield "position", f"confirmed {confirmed}; the server's WAL ends at {format_lsn(found.wal_lsn)}"
    limit = "no limit" if found.limit_bytes is None else f"limit {output.bytes_text(found.limit_bytes)}"
    retained = (
        "none"
        if found.retained_bytes is None
        else f"{output.bytes_text(found.retained_bytes)} since {format_lsn(slot.restart_lsn)}"
    )
    yield "retained", f"{retained}; {limit} (max_slot_wal_keep_size)"
    if found.topics_error:
        yield "topics", f"unknown: {found.topics_error}"
    elif found.flushed_lsn is None:
        yield "topics", "no position of this slot"
    else:
        unread = output.bytes_text(found.unread_bytes or 0)
        yield "topics", f"all changes before {format_lsn(found.flushed_lsn)}; {unread} of WAL past it"
