"""Output of `tailrace verify`: row counts, and both sides of each key that differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import orjson

from tailrace.cdc.operations.verify_result import Result
from tailrace.schemas.errors import FoundError
from tailrace.schemas.lsn import format_lsn
from tailrace.snapshot.verify.comparison import Difference, Outcome

_LONGEST: Final = 200
_CONTEXT: Final = 20


def lines(result: Result) -> Iterator[str]:
    """Yield the verdict, the row counts and the differences of a view."""
    verdict = "equal" if result.equal else "DIFFERENT"
    at = f"C {format_lsn(result.cut)}, {result.seconds:.1f} s"
    if result.x is None:
        name = f"{result.view}, base table of {result.table}" if result.table else result.view
        name += f", staged generation {result.generation}" if result.scope.staged else ""
        yield f"{name}: {verdict}  ({at})"
    else:
        yield f"{result.view}: {verdict}  (X {format_lsn(result.x)}, {at})"
    for text in result.scope.sentences():
        yield f"  {text}"
    for outcome in result.outcomes:
        yield from _outcome(result, outcome)
    if result.late and not result.equal:
        yield "  This took longer than kafka.min_compaction_lag_ms: compaction may be the cause. Run it again."


def summary(results: Sequence[Result]) -> FoundError | None:
    """Return the error that ends the command if views differ, else None; it names views, never values."""
    different = list(dict.fromkeys(result.view for result in results if not result.equal))
    if not different:
        return None
    views = len({result.view for result in results})
    every = " --all" if any(result.x is None and not result.equal for result in results) else ""
    keys = sum(outcome.differing for result in results for outcome in result.outcomes)
    hint = f"tailrace verify {' '.join(different)}{every} --repair  # shows how, and asks"
    if any(result.scope.staged for result in results):
        hint = f"tailrace views rebuild --no-swap {' '.join(different)}  # builds the staged generation again"
    return FoundError(
        "TR-700",
        f"{len(different)} of {views} views differ: {', '.join(different)}",
        detail=f"Differing keys in all comparisons: {keys}.",
        hint=hint,
    )


def _outcome(result: Result, outcome: Outcome) -> Iterator[str]:
    left, right = outcome.compared.removesuffix(f" at {outcome.compared[-1]}").split(" and ")
    count = f"{outcome.differing} keys differ" if outcome.differing else "no difference"
    yield f"  {outcome.compared}: {outcome.left_rows} and {outcome.right_rows} rows, {count}"
    for each in outcome.differences:
        yield from _difference(result, each, left, right)
    more = outcome.differing - len(outcome.differences)
    if more:
        yield f"    and {more} more"


def _difference(result: Result, each: Difference, left: str, right: str) -> Iterator[str]:
    key = orjson.loads(each.key)
    names = [result.columns[index] for index in result.key]
    yield "    " + " ".join(f"{name}={_text(value)}" for name, value in zip(names, key, strict=True))
    for side, row, copies in ((left, each.left, each.left_copies), (right, each.right, each.right_copies)):
        if row is None:
            yield f"      {side:<6} no such row"
        else:
            several = f" ({copies} rows with this key)" if copies > 1 else ""
            yield f"      {side:<6} {_differing(result, each, row)}{several}"


def _differing(result: Result, each: Difference, row: bytes) -> str:
    """Format the columns that differ, or all except the key if the other side has no row."""
    other = each.right if row is each.left else each.left
    values: list[Any] = orjson.loads(row)
    others: list[Any] | None = None if other is None else orjson.loads(other)
    if others is None:
        named = zip(result.columns, values, strict=True)
        return " ".join(
            f"{name}={_text(value)}" for index, (name, value) in enumerate(named) if index not in result.key
        )
    pairs = zip(result.columns, values, others, strict=True)
    return " ".join(f"{name}={_text(value, other)}" for name, value, other in pairs if value != other)


def _text(value: Any, other: Any = None) -> str:
    """Format a value; of a long one, its start or the part where it begins to differ from `other`."""
    if value is None:
        return "NULL"
    text = orjson.dumps(value).decode()
    if len(text) <= _LONGEST:
        return text
    others = orjson.dumps(other).decode()
    same = next((n for n, pair in enumerate(zip(text, others, strict=False)) if pair[0] != pair[1]), 0)
    start = max(0, same - _CONTEXT)
    part = f"{'…' if start else ''}{text[start : start + _LONGEST]}{'…' if start + _LONGEST < len(text) else ''}"
    return f"{part} ({len(text)} characters)"
