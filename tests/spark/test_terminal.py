"""All commands as a person sees them, on terminals of 80 and 200 columns, with NO_COLOR, and until Ctrl-C.

The commands are taken from the app itself, so that a new one fails until it is in a list here. Log records of `run` and
`views follow` are one line each, however wide the terminal is.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from tailrace.cdc.dev import state
from tailrace.cdc.dev.state import Servers
from tailrace.cdc.launch.java import SMALL_SPARK
from tailrace.cdc.operations.verify import verify
from tailrace.schemas.config.file import load
from tests.spark.conftest import INTERPRETED, spark_conf
from tests.support.daemon import wait_for_state, write_config
from tests.support.in_one_process import commands
from tests.support.servers import fresh_database
from tests.support.terminal import Seen, in_background, on_terminal
from tests.support.warm_jvm import warm_jvm

_ROWS: Final = 50_000
_SECTIONS = """[health]
listen = ""
[warehouse]
uri = "jdbc:sqlite:{folder}/new/c.db"
location = "{folder}/wh"
[spark.conf]
"spark.driver.extraJavaOptions" = "{java}"
{interpreted}[views.rows]
table = "public.t"
[views.q]
query = "SELECT n, count(*) AS c FROM public.t GROUP BY n"
key = ["n"]
"""

_QUICK = [
    ("version", 0),
    ("explain", 0),
    ("explain TR-204", 0),
    ("config show", 0),
    ("status", 0),
    ("wait --timeout 300", 0),
    ("views list", 0),
    ("views status", 0),
    ("views status rows", 0),
    ("views explain q", 0),
    ("views rebuild --dry-run rows q", 0),
    ("views compare rows", 6),
    ("views swap rows", 6),
    ("views rollback rows", 6),
    ("views drop rows --generation 7", 6),
    ("views resume rows", 0),
    ("table list", 0),
    ("table park u", 0),
    ("table list", 0),
    ("table resume u", 0),
    ("table leave-out u", 0),
    ("table resume u", 0),
    ("table remove u", 0),
    ("table add u", 0),
    ("check", 0),
    ("init --dsn postgresql://127.0.0.1:1/x", 4),
    ("slot show", 0),
    ("slot drop --confirm another", 4),
    ("snapshot plan", 0),
    ("snapshot start t --reconcile --rate 1000", 0),
    ("snapshot status", 0),
    ("snapshot pause t", 0),
    ("snapshot resume t", 0),
    ("snapshot cancel t", 0),
    ("verify rows", 0),
    ("verify rows --repair --yes", 0),
    ("snapshot start t --reconcile", 0),
    ("snapshot status", 0),
    ("verify --log", 0),
    ("tail t --from-start -n 3", 0),
    ("dev status", 0),
    ("dev down", 0),
]
"""Commands without Spark, while the daemon and the job run, with their exit codes."""

_OTHERS = {("run",), ("views", "follow"), ("dev", "up"), ("config", "schema")}
"""Commands with a process of their own, or, the last, whose result is JSON."""


def assert_nothing_raw(seen: Seen) -> None:
    """Assert that there is no output meant for programs: no traceback, no JSON, no word of Java's."""
    for raw in ("Traceback", "Exception", "py4j", " WARN "):
        assert raw not in seen.text, seen.text
    assert not re.search(r'^\s*\{"', seen.text, re.MULTILINE), seen.text


def assert_readable(seen: Seen, width: int) -> None:
    """Assert that nothing is raw, and that no line is wider than the terminal."""
    assert_nothing_raw(seen)
    # what is to be pasted stays whole: the lines of hints, statements, and what has no space
    whole = r"^HINT .*$(\n {7}.*$)*|^ +paste .*$|^.*;$|^ *(# )?\S+$"
    broken = re.sub(whole, "", "\n".join(seen.drawn), flags=re.MULTILINE)
    assert [line for line in broken.split("\n") if len(line) > width] == []


def assert_never_silent(seen: Seen, started_s: float = 0, *, alone: bool = True) -> None:
    """Assert that something was drawn at least every 2 s; before and after, Python may have needed to start and end.

    The end of a process that ran many commands, not `alone`, has to release what they all left: no user waits for it.
    """
    assert seen.first_s < 2 + started_s, (seen.first_s, started_s, seen.text)
    assert seen.silent_s < 2, (seen.silent_s, seen.silent_after)
    assert not alone or seen.last_s < 2 + started_s, (seen.last_s, started_s, seen.text)


def assert_interrupted(seen: Seen) -> None:
    """Assert that Ctrl-C ended it soon, with its exit code, and that it left no process."""
    assert seen.code == 130, (seen.code, seen.text)
    assert seen.ended_s is not None
    assert seen.ended_s < 15, (seen.ended_s, seen.text)
    assert seen.left == ()


