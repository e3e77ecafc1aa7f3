# mypy: disable-error-code="untyped-decorator,no-any-return,name-defined,valid-type"
"""Hot path of snapshot rows, from a line of COPY to the outbox: encode, assign the position, send.

Compiled by Cython where possible, like `cdc.changes.row_path`, which does the same for changes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

try:
    import cython
except ModuleNotFoundError:
    from tailrace.schemas.encode import cython_shim as cython

from tailrace.cdc.changes.dead_letters import RefusedRow
from tailrace.cdc.changes.delivery import Delivery
from tailrace.cdc.tables.registry import FIRST_RUN
from tailrace.cdc.tables.shapes import CapturedTable
from tailrace.schemas.encode.copy_text import split_copy
from tailrace.schemas.encode.row_codec import ColumnRefused
from tailrace.schemas.lsn import Position

if cython.compiled:
    from cython.cimports.tailrace.schemas.encode.encoder import TableEncoder
    from cython.cimports.tailrace.sinks.kafka.outbox import Destination, Outbox
else:
    from tailrace.schemas.encode.encoder import TableEncoder
    from tailrace.sinks.kafka.outbox import Destination, Outbox

_NEVER = cython.declare(cython.Py_ssize_t, 2**62)


@cython.cclass
class RowSender:
    """Send snapshot rows as `op` r, with positions that count up from `ordinal` at one commit LSN."""

    def __init__(self, delivery: Delivery, epoch: int, commit_lsn: int, ordinal: int, run: int) -> None:
        self._outbox: Outbox = delivery.sink.outbox
        self._refusals = delivery.refusals
        self._run = run
        self._run_header = run.to_bytes(4, "big")
        self._header = Position(epoch, commit_lsn, 0).to_bytes()[:12]
        self._commit_lsn = commit_lsn
        self._epoch = epoch
        self._ordinal = ordinal
        self._ready: set[TableEncoder] = set()

    @property
    def position(self) -> Position:
        """The position of the last record sent."""
        return Position(self._epoch, self._commit_lsn, self._ordinal - 1)

    def send(self, table: CapturedTable, lines: Sequence[bytes], without: set[bytes] | None = None) -> list[RefusedRow]:
        """Send lines in COPY text format, except those with a key in `without`; return the refused rows."""
        encoder: TableEncoder = table.encoder
        outbox: Outbox = self._outbox
        to: Destination = table.destination
        if encoder not in self._ready:
            now_ms = time.time_ns() // 1_000_000
            encoder.begin_snapshot(self._commit_lsn, now_ms, now_ms)
            self._ready.add(encoder)
        toast = table.toast
        toast_size: cython.Py_ssize_t = _NEVER if toast is None else toast.size
        refused: list[RefusedRow] = []
        line: bytes
        for line in lines:
            try:
                if cython.compiled and outbox.direct and without is None and len(line) < toast_size:
                    encoder.put_snapshot(line, self._ordinal)
                    outbox.send_encoded(to, encoder.key_out, encoder.out, self._header, self._ordinal, self._run_header)
                    self._ordinal += 1
                    continue
                key, value = encoder.snapshot(line, self._ordinal)
            except ColumnRefused as error:
                key, value = self._refuse(table, error, line, without, refused), None
                if not key:
                    continue
            if without and key in without:
                continue
            outbox.send(to, key, value, self._header + self._ordinal.to_bytes(8, "big") + self._run_header)
            self._ordinal += 1
            if toast is not None and len(line) >= toast_size:
                toast.row(key, line)
        return refused

    def _refuse(
        self,
        table: CapturedTable,
        error: ColumnRefused,
        line: bytes,
        without: set[bytes] | None,
        refused: list[RefusedRow],
    ) -> bytes:
        """Append a refused row to `refused`; return the key for a tombstone in its place, or empty.

        A first copy needs no tombstone. In a later run, the row's version on the topic is no longer the newest.
        """
        row = self._refusals.row(table, error, split_copy(line))
        if without and row.key in without:
            return b""
        refused.append(row)
        return b"" if self._run == FIRST_RUN else row.key

    def divert(self, refused: Sequence[RefusedRow]) -> None:
        """Write the dead letters of rows, each once: in the transaction that marks their chunk as done.

        A tombstone deletes an earlier version of such a row, which could be stored, from the topic.
        """
        for row in refused:
            if row.key:
                position = self._header + self._ordinal.to_bytes(8, "big")
                self._outbox.send(row.table.destination, row.key, None, position)
                self._ordinal += 1
            self._refusals.divert(row, Position(self._epoch, self._commit_lsn, self._ordinal))
            self._ordinal += 1
