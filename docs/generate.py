"""Write what comes from the code: reference pages, and rules and dashboard for Prometheus and Grafana.

python docs/generate.py           writes them
python docs/generate.py --check   exits with 1 and names the files that are stale
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import orjson
import typer.main
from jinja2 import Environment, StrictUndefined
from monitoring import board, rules
from pydantic import SecretStr, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from tailrace.cdc.cli.main import app
from tailrace.schemas.alerts import DAEMON_ALERTS, VIEWS_ALERTS
from tailrace.schemas.config.model import Config, Section
from tailrace.schemas.error_codes import CODES
from tailrace.schemas.metrics import DAEMON, VIEWS
from tailrace.schemas.types import Column, TypeInfo, value_type
from tailrace.sinks.opensearch.documents import mapping

_ROOT = Path(__file__).parents[1]

_TEMPLATES = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)

_CONFIGURATION = """\
<!-- Made by docs/generate.py from schemas/config/model.py. Do not edit. -->
# Configuration

Settings of `tailrace.toml`. Flags override environment variables (`TAILRACE__SECTION__KEY`), these override the file,
the file overrides the defaults. `${VAR}` and `${VAR:-default}` inside strings are replaced by environment variables;
`$$` is a dollar sign. An unknown key is an error. `tailrace config show` prints the settings in force and their origin,
`tailrace config schema` prints a JSON Schema for editors.
{% for section in sections %}

## [{{ section.name }}]

{{ section.text }}

| key | type | default | description |
|---|---|---|---|
{% for key in section.settings %}
| `{{ key.name }}` | {{ key.type }} | {{ key.default }} | {{ key.text }} |
{% endfor %}
{% endfor %}
"""

_COMMANDS = """\
<!-- Made by docs/generate.py from cdc/cli. Do not edit. -->
# Commands

Every command takes `--config FILE`, `--help` and `--version`. {{ epilog }}
{% for command in commands %}

## `{{ command.path }}`

{{ command.text }}

```console
{{ command.usage }}
```
{% if command.options %}

| argument or option | description |
|---|---|
{% for names, text in command.options %}
| {{ names }} | {{ text }} |
{% endfor %}
{% endif %}
{% endfor %}
"""

_METRICS = """\
<!-- Made by docs/generate.py from schemas/metrics.py. Do not edit. -->
# Metrics

`tailrace run` answers `GET /metrics` on `health.listen`, `tailrace views follow` on `health.views_listen`, in
Prometheus' text format. Times are Unix timestamps in seconds, sizes and LSNs are bytes. Names of counters end in
`_total`. A metric that is absent has no sample; its help and kind are in every answer. Memory, CPU time and start time
of the process have their usual names, `process_resident_memory_bytes` and so on; those of the views job are of its
Python process, without the JVM. [Alerts](alerts.md) are made from these metrics.
{% for title, descriptions in tables %}

## {{ title }}

| name | kind | labels | meaning |
|---|---|---|---|
{% for name, metric in descriptions.items() %}
| `tailrace_{{ name }}{{ "_total" if metric.kind == "counter" else "" }}` | {{ metric.kind }} | \
{{ metric.labels | join(", ") }} | {{ metric.text }}{% if metric.when %} It is {{ metric.when }}.{% endif %} |
{% endfor %}
{% endfor %}
"""


_ALERTS = """\
<!-- Made by docs/generate.py from schemas/alerts.py. Do not edit. -->
# Alerts

The alerts of `docker/monitoring/alerts-daemon.yaml` and `docker/monitoring/alerts-views.yaml`. [This
page](../how-to/alerts.md) says how to load them, and in which order to look.
{% for title, alerts in groups %}

## {{ title }}
{% for alert in alerts %}

### {{ alert.name }}

{{ alert.severity | capitalize }}{% if alert.minutes %}, after {{ alert.minutes }} minutes{% endif %}:

```text
{{ alert.expr }}
```

{{ alert.meaning }}

**What to do.** {{ alert.remedy }}
{% endfor %}
{% endfor %}
"""


_ERRORS = """\
<!-- Made by docs/generate.py from schemas/error_codes. Do not edit. -->
# Error codes

Every error has a code, which keeps its meaning. A message has three parts: ERROR says what happened to which object,
DETAIL has the facts, HINT has a line to paste. `tailrace explain TR-204` prints an entry of this page,
`tailrace explain` lists all codes.

The exit code follows from the kind of the error:

| exit code | meaning |
|---|---|
| 2 | the command line is wrong |
| 3 | the configuration is wrong |
| 4 | PostgreSQL cannot be read as configured |
| 5 | Kafka, the warehouse, the search index or the schema registry fails |
| 6 | a person has to decide |
| 7 | a comparison found a difference |
| 8 | a deadline has passed |

An error in a batch of `tailrace views follow` parks its view, whatever the code: the batch is tried again after 5 s,
later after up to 300 s, and other views continue. `tailrace views resume VIEW` tries it at once.
{% for name, entries in sections %}

## {{ name }}
{% for entry in entries %}

### {{ entry.id }}

**{{ entry.title }}.** {{ entry.cause }}

