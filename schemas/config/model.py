"""The whole of ``tailrace.toml`` as one model; the reference page and the JSON Schema come from it.

Order: flags, then environment (``TAILRACE__SECTION__KEY``), then the file, then the defaults.
``${VAR}`` and ``${VAR:-default}`` are expanded after parsing, inside string values only; ``$$`` is a dollar sign.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ByteSize, ConfigDict, Field, SecretStr, field_validator, model_validator

from tailrace.schemas.config.dsn import check
from tailrace.schemas.config.secret_file import with_files
from tailrace.schemas.lsn import parse_lsn
from tailrace.schemas.shapes import ShapeName

ToastWay = Literal["cache", "reread"]
Publish = Literal["all", "insert"]
_NAME: Final = r"^[a-z_][a-z0-9_]{0,62}$"
_PREFIX: Final = r"^[A-Za-z0-9_-]+$"
PATTERNS: Final = {
    _NAME: "lower-case letters, digits (not first) and _, at most 63 of them",
    _PREFIX: "letters, digits, _ and - only",
}
"""The patterns of strings, in words."""

Name = Annotated[str, Field(pattern=_NAME)]


_PROCESS_BYTES = 100_663_296
"""Python, libraries, connections and what is known of some hundred tables."""


class Section(BaseModel):
    """A table of the file: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Source(Section):
    """PostgreSQL."""

    dsn: SecretStr = Field(
        description="libpq connection string or URI; the password may come from dsn_file or PGPASSWORD"
    )
    dsn_file: str | None = Field(None, description="file that holds the connection string, in place of dsn")
    slot: Name = Field("tailrace", description="replication slot; made on the first run, never dropped by itself")
    publication: Name = Field(
        "tailrace",
        max_length=57,
        description="publication; made on the first run, with {publication}_nokey for tables without a key",
    )
    tables: list[str] = Field(
        default_factory=lambda: ["public.*"],
        description='captured tables, "schema.table" with * and ?, "!" in front takes out; nothing else is captured,'
        " whatever a publication has",
    )
    publish: Publish = Field(
        "all",
        description='changes that the publications publish: "all", or "insert" alone; then every topic is a log of'
        " inserts, without keys: updates, deletes and truncates are not on it, and views of it have shape log",
    )
    keys: dict[str, Annotated[list[str], Field(min_length=1)]] = Field(
        default_factory=dict,
        description='columns that tell the rows of a table with REPLICA IDENTITY FULL apart, by "schema.table";'
        " default: its primary key",
    )
    messages: list[str] = Field(
        default_factory=lambda: ["*"],
        description='logical messages for the topic {prefix}.message, by their prefix, with * and ?, "!" takes out',
    )
    as_text: list[str] = Field(
        default_factory=list,
        description='columns that travel as PostgreSQL prints them, "schema.table.column" with * and ?',
    )
    exclude: list[str] = Field(
        default_factory=list, description="columns that are not on the topic at all; patterns as in as_text"
    )
    mask: dict[str, Annotated[int, Field(ge=0)]] = Field(
        default_factory=dict,
        description="columns of which only the last n characters can be read, the others are *; a value with no more"
        " than n is masked wholly",
    )
    hash: list[str] = Field(
        default_factory=list, description="columns whose values are replaced by their HMAC-SHA-256 under hash_salt"
    )
    hash_salt: SecretStr | None = Field(None, description="key of the hashes, for example 64 random digits")
    hash_salt_file: str | None = Field(None, description="file that holds the salt, in place of hash_salt")
    on_table_error: Literal["park", "stop", "divert"] = Field(
        "park",
        description="when a table cannot continue (a value that cannot be stored exactly, a record too large, a lost"
        " key): park the table and continue with all others, stop the daemon, or, for values and records, divert the"
        " change to the dead-letter topic {prefix}.tailrace.dead",
    )
    on_schema_change: Literal["refill", "stop"] = Field(
        "refill",
        description="when readers of a topic cannot follow a change of its table (another key, another type): empty the"
        " topic by a truncate record and read all rows again beside the stream, or stop the daemon for a person",
    )
    streaming: bool = Field(
        False,
        description="have large transactions sent before their commit; they wait in spool_dir (in memory up to 32 MiB)",
    )
    spool_dir: str | None = Field(
        None, description="folder for transactions in progress; default: the system's for temporary files"
    )
    heartbeat_s: float = Field(
        30,
        ge=0,
        description="a logical message is written when the slot has not moved for so long although the server writes"
        " WAL; 0 is never",
    )
    toast: ToastWay = Field(
        "cache",
        description="unchanged large values, which the WAL lacks: kept in a file here, or read again from the table",
    )
    toast_by_table: dict[str, ToastWay] = Field(
        default_factory=dict,
        description='the same for tables by pattern, {"public.docs" = "reread"}; the last one that matches counts',
    )
    toast_cache_dir: str | None = Field(
        None,
        description="folder of that file; default: tailrace/{prefix}-{slot} in $STATE_DIRECTORY, $XDG_STATE_HOME or"
        " ~/.local/state",
    )
    toast_cache_bytes: int = Field(
        1_073_741_824, ge=1_048_576, description="size of that file; above it the oldest values go, and are read again"
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

    @field_validator("on_schema_change", mode="before")
    @classmethod
    def _former_name(cls, value: object) -> object:
        return "refill" if value == "truncate" else value

    @model_validator(mode="after")
    def _no_keys_of_logs(self) -> Source:
        if self.publish == "insert" and self.keys:
            raise ValueError('keys do not go with publish = "insert": topics of inserts alone are logs, without keys')
        return self

    @model_validator(mode="after")
    def _salted(self) -> Source:
        if self.hash and not (self.hash_salt and self.hash_salt.get_secret_value()):
            raise ValueError("hash needs hash_salt or hash_salt_file: without a salt, hashes can be looked up")
        return self


class Kafka(Section):
    """Where the changes go."""

    bootstrap: str = Field("localhost:9092", description="bootstrap servers")
    prefix: str = Field("tailrace", pattern=_PREFIX, description="topics are {prefix}.{schema}.{table}")
    partitions: int = Field(4, ge=1, le=1000, description="partitions of a new table's topic")
    replication_factor: int = Field(-1, ge=-1, description="of new topics; -1 is the broker's default")
    min_compaction_lag_ms: int = Field(21_600_000, ge=0, description="how long every version stays: the cuts' life")
    delete_retention_ms: int = Field(86_400_000, ge=0, description="how long a tombstone stays after compaction")
    max_message_bytes: int = Field(16_777_216, ge=1_048_576, description="the largest record, and the topics' setting")
    options: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="librdkafka's own options for every client, e.g. security.protocol"
    )
    secret_options: dict[str, SecretStr] = Field(
        default_factory=dict, description="the same for values that must not be shown, e.g. sasl.password"
    )
    java_options: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="options of the Java client, through which Spark reads, in place of what is translated for it from"
        " options and secret_options",
    )


