"""Small batches written by the key index leave the same table as MERGE does, whatever happens in between."""

from __future__ import annotations

import os
import random
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tailrace.schemas.config.model import Warehouse
from tailrace.schemas.lsn import Position
from tailrace.schemas.records.position import Cut
from tailrace.sinks.iceberg.catalog import opened
from tailrace.sinks.iceberg.direct import writer
from tailrace.sinks.iceberg.direct.compaction import MIN_FILES
from tailrace.sinks.iceberg.direct.java_table import JavaTable
from tailrace.sinks.iceberg.direct.key_index import Changes, IndexUnusable, KeyIndex
from tailrace.sinks.iceberg.direct.writer import DirectWriter
from tailrace.sinks.iceberg.direct.writers import index_folder
from tailrace.sinks.iceberg.maintenance import compact, expire
from tailrace.sinks.iceberg.target import IcebergTarget
from tailrace.sinks.spark.sql_types import quote
from tailrace.sinks.target.few_rows import FewRows
from tailrace.sinks.target.protocol import DELETED, Commit
from tailrace.spark_jobs.maintain.batch import are_few
from tests.spark.conftest import ROUNDS

SEED = int(os.environ.get("TAILRACE_TEST_SEED", "1"))

_EPOCH = datetime(2020, 1, 1)

KEYS: dict[str, Callable[[int], Any]] = {
    "int": lambda n: n - 20,
    "bigint": lambda n: n * 10**15,
    "string": lambda n: f"k{n}é" if n else "",
    "decimal(10,3)": lambda n: Decimal(n * 7).scaleb(-3),
    "timestamp": lambda n: (_EPOCH + timedelta(microseconds=n)).replace(tzinfo=UTC),
    "timestamp_ntz": lambda n: _EPOCH - timedelta(days=n * 900, microseconds=n),
    "date": lambda n: date(1960, 1, 1) + timedelta(days=n * 1000),
    "binary": lambda n: bytes([n, 0, 255]),
    "double": lambda n: [float("nan"), float("inf"), 0.0, 0.1][n % 4] if n < 4 else n / 3,
}
VALUES: dict[str, Callable[[random.Random], Any]] = {
    "int": lambda draw: draw.randrange(-(2**31), 2**31),
    "string": lambda draw: "".join(draw.choices("abcé\U0001f600 \n", k=draw.randrange(6))),
    "decimal(38,10)": lambda draw: Decimal(draw.randrange(-(10**37), 10**37)).scaleb(-10),
    "decimal(12,2)": lambda draw: Decimal(draw.randrange(-(10**11), 10**11)).scaleb(-2),
    "float": lambda draw: draw.choice([0.5, -0.0, float("inf"), 2.0**-140]),
    "boolean": lambda draw: draw.random() < 0.5,
    "timestamp": lambda draw: (_EPOCH + timedelta(seconds=draw.randrange(10**9))).replace(tzinfo=UTC),
    "binary": lambda draw: draw.randbytes(draw.randrange(5)),
    "array<string>": lambda draw: draw.choice([[], ["a", None], ["x"] * 3]),
    "array<decimal(10,3)>": lambda draw: [Decimal("1.250"), None],
    "map<string,string>": lambda draw: draw.choice([{}, {"a": "1", "b": None}]),
    "struct<a:int,b:array<struct<c:string,d:date>>>": lambda draw: draw.choice(
        [None, {"a": 1, "b": []}, {"a": None, "b": [{"c": "x", "d": date(2024, 2, 29)}, None]}]
    ),
}


def cut(number: int) -> Cut:
    return Cut(Position(1, number, 0), number + 1, 0, "1", 1)


