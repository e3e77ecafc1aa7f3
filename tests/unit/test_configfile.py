"""Configuration files: a bad one is one error that names the key and the remedy, and shows no value."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.schemas.config.file import load, read
from tailrace.schemas.errors import ConfigError

SECRET = "postgresql://cdc:hunter2@db/shop"
GOOD = f'[source]\ndsn = "{SECRET}"\n'


def write(folder: Path, text: str) -> Path:
    file = folder / "tailrace.toml"
    file.write_text(text, encoding="utf-8")
    return file


def failure(folder: Path, text: str, environ: dict[str, str] | None = None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(write(folder, text), environ=environ or {})
    error = caught.value
    lines = str(error).splitlines()
    assert [line.split()[0] for line in lines] == ["ERROR", "DETAIL", "HINT"]
    assert error.exit_code == 3
    assert "hunter2" not in str(error)
    return error


def test_keys_that_are_not_set_have_defaults(tmp_path: Path) -> None:
    config = load(write(tmp_path, GOOD), environ={})
    assert config.source.dsn.get_secret_value() == SECRET
    assert config.kafka.bootstrap == "localhost:9092"


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, GOOD + '[kafka]\nbootstrap = "file:1"\nprefix = "file"\npartitions = 2\n')
    environ = {"TAILRACE__KAFKA__PREFIX": "env", "TAILRACE__KAFKA__PARTITIONS": "5"}
    loaded = read(file, {"kafka.partitions": 9}, environ)
    kafka = loaded.config.kafka
    assert (kafka.bootstrap, kafka.prefix, kafka.partitions) == ("file:1", "env", 9)
    assert loaded.origins["kafka.bootstrap"] == f"file {file}"
    assert loaded.origins["kafka.prefix"] == "environment TAILRACE__KAFKA__PREFIX"
    assert loaded.origins["kafka.partitions"] == "flag"


def test_environment_lists_and_tables_are_json(tmp_path: Path) -> None:
    environ = {
        "TAILRACE__SOURCE__TABLES": '["a.*", "!a.b"]',
        "TAILRACE__KAFKA__OPTIONS": '{"security.protocol": "SSL"}',
        "TAILRACE__VIEWS__ORDERS__TABLE": "public.orders",
    }
    config = load(write(tmp_path, GOOD), environ=environ)
    assert config.source.tables == ["a.*", "!a.b"]
    assert config.kafka.options == {"security.protocol": "SSL"}
    assert config.views["orders"].table == "public.orders"


def test_the_environment_alone_is_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = read(environ={"TAILRACE__SOURCE__DSN": SECRET})
    assert loaded.path is None
    assert loaded.config.source.dsn.get_secret_value() == SECRET


def test_a_list_in_the_environment_that_is_not_json_is_refused(tmp_path: Path) -> None:
    error = failure(tmp_path, GOOD, {"TAILRACE__SOURCE__TABLES": "public.*"})
    assert (error.code, "TAILRACE__SOURCE__TABLES" in error.message) == ("TR-104", True)


def test_missing_file_lists_every_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load(environ={})
    assert caught.value.code == "TR-101"
    for place in (
        "--config",
        "TAILRACE_CONFIG",
        str(tmp_path / "tailrace.toml"),
        "/etc/tailrace/tailrace.toml",
    ):
        assert place in caught.value.detail


def test_a_named_file_that_is_missing_is_not_replaced_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, GOOD)
    for path, environ in ((Path("other.toml"), {}), (None, {"TAILRACE_CONFIG": "other.toml"})):
        with pytest.raises(ConfigError, match="no configuration file") as caught:
            load(path, environ=environ)
        assert "other.toml" in caught.value.detail


def test_the_named_file_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "broken")
    other = tmp_path / "other.toml"
    other.write_text(GOOD, encoding="utf-8")
    assert read(environ={"TAILRACE_CONFIG": str(other)}).path == other
    assert read(other, environ={"TAILRACE_CONFIG": "missing.toml"}).path == other


def test_syntax_error_names_the_line(tmp_path: Path) -> None:
    error = failure(tmp_path, GOOD + "[kafka\n")
    assert (error.code, "line 3" in error.detail) == ("TR-102", True)


def test_a_file_that_is_not_utf8_names_the_offset(tmp_path: Path) -> None:
    file = tmp_path / "tailrace.toml"
    file.write_bytes(b"# caf\xe9\n")
    with pytest.raises(ConfigError, match="not UTF-8") as caught:
        load(file, environ={})
    assert "offset 5" in caught.value.detail


@pytest.mark.parametrize(
    ("text", "path", "meant"),
    [
        ('[kafka]\nbootstap = "x"\n', "kafka.bootstap", "kafka.bootstrap"),
        ("[kafak]\npartitions = 3\n", "kafak", "kafka"),
        ('[views.orders]\ntabel = "public.orders"\n', "views.orders.tabel", "views.orders.table"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_key(tmp_path: Path, text: str, path: str, meant: str) -> None:
    error = failure(tmp_path, GOOD + text)
    assert error.code == "TR-105"
    assert f'"{path}"' in error.message
    assert error.hint == f'Did you mean "{meant}"?'


@pytest.mark.parametrize("text", ['publication = "the pub"\n', '[kafka]\nprefix = "a.b"\n'])
def test_a_name_is_described_in_words_not_by_its_pattern(tmp_path: Path, text: str) -> None:
    error = failure(tmp_path, f'[source]\ndsn = ""\n{text}')
    assert error.code == "TR-104"
    assert "letters, digits" in error.message
    assert "[" not in error.message
    assert "the pub" not in str(error)


def test_unknown_key_with_nothing_like_it_lists_the_known(tmp_path: Path) -> None:
    assert "bootstrap" in failure(tmp_path, GOOD + "[kafka]\nzzz = 1\n").hint


def test_unknown_key_in_the_environment_names_the_variable(tmp_path: Path) -> None:
    error = failure(tmp_path, GOOD, {"TAILRACE__KAFKA__BOOTSTAP": "hunter2"})
    assert "TAILRACE__KAFKA__BOOTSTAP" in error.detail
    assert error.hint == 'Did you mean "kafka.bootstrap"?'


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("[kafka]\npartitions = 0\n", "kafka.partitions"),
        ('[kafka]\npartitions = "many"\n', "kafka.partitions"),
        ('[kafka]\nprefix = "a b hunter2"\n', "kafka.prefix"),
        ('[views.orders]\ntable = "public.orders"\ntarget = "hunter2"\n', "views.orders.target"),
        ('[views.Orders]\ntable = "public.orders"\n', "views.Orders"),
        ("[views.orders]\n", "views.orders"),
        ('[views.a]\ntable = "public.t"\nshape = "percolate"\n', "views.a"),
        ('[views.a]\ntable = "public.t"\nshape = "percolate"\nqueries = "hunter2.query"\n', "views.a"),
        ('[views.a]\ntable = "public.t"\nqueries_index = "hunter2"\n', "views.a"),
        ('[views.a]\nhistory_from = "0/1"\ntable = "a.t"\nshape = "percolate"\nqueries = "a.b.c"\n', "views.a"),
        ("[kafka]\nsecret_options = 'hunter2'\n", "kafka.secret_options"),
        ("[search]\n", "search.hosts"),
        ('[search]\nhosts = ["localhost:9200"]\n', "search.hosts"),
        ('[registry]\nurl = "http://h"\nuser = "x"\n', "registry.password"),
        ('[memory]\nlimit = "10MB"\n', "memory.limit"),
        ('hash = ["a.b.c"]\n', "source.hash_salt"),
        ("tables = []\n", "source.tables"),
        ('tables = ["!public.*"]\n', "source.tables"),
        ('[warehouse]\nlocation = "/tmp"\nuri = "sqlite:catalog.db"\n', "warehouse.uri"),
    ],
)
def test_a_wrong_value_names_its_key(tmp_path: Path, text: str, path: str) -> None:
    error = failure(tmp_path, GOOD + text)
    assert (error.code, f'"{path}"' in error.message) == ("TR-104", True)


def test_a_misspelled_section_is_named_before_the_one_that_it_leaves_out(tmp_path: Path) -> None:
    error = failure(tmp_path, GOOD.replace("source", "sourc"))
    assert (error.code, error.hint) == ("TR-105", 'Did you mean "source"?')
    assert '"source" is not set' in error.detail


def test_a_fault_that_concerns_several_keys_has_the_hint_of_the_key_to_change(tmp_path: Path) -> None:
    assert "TAILRACE__SOURCE__HASH_SALT" in failure(tmp_path, GOOD + 'hash = ["a.b.c"]\n').hint


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    assert load(write(tmp_path, "\ufeff" + GOOD), environ={}).source.slot == "tailrace"


def test_a_section_that_is_no_table_is_refused(tmp_path: Path) -> None:
    assert '"kafka"' in failure(tmp_path, 'kafka = "hunter2"\n' + GOOD).message


def test_a_missing_dsn_names_the_variable_to_set(tmp_path: Path) -> None:
    error = failure(tmp_path, "[source]\n")
    assert error.message == '"source.dsn" is not set'
    assert "TAILRACE__SOURCE__DSN" in error.hint


def test_several_faults_are_one_error(tmp_path: Path) -> None:
    error = failure(tmp_path, GOOD + "[kafka]\npartitions = 0\nzzz = 1\n")
    assert "kafka.partitions" in error.message
    assert "kafka.zzz" in error.detail


MALFORMED = {
    "postgresql://cdc:hunter2%zz@h/db": "a % is not",
    "postgresql://cdc:hunter2%@h/db": "a % is not",
    "postgresql://cdc:hunter2%00@h/db": "a % is not",
    "postgresql://cdc:hunter2@x@h/db": "an @ or /",
    "postgresql://cdc:hunter2/x@h/db": "an @ or /",
    "postgresql://cdc:1/hunter2@h/db": "an @ or /",
    "postgresql://cdc:hunter2 x@h/db": "a space",
    "postgresql://cdc:hunter2/x": "the port",
    "postgresql://cdc@h:0/hunter2": "the port",
    "postgresql://h/db?hunter2": "not name=value",
    "postgresql://h/db?sslmode=a=hunter2": "not name=value",
    "postgresql://h/db?hunter2=x": "a parameter that libpq does not know",
    "postgresql://[hunter2/db": "not a valid connection URI",
    "postgresql://h/db?connect_timeout=hunter2": "connect_timeout is not a number",
    "mysql://cdc:hunter2@h/db": "begins with postgresql://",
    "hunter2": "neither a URI nor",
    "host=h passwort=hunter2": 'did you mean "password"?',
    "host=h password=my hunter2": "not name=value pairs",
    "host=h password=my hunter2=x": "a parameter that libpq does not know",
    "host=h password='hunter2": "has no closing quote",
    "host=h port=hunter2": "the port",
    "postgresql://h/hunter2\0": "zero bytes",
}


@pytest.mark.parametrize("dsn", MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_dsn_is_described_but_not_quoted(tmp_path: Path, dsn: str) -> None:
    """libpq's own message quotes what it cannot read, and that may be the password."""
    error = failure(tmp_path, GOOD, {"TAILRACE__SOURCE__DSN": dsn})
    assert (error.code, error.message.startswith('"source.dsn" is wrong: ')) == ("TR-104", True)
    assert MALFORMED[dsn] in error.message
    if dsn.startswith("postgresql://cdc:"):
        assert "%25 for %" in error.hint
    (tmp_path / "dsn").write_text(dsn, encoding="utf-8")
    assert "dsn_file" in failure(tmp_path, f'[source]\ndsn_file = "{tmp_path}/dsn"\n').detail