@pytest.mark.parametrize("width", [80, 200])
def test_help_of_every_command_fits_the_terminal(width: int, tmp_path: Path) -> None:
    named = list(commands())
    seen = one_after_the_other([[*each, "--help"] for each in named], width, tmp_path)
    assert_readable(seen, width)
    assert endings(seen) == [(" ".join([*each, "--help"]), 0) for each in named]
    assert max(map(len, seen.drawn)) > 70


def one_after_the_other(lines: list[list[str]], width: int, cwd: Path) -> Seen:
    """Run commands in one process, without colors."""
    seen = on_terminal(
        [json.dumps(lines)],
        width=width,
        cwd=cwd,
        module="tests.support.in_one_process",
        environment={"NO_COLOR": "1"},
        seconds=600,
    )
    assert seen.code == 0, seen.text
    assert seen.colors == []
    return seen


def endings(seen: Seen) -> list[tuple[str, int]]:
    """Return the commands of a process and their exit codes."""
    found = re.findall(r"^## (?!ended)(.*)$|^## ended (\d+)$", "\n".join(seen.drawn), re.MULTILINE)
    names, codes = [name for name, _ in found if name], [int(code) for _, code in found if code]
    return list(zip_longest(names, codes))


def test_every_command_is_seen_on_a_terminal() -> None:
    seen = {tuple(word for word in line.split() if not word.startswith("-")) for line, _ in _QUICK}
    every = {path for path in commands() if path and not any(more[: len(path)] == path != more for more in commands())}
    assert {path for path in every - _OTHERS if not any(each[: len(path)] == path for each in seen)} == set()


@dataclass
class Terminals:
    """A folder with a configuration, and how long a command takes to start on this machine at this time."""

    folder: Path
    started_s: float = 0

    def measure_start(self) -> None:
        """Measure how long a command takes that reads the configuration and prints."""
        began = time.monotonic()
        assert self.run("views list", 80).code == 0
        self.started_s = max(self.started_s, time.monotonic() - began)

    def run(self, line: str, width: int, more: Mapping[str, str] | None = None, **options: Any) -> Seen:
        """Run a command on a terminal, with `more` in its environment; at 80 columns without colors."""
        environment = {"NO_COLOR": "1" if width == 80 else "", **(more or {})}
        return on_terminal(line.split(), width=width, cwd=self.folder, environment=environment, **options)


@pytest.fixture
def terminals(servers: Servers, prefix: str, tmp_path: Path) -> Iterator[Terminals]:
    """Two tables, of which a daemon on a terminal of 80 columns writes the changes until Ctrl-C."""
    with fresh_database(servers.dsn) as dsn:
        sections = _SECTIONS.format(folder=tmp_path, java=SMALL_SPARK, interpreted=spark_conf(INTERPRETED))
        file = write_config(tmp_path, dsn, servers.bootstrap, prefix, sections)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
            connection.execute("CREATE TABLE u (id int PRIMARY KEY, n int)")
            connection.execute("INSERT INTO t SELECT g, g %% 7 FROM generate_series(1, %s) g", (_ROWS,))
            options: dict[str, Any] = {"width": 80, "cwd": tmp_path, "environment": {"NO_COLOR": "1"}, "seconds": 1200}
            with in_background(["run"], **options) as interrupt:
                wait_for_state(load(file), connection)
                yield Terminals(tmp_path)
                daemon = interrupt()
        assert_interrupted(daemon)
        assert daemon.colors == []
        assert_nothing_raw(daemon)


@pytest.mark.timeout(1800)
def test_every_command_is_readable_and_ends_by_ctrl_c(terminals: Terminals) -> None:
    follow_options: dict[str, Any] = {"width": 200, "cwd": terminals.folder, "seconds": 1000}
    with in_background(["views", "follow"], **follow_options) as interrupt:
        terminals.measure_start()
        waited = terminals.run("wait --timeout 600", 200, seconds=700)
        assert waited.code == 0, waited.text
        assert_never_silent(waited, terminals.started_s)
        for width in (80, 200):
            quick_commands(terminals, width)
        interrupted_commands(terminals)
        follow = interrupt()
    assert_interrupted(follow)
    assert "batch applied" in follow.text
    assert "starting Spark" in follow.text
    assert follow.colors
    assert_nothing_raw(follow)
    verify_until_ctrl_c(terminals)
    spark_commands(terminals)


def verify_until_ctrl_c(terminals: Terminals) -> None:
    """Press Ctrl-C in `verify` while it waits for a view, and while it reads a table."""
    config = load(terminals.folder / "tailrace.toml")
    with psycopg.connect(config.source.dsn.get_secret_value(), autocommit=True) as connection:
        connection.execute("UPDATE t SET n = 8 WHERE id = 1")
        wait_for_state(config, connection)
    seen = terminals.run("verify rows", 200, interrupt_at="waiting for the view", seconds=300)
    assert_interrupted(seen)
    assert_readable(seen, 200)
    assert_never_silent(seen, terminals.started_s)

    def on_progress(what: str, done: int, _: int | None) -> None:
        if what == "reading public.t of the source":
            time.sleep(0.3)  # so long that the next row is announced, too
            if done:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # and does not wait for the connection for ever
        next(verify(config, ["rows"], timeout_s=60, limit=1, say=print, on_progress=on_progress))


