"""Java's own Avro as a reader of our records: an independent library in another language."""

from __future__ import annotations

import importlib.util
import json
import struct
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tailrace.cdc.launch.java import SPARK, find_java

_SOURCE = Path(__file__).parent / "java" / "ReadAvro.java"
_HEAD = struct.Struct(">bII")


class JavaAvro:
    """One JVM for many records; its jars are those of Spark."""

    def __init__(self) -> None:
        spec = importlib.util.find_spec("pyspark")
        assert spec is not None
        assert spec.origin is not None
        jars = Path(spec.origin).parent / "jars"
        names = ("avro-1*.jar", "jackson-core-2*.jar", "jackson-databind-2*.jar", "jackson-annotations-2*.jar")
        found = [
            str(path) for name in (*names, "slf4j-api-*.jar", "commons-compress-*.jar") for path in jars.glob(name)
        ]
        java = find_java("Java's Avro", SPARK).executable
        self._process = subprocess.Popen(
            [str(java), "-XX:TieredStopAtLevel=1", "-cp", ":".join(found), str(_SOURCE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End the JVM."""
        self._process.communicate()

    def learn(self, number: int, schema: str) -> None:
        """Register a schema with the id by which records name it."""
        self._send(0, number, schema.encode())

    def read(self, framed: bytes) -> Any:
        """Return what Java reads from a framed record, in fastavro's form: dict, list, bytes, float and so on."""
        assert framed[0] == 0
        self._send(1, int.from_bytes(framed[1:5], "big"), framed[5:])
        assert self._process.stdout is not None
        return _value(json.loads(self._process.stdout.readline()))

    def _send(self, kind: int, number: int, raw: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(_HEAD.pack(kind, number, len(raw)) + raw)
        self._process.stdin.flush()


def _value(said: Any) -> Any:
    if isinstance(said, list):
        return [_value(item) for item in said]
    if not isinstance(said, dict):
        return said
    match said:
        case {"bytes": str(text), **rest} if not rest:
            return bytes.fromhex(text)
        case {"float": str(text), **rest} if not rest:
            return struct.unpack(">f", bytes.fromhex(text))[0]
        case {"double": str(text), **rest} if not rest:
            return struct.unpack(">d", bytes.fromhex(text))[0]
        case {"map": dict(entries), **rest} if not rest:
            return {name: _value(each) for name, each in entries.items()}
    return {name: _value(each) for name, each in said.items()}