@pytest.mark.parametrize(
    "dsn",
    [
        "",
        "postgresql://cdc:a%25b%40c%2Fd@h/db",
        "postgres://cdc:a:b?c#d@h:5432,[::1]:5433/db?sslmode=require",
        "postgresql:///db?host=/run/postgresql&connect_timeout=5",
        "postgresql://%40abstract/db",
        "host=a,b port=5432, password='it\\'s a %' target_session_attrs=read-write",
        "service=shop",
    ],
)
def test_a_valid_dsn_is_accepted_unchanged(tmp_path: Path, dsn: str) -> None:
    assert load(write(tmp_path, GOOD), {"source.dsn": dsn}, {}).source.dsn.get_secret_value() == dsn


def test_the_dsn_is_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "dsn").write_text(SECRET + "\n", encoding="utf-8")
    config = load(write(tmp_path, f'[source]\ndsn_file = "{tmp_path}/dsn"\n'), environ={})
    assert config.source.dsn.get_secret_value() == SECRET


def test_a_missing_dsn_file_is_named(tmp_path: Path) -> None:
    error = failure(tmp_path, f'[source]\ndsn_file = "{tmp_path}/none"\n')
    assert (error.code, f"{tmp_path}/none" in error.detail) == ("TR-106", True)
    assert '"dsn_file"' in error.message


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"hunter2\xff", "not UTF-8: the byte at offset 7"), (b"hunter2" * 10_000, "more than 65536 bytes")],
)
def test_a_secret_file_that_is_not_utf8_or_too_large_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "salt").write_bytes(content)
    error = failure(tmp_path, f'{GOOD}hash_salt_file = "{tmp_path}/salt"\n')
    assert (error.code, reason in error.detail) == ("TR-106", True)


