"""The command line from outside: every command has help, every error has three lines and a code."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from tailrace.cdc.cli.main import app, main
from tests.support.daemon import AT_ONCE

ROOT = Path(__file__).parents[2]
CONFIG = """
[source]
dsn = "postgresql://cdc:hunter2@127.0.0.1:1/shop?connect_timeout=1"
[kafka]
bootstrap = "127.0.0.1:1"
options = { "sasl.password" = "hunter2", "client.id" = "shown" }
secret_options = { "ssl.key.password" = "hunter2" }
[search]
hosts = ["https://localhost:9200"]
user = "admin"
password = "hunter2"
[warehouse]
uri = "https://admin:hunter2@localhost:8181"
location = "file:///tmp/warehouse"
[registry]
url = "https://localhost:8081"
user = "admin"
password = "hunter2"
[views.orders]
table = "public.orders"
[views.joined]
query = "SELECT 1"
"""


def commands() -> Iterator[tuple[str, ...]]:
    """Yield every command and group, from the app itself."""

    def below(group: object, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield path
        for name, command in getattr(group, "commands", {}).items():
            yield from below(command, (*path, name))

    return below(typer.main.get_command(app), ())


COMMANDS = list(commands())


def tailrace(*arguments: str, folder: Path = ROOT, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tailrace.cdc.cli.main", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def run_raw(*arguments: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "tailrace.cdc.cli.main", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=60, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tailrace.toml").write_text(CONFIG, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help(command: tuple[str, ...]) -> None:
    from typer.testing import CliRunner

    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert len(result.output.splitlines()) > 3


@pytest.mark.parametrize("command", [path for path in COMMANDS if path], ids=" ".join)
def test_every_command_is_in_the_readme(command: tuple[str, ...]) -> None:
    assert f"tailrace {' '.join(command)}" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_help_loads_nothing_heavy() -> None:
    heavy = ["confluent_kafka", "fastavro", "psycopg", "pydantic", "pyspark", "rich", "structlog"]
    code = f"import sys, tailrace.cdc.cli.main; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


ERRORS = {
    "no file": (("status", "--config", "none.toml"), 3, "TR-101"),
    "a broken file": (("status", "--config", "broken.toml"), 3, "TR-102"),
    "an unknown key": (("status", "--config", "unknown.toml"), 3, "TR-105"),
    "an unknown view": (("verify", "ordres"), 3, "TR-107"),
    "an unknown view to rebuild": (("views", "rebuild", "ordres"), 3, "TR-107"),
    "a broker that is down": (("verify", "orders"), 5, "TR-330"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_is_three_lines_and_a_code(folder: Path, case: str) -> None:
    (folder / "broken.toml").write_text("[kafka\n", encoding="utf-8")
    (folder / "unknown.toml").write_text('[source]\ndsn = ""\nslto = "a"\n', encoding="utf-8")
    arguments, exit_code, code = ERRORS[case]
    result = tailrace(*arguments, folder=folder)
    assert result.returncode == exit_code
    lines = [line for line in result.stderr.splitlines() if not line.startswith('{"')]  # without the log
    assert lines[0].startswith(f"ERROR  {code}  ")
    assert [line.split()[0] for line in lines if not line.startswith("       ")] == ["ERROR", "DETAIL", "HINT"]
    assert "Traceback" not in result.stderr
    assert "hunter2" not in result.stderr + result.stdout
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--sample", "0.01"), "write a percentage"),
        (("--sample", "101%"), "write a percentage"),
        (("--since", "16B3748"), "write it as PostgreSQL prints it"),
        (("--since", "0/1", "--repair"), "cannot be combined"),
        (("--staged",), "needs the names of views"),
    ],
)
def test_a_part_that_cannot_be_compared_is_refused(folder: Path, options: tuple[str, ...], said: str) -> None:
    result = tailrace("verify", *options, folder=folder)
    assert result.returncode == 2
    assert said in result.stderr


@pytest.mark.parametrize(
    ("command", "broken", "code", "exit_code"),
    [
        (("run",), False, "TR-201", 4),
        (("run",), True, "TR-105", 3),
        (("views", "follow"), True, "TR-105", 3),
    ],
)
def test_the_error_that_ends_a_service_is_a_log_record(
    folder: Path, command: tuple[str, ...], broken: bool, code: str, exit_code: int
) -> None:
    """A log collector then needs no second format; on a terminal it is three lines, as of all commands."""
    path = folder / "tailrace.toml"
    if broken:
        path.write_text('[source]\ndsn = ""\nslto = "a"\n', encoding="utf-8")
    else:
        path.write_text(path.read_text(encoding="utf-8") + AT_ONCE, encoding="utf-8")
    ended = tailrace(*command, folder=folder)
    assert (ended.returncode, ended.stdout) == (exit_code, "")
    records = [json.loads(line) for line in ended.stderr.splitlines()]
    assert {"info", "warning"} >= {each["level"] for each in records[:-1]}
    assert records[-1]["code"] == code
    assert records[-1].keys() == {"code", "event", "detail", "hint", "level", "timestamp"}
    assert records[-1]["level"] == "error"
    assert "hunter2" not in ended.stderr


def test_a_bug_in_a_service_is_a_log_record(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("no one has thought of it")

    monkeypatch.setattr("tailrace.cdc.cli.run._run", fail)
    code, printed = ran(monkeypatch, capsys, "run")
    record = json.loads(printed)
    assert (code, record["level"]) == (1, "critical")
    assert "ZeroDivisionError: no one has thought of it" in record["exception"]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_characters_that_the_locale_lacks_are_escaped(folder: Path, encoding: str) -> None:
    with (folder / "tailrace.toml").open("a", encoding="utf-8") as file:
        file.write('[views.names]\ntable = "public.n\u00e4me\u0142"\n')
    shown = run_raw("views", "list", folder=folder, PYTHONIOENCODING=encoding, PYTHONUTF8="0")
    name = {"ascii": b"public.n\\xe4me\\u0142", "latin-1": b"public.n\xe4me\\u0142"}
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert name.get(encoding, "public.n\u00e4me\u0142".encode()) in shown.stdout
    as_json = run_raw("views", "list", "--json", folder=folder, PYTHONIOENCODING=encoding, PYTHONUTF8="0")
    assert json.loads(as_json.stdout)["names"]["table"] == "public.n\u00e4me\u0142"


def test_a_job_whose_reader_has_ended_prints_no_error(folder: Path) -> None:
    """As `tailrace views explain orders | head -0`."""
    read, write = os.pipe()
    os.close(read)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "tailrace.cdc.cli.main", "views", "explain", "orders"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(write)
    assert (ended.returncode, ended.stderr) == (141, "")


USAGE = {
    "vews": ("TR-001", 'Did you mean "tailrace views"?'),
    "views rebiuld": ("TR-001", 'Did you mean "tailrace views rebuild"?'),
    "status --jsn": ("TR-002", 'Did you mean "--json"?'),
    "status --zzz": ("TR-002", "tailrace status --help"),
    "--zzz": ("TR-002", "tailrace --help"),
    "--config x.toml views status a": ("TR-002", "HINT   tailrace views status a --config x.toml"),
    "views --config=x.toml status": ("TR-002", "HINT   tailrace views status --config=x.toml"),
    "--config": ("TR-002", "HINT   tailrace COMMAND --config"),
    "views rebuild": ("TR-003", "tailrace views rebuild --help"),
    "status --config": ("TR-004", "tailrace status --help"),
    "views compare a b": ("TR-004", "tailrace views compare --help"),
    "snapshot start t --rate a": ("TR-004", "tailrace snapshot start --help"),
    "snapshot start": ("TR-004", "tailrace snapshot start --help"),
    "tail t -n 0": ("TR-004", "tailrace tail --help"),
    "verify a --log": ("TR-004", "tailrace verify --help"),
    "wait --lsn 0": ("TR-004", "tailrace wait --help"),
}


@pytest.mark.parametrize("command", ["version", "--help"])
@pytest.mark.parametrize(("redirected", "code", "said"), [(">/dev/full", 2, "No space left"), (">&-", 0, "")])
def test_an_output_that_cannot_be_written_is_no_bug(command: str, redirected: str, code: int, said: str) -> None:
    shell = f"exec {sys.executable} -m tailrace.cdc.cli.main {command} {redirected}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(["sh", "-c", shell], env=environment, capture_output=True, text=True, check=False)
    lines = ended.stderr.splitlines()
    assert (ended.returncode, [line.split()[0] for line in lines]) == (
        code,
        ["ERROR", "DETAIL", "HINT"] if said else [],
    )
    assert said in ended.stderr


@pytest.mark.parametrize("line", USAGE)
def test_a_usage_error_is_three_lines_with_a_hint(
    line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    code, hint = USAGE[line]
    exit_code, printed = ran(monkeypatch, capsys, *line.split())
    lines = printed.splitlines()
    assert exit_code == 2
    assert [each.split()[0] for each in lines] == ["ERROR", "DETAIL", "HINT"]
    assert lines[0].startswith(f"ERROR  {code}  ")
    assert lines[1].startswith("DETAIL Usage: tailrace ")
    assert hint in lines[2]


def ran(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str]:
    """Run a command in this process; return its exit code and all that it printed."""
    monkeypatch.setattr("sys.argv", ["tailrace", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, "".join(capsys.readouterr())


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_the_short_options(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, short = ran(monkeypatch, capsys, *command, "-h")
    assert code in (0, None)
    assert ran(monkeypatch, capsys, *command, "--help") == (code, short)
    code, printed = ran(monkeypatch, capsys, *command, "--version")
    assert (code, printed.split()[0]) == (0, "tailrace")
    # Typer's own metavars: <int range>, {VIEW}, <list[str]>
    assert not re.search(r"[<{][a-z]|\]\.\.\.\.|list\[", short), short
    assert "check or verify" not in short


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (".", "is a folder"),
        ("/dev/null", "is not a regular file"),
        ("/proc/self/mem", "cannot be read"),
        ("x" * 300, "cannot be read"),
        ("tailrace.toml/x", "no configuration file"),
    ],
)
def test_a_path_that_is_no_readable_file_is_refused(
    path: str, words: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    code, printed = ran(monkeypatch, capsys, "config", "show", "--config", path)
    assert (code, words in printed.splitlines()[0]) == (3, True), printed
    assert [each.split()[0] for each in printed.splitlines()] == ["ERROR", "DETAIL", "HINT"]


def test_a_folder_in_place_of_the_file_is_refused_not_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next place to search, /etc/tailrace, may have another pipeline's file."""
    (tmp_path / "tailrace.toml").mkdir()
    monkeypatch.chdir(tmp_path)
    code, printed = ran(monkeypatch, capsys, "config", "show")
    assert (code, "is a folder" in printed) == (3, True)