@dataclass
class Both:
    """Two tables that get the same batches: one by the key index, one by MERGE."""

    session: SparkSession
    warehouse: Warehouse
    draw: random.Random
    key: dict[str, str]
    columns: dict[str, str]
    ways: dict[str, IcebergTarget] = field(default_factory=dict, init=False)
    sessions: dict[str, SparkSession] = field(default_factory=dict, init=False)
    names: dict[str, str] = field(default_factory=dict, init=False)
    number: int = field(default=1, init=False)
    made: int = field(default=0, init=False)
    generation: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        self.sessions = {way: self.session.newSession() for way in ("direct", "merged")}
        self.names = {way: f"{way}_{uuid.uuid4().hex[:8]}" for way in ("direct", "merged")}
        self.open()

    def open(self) -> None:
        """Open both targets as a new process does."""
        self.close()
        self.ways = {way: IcebergTarget(self.sessions[way], self.warehouse, self.names[way]) for way in self.names}
        for target in self.ways.values():
            live = target.live()
            self.generation = live.generation if live else 1

    def close(self) -> None:
        for target in self.ways.values():
            target.close()

    def rows(self, numbers: list[int]) -> list[dict[str, Any]]:
        found = []
        for number in numbers:
            row: dict[str, Any] = {name: KEYS[self.key[name]](number) for name in self.key}
            if number == 5 and len(self.key) > 1:
                row[next(iter(self.key))] = None
            for name, kind in self.columns.items():
                row[name] = None if self.draw.random() < 0.15 else VALUES[kind](self.draw)
            found.append(row)
        return found

    def frame(self, way: str, rows: list[dict[str, Any]], deleted: list[bool] | None = None) -> Any:
        """Return the rows as the batches of views give them."""
        fields = ", ".join(f"{quote(name)} {kind}" for name, kind in {**self.key, **self.columns}.items())
        session = self.sessions[way]
        frame = session.createDataFrame([tuple(row.values()) for row in rows], fields)
        if deleted is None:
            return frame
        numbered = [(number, gone) for number, gone in enumerate(deleted)]
        marks = session.createDataFrame(numbered, f"n int, {DELETED} boolean")
        frame = session.createDataFrame(
            [(number, *row.values()) for number, row in enumerate(rows)], f"n int, {fields}"
        )
        return frame.join(marks, "n").drop("n")

    def begin(self) -> None:
        """Fill both tables."""
        rows = self.rows(self.draw.sample(range(60), 40))
        for way, target in self.ways.items():
            frame = self.frame(way, rows)
            self.generation = target.stage({each.name: each.dataType for each in frame.schema}, list(self.key))
            target.replace(self.generation, frame, list(self.key), Commit(cut(self.number)))

    def batch(self) -> None:
        """Give both tables the same random changes."""
        numbers = self.draw.sample(range(60), self.draw.choice([1, 1, 5, 20]))
        rows = self.rows(numbers)
        deleted = [self.draw.random() < 0.3 for _ in rows]
        if self.draw.random() < 0.1:
            deleted = [True] * len(rows)
        self.number += 1
        for way, target in self.ways.items():
            frame, commit = self.frame(way, rows, deleted), Commit(cut(self.number), level_ms=5)
            changes = FewRows.of(frame) if way == "direct" else frame
            applied = target.merge(self.generation, changes, list(self.key), commit)
            assert applied.cut == cut(self.number)
        self.made += 1

    def read(self, way: str) -> dict[str, Any]:
        """Return the rows of a table by key, and the row ids by key."""
        reached = self.ways[way].reached(self.generation)
        found = self.session.sql(f"SELECT *, _row_id AS r FROM {reached}").collect()
        rows = {repr([row[name] for name in self.key]): repr(row.asDict(recursive=True) | {"r": 0}) for row in found}
        assert len(rows) == len(found), "a key stands twice"
        ids = {repr([row[name] for name in self.key]): row["r"] for row in found}
        assert len(set(ids.values())) == len(ids), "two rows have one row id"
        return {"rows": rows, "ids": ids}

    def check(self, before: dict[str, Any] | None) -> dict[str, Any]:
        """Compare both tables; a row that was changed keeps its row id."""
        direct, merged = self.read("direct"), self.read("merged")
        assert direct["rows"] == merged["rows"]
        if before is not None:
            kept = before["ids"].keys() & direct["ids"].keys()
            assert {key: direct["ids"][key] for key in kept} == {key: before["ids"][key] for key in kept}
        return direct


