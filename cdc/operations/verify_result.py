"""Result of `tailrace verify` for one view; its JSON form is a contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import orjson

from tailrace.schemas.lsn import format_lsn, parse_lsn
from tailrace.schemas.verify_scope import WHOLE, Scope
from tailrace.snapshot.verify.comparison import Difference, Outcome


@dataclass(frozen=True, slots=True)
class Result:
    """Result for one view; `outcomes` are in the order of `COMPARED`.

    Of a view whose content was recomputed, `x` is None, and `table` is set for a base table that its query reads.
    `late`: the comparison took longer than the minimum compaction lag, so the topic may have lost its state at X. Equal
    is still a proof, but a difference may be caused by compaction. `scope` is other than all only where `x` is None.
    """

    view: str
    table: str | None
    columns: tuple[str, ...]
    key: tuple[int, ...]
    x: int | None
    cut: int
    outcomes: tuple[Outcome, ...]
    seconds: float
    late: bool = False
    generation: int | None = None
    scope: Scope = WHOLE

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Return a result from its JSON form."""
        columns = tuple(value["columns"])
        return cls(
            view=value["view"],
            table=value["table"],
            columns=columns,
            key=tuple(columns.index(name) for name in value["key"]),
            x=None if value["x"] is None else parse_lsn(value["x"]),
            cut=parse_lsn(value["cut"]),
            outcomes=tuple(map(_outcome, value["comparisons"])),
            seconds=value["seconds"],
            late=value["late"],
            generation=value.get("generation"),
            scope=Scope.from_dict(value["scope"]) if "scope" in value else WHOLE,
        )

    @property
    def equal(self) -> bool:
        return not any(outcome.differing for outcome in self.outcomes)

    def limited(self, count: int) -> Self:
        """Return the result with at most `count` differences of each comparison listed."""
        return replace(self, outcomes=tuple(replace(o, differences=o.differences[:count]) for o in self.outcomes))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; keys and rows have values in PostgreSQL's text form."""
        return {
            "view": self.view,
            "table": self.table,
            "equal": self.equal,
            "x": None if self.x is None else format_lsn(self.x),
            "generation": self.generation,
            "cut": format_lsn(self.cut),
            "scope": self.scope.to_dict(),
            "seconds": round(self.seconds, 3),
            "late": self.late,
            "columns": self.columns,
            "key": [self.columns[index] for index in self.key],
            "comparisons": [
                {
                    "compared": outcome.compared,
                    "left_rows": outcome.left_rows,
                    "right_rows": outcome.right_rows,
                    "differing": outcome.differing,
                    "differences": [
                        {
                            "key": orjson.loads(each.key),
                            "left": _row(each.left),
                            "right": _row(each.right),
                            "left_copies": each.left_copies,
                            "right_copies": each.right_copies,
                        }
                        for each in outcome.differences
                    ],
                }
                for outcome in self.outcomes
            ],
        }


def _outcome(value: Mapping[str, Any]) -> Outcome:
    differences = tuple(
        Difference(
            orjson.dumps(each["key"]),
            _bytes(each["left"]),
            _bytes(each["right"]),
            each["left_copies"],
            each["right_copies"],
        )
        for each in value["differences"]
    )
    return Outcome(value["compared"], value["left_rows"], value["right_rows"], value["differing"], differences)


def _bytes(row: Any) -> bytes | None:
    return None if row is None else orjson.dumps(row)


def _row(raw: bytes | None) -> Any:
    return None if raw is None else orjson.loads(raw)
