"""Secrets planted in every setting that takes one, valid or broken, are not printed anywhere."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
import typer.main
from confluent_kafka import KafkaError, KafkaException
from pydantic import BaseModel, SecretStr
from structlog.stdlib import ProcessorFormatter

from tailrace.cdc.cli.main import app, main
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tailrace.schemas.config.secret import (
    HIDDEN,
    redacted,
    secret_values,
    shown,
    without_remembered,
    without_secrets,
)
from tailrace.schemas.errors import ConfigError, SinkError, TailraceError
from tailrace.schemas.log_form import failure, foreign_renderers
from tailrace.schemas.reasons import reason
from tailrace.schemas.records.daemon import DaemonRecord
from tailrace.sinks.control.views_topic import ViewRecord
from tailrace.sinks.iceberg import catalog
from tailrace.sinks.kafka.options import client_options
from tailrace.spark_jobs.jobs.jvm import recorded
from tailrace.spark_jobs.log import named
from tests.support.daemon import tailrace
from tests.unit.test_reasons import Thrown

PLANTED = "Pl4ntedS3cret"
EVERYWHERE = f"""
[source]
dsn = "postgresql://cdc:{PLANTED}1%25%40@127.0.0.1:1/shop?connect_timeout=1&sslpassword={PLANTED}2&sslmode=prefer"
hash = ["public.*.email"]
hash_salt = "{PLANTED}3"
[kafka]
bootstrap = "127.0.0.1:1"
prefix = "shown"
options = {{ "sasl.password" = "{PLANTED}4", "ssl.key.pem" = "{PLANTED}5" }}
secret_options = {{ "ssl.key.password" = "{PLANTED}6" }}
java_options = {{ "sasl.jaas.config" = "module required password='{PLANTED}7';" }}
[registry]
url = "http://127.0.0.1:1"
user = "user"
password = "{PLANTED}8"
[search]
hosts = ["http://127.0.0.1:1"]
user = "user"
password = "{PLANTED}9→"
[warehouse]
uri = "jdbc:postgresql://user:{PLANTED}10@127.0.0.1:1/catalog?user=x&password={PLANTED}11&loginTimeout=1"
location = "s3://KEY:{PLANTED}12@bucket"
[spark.conf]
"spark.hadoop.fs.s3a.secret.key" = "{PLANTED}13"
"spark.hadoop.fs.azure.account.key.shown.example" = "{PLANTED}14"
"spark.driver.extraJavaOptions" = "-Xmx1g -Djavax.net.ssl.trustStorePassword={PLANTED}15"
[views.orders]
table = "public.orders"
[views.found]
table = "public.orders"
target = "search"
[views.spending]
query = "SELECT customer_id, count(*) AS n FROM public.orders GROUP BY customer_id"
key = ["customer_id"]
"""

COMMANDS = [
    ["run"],
    ["status"],
    ["status", "--json"],
    ["tail", "orders"],
    ["verify"],
    ["verify", "found", "--json"],
    ["verify", "--log"],
    ["wait", "--timeout", "1"],
    ["wait", "--timeout", "1", "--lsn", "0/1"],
    ["check"],
    ["check", "--json", "--only", "views"],
    ["snapshot", "plan"],
    ["snapshot", "start", "orders", "--timeout", "1"],
    ["snapshot", "status", "--json"],
    ["snapshot", "pause", "orders", "--timeout", "1"],
    ["snapshot", "resume", "orders", "--timeout", "1"],
    ["snapshot", "cancel", "orders", "--timeout", "1"],
    ["table", "list", "--json"],
    ["table", "add", "shop.more"],
    ["table", "remove", "shop.more"],
    ["table", "park", "shop.orders", "--timeout", "1"],
    ["table", "resume", "shop.orders", "--timeout", "1"],
    ["table", "leave-out", "shop.orders", "--timeout", "1"],
    ["slot", "show"],
    ["slot", "drop", "--confirm", "tailrace"],
    ["views", "list", "--json"],
    ["views", "status", "--json"],
    ["views", "follow"],
    ["views", "rebuild", "orders"],
    ["views", "rebuild", "--dry-run", "orders"],
    ["views", "resume", "orders", "--timeout", "1"],
    ["views", "explain", "spending"],
    ["views", "compare", "orders"],
    ["views", "swap", "orders"],
    ["views", "rollback", "orders"],
    ["views", "drop", "orders"],
    ["config", "show"],
    ["config", "show", "--json"],
]
"""All commands that read the configuration, once for each way in which they connect."""


def everything(folder: Path, commands: list[list[str]]) -> dict[str, tuple[int, str]]:
    """Run the commands and return for each the exit code and all that was printed."""

    def run(command: list[str]) -> tuple[str, tuple[int, str]]:
        done = tailrace(*command, cwd=folder, timeout=120)
        return " ".join(command), (done.returncode, done.stdout + done.stderr)

    with ThreadPoolExecutor(10) as pool:
        return dict(pool.map(run, commands))


def test_every_command_with_a_configuration_is_tried() -> None:
    tried = {" ".join(word for word in command[:2] if not word.startswith("-")) for command in COMMANDS}
    tried |= {command[0] for command in COMMANDS}
    assert set(_configured(typer.main.get_command(app), "")) <= tried


def _configured(command: Any, path: str) -> Iterator[str]:
    """Yield the paths of the commands that read the configuration."""
    for name, below in getattr(command, "commands", {}).items():
        yield from _configured(below, f"{path} {name}".strip())
    if any(parameter.name == "config" for parameter in command.params):
        yield path


def test_no_command_prints_a_secret_if_no_server_answers(tmp_path: Path) -> None:
    """First with options that the Kafka client refuses, then without them, with no server to connect to."""
    refused = EVERYWHERE.replace("options = {", 'options = { "security.protocol" = "SSL",', 1)
    (tmp_path / "tailrace.toml").write_text(refused)
    found = everything(tmp_path, COMMANDS)
    assert [command for command, (_, text) in found.items() if PLANTED in text or "Traceback" in text] == []
    assert {code for command, (code, _) in found.items() if not command.startswith("check")} <= {0, 3, 4, 5}
    assert found["status"][0] == 3
    without = EVERYWHERE.replace(f'options = {{ "sasl.password" = "{PLANTED}4", "ssl.key.pem" = "{PLANTED}5" }}', "")
    (tmp_path / "tailrace.toml").write_text(without)
    found = everything(tmp_path, COMMANDS)
    assert [command for command, (_, text) in found.items() if PLANTED in text or "Traceback" in text] == []
    assert found["status"][0] == 4, "PostgreSQL cannot be reached"
    assert {code for command, (code, _) in found.items() if not command.startswith("check")} <= {0, 4, 5}
    assert found["check"][0] == 7, "it finds that no server answers"


def test_config_show_hides_the_secret_parts_only(tmp_path: Path) -> None:
    file = tmp_path / "tailrace.toml"
    file.write_text(EVERYWHERE)
    values = shown(load(file, environ={}))
    text = json.dumps(values)
    assert PLANTED not in text
    assert text.count(HIDDEN) >= 15
    assert "user=cdc" in values["source"]["dsn"]
    for part in ("host=127.0.0.1", "port=1", "dbname=shop", "sslmode=prefer", f"password={HIDDEN}"):
        assert part in values["source"]["dsn"]
    assert values["warehouse"]["uri"].startswith(f"jdbc:postgresql://user:{HIDDEN}@127.0.0.1:1/catalog?user=x&")
    assert values["spark"]["conf"]["spark.driver.extraJavaOptions"].startswith("-Xmx1g -D")
    assert values["kafka"]["prefix"] == "shown"


def test_every_secret_of_the_model_is_known(tmp_path: Path) -> None:
    file = tmp_path / "tailrace.toml"
    file.write_text(EVERYWHERE)
    found = secret_values(load(file, environ={}))
    for number in range(1, 16):
        assert any(f"{PLANTED}{number}" in value for value in found), number
    assert redacted(f"a {PLANTED}1%@ b {PLANTED}1%25%40 {PLANTED}9\\u2192", found) == f"a {HIDDEN} b {HIDDEN} {HIDDEN}"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("/plain/path?x=1", "/plain/path?x=1"),
        ("jdbc:sqlserver://h;user=x;pwd=s;a=b", f"jdbc:sqlserver://h;user=x;pwd={HIDDEN};a=b"),
        ("https://a:b@c@h", f"https://a:{HIDDEN}@h"),
        ("https://a:b@c@h/x@y", f"https://a:{HIDDEN}@y"),
        (
            "jdbc:postgresql://h:1/db?user=me@h&password=s&a=b",
            f"jdbc:postgresql://h:1/db?user=me@h&password={HIDDEN}&a=b",
        ),
        ("jdbc:oracle:thin:scott/s@//h:1/x", f"jdbc:oracle:thin:scott/{HIDDEN}@//h:1/x"),
        ("jdbc:oracle:thin:@//h:1/x", "jdbc:oracle:thin:@//h:1/x"),
        ("s3://KEY:a/b+c@bucket/x", f"s3://KEY:{HIDDEN}@bucket/x"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("abfss://container@account.dfs.example/x", "abfss://container@account.dfs.example/x"),
        ("http://[::1]:80/x", "http://[::1]:80/x"),
        ("SELECT 1 FROM t WHERE key=1", "SELECT 1 FROM t WHERE key=1"),
        ("https://token@h", f"https://{HIDDEN}@h"),
    ],
)
def test_secrets_in_a_text_are_hidden(text: str, left: str) -> None:
    assert without_secrets(text) == left


def _fields(annotation: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], type]]:
    """Yield each setting of the model that holds text: its path, and `str` or `SecretStr`."""
    parts = get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            yield from _fields(field.annotation, (*path, name))
    elif get_origin(annotation) is Annotated:
        yield from _fields(parts[0], path)
    elif get_origin(annotation) in (Union, UnionType):
        for part in parts:
            yield from _fields(part, path)
    elif get_origin(annotation) is dict:
        yield from _fields(parts[1], (*path, "made.up" if path != ("views",) else "v"))
    elif get_origin(annotation) is list:
        yield from _fields(parts[0], (*path, 0))
    elif annotation in (str, SecretStr):
        yield path, annotation


FIELDS = dict(_fields(Config))
SECRET = [path for path, kind in FIELDS.items() if kind is SecretStr]
# the path of a file is no secret; an error shows it
FREE = [path for path, kind in FIELDS.items() if kind is str and not str(path[-1]).endswith("_file")]
URIS = [
    f"jdbc:postgresql://me:{PLANTED}@h:1/db",
    f"jdbc:postgresql://me:a@{PLANTED}@h/db",
    f"jdbc:postgresql://me:a/{PLANTED}@h/db?user=x@y",
    f"jdbc:postgresql://me:a?b=c#{PLANTED}@h/db",
    f"jdbc:postgresql://h:1/db?user=me@h&password=a;b&{PLANTED}&ssl=true",
    f"jdbc:postgresql://[::1]:1/db?sslpassword={PLANTED}%20x",
    f"jdbc:mysql://address=(host=h)(user=me)(password={PLANTED})/db",
    f"jdbc:sqlserver://h;user=me;password={PLANTED}",
    f"jdbc:sqlserver://h:1;user=me@h;PWD={{a;b}}}}{PLANTED}}};encrypt=true",
    f"jdbc:sqlserver://h;password=a&{PLANTED};user=me",
    f"jdbc:oracle:thin:scott/{PLANTED}@//h:1521/x",
    f"jdbc:oracle:oci:scott/a@{PLANTED}/b@h:1521:x",
    f"s3://KEY:{PLANTED}@bucket/x",
    f"s3a://KEY:a/{PLANTED}+b@bucket",
    f"https://{PLANTED}@h/x",
    f"https://h/x?sig={PLANTED}&key={PLANTED}",
    f"https://x:{PLANTED}\u2100@h",
]


def _with(path: tuple[str | int, ...], value: object) -> dict[str, str]:
    """Return the environment of a configuration that is right but for the value at `path`."""
    login = {"user": "me", "password": "right"}
    values: dict[str, Any] = {
        "source": {"dsn": "host=127.0.0.1 port=1 connect_timeout=1"},
        "registry": {"url": "http://h", **login},
        "search": {"hosts": ["http://h"], **login},
        "warehouse": {"uri": "jdbc:sqlite:/x", "location": "/x"},
        "views": {"v": {"query": "SELECT 1"} if path[-1] == "query" else {"table": "public.t"}},
    }
    below = values
    for key in path[:-1]:
        if key != 0:
            below = below.setdefault(str(key), {})
    if path[-1] == 0:
        below = values
        for key in path[:-2]:
            below = below.setdefault(str(key), {})
        below[str(path[-2])] = [value]
    else:
        below[str(path[-1])] = value
    return {
        f"TAILRACE__{part.upper()}": content if isinstance(content, str) else json.dumps(content)
        for part, content in values.items()
    }


def _loaded(path: tuple[str | int, ...], value: object) -> Config | ConfigError:
    try:
        return load(environ=_with(path, value))
    except ConfigError as error:
        return error


def _channels(text: str, config: Config) -> Iterator[str]:
    """Yield all that is printed, logged and published of another program's message that contains `text`."""
    for message in (
        f"cannot open {text}",
        f'"{text}": not found',
        text.partition(":")[2],
        repr(text),
        json.dumps(text),
    ):
        for thrown in ("java.io.IOException", "org.apache.iceberg.exceptions.RESTException"):
            error = Exception()
            error.java_exception = Thrown(thrown, message)  # type: ignore[attr-defined]
            yield from _forms(named(error))
        ours = SinkError("TR-530", f"failed: {message}", detail=message, hint=message)
        yield from _forms(named(RuntimeError(f"tailrace.schemas.errors.SinkError: {ours}")))
        yield from _forms(named(KafkaException(KafkaError(KafkaError.UNKNOWN, message))))
        yield from _forms(named(OSError(2, message, text)))
        yield reason(ValueError(message))
        yield json.dumps(recorded(json.dumps({"event": message})))
        yield json.dumps(recorded(f"java.io.IOException: {message}\n"))
        record = logging.LogRecord("urllib3", logging.WARNING, "", 0, "retry: %s", (message,), None)
        for terminal in (True, False):
            yield ProcessorFormatter(processors=foreign_renderers(terminal=terminal)).format(record)
    assert config.warehouse is not None
    yield from _forms(catalog.unusable(config.warehouse, reason(ValueError(text))))


