"""Whatever is in the file or the environment: the value arrives, or there is one `ConfigError`."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.configfile import load
from schemas.errors import ConfigError

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
    file.write_text('[source]\ndsn = "<${V}>"\n', encoding="utf-8")
    assert load(file, environ={"V": value}).source.dsn.get_secret_value() == f"<{value}>"


@given(value=TEXT)
def test_doubled_dollars_make_any_text_literal(file: Path, value: str) -> None:
    file.write_text(f"[source]\ndsn = {quoted(value.replace('$', '$$'))}\n", encoding="utf-8")
    assert load(file, environ={}).source.dsn.get_secret_value() == value


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
