"""Fixed ports: which server has which, and the error about a port that another program has."""

from __future__ import annotations

import os
import socket

import pytest

from tailrace.cdc.dev.ports import HIGHEST_BASE, fixed_ports, refuse_taken
from tailrace.cdc.dev.process import is_free
from tailrace.schemas.errors import ConfigError
from tests.support.ports import free_base

_ALL = ("postgres", "kafka", "opensearch")


def test_each_port_has_a_number_from_the_base_on() -> None:
    postgres, kafka = {"sql": 15000}, {"broker": 15001, "controller": 15002}
    opensearch = {"http": 15003, "transport": 15004}
    assert fixed_ports(15000, _ALL) == {"postgres": postgres, "kafka": kafka, "opensearch": opensearch}
    assert fixed_ports(15000, ("postgres", "opensearch")) == {"postgres": postgres, "opensearch": opensearch}
    assert fixed_ports(HIGHEST_BASE, _ALL)["opensearch"]["transport"] == 65535


def test_a_port_of_another_program_is_refused_with_a_base_that_is_free() -> None:
    base = free_base()
    refuse_taken(base, _ALL, own=())
    with socket.create_server(("127.0.0.1", base + 2)):
        with pytest.raises(ConfigError) as caught:
            refuse_taken(base, _ALL, own=())
        refuse_taken(base, ("postgres", "opensearch"), own=())
        refuse_taken(base, _ALL, own={base + 2})
    error = caught.value
    assert error.code == "TR-616"
    assert error.message == f"port {base + 2} on 127.0.0.1 is taken: Kafka's controller cannot use it"
    assert f"Process {os.getpid()} (" in error.detail
    assert f"PostgreSQL {base}, Kafka's broker {base + 1}" in error.detail
    other = int(error.hint.split()[4])
    assert other > base
    assert all(is_free(port) for port in range(other, other + 5))
    assert f"ss -ltnp 'sport = :{base + 2}'" in error.hint