@pytest.mark.parametrize("name", ["0", "true", '["hunter2"]', "{ hunter2 = 1 }"])
def test_the_name_of_a_secret_file_must_be_text(tmp_path: Path, name: str) -> None:
    """A number would be a file descriptor that is open already."""
    error = failure(tmp_path, f"[source]\ndsn_file = {name}\n")
    assert (error.code, '"source.dsn_file" is wrong' in str(error)) == ("TR-104", True)


@pytest.mark.parametrize(
    ("written", "environ", "read_as"),
    [
        ("${DSN}", {"DSN": "a${DSN}b"}, "a${DSN}b"),
        ("${DSN:-x}", {}, "x"),
        ("${DSN:-x}", {"DSN": ""}, "x"),
        ("${DSN:-}", {}, ""),
        ("p$$${DSN}", {"DSN": "1"}, "p$1"),
        ("pa$word", {}, "pa$word"),
        ("${A}@${B:-b}", {"A": '"a"\n'}, '"a"\n@b'),
    ],
)
def test_variables_in_values_are_replaced(tmp_path: Path, written: str, environ: dict[str, str], read_as: str) -> None:
    config = load(write(tmp_path, f'{GOOD}spool_dir = "{written}"\n'), environ=environ)
    assert config.source.spool_dir == read_as


