"""`tailrace wait`, `tailrace.wait` and `/wait` return when a view has applied an LSN, and not before."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import tailrace as library
from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import TailraceError
from tailrace.schemas.lsn import format_lsn
from tailrace.schemas.records.position import Cut
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.views_topic import ViewRecord, ViewsTopic, now_ms
from tests.support.daemon import ask, running, tailrace, wait_for_state, wait_until, write_config

_VIEWS = '[views.a]\ntable = "public.t"\n[views.b]\ntable = "public.t"\n'
_WAREHOUSE = '[warehouse]\nuri = "jdbc:sqlite:/nowhere/c.db"\nlocation = "/nowhere"\n'


@pytest.fixture
def source(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        yield connection


@pytest.fixture
def config_path(tmp_path: Path, servers: Servers, database: str, prefix: str) -> Path:
    more = f'[health]\nlisten = "127.0.0.1:0"\n{_WAREHOUSE}{_VIEWS}'
    return write_config(tmp_path, database, servers.bootstrap, prefix, more)


class Follow:
    """Publishes what `views follow` would, by the same code; a batch here is only its record."""

    def __init__(self, config: Config) -> None:
        self._topic = ViewsTopic(config.kafka, Topics(config.kafka.prefix))

    def applied(self, view: str, cut: Cut, error: str | None = None) -> None:
        self._topic.publish(ViewRecord(view, "warehouse", 1, cut, now_ms(), 1, error))


def test_a_wait_returns_when_the_views_have_the_lsn_and_not_before(
    source: psycopg.Connection[Any], config_path: Path
) -> None:
    config = load(config_path)
    with running(config_path) as daemon:
        first = wait_for_state(config, source)
        source.execute("INSERT INTO t VALUES (1)")
        second = wait_for_state(config, source)
        between, wanted = format_lsn(first.flushed_lsn + 1), format_lsn(second.flushed_lsn)
        url = f"/wait?lsn={wanted}&view=a&view=b&timeout=0.3"
        assert _code(ask(daemon, url)) == (504, "TR-570")  # the topic does not exist yet

        follow = Follow(config)
        follow.applied("a", second)
        follow.applied("b", first, error="ERROR  TR-531  refused\nDETAIL more")
        late = tailrace("wait", "--lsn", between, "--timeout", "0.3", "--config", str(config_path))
        assert (late.returncode, late.stdout) == (8, "")
        assert "ERROR  TR-570" in late.stderr
        assert f'"b" {format_lsn(first.flushed_lsn)}. Reason: ERROR  TR-531  refused' in late.stderr
        assert '"a"' not in late.stderr
        assert _code(ask(daemon, url)) == (504, "TR-570")
        with pytest.raises(TailraceError, match="TR-570"):
            library.wait(second.flushed_lsn, "b", config=config_path, timeout=0)
        assert library.wait(wanted, "a", config=config_path, timeout=0) == {"a": wanted}

        found: dict[str, Any] = {}
        waits = [
            threading.Thread(target=lambda: found.update(http=ask(daemon, url.replace("0.3", "60")))),
            threading.Thread(target=lambda: found.update(again=ask(daemon, url.replace("0.3", "60")))),
            threading.Thread(target=lambda: found.update(python=library.wait(wanted, config=config_path))),
            threading.Thread(
                target=lambda: found.update(
                    shell=tailrace("wait", "--view", "b", "--lsn", wanted, "--json", "--config", str(config_path))
                )
            ),
        ]
        for each in waits:
            each.start()
        time.sleep(1.5)
        assert not found
        follow.applied("b", second)
        for each in waits:
            each.join(20)
        both = {"lsn": wanted, "views": {"a": wanted, "b": wanted}}
        assert found["python"] == both["views"]
        assert [found["http"][0], json.loads(found["http"][1])] == [200, both]
        assert found["again"] == found["http"]
        assert json.loads(found["shell"].stdout) == {"lsn": wanted, "views": {"b": wanted}}

        assert _code(ask(daemon, f"/wait?lsn={wanted}&view=c")) == (404, "TR-107")
        assert _code(ask(daemon, "/wait?view=a")) == (400, "TR-578")
        # the present LSN is after all that was applied
        source.execute("INSERT INTO t VALUES (2)")
        assert tailrace("wait", "--timeout", "0", "--config", str(config_path)).returncode == 8

        # a pending wait does not delay the daemon's stop
        ended: list[object] = []
        last = threading.Thread(target=lambda: ended.append(ask(daemon, "/wait?lsn=FFFFFFFF/0&view=a&timeout=60")))
        last.start()
        wait_until(lambda: last.is_alive())
        time.sleep(0.3)
        assert daemon.stop() == 0
        last.join(5)
        assert not last.is_alive()


def _code(answer: tuple[int, str]) -> tuple[int, str]:
    return answer[0], json.loads(answer[1])["error"]["code"]