**Remedy.** {{ entry.remedy }}

**Retried.** {{ entry.what_follows }} **Exit code:** {{ "none" if entry.exit_code is none else entry.exit_code }}.
{% endfor %}
{% endfor %}
"""

_TYPES = """\
<!-- Made by docs/generate.py from schemas/types.py. Do not edit. -->
# Types of values

How a column of a PostgreSQL type appears on its topic (Avro; every column may be null), in a warehouse view (Spark and
Iceberg) and in a search view (OpenSearch). A domain appears as the type that it is made of. A value is exact, or its
table is parked (TR-220); nothing is rounded. `source.as_text` gives single columns as the text that PostgreSQL prints.

| PostgreSQL | topic | warehouse | search | notes |
|---|---|---|---|---|
{% for row in rows %}
| {{ row.name }} | `{{ row.topic }}` | `{{ row.warehouse }}` | `{{ row.search }}` | {{ row.notes }} |
{% endfor %}

Text is compared as text: in a view's query, `max()`, `ORDER BY` and `<` on a column of type `interval`, `money`, `inet`
or of a range have another order than in PostgreSQL ('99 years' is after '499 years'). If a query compares such values,
give the table a column that has the order, such as the seconds of an interval.

Names: on a topic, a character that Avro forbids is written `_xHH`, its code in hexadecimal; the property `column` of
the field has the original name. In a search view, a dot is written `_x2E`.
"""

_TYPE_ROWS: Final[tuple[tuple[str, str, int, str], ...]] = (
    ("`boolean`", "bool", -1, ""),
    ("`smallint`, `integer`, `serial`", "int4", -1, ""),
    ("`bigint`, `bigserial`, `oid`", "int8", -1, ""),
    ("`real`", "float4", -1, ""),
    ("`double precision`", "float8", -1, ""),
    ("`numeric(p,s)`, p up to 38", "numeric", (12 << 16 | 2) + 4, "NaN and infinity are refused"),
    ("`numeric` without a precision, or of over 38 digits", "numeric", -1, ""),
    ("`date`", "date", -1, "days since 1970; infinity is 2147483647, -infinity -2147483648"),
    ("`time`", "time", -1, "microseconds since midnight; 24:00 is 86400000000"),
    ("`timestamp`", "timestamp", -1, "since 1970; infinity is 9223372036854775807, -infinity -9223372036854775808"),
    ("`timestamptz`", "timestamptz", -1, "as `timestamp`"),
    ("`text`, `varchar`, `char(n)`, enums", "text", -1, "`char(n)` with its blanks"),
    ("`uuid`", "uuid", -1, ""),
    ("`bytea`; PostGIS `geometry`, `geography` (EWKB)", "bytea", -1, "base64 in search"),
    ("`hstore`", "hstore", -1, "not searchable"),
    ("pgvector's `vector`", "vector", -1, ""),
    ("arrays of the above", "_int4", -1, "of one dimension, from index 1; others are refused"),
    ("all others: `json`, `jsonb`, `xml`, `interval`, `timetz`, `money`, `inet`, `macaddr`, `bit`, `tsvector`, ranges,"
     " composites", "interval", -1, "the text that PostgreSQL prints"),
)  # fmt: skip
"""PostgreSQL's names, the name in `pg_type` of an example, its typmod, notes."""

_HUNDREDS: Final = {
    "0": "TR-0xx: command line",
    "1": "TR-1xx: configuration",
    "2": "TR-2xx: PostgreSQL",
    "3": "TR-3xx: Kafka and schema registry",
    "4": "TR-4xx: state",
    "5": "TR-5xx: views",
    "6": "TR-6xx: embedded servers, and what starts Spark",
    "7": "TR-7xx: comparisons",
    "8": "TR-8xx: the process",
    "9": "TR-9xx: findings of `tailrace check`",
}


def configuration() -> str:
    """Return the page of all settings."""
    return _TEMPLATES.from_string(_CONFIGURATION).render(sections=list(_sections("", Config)))


def _sections(path: str, model: type[Section]) -> Iterator[dict[str, Any]]:
    keys, below = [], []
    for name, field in model.model_fields.items():
        full = f"{path}.{name}" if path else name
        section = _section_of(field)
        if section is not None:
            below.append((f"{full}.NAME" if "dict" in str(field.annotation) else full, section))
        else:
            keys.append({"name": name, "type": _type(field), "default": _default(field), "text": field.description})
    if keys:
        text = " ".join((model.__doc__ or "").split())
        yield {"name": path, "text": text, "settings": [{k: _cell(v) for k, v in key.items()} for key in keys]}
    for name, section in below:
        yield from _sections(name, section)


def _section_of(field: FieldInfo) -> type[Section] | None:
    candidates = [field.annotation, *getattr(field.annotation, "__args__", ())]
    return next((each for each in candidates if isinstance(each, type) and issubclass(each, Section)), None)


def _type(field: FieldInfo) -> str:
    schema = _schema_of(field)
    kinds = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
    return " or ".join(dict.fromkeys(_kind(each) for each in kinds))


