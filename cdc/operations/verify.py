"""`tailrace verify`: source = topic at X, topic = view at C, row by row, under load.

X is the LSN of a consistent read of the source. C is the cut that a view has applied, at or after X. So source and
view are compared exactly although no cut is at X itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Final

from tailrace.cdc.operations.progress import OnProgress, counted, no_display
from tailrace.cdc.operations.read_status import read_stored, read_waits
from tailrace.cdc.operations.table_waits import sentence, waited_for
from tailrace.cdc.operations.verify_result import Result
from tailrace.cdc.operations.verify_tables import Table, comparable, refusal
from tailrace.cdc.operations.views import holds_rows, named, table_of
from tailrace.cdc.postgres.connect import conninfo_for
from tailrace.schemas.config.columns import ColumnOptions
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import ConfigError, SinkError, all_of
from tailrace.schemas.lsn import format_lsn
from tailrace.schemas.records.position import Cut
from tailrace.schemas.records.topics import Topics
from tailrace.schemas.types import ValueType
from tailrace.sinks.control.named_tables import with_found_tables
from tailrace.sinks.control.positions import read_schemas
from tailrace.sinks.control.schema_topic import StoredSchema
from tailrace.sinks.control.views_topic import read_views
from tailrace.sinks.kafka.options import client_options
from tailrace.sinks.kafka.read_topic import Decoder, read_to
from tailrace.sinks.read.views import read_view
from tailrace.sinks.target.kind import ViewState
from tailrace.snapshot.verify.comparison import COMPARED, Comparison, Comparisons
from tailrace.snapshot.verify.sides import TableForm, load_source, load_topic, load_view
from tailrace.snapshot.verify.source_at import source_at

Say = Callable[[str], None]
_POLL_S: Final = 0.3


def verify(
    config: Config,
    names: Sequence[str],
    *,
    timeout_s: float,
    limit: int,
    say: Say,
    on_progress: OnProgress = no_display,
) -> Iterator[Result]:
    """Yield one result for each view, by default each that has a captured table's rows.

    All are compared with one read of the source. Raises SourceError (TR-223) for views in `names` whose tables are not
    captured, and ConfigError (TR-137) if topics are logs of inserts. `timeout_s` limits the wait for the consistent
    point, and the wait for each view; the error names the part that was late. A view that is late, or whose table is
    parked, does not stop the others: its error (TR-343) is raised after their results. After a late one, the others are
    not waited for: they have had the same time.
    """
    if config.source.publish == "insert":
        raise ConfigError(
            "TR-137",
            'source.publish = "insert": the topics are logs of inserts, which differ from their tables',
            detail="With this setting, updates, deletes and truncates of the source are not on the topics.",
            hint="tailrace verify --log  # proves from the topics that no insert is missing, added or torn",
        )
    config = with_found_tables(config)
    chosen = names or [name for name, view in config.views.items() if holds_rows(view)]
    if config.views and not chosen:
        return
    asked = {name: table_of(name, view) for name, view in named(config, chosen).items()}
    schemas = stored_schemas(config)
    found = comparable(config, set(asked.values()))
    tables = {name: table for name, table in asked.items() if table in found.filters}
    others = {name: table for name, table in asked.items() if name not in tables}
    if others and (names or not tables):
        raise refusal(others, found.not_captured)
    for name, table in others.items():
        say(f"not compared: {name}, table {'.'.join(table)} is not captured: {found.not_captured[table].reason}")
    parked = _parked(config, tables)
    for name, code in parked.items():
        say(f"not compared: {name}, table {'.'.join(tables[name])} is {f'parked ({code})' if code else 'left out'}")
    # a table that an operator has left out needs no reminder
    late = [_is_parked(name, tables[name]) for name, code in parked.items() if code or names]
    tables = {name: table for name, table in tables.items() if name not in parked}
    if parked and not tables:
        if late:
            raise all_of(late)
        return
    forms = {table: form_of(config, table, schemas) for table in set(tables.values())}
    with ExitStack() as stack:
        comparisons = stack.enter_context(Comparisons())
        sides = {table: comparisons.add() for table in forms}
        read_at = time.monotonic()
        on_progress("waiting for a consistent point of the source", 0, None)
        x = read_source(config, forms, found.filters, sides, timeout_s, on_progress)
        say(f"source read at {format_lsn(x)}")
        wait_s = timeout_s
        for name, table in tables.items():
            began = time.monotonic()
            on_progress(f"{name}: waiting for the view to reach {format_lsn(x)}", 0, None)
            state = _wait(config, name, x, wait_s)
            if state is None:
                wait_s = 0
                late.append(_behind(config, name, x, timeout_s))
                continue
            cut, side, form = state.cut, sides[table], forms[table]
            side.start_view()
            with closing(state.rows):  # type: ignore[type-var]
                load_view(side, counted(state.rows, on_progress, f"{name}: reading the view"), form)
            add_topic(config, table, side, form, cut, x, partial(on_progress, f"{name}: reading the topic"))
            on_progress(f"{name}: comparing", 0, None)
            yield Result(
                name,
                ".".join(table),
                tuple(form.columns),
                form.key,
                x,
                cut.flushed_lsn,
                tuple(side.outcome(compared, limit) for compared in COMPARED),
                time.monotonic() - began,
                late=(time.monotonic() - read_at) * 1000 > config.kafka.min_compaction_lag_ms,
            )
    if late:
        raise all_of(late)


def stored_schemas(config: Config) -> list[StoredSchema]:
    """Return the schemas of all topics, the newest of each last."""
    return read_schemas(config.kafka, Topics(config.kafka.prefix))


def form_of(config: Config, table: Table, schemas: Sequence[StoredSchema]) -> TableForm:
    """Return the form in which a table's values are compared, from the newest schemas of its topic."""
    topic = Topics(config.kafka.prefix).table(*table)
    newest = {stored.subject: stored.schema for stored in schemas}  # the newest comes last
    return TableForm.of(".".join(table), newest.get(f"{topic}-key"), newest.get(f"{topic}-value"))