class Snapshot(Section):
    """The first copy."""

    mode: Literal["exported", "interleaved"] = Field(
        "exported",
        description="the first copy is of one moment, and the stream waits for it; or it is read chunk by chunk while"
        " the stream runs: topics are live at once and the slot holds no WAL back, but no cut is a state until the end",
    )
    workers: int = Field(2, ge=1, le=32, description="connections that COPY at the same time")
    chunk_bytes: int = Field(16_777_216, ge=8192, description="size of table, with TOAST, that one COPY reads")
    max_bytes_per_s: int | None = Field(
        None,
        ge=1024,
        description="how fast tables are read, in the first copy and beside the stream, as bytes of COPY's text;"
        " default: as fast as it can",
    )
    where: dict[str, Annotated[str, Field(min_length=1)]] = Field(
        default_factory=dict,
        description='condition in SQL on the rows to copy, by "schema.table"; changes are streamed of all rows',
    )


class Delivery(Section):
    """How changes are grouped into Kafka transactions."""

    guarantee: Literal["exactly-once", "at-least-once"] = Field(
        "exactly-once",
        description="at-least-once writes without transactions: what followed the last progress record may come again"
        " after a fault, with the same positions, and old records of a paused daemon are not kept out",
    )
    max_transaction_bytes: int = Field(33_554_432, ge=65_536, description="a larger source transaction is split")
    max_transaction_ms: int = Field(500, ge=1, description="a Kafka transaction is committed at the latest after this")