def _forms(error: TailraceError) -> Iterator[str]:
    yield from (failure(error, terminal=True), failure(error, terminal=False))
    yield ViewRecord("v", "warehouse", 0, None, 0, error=str(error)).value().decode()
    yield DaemonRecord("failed", 0, "h", 1, "", code=error.code, message=error.message).to_json().decode()


def _named_by_a_person(path: tuple[str | int, ...]) -> str:
    return ".".join(map(str, path))


@pytest.mark.parametrize("path", [*SECRET, *FREE], ids=_named_by_a_person)
def test_a_secret_in_any_text_of_the_model_is_known(path: tuple[str | int, ...]) -> None:
    """Each text is refused without being shown, or it is hidden, and known for the texts of other programs."""
    values = [f'{PLANTED} " \u2192%zz', f"postgresql://me:{PLANTED}%25@h/db"] if path in SECRET else []
    refused = []
    for value in [*values, *URIS]:
        found = _loaded(path, value)
        if isinstance(found, ConfigError):
            refused.append(value)
            assert PLANTED not in "".join(_forms(found)), value
        else:
            assert PLANTED not in json.dumps(shown(found)), value
            assert any(PLANTED in secret for secret in secret_values(found)), value
    if (path in SECRET and path[-1] != "dsn") or (path[0] in ("warehouse", "spark") and path[-1] in TAKES_ALL):
        assert refused == []


