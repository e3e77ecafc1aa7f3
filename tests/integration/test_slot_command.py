"""`tailrace slot show` and `drop` against real servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from tailrace.cdc.operations.slots import read_slot
from tailrace.schemas.lsn import format_lsn
from tests.integration.test_bad_input import slots
from tests.integration.test_start import Pipeline, _invalidate, fresh, stopped
from tests.support.daemon import running, tailrace, wait_until
from tests.support.refused import assert_refused

__all__ = ["fresh", "stopped"]  # fixtures


def _shown(pipeline: Pipeline) -> dict[str, Any]:
    done = tailrace("slot", "show", "--json", cwd=pipeline.path.parent)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _count(pipeline: Pipeline) -> int:
    return slots(pipeline.config.source.dsn.get_secret_value(), pipeline.name)


def test_show_agrees_with_the_server_and_the_topics(stopped: Pipeline) -> None:
    stopped.execute("INSERT INTO t SELECT generate_series(100, 5000)")
    row = stopped.connection.execute(
        "SELECT restart_lsn::text, confirmed_flush_lsn::text, wal_status, pg_size_bytes(NULLIF(current_setting("
        "'max_slot_wal_keep_size'), '-1')) FROM pg_replication_slots WHERE slot_name = %s",
        (stopped.name,),
    ).fetchone()
    found = _shown(stopped)
    assert row == tuple(found[name] for name in ("restart_lsn", "confirmed_flush_lsn", "wal_status", "limit_bytes"))
    assert found["active_pid"] is None
    assert found["unread_bytes"] > 4901 * 20  # at least the rows of the INSERT
    assert found["retained_bytes"] >= found["unread_bytes"]
    text = tailrace("slot", "show", cwd=stopped.path.parent).stdout
    assert f"all changes before {found['topics_lsn']};" in text
    assert "no: no process reads it" in text


def test_show_names_the_reader_and_drop_refuses_an_active_slot(stopped: Pipeline) -> None:
    with running(stopped.path):
        # a state is no proof of a reader: the last run may have left one with everything that is committed
        wait_until(lambda: _shown(stopped)["active_pid"] is not None)
        pid = _shown(stopped)["active_pid"]
        done = tailrace("slot", "drop", "--confirm", stopped.name, cwd=stopped.path.parent)
        assert done.returncode == 4
        assert "TR-206" in done.stderr
        assert f"process {pid}" in done.stderr
        assert _count(stopped) == 1


def test_a_starting_daemon_keeps_the_slot(stopped: Pipeline) -> None:
    stopped.connection.execute("SELECT pg_advisory_lock(%s, hashtext(%s))", (0x7461696C, stopped.name))
    done = tailrace("slot", "drop", "--confirm", stopped.name, cwd=stopped.path.parent)
    assert (done.returncode, "TR-206" in done.stderr, _count(stopped)) == (4, True, 1)


def test_drop_asks_for_the_name_and_says_what_is_lost(stopped: Pipeline) -> None:
    stopped.execute("INSERT INTO t VALUES (1000)")
    at = read_slot(stopped.config)
    assert at.unread_bytes
    for given in ([], ["--confirm", "another"]):
        done = tailrace("slot", "drop", *given, cwd=stopped.path.parent)
        assert done.returncode == 3
        assert "TR-140" in done.stderr
        assert f"Topics end at {format_lsn(at.flushed_lsn or 0)}" in done.stderr
        assert f"tailrace slot drop --confirm {stopped.name}" in done.stderr
        assert _count(stopped) == 1
    done = tailrace("slot", "drop", "--json", "--confirm", stopped.name, cwd=stopped.path.parent)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["dropped"] == stopped.name
    assert _count(stopped) == 0
    for command in ("show", "drop"):
        done = tailrace("slot", command, cwd=stopped.path.parent)
        assert (done.returncode, "TR-236" in done.stderr) == (4, True)
    assert_refused(stopped.path, "TR-402", 6)


def test_on_a_terminal_the_name_is_asked_for_after_the_loss_is_shown(stopped: Pipeline) -> None:
    for typed, code, left in (("another", 3, 1), (stopped.name, 0, 0)):
        ours, its = os.openpty()
        try:
            os.write(ours, f"{typed}\n".encode())
            done = subprocess.run(
                [sys.executable, "-m", "tailrace.cdc.cli.main", "slot", "drop"],
                stdin=its,
                capture_output=True,
                text=True,
                cwd=stopped.path.parent,
                timeout=60,
            )
        finally:
            os.close(ours)
            os.close(its)
        assert done.returncode == code, done.stderr
        assert 0 <= done.stderr.find("Topics end at") < done.stderr.find("Type the name of slot")
        assert _count(stopped) == left


def test_a_slot_of_another_plugin_is_not_dropped(fresh: Pipeline) -> None:
    fresh.execute(f"SELECT pg_create_physical_replication_slot('{fresh.name}')")
    assert _shown(fresh)["type"] == "physical"
    done = tailrace("slot", "drop", "--confirm", fresh.name, cwd=fresh.path.parent)
    assert (done.returncode, "TR-208" in done.stderr, _count(fresh)) == (4, True, 1)
    fresh.execute(f"SELECT pg_drop_replication_slot('{fresh.name}')")


def test_kafka_may_be_down(stopped: Pipeline) -> None:
    text = stopped.path.read_text().replace(stopped.config.kafka.bootstrap, "127.0.0.1:1")
    stopped.path.write_text(text)
    found = _shown(stopped)
    assert found["topics_error"]
    assert found["unread_from_lsn"] == found["confirmed_flush_lsn"]
    done = tailrace("slot", "drop", cwd=stopped.path.parent)
    assert "Kafka does not answer" in done.stderr
    assert "The slot is confirmed up to" in done.stderr
    assert _count(stopped) == 1


def test_a_lost_slot_is_shown_and_dropped(stopped: Pipeline) -> None:
    _invalidate(
        stopped,
        "max_slot_wal_keep_size",
        "16MB",
        lambda: stopped.execute("INSERT INTO u SELECT max(id) + 1 FROM u; SELECT pg_switch_wal()"),
    )
    found = _shown(stopped)
    assert (found["is_lost"], found["retained_bytes"]) == (True, None)
    text = tailrace("slot", "show", cwd=stopped.path.parent).stdout
    assert "status    lost" in text
    done = tailrace("slot", "drop", "--confirm", stopped.name, cwd=stopped.path.parent)
    assert done.returncode == 0, done.stderr
    assert _count(stopped) == 0