class Health(Section):
    """What the daemon tells about itself over HTTP (/livez, /readyz, /metrics), and when it calls itself stalled."""

    listen: str = Field(
        "127.0.0.1:9464",
        description="address; port 0 is any that is free, empty is off; the default gives way to the next free port,"
        " with a warning",
    )
    stall_s: float = Field(
        60, ge=15, description="a position that has not moved for so long although there is WAL is a stall"
    )

    @property
    def address(self) -> tuple[str, int]:
        """Return host and port of `listen`."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)

    @field_validator("listen")
    @classmethod
    def _an_address(cls, listen: str) -> str:
        host, _, port = listen.rpartition(":")
        if listen and not (host and port.isdecimal() and int(port) < 65536):
            raise ValueError('write host:port, for example "127.0.0.1:9464"')
        return listen


class Memory(Section):
    """How much the daemon takes, whatever the source or Kafka do."""

    limit: ByteSize = Field(
        ByteSize(268_435_456),
        description='resident memory, e.g. "256MiB", as long as no change of a row has more than a fifth of what is'
        " above 96 MiB; a larger one may add 2.2 times its size to 64 MiB",
    )

    @property
    def spare(self) -> int:
        """What there is for data."""
        return self.limit - _PROCESS_BYTES

    @property
    def queue_bytes(self) -> int:
        """For records on their way to Kafka."""
        return self.spare * 3 // 10

    @property
    def spool_bytes(self) -> int:
        """For transactions in progress; more of them goes to files."""
        return self.spare // 10

    @property
    def record_bytes(self) -> int:
        """The largest record that there is room for: its message, libpq's copy of that and the record itself."""
        return self.spare // 5