TAKES_ALL = ("uri", "location", "made.up")
PLANTED_AT: list[tuple[tuple[str | int, ...], str]] = [
    *((path, f'{PLANTED} " \u2192%zz') for path in SECRET if path != ("source", "dsn")),
    (("source", "dsn"), f"postgresql://me:{PLANTED}%25@h/db"),
    (("source", "dsn"), f"host=h password='a \\' {PLANTED}'"),
    *((("warehouse", "uri"), uri) for uri in URIS),
    *((("warehouse", "location"), uri) for uri in URIS if uri.startswith("s3")),
    (("spark", "conf", "made.up"), f"-Xmx1g -Djavax.net.ssl.trustStorePassword={PLANTED}"),
    (("spark", "conf", "spark.hadoop.fs.s3a.secret.key"), PLANTED),
    (("kafka", "options", "sasl.password"), PLANTED),
]


@pytest.mark.parametrize(("path", "value"), PLANTED_AT, ids=range(len(PLANTED_AT)))
def test_no_channel_shows_a_secret(path: tuple[str | int, ...], value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have other programs quote the setting, or the secret alone, in errors, in log lines and in what is published."""
    monkeypatch.setattr("tailrace.schemas.config.secret._remembered", set())
    config = load(environ=_with(path, value))
    secret_alone = min((each for each in secret_values(config) if PLANTED in each), key=len)
    for text in (value, secret_alone):
        assert [each for each in _channels(text, config) if PLANTED in each] == []


@pytest.mark.parametrize("uri", URIS)
def test_the_form_of_a_uri_shows_its_secret(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of Spark has read no configuration."""
    monkeypatch.setattr("tailrace.schemas.config.secret._remembered", set())
    assert PLANTED not in without_remembered(f"cannot open {uri} now")
    assert without_remembered(f"cannot open {uri} now").startswith("cannot open ")


WRONG = [path[:length] for path in FIELDS for length in range(1, len(path) + 1)]


@pytest.mark.parametrize("path", dict.fromkeys(WRONG), ids=_named_by_a_person)
def test_a_wrong_value_is_not_printed(
    path: tuple[str | int, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every setting gives an error without a traceback, or none; never the value."""
    texts = [f"{PLANTED}%zz", f"mysql://{PLANTED}", f"x {PLANTED} = y", f"https://x:{PLANTED}\u2100@h", f"[{PLANTED}]"]
    values: list[object] = [[PLANTED], {PLANTED[::-1]: PLANTED}, [[PLANTED]]]
    if not str(path[-1]).endswith("_file"):
        values += texts
    found = [(value, _loaded(path, value)) for value in values]
    errors = [error for _, error in found if isinstance(error, ConfigError)]
    assert PLANTED not in "".join(text for error in errors for text in _forms(error))
    refused = next(value for value, error in found if isinstance(error, ConfigError))
    monkeypatch.chdir(tmp_path)
    for name, content in _with(path, refused).items():
        monkeypatch.setenv(name, content)
    monkeypatch.setattr("sys.argv", ["tailrace", "config", "show"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 3
    printed = "".join(capsys.readouterr())
    assert "Traceback" not in printed
    assert PLANTED not in printed


@pytest.mark.parametrize("name", ["security.protocol", "sasl.password", "made.up"])
def test_an_option_that_the_kafka_client_refuses_is_not_printed(name: str) -> None:
    for value in (f"{PLANTED}%zz", f"x {PLANTED} = y", f"https://x:{PLANTED}@h"):
        config = load(environ=_with(("kafka", "secret_options", name), value))
        with pytest.raises(ConfigError) as refused:
            client_options(config.kafka.model_copy(update={"options": {"security.protocol": value}}))
        assert PLANTED not in "".join(_forms(refused.value))


def test_a_bug_prints_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tailrace.toml").write_text(EVERYWHERE)
    monkeypatch.chdir(tmp_path)

    def fail(config: Config) -> None:
        raise RuntimeError(config.source.dsn.get_secret_value(), config.search)

    monkeypatch.setattr("tailrace.cdc.operations.read_status.read_status", fail)
    monkeypatch.setattr("sys.argv", ["tailrace", "status"])
    with pytest.raises(SystemExit):
        main()
    printed = capsys.readouterr().err
    assert "RuntimeError" in printed
    assert PLANTED not in printed