def quick_commands(terminals: Terminals, width: int) -> None:
    """Run the commands without Spark, and look at what they say."""
    seen = one_after_the_other([line.split() for line, _ in _QUICK], width, terminals.folder)
    assert endings(seen) == _QUICK, seen.text
    assert_readable(seen, width)
    assert_never_silent(seen, terminals.started_s, alone=False)
    for expected in (
        r"[-\\|/] (rows: )?reading (public.t of the source|the view|the topic) .* [\d,]+ rows/s .*0:\d\d:\d\d",
        r"rows: equal  \(X 0/\w+, C 0/\w+, [\d.]+ s\)",
        r"slot \w+: whole  \(cuts .*\)",
    ):
        assert any(re.fullmatch(expected, line) for line in seen.drawn), (expected, seen.text)


def interrupted_commands(terminals: Terminals) -> None:
    """Press Ctrl-C in commands without Spark that take long."""
    terminals.measure_start()
    for line, at, width in (
        ("wait --lsn FFFFFFFF/0 --timeout 600", "waiting for views", 80),
        ("status --watch", "VIEW ", 200),
        ("tail t --from-start", "t id=", 80),
        ("dev up --no-search --rate 0", "caught up", 80),
    ):
        seen = terminals.run(line, width, interrupt_at=at, seconds=300)
        assert_interrupted(seen)
        assert_readable(seen, width)
        assert_never_silent(seen, terminals.started_s)
        # only progress has colors, and a quick answer needs none
        assert not seen.colors or width == 200, line
    servers = state.status(terminals.folder / ".tailrace")
    assert {each.server.name for each in servers} == {"postgres", "kafka", "daemon", "views"}
    assert [each.server.name for each in servers if each.alive] == []


def spark_commands(terminals: Terminals) -> None:
    """Build a second generation, compare, swap and drop it, and press Ctrl-C in the middle of a third.

    The builds start a JVM each, whose start must be neither silent nor visible, and which Ctrl-C must end; the start is
    the same for all commands, so the others share a JVM.
    """
    terminals.measure_start()
    seen = spark_command(terminals, "views rebuild rows --no-swap", 80, {})
    assert re.search(rf"rows: .* generation 2 rows {_ROWS} read [\d.]+ s, apply", " ".join(seen.text.split())), (
        seen.text
    )
    progress = r"[-\\|/] rows: (read|write) .* \d+% .*rows.* 0:\d\d:\d\d"
    assert any(re.fullmatch(progress, text) for text in seen.drawn), seen.text
    with warm_jvm(load(terminals.folder / "tailrace.toml"), terminals.folder) as warm:
        for line, width, result in (
            ("views compare rows", 200, r"rows: generation 1 \(live\) and 2 \(staged\), both at 0/\w+"),
            ("views swap rows", 80, r"rows: generation 2 is live, at 0/\w+"),
            ("views rollback rows", 80, r"rows: generation 1 is live, at 0/\w+"),
            ("views explain q --check", 80, r"Spark has analy[sz]ed"),
            ("views drop rows --generation 2", 200, "rows: dropped 2"),
        ):
            seen = spark_command(terminals, line, width, warm)
            assert re.search(result, " ".join(seen.text.split())), seen.text
        refused_by_spark(terminals, warm)
    seen = terminals.run("views rebuild rows", 200, interrupt_at="rows: ", seconds=400)
    assert_interrupted(seen)
    assert_readable(seen, 200)
    assert "ERROR" not in seen.text, seen.text


def spark_command(terminals: Terminals, line: str, width: int, more: Mapping[str, str]) -> Seen:
    seen = terminals.run(line, width, more, seconds=400)
    assert seen.code == 0, seen.text
    assert_readable(seen, width)
    assert_never_silent(seen, terminals.started_s)
    assert any("starting Spark" in text for text in seen.drawn), seen.text
    assert bool(seen.colors) == (width == 200)
    return seen


def refused_by_spark(terminals: Terminals, warm: Mapping[str, str]) -> None:
    """Only `views explain --check` has Spark analyze a query; the plain command says that it has not."""
    given = (terminals.folder / "tailrace.toml").read_text()
    view = '[views.refused]\nquery = "SELECT id, date_add(n, \'x\') AS d FROM public.t"\nkey = ["id"]\n'
    (terminals.folder / "refused.toml").write_text(given + view)
    plain = terminals.run("views explain refused --config refused.toml", 200)
    assert plain.code == 0, plain.text
    assert "Spark has not analyzed the query: --check" in plain.text
    checked = terminals.run("views explain refused --check --config refused.toml", 80, warm, seconds=400)
    assert checked.code == 3, checked.text
    assert_readable(checked, 80)
    assert 'ERROR TR-550 view "refused": Spark cannot run its query [DATATYPE_MISMATCH' in " ".join(
        checked.text.split()
    )