@pytest.fixture
def both(spark: SparkSession, warehouse: Warehouse) -> Iterator[Callable[..., Both]]:
    opened: list[Both] = []

    def make(seed: int, key: dict[str, str] | None = None) -> Both:
        draw = random.Random(seed)
        if key is None:
            kinds = draw.sample(sorted(KEYS), draw.choice([1, 1, 2, 3]))
            key = {f"k`{number}": kind for number, kind in enumerate(kinds)}
        values = draw.sample(sorted(VALUES), 5)
        both = Both(spark, warehouse, draw, key, {f"v.`{number}": kind for number, kind in enumerate(values)})
        opened.append(both)
        both.begin()
        return both

    yield make
    for each in opened:
        each.close()


@pytest.fixture
def directly(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The snapshots that were committed by the key index."""
    done: list[int] = []
    merge = DirectWriter.merge

    def counted(self: DirectWriter, *arguments: Any) -> int:
        done.append(merge(self, *arguments))
        return done[-1]

    monkeypatch.setattr(DirectWriter, "merge", counted)
    return done


def _compacted(both: Both) -> None:
    both.session.sql(
        f"CALL {both.warehouse.catalog}.system.rewrite_data_files(table => "
        f"'{both.warehouse.namespace}.{both.names['direct']}', options => map('rewrite-all', 'true'))"
    )


def _expired(both: Both) -> None:
    compact(both.ways["direct"])
    _, delete = expire(both.ways["direct"], 2**62, None, {})
    delete()
    _assert_files(both)


def _assert_files(both: Both) -> None:
    """Assert that the folder has the files that Iceberg's own tables of the retained snapshots name, and no others."""
    table = both.ways["direct"].table()

    def local(path: str) -> str:
        return "/" + path.removeprefix("file:").lstrip("/")

    def named(column: str, of: str) -> set[str]:
        return {local(row[0]) for row in both.session.sql(f"SELECT {column} FROM {table}.{of}").collect()}

    described = both.session.sql(f"DESCRIBE EXTENDED {table}").where("col_name = 'Location'").collect()
    folder = Path(local(described[0][1]))
    there = {str(each) for each in folder.rglob("*") if each.is_file() and not each.name.startswith(".")}
    metadata = {each for each in there if each.endswith(".metadata.json")}
    known = named("file_path", "all_files") | named("path", "all_manifests") | named("manifest_list", "snapshots")
    assert known <= there, "a file is missing"
    assert there - metadata - known == set(), "a file is left"


def _column_added(both: Both) -> None:
    both.columns[f"new {len(both.columns)}"] = both.draw.choice(sorted(VALUES))


def _written_by_merge(both: Both) -> None:
    direct = both.ways["direct"]
    both.ways["direct"] = _Merging(direct)  # type: ignore[assignment]
    both.batch()
    both.ways["direct"] = direct


class _Merging:
    """A target whose small batches are large."""

    def __init__(self, target: IcebergTarget) -> None:
        self._target = target

    def merge(self, generation: int, changes: FewRows, *arguments: Any) -> Any:
        return self._target.merge(generation, changes.frame(), *arguments)


def _reopened(both: Both) -> None:
    both.open()


def _folder(both: Both) -> Path:
    folder = index_folder(both.warehouse)
    assert folder is not None
    return folder / both.warehouse.namespace


def _index_deleted(both: Both) -> None:
    both.close()
    shutil.rmtree(_folder(both))
    both.open()


def _index_damaged(both: Both) -> None:
    both.close()
    for path in sorted(_folder(both).rglob("*")):
        if path.is_file() and path.stat().st_size and both.draw.random() < 0.5:
            content = bytearray(path.read_bytes())
            if both.draw.random() < 0.5:
                del content[both.draw.randrange(len(content)) :]
            else:
                content[both.draw.randrange(len(content))] ^= 0xFF
            path.write_bytes(content)
    both.open()


def _rolled_back(both: Both) -> None:
    """Both tables go back by one batch and forward again, as the swap of a generation does."""
    for target in both.ways.values():
        head, *_ = target.snapshots()
        older = target.snapshots()[-1]
        target.call("set_current_snapshot", f"snapshot_id => {older.id}")
        target.call("set_current_snapshot", f"snapshot_id => {head.id}")


BETWEEN: tuple[Callable[[Both], None], ...] = (
    _compacted,
    _expired,
    _column_added,
    _written_by_merge,
    _reopened,
    _index_deleted,
    _index_damaged,
    _rolled_back,
)


def _play(both: Both, batches: int) -> None:
    before = both.check(None)
    for _ in range(batches):
        if both.draw.random() < 0.5:
            both.draw.choice(BETWEEN)(both)
            before = both.check(None)
        both.batch()
        before = both.check(before)


@pytest.mark.parametrize("seed", range(SEED, SEED + 2 * ROUNDS))
def test_both_ways_leave_the_same_rows(
    both: Callable[..., Both], directly: list[int], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:  # as for large tables
        monkeypatch.setattr("tailrace.sinks.iceberg.direct.writer._MANY_ROWS", 1)
    made = both(seed)
    _play(made, 6)
    assert len(directly) >= made.made - 6, "MERGE was compared with itself"


def test_a_commit_to_local_files_starts_no_process(both: Callable[..., Both], directly: list[int]) -> None:
    made = both(SEED, {"id": "int"})
    jvm = made.session._jvm
    assert jvm is not None
    pid = int(jvm.java.lang.ProcessHandle.current().pid())

    def faults_of_children() -> int:
        """Return a count that each ended child of the JVM increases (proc(5): cminflt)."""
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[8])

    before = faults_of_children()
    for _ in range(3):
        made.batch()
    assert len(directly) == 3
    assert faults_of_children() == before


KILLS = {
    "before the data file": (JavaTable, "write", False),
    "after the data file": (JavaTable, "write", True),
    "before the commit": (JavaTable, "commit", False),
    "after the commit": (JavaTable, "commit", True),
    "before the index": (KeyIndex, "commit", False),
    "after the index": (KeyIndex, "commit", True),
}


class Killed(BaseException):
    """The process ends here."""


def test_a_batch_that_ends_anywhere_is_repeated(both: Callable[..., Both]) -> None:
    made = both(SEED, {"id": "int"})
    made.batch()
    before = made.check(None)
    for owner, name, after in KILLS.values():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, _killing(getattr(owner, name), after=after))
            rows, deleted = made.rows([1, 2, 30, 59]), [False, True, False, False]
            made.number += 1
            arguments = (made.generation, ["id"], Commit(cut(made.number), level_ms=5))
            with pytest.raises(Killed):
                _merge(made, "direct", rows, deleted, arguments)
        made.open()
        # As follow does: a state at the cut is one that was committed.
        live = made.ways["direct"].live()
        assert live is not None
        if live.cut != cut(made.number):
            _merge(made, "direct", rows, deleted, arguments)
        _merge(made, "merged", rows, deleted, arguments)
        before = made.check(before)


