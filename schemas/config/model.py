"""The model of ``tailrace.toml``; the reference page and the JSON Schema are generated from it.

Precedence: flags, environment (``TAILRACE__SECTION__KEY``), file, defaults.
``${VAR}`` and ``${VAR:-default}`` are expanded after parsing, inside string values only; ``$$`` is a dollar sign.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ByteSize, ConfigDict, Field, SecretStr, ValidationInfo, field_validator, model_validator

from tailrace.schemas.config.dsn import check
from tailrace.schemas.config.listen import ListenAddress
from tailrace.schemas.config.secret_file import with_files
from tailrace.schemas.lsn import parse_lsn
from tailrace.schemas.shapes import ShapeName
from tailrace.schemas.table_layout import PartitionField, SortField
from tailrace.schemas.table_names import parts_of

ToastWay = Literal["cache", "reread"]
Publish = Literal["all", "insert"]
_NAME: Final = r"^[a-z_][a-z0-9_]{0,62}$"
_PREFIX: Final = r"^[A-Za-z0-9_-]+$"
PATTERNS: Final = {
    _NAME: "lower-case letters, digits (not first) and _, at most 63 characters",
    _PREFIX: "letters, digits, _ and - only",
}
"""The string patterns, described in words."""

Name = Annotated[str, Field(pattern=_NAME)]


_LAYOUTS: Final = {
    "warehouse": ("partition_by", "sort_by", "table_properties"),
    "search": ("mapping", "index_settings", "routing"),
}
"""The keys of a view that describe the layout of each target."""

_PROCESS_BYTES = 100_663_296
"""Memory of the process without data: Python, libraries, connections, the catalog of some hundred tables."""


class KeyFault(ValueError):
    """A fault of one key, found by a check of its whole section; `key` is dotted, relative to that section."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