def test_variables_in_lists_are_replaced(tmp_path: Path) -> None:
    config = load(write(tmp_path, GOOD + 'tables = ["${S}.*"]\n'), environ={"S": "app"})
    assert config.source.tables == ["app.*"]


def test_unset_variable_names_key_and_variable(tmp_path: Path) -> None:
    error = failure(tmp_path, GOOD + '[views.orders]\nkey = ["id", "${NOPE}"]\ntable = "a.b"\n')
    assert error.code == "TR-103"
    assert '"views.orders.key[1]"' in error.message
    assert '"NOPE"' in error.message


def test_a_malformed_variable_reference_is_refused(tmp_path: Path) -> None:
    assert failure(tmp_path, '[source]\ndsn = "hunter2${1}"\n').code == "TR-103"


def test_a_memory_limit_too_small_for_the_largest_record_is_refused(tmp_path: Path) -> None:
    assert load(write(tmp_path, GOOD + '[memory]\nlimit = "200MiB"\n'), environ={}).memory.limit == 200 * 2**20
    error = failure(tmp_path, GOOD + '[memory]\nlimit = "150MiB"\n')
    assert "memory.limit must be at least 184549376 bytes" in str(error)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('hosts = ["localhost:9200"]', "write URLs"),
        (f'hosts = ["https://x:{SECRET}@localhost:9200"]', "as separate keys"),
        ('hosts = ["https://localhost:9200"]\nuser = "x"', "both user and password"),
        ('hosts = ["https://a:9200", "http://b:9200"]\nca_file = "ca.pem"', "without TLS"),
        ('hosts = ["https://a:9200"]\nkey_file = "key.pem"', "needs cert_file"),
        ('hosts = ["https://x:hunter2\u2100@h"]', "write URLs"),
        ('hosts = ["https://[hunter2]/"]', "write URLs"),
    ],
    ids=["no scheme", "password in the URL", "half a login", "one in the clear", "a key alone", "normalized", "ip"],
)
def test_wrong_options_of_an_http_server_are_refused(tmp_path: Path, lines: str, said: str) -> None:
    error = failure(tmp_path, f'[source]\ndsn = ""\n[search]\n{lines}\n')
    assert (error.code, said in error.message, SECRET in str(error)) == ("TR-104", True, False)


def test_a_password_is_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_text(SECRET + "\n", encoding="utf-8")
    registry = f'[registry]\nurl = "https://a, https://b"\nuser = "x"\npassword_file = "{tmp_path}/password"\n'
    config = load(write(tmp_path, f'[source]\ndsn = ""\n{registry}'), environ={})
    assert config.registry is not None
    assert config.registry.password is not None
    assert (config.registry.password.get_secret_value(), len(config.registry.urls)) == (SECRET, 2)
