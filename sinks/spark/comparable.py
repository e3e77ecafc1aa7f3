"""Compare values of any type for identity, in Spark: directly, or by hashes."""

from __future__ import annotations

from typing import Final

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


_NULL: Final = 0x7A11_4ACE
"""The hash of NULL: Spark's hashes skip NULL, so that (NULL, 1) and (1, NULL) would have the same."""


def hashed(value: Column, kind: DataType) -> Column:
    """Return a hash of 64 bits, never NULL; the hashes of values that are not identical differ but for chance."""
    if isinstance(kind, ArrayType):
        found = F.xxhash64(F.transform(value, lambda item: hashed(item, kind.elementType)))
    elif isinstance(kind, StructType):
        found = F.xxhash64(*(hashed(value[field.name], field.dataType) for field in kind))
    elif isinstance(kind, MapType):
        entry = StructType().add("key", kind.keyType).add("value", kind.valueType)
        found = F.xxhash64(F.array_sort(F.transform(F.map_entries(value), lambda item: hashed(item, entry))))
    else:
        found = F.xxhash64(comparable(value, kind))
    return F.when(value.isNull(), F.lit(_NULL)).otherwise(found)
