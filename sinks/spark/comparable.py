"""Compare values of any type for identity, in Spark."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DoubleType, FloatType, MapType, StructType


def comparable(value: Column, kind: DataType) -> Column:
    """Return a comparable expression that is equal for identical values only.

    Maps cannot be compared, and 0.0 is equal to -0.0.
    """
    if isinstance(kind, FloatType | DoubleType):
        return value.cast("string")
    if isinstance(kind, ArrayType):
        return F.transform(value, lambda item: comparable(item, kind.elementType))
    if isinstance(kind, StructType):
        fields = [comparable(value[f.name], f.dataType).alias(f"c{n}") for n, f in enumerate(kind)]
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(kind, MapType):
        entry = StructType().add("key", kind.keyType).add("value", kind.valueType)
        return F.array_sort(F.transform(F.map_entries(value), lambda item: comparable(item, entry)))
    return value
