"""Secrets planted in every setting that takes one, valid or broken, are not printed anywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tailrace.cdc.cli.main import main
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tailrace.schemas.config.secret import HIDDEN, redacted, secret_values, shown, without_secrets
from tests.support.daemon import tailrace

PLANTED = "Pl4ntedS3cret"
MINIMAL = {"source": {"dsn": "host=127.0.0.1 port=1 connect_timeout=1"}}
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
    ["snapshot", "plan"],
    ["snapshot", "start", "orders", "--timeout", "1"],
    ["snapshot", "status", "--json"],
    ["views", "list", "--json"],
    ["views", "status", "--json"],
    ["views", "follow"],
    ["views", "rebuild", "orders"],
    ["views", "rebuild", "--dry-run", "orders"],
    ["views", "resume", "orders", "--timeout", "1"],
    ["views", "explain", "spending"],
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


def test_no_command_prints_a_secret_if_no_server_answers(tmp_path: Path) -> None:
    """First with options that the Kafka client refuses, then without them, with no server to connect to."""
    refused = EVERYWHERE.replace("options = {", 'options = { "security.protocol" = "SSL",', 1)
    (tmp_path / "tailrace.toml").write_text(refused)
    found = everything(tmp_path, COMMANDS)
    assert [command for command, (_, text) in found.items() if PLANTED in text or "Traceback" in text] == []
    assert {code for code, _ in found.values()} <= {0, 3, 4, 5}
    assert found["status"][0] == 3
    without = EVERYWHERE.replace(f'options = {{ "sasl.password" = "{PLANTED}4", "ssl.key.pem" = "{PLANTED}5" }}', "")
    (tmp_path / "tailrace.toml").write_text(without)
    found = everything(tmp_path, COMMANDS)
    assert [command for command, (_, text) in found.items() if PLANTED in text or "Traceback" in text] == []
    assert found["status"][0] == 0
    assert {code for code, _ in found.values()} <= {0, 4, 5}


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
        ("https://a:b@c@h/x@y", f"https://a:{HIDDEN}@h/x@y"),
        ("https://token@h", f"https://{HIDDEN}@h"),
    ],
)
def test_secrets_in_a_text_are_hidden(text: str, left: str) -> None:
    assert without_secrets(text) == left


def _values(config: type[Config]) -> dict[str, list[object]]:
    """Return wrong values with the secret in them, for each setting that takes a secret."""
    texts = [f"{PLANTED}%zz", f"mysql://{PLANTED}", f"x {PLANTED} = y", f"https://x:{PLANTED}\u2100@h", f"[{PLANTED}]"]
    others: list[object] = [[PLANTED], {PLANTED[::-1]: PLANTED}, [[PLANTED]]]
    keys = [
        "source.dsn",
        "source.hash_salt",
        "kafka.bootstrap",
        "kafka.options",
        "kafka.secret_options",
        "kafka.java_options",
        "registry.url",
        "registry.password",
        "search.hosts",
        "search.password",
        "warehouse.uri",
        "warehouse.location",
        "spark.conf",
        "source.dsn_file",
        "source.hash_salt_file",
        "registry.password_file",
        "search.password_file",
        "health.listen",
        "memory.limit",
        "kafka.options.security.protocol",
        "source",
        "kafka",
        "registry",
        "search",
        "warehouse",
    ]
    assert {key.split(".")[0] for key in keys} <= config.model_fields.keys()
    files = [key for key in keys if key.endswith("_file")]
    return {key: others if key in files else [*texts, *others] for key in keys}


BROKEN = [(key, value) for key, values in _values(Config).items() for value in values]


@pytest.mark.parametrize(("key", "value"), BROKEN, ids=range(len(BROKEN)))
def test_a_wrong_value_is_not_printed(
    key: str, value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every setting gives an error without a traceback, or none; never the value."""
    section, _, name = key.partition(".")
    values: dict[str, object] = {**MINIMAL, "registry": {"url": "http://h"}, "search": {"hosts": ["http://h"]}}
    values["warehouse"] = {"uri": "jdbc:sqlite:/x", "location": "/x"}
    if not name:
        values[section] = value
    elif name.startswith("options."):
        values[section] = {"options": {name.removeprefix("options."): value}}
    else:
        below = values.get(section, {})
        assert isinstance(below, Mapping)
        values[section] = {**below, name: value}
    monkeypatch.chdir(tmp_path)
    for part, content in values.items():
        monkeypatch.setenv(f"TAILRACE__{part.upper()}", content if isinstance(content, str) else json.dumps(content))
    for command in (["config", "show"], ["config", "show", "--json"], ["status"], ["views", "list"]):
        if command == ["status"] and key not in ("source.dsn", "kafka.options.security.protocol"):
            continue
        monkeypatch.setattr("sys.argv", ["tailrace", *command])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = "".join(capsys.readouterr())
        assert ended.value.code in (0, None, 3), printed
        assert "Traceback" not in printed
        if command[0] == "config" and ended.value.code in (0, None):
            continue  # values that are not secret are shown
        assert PLANTED not in printed


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