def read_source(
    config: Config,
    forms: dict[Table, TableForm],
    filters: Mapping[Table, str | None],
    sides: dict[Table, Comparison],
    timeout_s: float,
    on_progress: OnProgress = no_display,
) -> int:
    """Load the source's rows of each table into its side, all as of one LSN, and return that LSN."""
    dsn = config.source.dsn.get_secret_value()
    options = ColumnOptions(config.source)
    replication = conninfo_for(dsn, replication=True, application_name="tailrace verify")
    plain = conninfo_for(dsn, application_name="tailrace verify")
    with source_at(replication, plain, list(forms), timeout_s) as source:
        for table, form in forms.items():
            # not left open by an error or Ctrl-C: an open COPY holds the connection's lock, and its rollback would wait
            with closing(source.rows(table, form.columns, filters[table])) as rows:
                shown = counted(rows, on_progress, f"reading {'.'.join(table)} of the source")
                load_source(sides[table], shown, form, partial(_option, options, table))
        return source.lsn


def _option(options: ColumnOptions, table: Table, column: str) -> ValueType | None:
    return options.of(f"{table[0]}.{table[1]}.{column}")


def add_topic(
    config: Config,
    table: Table,
    side: Comparison,
    form: TableForm,
    cut: Cut,
    x: int,
    on_progress: Callable[[int, int | None], None] = lambda done, total: None,
) -> None:
    """Load a table's topic up to the cut into its side: as of the LSN `x`, and as of the cut."""
    topic = Topics(config.kafka.prefix).table(*table)
    decoder = Decoder(lambda: {stored.id: stored.schema for stored in stored_schemas(config)})
    ends = cut.offsets.get(topic, [])
    batches = counted(
        read_to(client_options(config.kafka), topic, ends), lambda _, *far: on_progress(*far), "", sum(ends)
    )
    load_topic(side, batches, form, decoder, cut.position.epoch, x)


def _wait(config: Config, name: str, x: int, timeout_s: float) -> ViewState | None:
    """Return the view at the first observed cut that is at or after X; None if there is none in time.

    The view is opened only after the views topic shows such a cut: an open search view holds resources of the index.
    """
    topics = Topics(config.kafka.prefix)
    deadline = time.monotonic() + timeout_s
    while True:
        record = read_views(config.kafka, topics).get(name)
        cut = record.cut if record else None
        if cut is not None and cut.flushed_lsn >= x:
            state = read_view(config, name)
            if state.cut.flushed_lsn >= x:
                return state
        if time.monotonic() > deadline:
            return None
        time.sleep(_POLL_S)


def _parked(config: Config, tables: Mapping[str, Table]) -> dict[str, str]:
    """Return the views whose tables are parked, with the codes of the errors; empty if an operator left it out."""
    stored, _ = read_stored(config)
    found = stored.parked if stored else {}
    return {name: found[".".join(table)] for name, table in tables.items() if ".".join(table) in found}


def _is_parked(name: str, table: Table) -> SinkError:
    return SinkError(
        "TR-343",
        f'view "{name}" cannot be compared: its table "{".".join(table)}" is parked',
        detail="The topic of a parked table lacks changes.",
        hint="tailrace table list  # shows why it is parked, and how to read it again",
    )


def _behind(config: Config, name: str, x: int, timeout_s: float) -> SinkError:
    """Return the error (TR-343) for a view that is late. Raises SinkError (TR-342) if the topics are, so all views."""
    stored, _ = read_stored(config)
    there = stored.here.flushed_lsn if stored else 0
    record = read_views(config.kafka, Topics(config.kafka.prefix)).get(name)
    applied = format_lsn(record.cut.flushed_lsn) if record and record.cut else "nothing"
    waits = sentence(waited_for(config, name, record, read_waits(config, stored)))
    detail = f"The source was read at {format_lsn(x)}; topics are at {format_lsn(there)}, the view has {applied}."
    if there < x:
        raise SinkError(
            "TR-342",
            f"the topics did not reach the LSN of the source read within {timeout_s:.0f} s",
            detail=detail,
            hint="tailrace run  # is the daemon running?",
        )
    return SinkError(
        "TR-343",
        f'view "{name}" did not reach the LSN of the source read within {timeout_s:.0f} s',
        detail=detail + (f" It {waits}." if waits else ""),
        hint="tailrace snapshot status  # repeat the comparison when the table is complete"
        if waits
        else "tailrace views follow  # if it runs, and the view advances: repeat with a longer --timeout",
    )