def _merge(both: Both, way: str, rows: list[dict[str, Any]], deleted: list[bool], arguments: Any) -> None:
    generation, key, commit = arguments
    frame = both.frame(way, rows, deleted)
    both.ways[way].merge(generation, FewRows.of(frame) if way == "direct" else frame, key, commit)


def _killing(function: Callable[..., Any], *, after: bool) -> Callable[..., Any]:
    def killed(*arguments: Any, **named: Any) -> Any:
        if after:
            function(*arguments, **named)
        raise Killed

    return killed


def test_a_compaction_under_a_batch_is_noticed(both: Callable[..., Both], directly: list[int]) -> None:
    made = both(SEED + 1, {"id": "bigint"})
    made.batch()
    before = made.check(None)
    commit = JavaTable.commit
    times: list[int] = []

    def beside(self: JavaTable, *arguments: Any) -> Any:
        if not times:
            times.append(1)
            _compacted(made)
        return commit(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JavaTable, "commit", beside)
        while not times or len(directly) < 3:
            made.batch()
            before = made.check(before)


def _lineage(both: Both) -> list[str]:
    """Return the rows of the direct table with their ids and the numbers of the commits that changed them last."""
    sql = f"SELECT *, _row_id, _last_updated_sequence_number FROM {both.ways['direct'].table()}"
    return sorted(map(repr, both.session.sql(sql).collect()))


def _data_files(both: Both) -> int:
    sql = f"SELECT count(*) FROM {both.ways['direct'].table()}.files WHERE content = 0"
    return int(both.session.sql(sql).collect()[0][0])


