"""The changed rows of a small batch: in Spark, or in this process as an Arrow table, whichever is needed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from tailrace.sinks.spark.one_task import in_one_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class FewRows:
    """Rows that are few enough for one task, and for the memory of this process.

    They are collected once, by the first thread that needs them here; from then on, Spark gets them from here, too.
    """

    def __init__(self, session: SparkSession, schema: StructType, frame: DataFrame | None, arrow: Any) -> None:
        self.schema = schema
        self._session = session
        self._frame = frame
        self._arrow = arrow
        self._lock = threading.Lock()

    @classmethod
    def of(cls, frame: DataFrame) -> FewRows:
        """Return the rows of a frame."""
        return cls(frame.sparkSession, frame.schema, frame, None)

    @classmethod
    def collected(cls, session: SparkSession, arrow: Any, schema: StructType) -> FewRows:
        """Return the rows of an Arrow table that has the columns of a Spark schema."""
        return cls(session, schema, None, arrow)

    def arrow(self) -> Any:
        """Return the rows as an Arrow table; the first call runs a Spark job."""
        with self._lock:
            if self._arrow is None:
                assert self._frame is not None
                with in_one_task(self._session, few=True):
                    self._arrow = self._frame.toArrow()
                self._frame = None
            return self._arrow

    def frame(self, session: SparkSession | None = None) -> DataFrame:
        """Return the rows as a frame of a session; by default of any."""
        with self._lock:
            frame = self._frame
        if frame is not None and session in (None, frame.sparkSession):
            return frame
        return (session or self._session).createDataFrame(self.arrow(), self.schema).coalesce(1)
