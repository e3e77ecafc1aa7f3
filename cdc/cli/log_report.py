"""Output of `tailrace verify --log`: the records checked, the records compacted and the findings."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.cdc.operations.verify_log import LogProof
from tailrace.schemas.errors import FoundError
from tailrace.schemas.lsn import format_lsn


def lines(proof: LogProof) -> Iterator[str]:
    """Yield the verdict, the counts, and each finding with its topic, partition and offset."""
    tally = proof.tally
    verdict = "whole" if proof.holds else "BROKEN"
    span = f"{format_lsn(proof.first)} to {format_lsn(proof.last)}"
    yield f"slot {proof.slot}: {verdict}  (cuts {span}, {proof.seconds:.1f} s)"
    yield f"  {tally.records} records on {proof.topics} topics, {tally.position_records} position records"
    if tally.compacted:
        yield f"  {tally.compacted} records older than kafka.min_compaction_lag_ms were removed by compaction"
    if tally.uncounted:
        yield f"  {tally.uncounted} records are not counted: compaction removed their position records"
    for finding in tally.findings:
        place = finding.topic
        if finding.partition is not None:
            place += f" partition {finding.partition} offset {finding.offset}"
        yield f"  {finding.kind}: {f'{place}: ' if place else ''}{finding.detail}"
    if tally.found > len(tally.findings):
        yield f"  and {tally.found - len(tally.findings)} more"


def summary(proof: LogProof) -> FoundError | None:
    """Return the error that ends the command if there are findings, else None."""
    if proof.holds:
        return None
    deleted = [finding.topic for finding in proof.tally.findings if finding.kind == "deleted"]
    return FoundError(
        "TR-701",
        f'the topics of slot "{proof.slot}" do not match their position records',
        detail=f"Findings: {proof.tally.found}." + f" Deleted topics: {', '.join(deleted)}." * bool(deleted),
        hint="tailrace table list  # how to continue (TR-424), once `tailrace run` has noticed it"
        if deleted
        else "tailrace verify  # compares tables with the source. Check whether another program writes to the topics"
        " or deletes records.",
    )