def _write_files(both: Both) -> None:
    """Write batches until there are files to merge: one that only deletes rows adds none."""
    while _data_files(both) < MIN_FILES:
        both.batch()


@pytest.fixture
def no_procedure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Iceberg's own procedures fail."""

    def fail(_: IcebergTarget, procedure: str, *__: Any) -> None:
        raise AssertionError(f"{procedure} is called")

    monkeypatch.setattr(IcebergTarget, "call", fail)


@pytest.mark.parametrize("seed", range(SEED + 20, SEED + 20 + ROUNDS))
def test_small_files_are_merged_with_all_that_is_known_of_their_rows(
    both: Callable[..., Both], directly: list[int], no_procedure: None, seed: int
) -> None:
    made = both(seed)
    made.columns = {f"v{number}": kind for number, kind in enumerate(sorted(VALUES))}
    for _ in range(3):
        _write_files(made)
        before, lineage = made.check(None), _lineage(made)
        assert compact(made.ways["direct"])["files_rewritten"] >= MIN_FILES
        assert _data_files(made) <= 2
        assert _lineage(made) == lineage
        made.check(before)
        made.batch()
        made.check(before)
        _column_added(made)
    assert len(directly) == made.made


def test_a_table_without_rows_is_merged_to_no_file(both: Callable[..., Both], no_procedure: None) -> None:
    made = both(SEED, {"id": "int"})
    _write_files(made)
    rows = made.rows(list(range(60)))
    made.number += 1
    _merge(made, "direct", rows, [True] * 60, (made.generation, ["id"], Commit(cut(made.number), level_ms=5)))
    assert compact(made.ways["direct"])["files_added"] == 0
    assert _lineage(made) == []
    assert _data_files(made) == 0


def test_a_merge_of_files_that_ends_anywhere_changes_no_row(both: Callable[..., Both]) -> None:
    made = both(SEED, {"id": "int"})
    for owner, name, after in (
        (JavaTable, "write", False),
        (JavaTable, "write", True),
        (JavaTable, "rewrite", False),
        (JavaTable, "rewrite", True),
    ):
        _write_files(made)
        lineage, before = _lineage(made), made.check(None)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, _killing(getattr(owner, name), after=after))
            with pytest.raises(Killed):
                compact(made.ways["direct"])
        made.open()
        assert _lineage(made) == lineage
        made.batch()
        made.check(before)


def test_files_whose_rows_are_deleted_meanwhile_are_not_merged(both: Callable[..., Both]) -> None:
    made = both(SEED, {"id": "int"})
    _write_files(made)
    rewrite = JavaTable.rewrite

    def beside(self: JavaTable, *arguments: Any) -> None:
        rows = made.rows(list(range(30)))
        made.number += 1
        for way in made.ways:
            _merge(made, way, rows, [True] * 30, (made.generation, ["id"], Commit(cut(made.number), level_ms=5)))
        rewrite(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JavaTable, "rewrite", beside)
        compact(made.ways["direct"])
    made.check(None)
    made.batch()
    made.check(None)


def test_an_expiry_deletes_the_files_of_what_it_expires_alone(both: Callable[..., Both]) -> None:
    made = both(SEED + 7, {"id": "int"})
    direct = made.ways["direct"]

    def tagged() -> list[str]:
        rows = made.session.sql(f"SELECT * FROM {direct.table()} VERSION AS OF 'somebody_s'").collect()
        return sorted(map(repr, rows))

    made.batch()
    direct.tag("somebody_s", direct.snapshots()[0].id)
    rows = tagged()
    for _ in range(3):
        for _ in range(4):
            made.batch()
        assert len(direct.snapshots()) > 4
        _expired(made)
        assert len(direct.snapshots()) <= 2
        made.check(None)
        assert tagged() == rows


def test_an_index_that_is_in_use_is_left_alone(both: Callable[..., Both], directly: list[int]) -> None:
    made = both(SEED + 2, {"id": "string"})
    made.batch()
    before = made.check(None)
    beside = made.session.newSession()
    other = IcebergTarget(beside, made.warehouse, made.names["direct"])
    assert other.live() is not None
    mine, session = made.ways["direct"], made.sessions["direct"]
    made.ways["direct"], made.sessions["direct"] = other, beside
    made.batch()
    before = made.check(before)
    assert len(directly) == 1
    made.ways["direct"], made.sessions["direct"] = mine, session
    made.batch()
    made.check(before)
    assert len(directly) == 2