class Log(Section):
    """What the daemon and the views job write on standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level of a record")


class Warehouse(Section):
    """An Iceberg catalog for `target = "warehouse"`."""

    catalog: Name = Field("tailrace", description="name of the catalog in Spark SQL")
    uri: str = Field(description="JDBC URI of the catalog, e.g. jdbc:sqlite:/path/catalog.db")
    location: str = Field(description="folder or bucket that holds the tables")
    namespace: Name = Field("views", description="namespace of the view tables")
    keep_s: int = Field(3600, ge=0, description="how far back a view can be read; older snapshots expire")
    compact_after: int = Field(
        50, ge=1, description="commits to a table after which its small files are merged and old snapshots expire"
    )
    upkeep_share: float = Field(
        0.1, ge=0, le=1, description="the part of the time of `views follow` that this may take; 0 is never"
    )

    @property
    def sqlite_file(self) -> str | None:
        """Return the file of a catalog on SQLite; None for another catalog."""
        if not self.uri.startswith("jdbc:sqlite:"):
            return None
        return self.uri.removeprefix("jdbc:sqlite:").removeprefix("file:").partition("?")[0]


class HttpServer(Section):
    """A server that is asked over HTTP: how it knows us and, with https, we it. Files are in PEM, and on every machine
    that connects.
    """

    user: str | None = Field(None, description="basic auth")
    password: SecretStr | None = Field(None, description="basic auth")
    password_file: str | None = Field(None, description="file that holds the password, in place of password")
    ca_file: str | None = Field(
        None, description="CA that signed the server's certificate; default: $SSL_CERT_FILE, else those of certifi"
    )
    cert_file: str | None = Field(None, description="our certificate, for a server that asks for one")
    key_file: str | None = Field(None, description="its key; default: in cert_file, too")

    @property
    def urls(self) -> list[str]:
        """Return where it listens."""
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
            raise ValueError('write URLs, for example "https://localhost:9200"')
        if any("@" in url for url in self.urls):
            raise ValueError("user and password are keys of their own, not a part of the URL")
        if (self.user is None) != (self.password is None):
            raise ValueError("give both user and password, or neither")
        if self.key_file and not self.cert_file:
            raise ValueError("key_file needs cert_file")
        if (self.ca_file or self.cert_file) and any(part.scheme == "http" for part in parts):
            raise ValueError("ca_file and cert_file need https:// in every URL: http:// would go on without TLS")
        return self


class Registry(HttpServer):
    """A schema registry that gives the schemas their ids; they are on the schemas topic all the same."""

    url: str = Field(description="Confluent's API; of Apicurio http://HOST:PORT/apis/ccompat/v7; several with commas")

    @property
    def urls(self) -> list[str]:
        """Return where it listens."""
        return [url.strip() for url in self.url.split(",")]


class Search(HttpServer):
    """OpenSearch for `target = "search"`."""

    hosts: list[str] = Field(description="URLs of the cluster")
    index_prefix: str = Field("", description="put in front of every index and alias")

    @property
    def urls(self) -> list[str]:
        """Return where it listens."""
        return self.hosts


class Spark(Section):
    """The session that keeps the views up to date."""

    master: str = Field("local[2]", description="--master of spark-submit")
    trigger_interval_ms: int = Field(1000, ge=0, description="least time between two batches of follow")
    views_at_once: int = Field(2, ge=1, description="views that follow brings forward at the same time")
    driver_memory: str = Field("1500m", description="heap of the driver")
    conf: dict[str, str] = Field(default_factory=dict, description="further Spark settings")


class View(Section):
    """A query with a key, kept up to date in a target."""

    table: str | None = Field(None, description='the whole of one captured table, "schema.table"')
    query: str | None = Field(None, description="Spark SQL over captured tables and other views")
    key: list[str] | None = Field(None, description="key columns of the view; default: the table's primary key")
    target: Literal["warehouse", "search"] = Field("warehouse", description="where the view lives")
    shape: ShapeName = Field(
        "current", description="what the view keeps of each key; percolate: which stored queries each change matches"
    )
    lateness_s: float | None = Field(
        None,
        ge=0,
        description="of windows on time: a row that is older than the newest by more than this is counted and listed;"
        " it corrects its window all the same",
    )
    history_from: str | None = Field(
        None,
        description="LSN from which on a view of shape history or log has every version; default: the earliest that"
        " the topic still has, kept when the view is rebuilt",
    )
    refresh: Literal["incremental", "full"] = Field(
        "incremental", description="of a query: the units that changed, or all of it at each change"
    )
    asof_before: Literal["none", "first"] = Field(
        "none",
        description="of a query with ASOF joins: what a row is joined with whose moment is before the first version of"
        " a key: none, or that first version",
    )
    queries: str | None = Field(
        None, description='of percolate: the captured column of stored queries, "schema.table.column"'
    )
    queries_index: str | None = Field(
        None, description="of percolate, in place of queries: an index of yours with a percolator field"
    )

    keep_generations: int = Field(
        1, ge=0, le=100, description="generations before the live one that stay after a swap, for `views rollback`"
    )

    @model_validator(mode="after")
    def _one_source(self) -> View:
        if (self.table is None) == (self.query is None):
            raise ValueError("give either `table` or `query`")
        if self.asof_before != "none" and self.query is None:
            raise ValueError("`asof_before` is of a `query` with ASOF joins")
        if self.lateness_s is not None and (self.query is None or self.refresh == "full"):
            raise ValueError('`lateness_s` is of a `query` with refresh = "incremental"')
        return self

    @model_validator(mode="after")
    def _stored_queries(self) -> View:
        given = [name for name in ("queries", "queries_index") if getattr(self, name) is not None]
        if self.shape != "percolate":
            if given:
                raise ValueError(f'`{given[0]}` goes with shape = "percolate"')
            return self
        if self.history_from is not None:
            raise ValueError("a percolate view has the matches from the LSN on at which it is first kept")
        if len(given) != 1:
            raise ValueError('shape = "percolate" needs either `queries` or `queries_index`')
        if self.queries is not None and (self.queries.count(".") != 2 or not all(self.queries.split("."))):
            raise ValueError('write queries = "schema.table.column"')
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
    """The file."""

    source: Source
    kafka: Kafka = Field(default_factory=lambda: Kafka())
    snapshot: Snapshot = Field(default_factory=lambda: Snapshot())
    delivery: Delivery = Field(default_factory=lambda: Delivery())
    health: Health = Field(default_factory=lambda: Health())
    memory: Memory = Field(default_factory=lambda: Memory())
    log: Log = Field(default_factory=lambda: Log())
    registry: Registry | None = None
    warehouse: Warehouse | None = None
    search: Search | None = None
    spark: Spark = Field(default_factory=lambda: Spark())
    views: dict[Name, View] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits(self) -> Config:
        if self.kafka.max_message_bytes > self.memory.record_bytes:
            least = _PROCESS_BYTES + 5 * self.kafka.max_message_bytes
            raise ValueError(f"memory.limit must be at least {least} bytes for this kafka.max_message_bytes")
        return self
