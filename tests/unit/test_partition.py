"""The partition of a key is that of librdkafka's `murmur2_random`, and of the Java producer."""

from __future__ import annotations

import ctypes
from pathlib import Path

import confluent_kafka
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.schemas.encode.partition import partition_of


def _librdkafka() -> ctypes.CDLL | None:
    folder = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    for path in folder.glob("librdkafka*.so*"):
        return ctypes.CDLL(str(path))
    return None


@pytest.mark.parametrize(
    # org.apache.kafka.common.utils.UtilsTest.testMurmur2: key, hash as a signed 32-bit integer
    ("key", "murmur2"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_of_kafkas_own_tests_have_its_partitions(key: bytes, murmur2: int) -> None:
    for partitions in (1, 2, 3, 4, 7, 1000):
        assert partition_of(key, partitions) == (murmur2 & 0x7FFFFFFF) % partitions


@given(st.binary(max_size=80), st.integers(1, 1000))
def test_any_key_has_the_partition_that_librdkafka_computes(key: bytes, partitions: int) -> None:
    library = _librdkafka()
    assert library is not None, "confluent-kafka brings its own librdkafka"
    library.rd_kafka_msg_partitioner_murmur2.restype = ctypes.c_int32
    expected = library.rd_kafka_msg_partitioner_murmur2(
        None, key, ctypes.c_size_t(len(key)), ctypes.c_int32(partitions), None, None
    )
    assert partition_of(key, partitions) == expected
