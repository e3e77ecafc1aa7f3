"""A server still sends the recorded messages, and the recorder still works."""

from __future__ import annotations

from tests.golden.describe import describe, parse
from tests.golden.expected import expected
from tests.golden.record import OPTIONS, embedded, record
from tests.support.servers import fresh_database


def test_a_new_recording_has_the_expected_messages() -> None:
    with embedded() as server_dsn:
        for protocol in OPTIONS:
            with fresh_database(server_dsn) as dsn:
                recording = parse(record(dsn, protocol))
            assert list(describe(recording)) == expected(recording.version, protocol)