def _schema_of(field: FieldInfo) -> dict[str, Any]:
    annotation: Any = field.annotation
    return TypeAdapter(annotation).json_schema()


def _kind(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " or ".join(f'"{each}"' for each in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if schema.get("type") == "object":
        return "table"
    return str(schema.get("type", "value"))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or value is PydanticUndefined or isinstance(value, SecretStr):
        return ""
    return f"`{orjson.dumps(value, default=str).decode()}`"


def _cell(text: str | None) -> str:
    """Return a text as the cell of a table."""
    return " ".join((text or "").split()).replace("|", "\\|")


def commands() -> str:
    """Return the page of all commands."""
    root = typer.main.get_command(app)
    found = list(_commands(root, "tailrace", None))
    return _TEMPLATES.from_string(_COMMANDS).render(epilog=app.info.epilog, commands=found)


def _commands(command: Any, path: str, parent: Any) -> Iterator[dict[str, Any]]:
    context = command.make_context(path.split()[-1], [], parent=parent, resilient_parsing=True)
    below = getattr(command, "commands", None)
    if below is not None:
        for name in command.list_commands(context):
            yield from _commands(command.get_command(context, name), f"{path} {name}", context)
        return
    records = [each.get_help_record(context) for each in command.get_params(context) if each.name != "config"]
    options = [(f"`{_cell(record[0].split(' <')[0])}`", _cell(record[1])) for record in records if record is not None]
    shared = ("--help", "--version")
    yield {
        "path": path,
        "text": " ".join((command.help or "").split()),
        "usage": " ".join([path, *command.collect_usage_pieces(context)]),
        "options": [(names, text) for names, text in options if not any(each in names for each in shared)],
    }


def metrics() -> str:
    """Return the page of all metrics."""
    return _TEMPLATES.from_string(_METRICS).render(tables=[("tailrace run", DAEMON), ("tailrace views follow", VIEWS)])


def alerts() -> str:
    """Return the page of all alerts."""
    return _TEMPLATES.from_string(_ALERTS).render(
        groups=[("tailrace run", DAEMON_ALERTS), ("tailrace views follow", VIEWS_ALERTS)]
    )


def errors() -> str:
    """Return the page of all error codes."""
    hundreds = groupby(CODES.values(), lambda entry: entry.id[3])
    sections = [(_HUNDREDS[digit], list(entries)) for digit, entries in hundreds]
    return _TEMPLATES.from_string(_ERRORS).render(sections=sections)


def types() -> str:
    """Return the page of all types."""
    known = {
        name.removeprefix("_"): TypeInfo(number, name.removeprefix("_"), "b")
        for number, (_, name, _, _) in enumerate(_TYPE_ROWS, 1)
    }
    oids = {each.oid: each for each in known.values()}
    array = TypeInfo(1000, "_int4", "b", element_oid=known["int4"].oid)
    rows = []
    for label, name, typmod, notes in _TYPE_ROWS:
        found = array if name == array.name else known[name]
        value = value_type(Column("c", found.oid, typmod), {**oids, array.oid: array})
        field = mapping({"c": value.spark}, [])["properties"]["c"]
        below = "".join(f", c.{each}: {of['type']}" for each, of in field.get("fields", {}).items())
        rows.append(
            {
                "name": label,
                "topic": _avro_text(value.avro),
                "warehouse": value.spark,
                "search": field["type"] + below,
                "notes": notes,
            }
        )
    return _TEMPLATES.from_string(_TYPES).render(rows=rows)


def _avro_text(avro: Any) -> str:
    """Return an Avro schema in words."""
    if isinstance(avro, list):
        return _avro_text(avro[-1])
    if not isinstance(avro, dict):
        return str(avro)
    if avro["type"] in ("array", "map"):
        return f"{avro['type']} of {_avro_text(avro.get('items') or avro['values'])}"
    return f"{avro['type']} ({avro['logicalType']})"


FILES: Final[dict[str, Callable[[], str]]] = {
    "docs/reference/configuration.md": configuration,
    "docs/reference/commands.md": commands,
    "docs/reference/metrics.md": metrics,
    "docs/reference/alerts.md": alerts,
    "docs/reference/errors.md": errors,
    "docs/reference/types.md": types,
    "docker/monitoring/alerts-daemon.yaml": lambda: rules("tailrace", DAEMON_ALERTS),
    "docker/monitoring/alerts-views.yaml": lambda: rules("tailrace-views", VIEWS_ALERTS),
    "docker/monitoring/dashboard.json": board,
}


def stale() -> list[str]:
    """Return the files that are not what the code says now."""
    return [name for name, made in FILES.items() if not (_ROOT / name).exists() or (_ROOT / name).read_text() != made()]


def main() -> int:
    """Write all files, or check them."""
    if "--check" in sys.argv[1:]:
        for name in (found := stale()):
            print(f"stale: {name}; run: make docs")
        return 1 if found else 0
    for name, made in FILES.items():
        (_ROOT / name).parent.mkdir(exist_ok=True)
        (_ROOT / name).write_text(made())
    return 0


if __name__ == "__main__":
    sys.exit(main())
