"""The whole of ``tailrace.toml`` as one model; the reference page and the JSON Schema come from it.

Order: flags, then environment (``TAILRACE__SECTION__KEY``), then the file, then the defaults.
``${VAR}`` and ``${VAR:-default}`` are expanded after parsing, inside string values only; ``$$`` is a dollar sign.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

ToastWay = Literal["cache", "reread"]
Name = Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]{0,62}$")]


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
        description='captured tables, "schema.table" with * and ?, "!" in front takes out',
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
    on_error: Literal["stop", "divert"] = Field(
        "stop",
        description="a value that cannot be stored exactly stops the daemon, or its change goes to the dead-letter"
        " topic {prefix}.tailrace.dead",
    )
    on_schema_change: Literal["stop", "truncate"] = Field(
        "stop",
        description="when readers of a topic cannot follow a change of its table: stop for a person, or empty the topic"
        " by a truncate record and fill it anew",
    )
    streaming: bool = Field(
        False,
        description="have large transactions sent before their commit; they wait in spool_dir (in memory up to 32 MiB)",
    )
    spool_dir: str | None = Field(
        None, description="folder for transactions in progress; default: the system's for temporary files"
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
        if isinstance(values, dict):
            for key in ("dsn", "hash_salt"):
                if values.get(f"{key}_file") and key not in values:
                    with open(values[f"{key}_file"], encoding="utf-8") as file:
                        values = {**values, key: file.read().strip()}
        return values

    @model_validator(mode="after")
    def _salted(self) -> Source:
        if self.hash and not (self.hash_salt and self.hash_salt.get_secret_value()):
            raise ValueError("hash needs hash_salt or hash_salt_file: without a salt, hashes can be looked up")
        return self


class Kafka(Section):
    """Where the changes go."""

    bootstrap: str = Field("localhost:9092", description="bootstrap servers")
    prefix: str = Field("tailrace", pattern=r"^[A-Za-z0-9_-]+$", description="topics are {prefix}.{schema}.{table}")
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


class Snapshot(Section):
    """The first copy."""

    workers: int = Field(2, ge=1, le=32, description="connections that COPY at the same time")
    chunk_bytes: int = Field(16_777_216, ge=8192, description="size of table that one COPY reads")


class Delivery(Section):
    """How changes are grouped into Kafka transactions."""

    max_transaction_bytes: int = Field(33_554_432, ge=65_536, description="a larger source transaction is split")
    max_transaction_ms: int = Field(500, ge=1, description="a Kafka transaction is committed at the latest after this")


class Warehouse(Section):
    """An Iceberg catalog for `target = "warehouse"`."""

    catalog: Name = Field("tailrace", description="name of the catalog in Spark SQL")
    uri: str = Field(description="JDBC URI of the catalog, e.g. jdbc:sqlite:/path/catalog.db")
    location: str = Field(description="folder or bucket that holds the tables")
    namespace: Name = Field("views", description="namespace of the view tables")


class Search(Section):
    """OpenSearch for `target = "search"`."""

    hosts: list[str] = Field(description="URLs of the cluster")
    user: str | None = Field(None, description="basic auth")
    password: SecretStr | None = Field(None, description="basic auth")
    ca_file: str | None = Field(None, description="CA that signed the cluster's certificate")
    index_prefix: str = Field("", description="put in front of every index and alias")


class Spark(Section):
    """The session that keeps the views up to date."""

    master: str = Field("local[2]", description="--master of spark-submit")
    trigger_interval_ms: int = Field(1000, ge=0, description="least time between two batches of follow")
    driver_memory: str = Field("1500m", description="heap of the driver")
    conf: dict[str, str] = Field(default_factory=dict, description="further Spark settings")


class View(Section):
    """A query with a key, kept up to date in a target."""

    table: str | None = Field(None, description='the whole of one captured table, "schema.table"')
    query: str | None = Field(None, description="Spark SQL over captured tables and other views")
    key: list[str] | None = Field(None, description="key columns of the view; default: the table's primary key")
    target: Literal["warehouse", "search"] = Field("warehouse", description="where the view lives")
    shape: Literal["current", "history", "log"] = Field("current", description="what the view keeps of each key")
    refresh: Literal["incremental", "full"] = Field(
        "incremental", description="of a query: the units that changed, or all of it at each change"
    )

    @model_validator(mode="after")
    def _one_source(self) -> View:
        if (self.table is None) == (self.query is None):
            raise ValueError("give either `table` or `query`")
        return self


class Config(Section):
    """The file."""

    source: Source
    kafka: Kafka = Field(default_factory=lambda: Kafka())
    snapshot: Snapshot = Field(default_factory=lambda: Snapshot())
    delivery: Delivery = Field(default_factory=lambda: Delivery())
    warehouse: Warehouse | None = None
    search: Search | None = None
    spark: Spark = Field(default_factory=lambda: Spark())
    views: dict[Name, View] = Field(default_factory=dict)