class Section(BaseModel):
    """A section of the file; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Source(Section):
    """The PostgreSQL database whose changes are captured."""

    dsn: SecretStr = Field(
        description="libpq connection string or URI; the password may come from dsn_file or PGPASSWORD"
    )
    dsn_file: str | None = Field(None, description="file with the connection string; read if dsn is not set")
    slot: Name = Field(
        "tailrace", description="replication slot; created at the first start, never dropped automatically"
    )
    publication: Name = Field(
        "tailrace",
        max_length=57,
        description="publication; created at the first start, with {publication}_nokey for tables without a key",
    )
    tables: list[str] = Field(
        default_factory=lambda: ["public.*"],
        description='captured tables, "schema.table" with * and ?; "!" in front excludes; other tables are not'
        " captured, even if they are in a publication",
    )
    publish: Publish = Field(
        "all",
        description='changes that the publications publish: "all", or only "insert"; with "insert", every topic is a'
        " log of inserts without keys, without updates, deletes and truncates, and views of it need shape log",
    )
    keys: dict[str, Annotated[list[str], Field(min_length=1)]] = Field(
        default_factory=dict,
        description='columns that identify the rows of a table with REPLICA IDENTITY FULL, by "schema.table"; default:'
        " its primary key",
    )
    messages: list[str] = Field(
        default_factory=lambda: ["*"],
        description="logical messages to write to the topic {prefix}.message, by their prefix, with * and ?;"
        ' "!" in front excludes',
    )
    as_text: list[str] = Field(
        default_factory=list,
        description='columns to write as the text that PostgreSQL prints, "schema.table.column" with * and ?',
    )
    exclude: list[str] = Field(
        default_factory=list, description="columns to leave out of the topic; patterns as in as_text"
    )
    mask: dict[str, Annotated[int, Field(ge=0)]] = Field(
        default_factory=dict,
        description="columns of which only the last n characters are shown, the others are *; a value of n characters"
        " or fewer is masked completely",
    )
    hash: list[str] = Field(
        default_factory=list,
        description="columns whose values are replaced by their HMAC-SHA-256 with the key hash_salt",
    )
    hash_salt: SecretStr | None = Field(None, description="key of the HMAC, for example 64 random digits")
    hash_salt_file: str | None = Field(None, description="file with the salt; read if hash_salt is not set")
    on_table_error: Literal["park", "stop", "divert"] = Field(
        "park",
        description="action if a table cannot continue (a value that cannot be stored exactly, a record that is too"
        " large, a lost key): park the table and continue with all others, stop the daemon, or, for values and records,"
        " divert the change to the dead-letter topic {prefix}.tailrace.dead",
    )
    on_schema_change: Literal["refill", "stop"] = Field(
        "refill",
        description="action if readers of a topic cannot follow a change of its table (another key, another type):"
        " empty the topic by a truncate record and read all rows again while streaming, or stop the daemon so that an"
        " operator can decide",
    )
    streaming: bool = Field(
        False,
        description="receive large transactions before their commit; they wait in memory, and in spool_dir when they"
        " exceed a tenth of the part of memory.limit above 96 MiB",
    )
    spool_dir: str | None = Field(
        None, description="folder for transactions in progress; default: the system's temporary folder"
    )
    heartbeat_s: float = Field(
        30,
        ge=0,
        description="a logical message is written if the slot has not moved for this many seconds although the server"
        " writes WAL; 0 turns it off",
    )
    toast: ToastWay = Field(
        "cache",
        description="unchanged large (TOAST) values, which the WAL lacks: take them from a cache file on this host, or"
        " read them again from the table",
    )
    toast_by_table: dict[str, ToastWay] = Field(
        default_factory=dict,
        description='the same by table pattern, {"public.docs" = "reread"}; the last match applies',
    )
    toast_cache_dir: str | None = Field(
        None,
        description="folder of the cache file; default: tailrace/{prefix}-{slot} in $STATE_DIRECTORY, $XDG_STATE_HOME"
        " or ~/.local/state",
    )
    toast_cache_bytes: int = Field(
        1_073_741_824,
        ge=1_048_576,
        description="maximum size of the cache file in bytes; above it, the oldest values are removed and, if needed,"
        " read again from the table",
    )

    @model_validator(mode="before")
    @classmethod
    def _read_files(cls, values: object) -> object:
        return with_files(values, "dsn", "hash_salt")

    @field_validator("dsn")
    @classmethod
    def _can_be_read(cls, dsn: SecretStr) -> SecretStr:
        check(dsn.get_secret_value())
        return dsn

    @model_validator(mode="before")
    @classmethod
    def _former_key(cls, values: object) -> object:
        if isinstance(values, dict) and "on_error" in values and "on_table_error" not in values:
            return {"on_table_error" if key == "on_error" else key: value for key, value in values.items()}
        return values

    @field_validator("tables")
    @classmethod
    def _any_table(cls, tables: list[str]) -> list[str]:
        if all(pattern.startswith("!") for pattern in tables):
            raise ValueError('no pattern includes a table; write for example ["public.*", "!public.audit_*"]')
        return tables

    @field_validator("on_schema_change", mode="before")
    @classmethod
    def _former_name(cls, value: object) -> object:
        return "refill" if value == "truncate" else value

    @model_validator(mode="after")
    def _no_keys_of_logs(self) -> Source:
        if self.publish == "insert" and self.keys:
            raise KeyFault(
                "keys", 'keys cannot be combined with publish = "insert": topics of inserts only are logs without keys'
            )
        return self

    @model_validator(mode="after")
    def _salted(self) -> Source:
        if self.hash and not (self.hash_salt and self.hash_salt.get_secret_value()):
            raise KeyFault(
                "hash_salt", "hash needs hash_salt or hash_salt_file: without a salt, values can be found from hashes"
            )
        return self


class Kafka(Section):
    """The Kafka cluster, and the topics that the changes are written to."""

    bootstrap: str = Field("localhost:9092", description="bootstrap servers")
    prefix: str = Field("tailrace", pattern=_PREFIX, description="topics are {prefix}.{schema}.{table}")
    partitions: int = Field(4, ge=1, le=1000, description="partitions of the topic of a new table")
    replication_factor: int = Field(
        -1, ge=-1, description="replication factor of new topics; -1 is the broker's default"
    )
    min_compaction_lag_ms: int = Field(
        21_600_000, ge=0, description="minimum compaction lag; a cut stays readable for this long"
    )
    delete_retention_ms: int = Field(86_400_000, ge=0, description="time that a tombstone stays after compaction")
    max_message_bytes: int = Field(
        16_777_216, ge=1_048_576, description="size of the largest record; the topics get the same limit"
    )
    options: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="librdkafka options for every client, e.g. security.protocol"
    )
    secret_options: dict[str, SecretStr] = Field(
        default_factory=dict, description="librdkafka options with secret values, e.g. sasl.password"
    )
    java_options: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="options of the Java client, which Spark uses; they override the options translated from options"
        " and secret_options",
    )


class Snapshot(Section):
    """The first snapshot, and later reads of tables."""

    mode: Literal["exported", "interleaved"] = Field(
        "exported",
        description="exported: the first snapshot is at one LSN, and streaming starts after it; interleaved: tables are"
        " read in chunks while streaming, so topics are live at once and the slot does not retain WAL, but no cut is a"
        " state of a table until that table is read",
    )
    workers: int = Field(2, ge=1, le=32, description="number of parallel COPY connections")
    chunk_bytes: int = Field(
        16_777_216, ge=8192, description="size of the part of a table, with TOAST, that one COPY reads"
    )
    max_bytes_per_s: int | None = Field(
        None,
        ge=1024,
        description="maximum rate of reading tables, in the first snapshot and while streaming, in bytes of COPY text"
        " per second; default: unlimited",
    )
    where: dict[str, Annotated[str, Field(min_length=1)]] = Field(
        default_factory=dict,
        description='SQL condition on the rows to copy, by "schema.table"; changes of all rows are streamed',
    )


class Delivery(Section):
    """How changes are grouped into Kafka transactions."""

    guarantee: Literal["exactly-once", "at-least-once"] = Field(
        "exactly-once",
        description="at-least-once writes without Kafka transactions: after a fault, records that follow the last"
        " position record may be written again with the same positions, and a paused daemon that resumes is not fenced",
    )
    max_transaction_bytes: int = Field(
        33_554_432, ge=65_536, description="maximum size of a Kafka transaction; a larger source transaction is split"
    )
    max_transaction_ms: int = Field(500, ge=1, description="maximum time until a Kafka transaction is committed")
    start_timeout_s: float = Field(
        60,
        ge=0,
        description="seconds for which `tailrace run` tries again while a server does not answer at its start; once it"
        " has streamed, it tries again without limit",
    )


class Health(Section):
    """Health and metrics of daemon and views job, and the daemon's status page, over HTTP, and the limit of a stall."""

    listen: str = Field(
        "127.0.0.1:9464",
        description="address host:port of the daemon; port 0 picks a free port, an empty string turns it off; if the"
        " default port is in use, the next free port is chosen, with a warning",
    )
    views_listen: str = Field(
        "127.0.0.1:9485", description="address host:port of `tailrace views follow`; as for `listen`"
    )
    page: bool = Field(
        False,
        description="serve a status page at / of `listen`: read-only and without a login, like the other paths",
    )
    stall_s: float = Field(
        60,
        ge=15,
        description="seconds without progress of the position, although there is WAL, after which it is a stall",
    )

    @property
    def daemon_address(self) -> ListenAddress | None:
        """The address of `listen`; None if it is off."""
        return self._address("listen")

    @property
    def views_address(self) -> ListenAddress | None:
        """The address of `views_listen`; None if it is off."""
        return self._address("views_listen")

    def _address(self, key: str) -> ListenAddress | None:
        text: str = getattr(self, key)
        return ListenAddress(key, text, key not in self.model_fields_set) if text else None

    @field_validator("listen", "views_listen")
    @classmethod
    def _an_address(cls, listen: str, info: ValidationInfo) -> str:
        host, _, port = listen.rpartition(":")
        if listen and not (host and port.isdecimal() and int(port) < 65536):
            example = cls.model_fields[info.field_name or "listen"].default
            raise ValueError(f'write host:port, for example "{example}"')
        return listen