def test_a_damaged_index_is_made_anew(both: Callable[..., Both], directly: list[int]) -> None:
    made = both(SEED + 6, {"id": "int"})
    made.batch()
    before = made.check(None)
    for names in ("*", "CURRENT", "*.log", "MANIFEST*"):
        made.close()
        for path in _folder(made).rglob(names):
            if path.is_file():
                path.write_bytes(b"damaged")
        made.open()
        made.batch()
        before = made.check(before)
    shutil.rmtree(_folder(made))  # under the open index
    for _ in range(2):
        made.batch()
        before = made.check(before)
    assert len(directly) == made.made


def _forgets_deleted(vector: Any) -> Any:
    from pyroaring import BitMap64

    return BitMap64()


MISTAKES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "deleted positions are forgotten": lambda patch: patch.setattr(writer, "_copy", _forgets_deleted),
    "keys are not looked up": lambda patch: patch.setattr(KeyIndex, "get", lambda self, keys: [None] * len(keys)),
    "other commits are not noticed": lambda patch: patch.setattr(
        DirectWriter, "_synchronized", lambda self, table, head: self._index or KeyIndex(self._folder, self._key)
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_planted_mistakes_are_found(both: Callable[..., Both], monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    made = both(SEED + 3, {"id": "int"})
    made.batch()
    MISTAKES[mistake](monkeypatch)
    # By the comparison, or because Iceberg refuses to read two deletion vectors of one file.
    with pytest.raises((AssertionError, KeyError, Py4JJavaError)):
        _play_over_merges(made)


def _play_over_merges(both: Both) -> None:
    for _ in range(4):
        _written_by_merge(both)
        both.batch()
        both.check(None)


def test_files_that_only_spark_can_read_are_no_obstacle(
    both: Callable[..., Both], monkeypatch: pytest.MonkeyPatch, directly: list[int]
) -> None:
    def refused(*arguments: Any) -> None:
        raise PermissionError("not for this process")

    made = both(SEED + 5, {"id": "int"})
    monkeypatch.setattr(writer, "read_keys", refused)
    made.batch()
    made.check(None)
    assert not directly


def test_without_a_home_folder_there_is_no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then Spark writes the batches; nothing fails."""

    def unknown(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    server = Warehouse(uri="jdbc:postgresql://127.0.0.1/catalog", location="/nowhere", namespace="views")
    assert index_folder(server) is not None
    monkeypatch.setattr(Path, "expanduser", unknown)
    assert index_folder(server) is None


def test_another_key_makes_the_index_anew(tmp_path: Path) -> None:
    index = KeyIndex(tmp_path / "index", ["id"])
    index.commit(Changes(), 5)
    index.close()
    with pytest.raises(IndexUnusable):
        KeyIndex(tmp_path / "index", ["id", "part"])
    same = KeyIndex(tmp_path / "index", ["id"])
    assert same.snapshot == 5
    same.close()


def test_pyiceberg_reads_the_rows(both: Callable[..., Both]) -> None:
    made = both(SEED + 4)
    for _ in range(3):
        made.batch()
    with opened(made.warehouse) as catalog:
        found = {
            way: catalog.load_table((made.warehouse.namespace, name)).scan().to_arrow().to_pylist()
            for way, name in made.names.items()
        }
    assert sorted(map(repr, found["direct"])) == sorted(map(repr, found["merged"]))


def test_few_rows_with_many_bytes_are_not_collected(spark: SparkSession) -> None:
    """They would be in the driver's memory at once."""
    large = spark.range(12).select(F.expr("repeat(uuid(), 100000)").alias("body")).persist()
    small = spark.range(12).persist()
    try:
        assert large.count() == small.count() == 12
        assert not are_few(12, large)
        assert are_few(12, small)
        assert not are_few(10_001, small)
    finally:
        large.unpersist()
        small.unpersist()
