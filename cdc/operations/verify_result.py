"""Result of `tailrace verify` for one view; its JSON form is a contract."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from tailrace.schemas.lsn import format_lsn
from tailrace.schemas.records.position import Cut
from tailrace.snapshot.verify.comparison import Outcome


@dataclass(frozen=True, slots=True)
class Result:
    """Result for one view; `outcomes` are in the order of `COMPARED`.

    `late`: the comparison took longer than the minimum compaction lag, so the topic may have lost its state at X. Equal
    is still a proof, but a difference may be caused by compaction.
    """

    view: str
    table: str
    columns: tuple[str, ...]
    key: tuple[int, ...]
    x: int
    cut: Cut
    outcomes: tuple[Outcome, ...]
    seconds: float
    late: bool = False

    @property
    def equal(self) -> bool:
        return not any(outcome.differing for outcome in self.outcomes)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; keys and rows have values in PostgreSQL's text form."""
        return {
            "view": self.view,
            "table": self.table,
            "equal": self.equal,
            "x": format_lsn(self.x),
            "cut": format_lsn(self.cut.flushed_lsn),
            "seconds": round(self.seconds, 3),
            "late": self.late,
            "columns": self.columns,
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


def _row(raw: bytes | None) -> Any:
    return None if raw is None else orjson.loads(raw)
