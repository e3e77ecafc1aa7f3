"""What `tailrace verify --log` prints: how much was looked at, what compaction took, and what is broken."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.cdc.operations.verify_log import LogProof
from tailrace.schemas.errors import FoundError
from tailrace.schemas.lsn import format_lsn


def lines(proof: LogProof) -> Iterator[str]:
    """Say what the topics prove, and each finding with its place."""
    tally = proof.tally
    verdict = "whole" if proof.holds else "BROKEN"
    span = f"{format_lsn(proof.first)} to {format_lsn(proof.last)}"
    yield f"slot {proof.slot}: {verdict}  (cuts {span}, {proof.seconds:.1f} s)"
    yield f"  {tally.records} records on {proof.topics} topics, {tally.position_records} position records"
    if tally.compacted:
        yield f"  {tally.compacted} records are gone, older than kafka.min_compaction_lag_ms: compaction takes such"
    if tally.uncounted:
        yield f"  {tally.uncounted} records are older than any position record that counts them, for the same reason"
    for finding in tally.findings:
        place = finding.topic
        if finding.partition is not None:
            place += f" partition {finding.partition} offset {finding.offset}"
        yield f"  {finding.kind}: {f'{place}: ' if place else ''}{finding.detail}"
    if tally.found > len(tally.findings):
        yield f"  and {tally.found - len(tally.findings)} more"


def summary(proof: LogProof) -> FoundError | None:
    """Return the error that ends the command if anything is broken."""
    if proof.holds:
        return None
    return FoundError(
        "TR-701",
        "the topics are not what their position records say",
        detail=f"{proof.tally.found} findings.",
        hint="Does something else write to the topics, or delete from them? Tables are compared with the source by:"
        " tailrace verify",
    )