class Memory(Section):
    """Memory limit of the daemon, whatever the source or Kafka do."""

    limit: ByteSize = Field(
        ByteSize(268_435_456),
        description='maximum resident memory, e.g. "256MiB"; a change of a row that is larger than a fifth of the part'
        " above 96 MiB may need 64 MiB plus 2.2 times its size",
    )

    @property
    def spare(self) -> int:
        """Bytes for data: the limit without the memory of the process itself."""
        return self.limit - _PROCESS_BYTES

    @property
    def queue_bytes(self) -> int:
        """Bytes for records on their way to Kafka."""
        return self.spare * 3 // 10

    @property
    def spool_bytes(self) -> int:
        """Bytes for transactions in progress; the excess goes to files."""
        return self.spare // 10

    @property
    def record_bytes(self) -> int:
        """Bytes of the largest record that fits, with its message and libpq's copy of the message."""
        return self.spare // 5


class Log(Section):
    """The log of the daemon and the views job on standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="minimum level of a log record")


class Traces(Section):
    """Traces of OpenTelemetry; they need `pip install 'tailrace[traces]'`."""

    endpoint: str | None = Field(
        None,
        pattern=r"^https?://[^\s@]+$",
        description="URL of a receiver of OTLP over HTTP, such as http://localhost:4318, without a password;"
        " without an endpoint there are no traces",
    )
    share: float = Field(1.0, ge=0, le=1, description="share of the Kafka transactions that are traced")


class Warehouse(Section):
    """An Iceberg catalog for `target = "warehouse"`."""

    catalog: Name = Field("tailrace", description="name of the catalog in Spark SQL")
    uri: str = Field(
        description="JDBC URI of the catalog, e.g. jdbc:sqlite:/path/catalog.db; or the URL of a REST catalog"
    )
    location: str = Field(description="folder or bucket that holds the tables")
    namespace: Name = Field("views", description="namespace of the view tables")
    keep_s: int = Field(3600, ge=0, description="seconds that a view can be read back; older snapshots expire")
    compact_after: int = Field(
        50, ge=1, description="commits to a table after which its small files are merged and old snapshots expire"
    )
    index_dir: str | None = Field(
        None,
        description="folder of the key indexes, by which small batches are written, and of the rows that they look up;"
        " default: beside a catalog on SQLite, else tailrace/indexes in $STATE_DIRECTORY, $XDG_STATE_HOME",
    )
    upkeep_share: float = Field(
        0.1, ge=0, le=1, description="maximum share of the time of `views follow` for this upkeep; 0 turns it off"
    )

    @field_validator("uri")
    @classmethod
    def _with_its_protocol(cls, uri: str) -> str:
        if uri.partition(":")[0] in ("sqlite", "postgresql", "postgres", "mysql", "mariadb"):
            raise ValueError('write a JDBC URI, for example "jdbc:sqlite:/path/catalog.db"')
        return uri

    @property
    def sqlite_file(self) -> str | None:
        """Return the file of a catalog on SQLite; None for another catalog."""
        if not self.uri.startswith("jdbc:sqlite:"):
            return None
        return self.uri.removeprefix("jdbc:sqlite:").removeprefix("file:").partition("?")[0]


class Verify(Section):
    """Continuous verification: `tailrace views follow` compares its views with their content from the topics."""

    every_s: float = Field(
        0,
        ge=0,
        description="seconds in which each view is compared once, one after another, at its own cut; 0 turns it off",
    )
    share: float = Field(
        0.1,
        gt=0,
        le=1,
        description="maximum share of the time of `views follow` for it: with many or large views, each is compared"
        " less often than every_s says",
    )
    driver_memory: str = Field(
        "580m", description="JVM heap of the Spark job of `tailrace verify`; what does not fit is on disk"
    )


class HttpServer(Section):
    """A server that is reached over HTTP or HTTPS: credentials and certificates.

    Files are in PEM format, and must be on every machine that connects.
    """

    user: str | None = Field(None, description="user for basic authentication")
    password: SecretStr | None = Field(None, description="password for basic authentication")
    password_file: str | None = Field(None, description="file with the password; read if password is not set")
    ca_file: str | None = Field(
        None, description="CA of the server's certificate, in PEM; default: $SSL_CERT_FILE, else those of certifi"
    )
    cert_file: str | None = Field(None, description="client certificate, in PEM, for a server that requires one")
    key_file: str | None = Field(None, description="key of the client certificate, in PEM; default: in cert_file")

    urls_key: ClassVar[str]
    """The key that has the URLs."""

    @property
    def urls(self) -> list[str]:
        """Return the URLs of the server."""
        raise NotImplementedError

    @model_validator(mode="before")
    @classmethod
    def _read_password(cls, values: object) -> object:
        return with_files(values, "password")

    @model_validator(mode="after")
    def _no_way_round(self) -> Self:
        try:
            parts = [urlsplit(url) for url in self.urls]
        except ValueError:  # its text quotes the URL, and with it a password
            parts = []
        if not parts or not all(part.scheme in ("http", "https") and part.hostname for part in parts):
            raise KeyFault(self.urls_key, 'write URLs, for example "https://localhost:9200"')
        if any("@" in url for url in self.urls):
            raise KeyFault(self.urls_key, "give user and password as separate keys, not in the URL")
        if (self.user is None) != (self.password is None):
            raise KeyFault("password" if self.user else "user", "give both user and password, or neither")
        if self.key_file and not self.cert_file:
            raise KeyFault("cert_file", "key_file needs cert_file")
        if (self.ca_file or self.cert_file) and any(part.scheme == "http" for part in parts):
            raise KeyFault(self.urls_key, "ca_file and cert_file need https:// in every URL: http:// is without TLS")
        return self


class Registry(HttpServer):
    """A schema registry, which assigns the schema ids; the schemas are also on the schemas topic."""

    urls_key: ClassVar[str] = "url"

    url: str = Field(
        description="URLs of a Confluent-compatible API, comma-separated; Apicurio: http://HOST:PORT/apis/ccompat/v7"
    )

    @property
    def urls(self) -> list[str]:
        """Return the URLs of the server."""
        return [url.strip() for url in self.url.split(",")]


class Search(HttpServer):
    """OpenSearch for `target = "search"`."""

    urls_key: ClassVar[str] = "hosts"

    hosts: list[str] = Field(description="URLs of the cluster")
    index_prefix: str = Field("", description="prefix of every index and alias")

    @property
    def urls(self) -> list[str]:
        """Return the URLs of the server."""
        return self.hosts


class Spark(Section):
    """The Spark session that maintains the views."""

    master: str = Field("local[2]", description="--master of spark-submit")
    trigger_interval_ms: int = Field(
        250,
        ge=0,
        description="minimum time between two batches of `views follow`; each batch is a commit to the tables that it"
        " changes",
    )
    lookups: bool = Field(
        True,
        description="keep the rows of tables that queries read in local files (in warehouse.index_dir), and look up the"
        " rows that a small batch reaches; false: such a batch reads the tables",
    )
    views_at_once: int = Field(2, ge=1, description="views that `views follow` maintains at the same time")
    driver_memory: str = Field("1500m", description="JVM heap of the driver")
    conf: dict[str, str] = Field(default_factory=dict, description="further Spark settings")


class View(Section):
    """A view: a captured table or a query with a key, maintained in a target."""

    table: str | None = Field(
        None,
        description='captured table that the view shows as a whole, "schema.table"; a name with a dot needs quotes:'
        ' "shop.v2"."orders"',
    )
    query: str | None = Field(None, description="Spark SQL over captured tables and other views")
    key: list[str] | None = Field(None, description="key columns of the view; default: the table's primary key")
    target: Literal["warehouse", "search"] = Field(
        "warehouse", description="an Iceberg table in the warehouse, or an index in OpenSearch"
    )
    shape: ShapeName = Field(
        "current",
        description="rows of the view: current, the newest version of each key; history, all versions; log, all"
        " changes; percolate, the stored queries that each change matches",
    )
    lateness_s: float | None = Field(
        None,
        ge=0,
        description="for windows on time, in seconds: a row that is older than the newest by more than this is counted"
        " and listed as late; it still corrects its window",
    )
    lateness_by: list[str] = Field(
        default_factory=list,
        description="columns of the table that has the time, for example the device: a row is late by the newest row"
        " with the same values, so a fast clock makes no row of another one late; default: by the newest of all rows",
    )
    history_from: str | None = Field(
        None,
        description="LSN from which a view of shape history or log has every version; default: the earliest"
        " LSN from which the topic still has every version; a rebuild does not change it",
    )
    refresh: Literal["incremental", "full"] = Field(
        "incremental", description="for a query: recompute the units that changed, or the whole query at each change"
    )
    asof_before: Literal["none", "first"] = Field(
        "none",
        description="for a query with ASOF joins: the match of a row whose time is before the first version of a key:"
        " none, or that first version",
    )
    queries: str | None = Field(
        None, description='for percolate: the captured column with the stored queries, "schema.table.column"'
    )
    queries_index: str | None = Field(
        None, description="for percolate, instead of queries: an existing index with a percolator field"
    )

    deletes: Literal["hard", "soft"] = Field(
        "hard",
        description="for the warehouse, shape current of a table: hard removes a deleted row, soft retains it with the"
        " time of its deletion in the column _deleted_at; a change needs `views rebuild`",
    )
    partition_by: list[str] = Field(
        default_factory=list,
        description="for the warehouse: partitions of the table, as Spark writes them: a column, years, months, days or"
        " hours of it, bucket(16, id), truncate(4, name); a change needs `views rebuild`",
    )
    sort_by: list[str] = Field(
        default_factory=list,
        description='for the warehouse: order of the rows in files, for example ["placed DESC"]; a change needs'
        " `views rebuild`",
    )
    table_properties: dict[str, str | int | float | bool] = Field(
        default_factory=dict,
        description="for the warehouse: further properties of the Iceberg table; a change is applied by the next write"
        " after a start",
    )
    mapping: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="for search: by column, parameters of its field, merged over those that its type gives; a change"
        " needs `views rebuild`",
    )
    index_settings: dict[str, Any] = Field(
        default_factory=dict,
        description="for search: further settings of the index, for example number_of_shards or analysis; a change"
        " needs `views rebuild`, except of the replicas",
    )
    routing: str | None = Field(
        None,
        description="for search: the key column whose value decides the shard of a document; a change needs"
        " `views rebuild`",
    )

    keep_generations: int = Field(
        1, ge=0, le=100, description="older generations that are retained after a swap, for `views rollback`"
    )

    @model_validator(mode="after")
    def _one_source(self) -> View:
        if (self.table is None) == (self.query is None):
            raise ValueError("give either `table` or `query`")
        if self.asof_before != "none" and self.query is None:
            raise ValueError("`asof_before` needs a `query` with ASOF joins")
        if self.lateness_s is not None and (self.query is None or self.refresh == "full"):
            raise ValueError('`lateness_s` needs a `query` with refresh = "incremental"')
        if self.lateness_by and self.lateness_s is None:
            raise ValueError("`lateness_by` needs `lateness_s`")
        return self

    @model_validator(mode="after")
    def _stored_queries(self) -> View:
        given = [name for name in ("queries", "queries_index") if getattr(self, name) is not None]
        if self.shape != "percolate":
            if given:
                raise ValueError(f'`{given[0]}` needs shape = "percolate"')
            return self
        if self.history_from is not None:
            raise ValueError("`history_from` cannot be set: a percolate view has matches from its first batch on")
        if len(given) != 1:
            raise ValueError('shape = "percolate" needs either `queries` or `queries_index`')
        if self.queries is not None and (len(parts := parts_of(self.queries)) != 3 or not all(parts)):
            raise ValueError('write queries = "schema.table.column", with quotes around a name with a dot')
        return self

    @field_validator("partition_by", "sort_by")
    @classmethod
    def _fields_of_a_layout(cls, fields: list[str], info: ValidationInfo) -> list[str]:
        parse = PartitionField.parse if info.field_name == "partition_by" else SortField.parse
        found = [parse(text) for text in fields]
        if len(set(found)) < len(found):
            raise ValueError("name each field once")
        return fields

    @model_validator(mode="after")
    def _layout_of_its_target(self) -> View:
        for target, names in _LAYOUTS.items():
            given = next((name for name in names if getattr(self, name)), None)
            if given is not None and self.target != target:
                raise ValueError(f'`{given}` needs target = "{target}"')
        given = next((name for name in ("partition_by", "sort_by") if getattr(self, name)), None)
        if given is not None and self.shape == "percolate":
            raise ValueError(f'`{given}` cannot be set with shape = "percolate": its matches cannot be rebuilt')
        return self

    @model_validator(mode="after")
    def _soft_deletes_of_a_table(self) -> View:
        if self.deletes == "soft":
            if self.query is not None:
                raise ValueError('`deletes = "soft"` needs a `table`: a row of a query may vanish without a deletion')
            if self.target != "warehouse":
                raise ValueError('`deletes = "soft"` needs target = "warehouse": a search would find deleted rows')
            if self.shape != "current":
                raise ValueError(f'`deletes = "soft"` needs shape = "current": "{self.shape}" deletes no rows')
        return self

    @field_validator("history_from")
    @classmethod
    def _an_lsn(cls, text: str | None) -> str | None:
        if text is not None:
            try:
                parse_lsn(text)
            except ValueError:
                raise ValueError('write an LSN as PostgreSQL prints it, for example "0/16B3748"') from None
        return text


class Config(Section):
    """All sections of the file."""

    source: Source
    kafka: Kafka = Field(default_factory=lambda: Kafka())
    snapshot: Snapshot = Field(default_factory=lambda: Snapshot())
    delivery: Delivery = Field(default_factory=lambda: Delivery())
    health: Health = Field(default_factory=lambda: Health())
    memory: Memory = Field(default_factory=lambda: Memory())
    log: Log = Field(default_factory=lambda: Log())
    traces: Traces = Field(default_factory=lambda: Traces())
    registry: Registry | None = None
    warehouse: Warehouse | None = None
    search: Search | None = None
    spark: Spark = Field(default_factory=lambda: Spark())
    verify: Verify = Field(default_factory=lambda: Verify())
    views: dict[Name, View] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits(self) -> Config:
        if self.kafka.max_message_bytes > self.memory.record_bytes:
            least = _PROCESS_BYTES + 5 * self.kafka.max_message_bytes
            raise KeyFault(
                "memory.limit", f"memory.limit must be at least {least} bytes for this kafka.max_message_bytes"
            )
        return self
