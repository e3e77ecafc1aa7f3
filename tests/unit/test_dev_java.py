"""The JDKs that are found, the one that is picked, and the error when none fits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.cdc.launch import java
from tailrace.schemas.errors import ConfigError


def jdk(folder: Path, name: str, release: str | None, says: str = "") -> Path:
    """Create a fake JDK: a `java` that answers `-version`, and optionally a release file."""
    home = folder / name
    (home / "bin").mkdir(parents=True)
    executable = home / "bin" / "java"
    executable.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    executable.chmod(0o755)
    if release is not None:
        (home / "release").write_text(f'IMPLEMENTOR="X"\nJAVA_VERSION="{release}"\n')
    return home


@pytest.mark.parametrize(
    ("version", "major"),
    [("17.0.15", 17), ("1.8.0_402", 8), ("25-ea", 25), ("21", 21), ("11.0.2", 11), ("", None), ("x", None)],
)
def test_the_major_version_is_read_from_any_version_string(version: str, major: int | None) -> None:
    assert java.major_version(version) == major


def test_jdks_are_found_in_java_home_path_and_distribution_each_once(tmp_path: Path) -> None:
    jvm = tmp_path / "jvm"
    b, a = jdk(jvm, "b-17", "17.0.1"), jdk(jvm, "a-25", "25.0.3")
    (jvm / "link-to-b").symlink_to(b)
    (jvm / "only-docs").mkdir()
    own = jdk(tmp_path, "own", "21.0.2")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(b / "bin" / "java")
    environment = {"JAVA_HOME": str(own), "PATH": str(tmp_path / "bin")}
    found = list(java.installed(environment, jvm))
    assert [(each.home, each.version) for each in found] == [(own, 21), (b, 17), (a, 25)]


def test_without_a_release_file_the_jvm_is_asked_for_its_version(tmp_path: Path) -> None:
    jdk(tmp_path, "old", None, says='openjdk version "1.8.0_402"')
    jdk(tmp_path, "silent", None)
    assert [each.version for each in java.installed({}, tmp_path)] == [8]


def test_the_first_fitting_jdk_is_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    have = [java.Java(Path("/j/25"), 25), java.Java(Path("/j/17"), 17), java.Java(Path("/j/21"), 21)]
    monkeypatch.setattr(java, "installed", lambda: iter(have))
    assert java.find_java("Spark", java.SPARK).version == 17
    assert java.find_java("OpenSearch", java.OPENSEARCH).version == 25
    assert java.find_java("Kafka", java.KAFKA).version == 25


def test_the_error_names_the_found_jdks_and_the_one_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "installed", lambda: iter([java.Java(Path("/j/25"), 25)]))
    with pytest.raises(ConfigError) as caught:
        java.find_java("Spark", java.SPARK)
    assert caught.value.code == "TR-600"
    assert "JDK 17 or 21" in caught.value.message
    assert "JDK 25 in /j/25" in caught.value.detail
    assert "openjdk-17-jdk-headless" in caught.value.hint
    monkeypatch.setattr(java, "installed", lambda: iter(()))
    with pytest.raises(ConfigError, match="a JDK 21 or later"):
        java.find_java("OpenSearch", java.OPENSEARCH)
