"""A source of a plan whose rows change from run to run: a Parquet file of constant length.

Spark notes path and length of a file when it plans, and opens the file in each run. So a plan over such files can run
for each batch, over that batch's rows, without being analyzed, optimized and compiled again. A Parquet file begins with
its rows and ends with a footer that says where they are; what lies between them is not read.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

CAPACITY: Final = 4 << 20
"""Bytes of a file. Up to Spark's cost of opening one (`spark.sql.files.openCostInBytes`), it is not split among tasks.

It has a hole, so it takes no more space than its rows.
"""

_OPTIONS: Final = {"datetimeRebaseMode": "CORRECTED", "int96RebaseMode": "CORRECTED"}
_FOOTER_END: Final = 8
"""Bytes behind the footer: its length in four of them, and Parquet's mark."""


class TooLarge(Exception):
    """The rows do not fit."""


class PlanSource:
    """A frame with the columns of `schema`, whose rows are those of the last `fill`; none at first."""

    def __init__(self, session: SparkSession, path: Path, schema: StructType) -> None:
        """Create the file at `path`, on a disk of the machine that runs all of Spark's tasks."""
        self._path: Final = path
        # in the file, names have no characters that mean anything to Parquet
        self._names: Final = [f"c{number}" for number in range(len(schema))]
        path.touch()
        os.truncate(path, CAPACITY)
        self.fill(to_arrow_schema(schema).empty_table())
        plain = StructType([StructField(name, field.dataType) for name, field in zip(self._names, schema, strict=True)])
        read = session.read.options(**_OPTIONS).schema(plain).parquet(f"file:{path}")
        # the limit, which is never reached, keeps conditions from moving below the coalesce(1): a join that EXISTS
        # becomes there would not know that there is only one partition
        self.frame: Final[DataFrame] = read.coalesce(1).limit(CAPACITY).toDF(*schema.names)

    def fill(self, rows: Any) -> None:
        """Replace all rows by those of an Arrow table with the same columns. TooLarge if they do not fit."""
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.parquet as parquet  # type: ignore[import-untyped]

        stream = pa.BufferOutputStream()
        # without what Spark could skip rows by: -0.0 and NaN have no place in an order of their own there
        parquet.write_table(
            rows.rename_columns(self._names), stream, compression="none", use_dictionary=False, write_statistics=False
        )
        content = memoryview(stream.getvalue())
        if len(content) > CAPACITY:
            raise TooLarge
        end = int.from_bytes(content[-_FOOTER_END : -_FOOTER_END // 2], "little") + _FOOTER_END
        with self._path.open("r+b") as file:
            file.write(content[:-end])
            file.seek(-end, os.SEEK_END)
            file.write(content[-end:])