def test_an_unexpected_exception_is_reported_as_a_bug(folder: Path) -> None:
    code = (
        "import sys; from tailrace.cdc.cli import main, version; import tailrace.schemas.config.file as c\n"
        "def boom(*a): raise RuntimeError('x')\n"
        "c.load = boom; sys.argv = ['tailrace', 'status']; main.main()"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert "This is a bug" in result.stderr


@pytest.mark.parametrize("command", [("config", "show"), ("--help",), ("status",)])
def test_an_output_that_is_cut_ends_the_command_quietly(folder: Path, command: tuple[str, ...]) -> None:
    """With the exit code of a program that SIGPIPE has ended: 0 would hide that `status` finds trouble."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tailrace.cdc.cli.main", *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(30) == 141


def test_config_show_hides_secrets(folder: Path) -> None:
    for flags in ((), ("--json",)):
        result = tailrace("config", "show", *flags, folder=folder)
        assert result.returncode == 0
        assert "hunter2" not in result.stdout
        assert "shown" in result.stdout
        assert "kafka.bootstrap" in result.stdout
    lines = tailrace("config", "show", folder=folder).stdout.splitlines()
    assert any(line.split() == ["source.hash_salt", "null", "default"] for line in lines), lines


def test_config_schema_is_json() -> None:
    assert "kafka" in json.loads(tailrace("config", "schema").stdout)["properties"]


def test_version_says_whether_the_row_codec_is_compiled() -> None:
    assert "compiled row codec" in tailrace("version").stdout
    assert isinstance(json.loads(tailrace("version", "--json").stdout)["compiled"], bool)


def test_views_list_shows_the_configured_views(folder: Path) -> None:
    with (folder / "tailrace.toml").open("a", encoding="utf-8") as file:
        file.write('[views.changes]\ntable = "public.log"\nshape = "log"\n')
    lines = tailrace("views", "list", folder=folder).stdout.splitlines()
    assert [line.split()[3:] for line in lines[1:]] == [
        ["public.orders", "primary", "key"],
        ["a", "query", "primary", "key"],
        ["public.log", "-"],
    ]
    assert list(json.loads(tailrace("views", "list", "--json", folder=folder).stdout)) == [
        "orders",
        "joined",
        "changes",
    ]


def test_verify_names_the_views_that_it_does_not_compare(folder: Path) -> None:
    queries = "[views.joined]\nquery = 'SELECT 1'\n[views.other]\nquery = 'SELECT 1'\n"
    queries += "[views.all]\ntable = 'public.t'\nshape = 'log'\n"
    (folder / "queries.toml").write_text(CONFIG.partition("[views")[0] + queries, encoding="utf-8")
    result = tailrace("verify", "--config", "queries.toml", folder=folder)
    assert (result.returncode, result.stdout) == (0, "")
    assert "not compared without --all, because they are queries: joined, other" in result.stderr
    assert "not compared without --all, because they are logs: all" in result.stderr
    assert "because they are queries: joined\n" in tailrace("verify", folder=folder).stderr


def test_verify_does_not_compare_matches_of_an_index(folder: Path) -> None:
    views = "[views.found]\ntable = 'public.t'\nshape = 'percolate'\nqueries_index = 'mine'\n"
    (folder / "others.toml").write_text(CONFIG.partition("[views")[0] + views, encoding="utf-8")
    result = tailrace("verify", "found", "--config", "others.toml", folder=folder)
    assert (result.returncode, result.stdout) == (3, "")
    assert "TR-109" in result.stderr
    assert "its queries are in an index of yours" in result.stderr
    every = tailrace("verify", "--all", "--config", "others.toml", folder=folder)
    assert (every.returncode, every.stdout) == (0, "")
    assert "not compared, because they are matches of an index: found" in every.stderr


def test_explain_without_sqlglot_says_that_it_is_not_installed(folder: Path) -> None:
    code = (
        "import sys; sys.modules['sqlglot'] = None; from tailrace.cdc.cli import main\n"
        "sys.argv = ['tailrace', 'views', 'explain', 'joined']; main.main()"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 3
    assert 'TR-110  "sqlglot" is not installed' in result.stderr


STOPPING = """
import sys, threading, time
from tailrace.cdc.cli import run
run.STOP_SECONDS = float(sys.argv[1])
stop = threading.Event()
run.stop_on_signal(stop)
print("ready", flush=True)
stop.wait()
time.sleep(float(sys.argv[2]))
"""


def stopping(*seconds: float) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPING, *map(str, seconds)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "ready\n"
    return process


def test_the_first_signal_stops_gracefully() -> None:
    process = stopping(20, 0)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0


def test_the_second_signal_stops_at_once() -> None:
    process = stopping(60, 60)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 128 + signal.SIGINT


def test_a_stop_that_takes_too_long_ends_with_exit_code_8() -> None:
    process = stopping(0.2, 60)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 8
