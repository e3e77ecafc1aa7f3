"""Any text in the file or the environment: the value arrives, or there is one `ConfigError`."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.schemas.config.file import load
from tailrace.schemas.errors import ConfigError

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def quoted(text: str) -> str:
    """Write a TOML basic string."""
    plain = (c.isascii() and c.isprintable() and c not in '"\\' for c in text)
    return '"' + "".join(c if ok else f"\\U{ord(c):08X}" for c, ok in zip(text, plain, strict=True)) + '"'


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config") / "tailrace.toml"


@given(value=TEXT)
def test_a_variable_arrives_as_it_is(file: Path, value: str) -> None:
    file.write_text('[source]\ndsn = ""\nspool_dir = "<${V}>"\n', encoding="utf-8")
    assert load(file, environ={"V": value}).source.spool_dir == f"<{value}>"


@given(value=TEXT)
def test_doubled_dollars_make_any_text_literal(file: Path, value: str) -> None:
    file.write_text(f'[source]\ndsn = ""\nspool_dir = {quoted(value.replace("$", "$$"))}\n', encoding="utf-8")
    assert load(file, environ={}).source.spool_dir == value


@given(text=TEXT)
def test_any_file_loads_or_is_one_error_of_three_lines(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8", newline="")
    lines = 3
    try:
        load(file, environ={})
    except ConfigError as error:
        lines = len(str(error).splitlines())
    assert lines == 3


@given(key=st.sampled_from(["dsn", "slot", "tables", "zzz"]), value=TEXT.map(lambda text: f"s3cret {text}"))
def test_no_value_is_in_an_error(file: Path, key: str, value: str) -> None:
    file.write_text("[kafka]\npartitions = 0\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(file, {f"source.{key}": value}, environ={})
    assert value not in str(caught.value)


@given(password=TEXT, form=st.sampled_from(["postgresql://u:{}@h/db", "host=h password={}", "{}", "postgresql://{}"]))
def test_no_part_of_a_connection_string_is_in_an_error(file: Path, password: str, form: str) -> None:
    marked = form.format(f"s3c{password}r3t")
    file.write_text("", encoding="utf-8")
    said = ""
    try:
        load(file, {"source.dsn": marked}, environ={})
    except ConfigError as error:
        said = str(error)
    assert len(said.splitlines()) in (0, 3)
    assert "s3c" not in said
    assert "r3t" not in said
