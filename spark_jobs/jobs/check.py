"""Declare all views, as `views follow` does before it starts Spark, and print the errors as JSON; needs no Spark.

    python -m tailrace.spark_jobs.jobs.check [--config tailrace.toml]

Views are declared with the columns of their tables if these have been captured already.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress

import orjson

from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import TailraceError
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.positions import read_schemas
from tailrace.sinks.control.schema_topic import StoredSchema
from tailrace.spark_jobs.jobs.command import parser, run
from tailrace.spark_jobs.jobs.explain import declared_query
from tailrace.spark_jobs.log import result
from tailrace.spark_jobs.query.catalog import table_of
from tailrace.spark_jobs.views import check_soft_deletes, declare

_ANSWER_S = 5.0


def main(arguments: Sequence[str]) -> int:
    given = parser("Declare all views.").parse_args(arguments)

    def job(config: Config) -> None:
        stored: list[StoredSchema] = []
        with suppress(TailraceError):  # the caller reports it
            stored = read_schemas(config.kafka, Topics(config.kafka.prefix), _ANSWER_S)
        errors = [error for name in config.views if (error := _refusal(config, name, stored)) is not None]
        result(orjson.dumps([_as_json(error) for error in errors]).decode())

    return run(job, given.config)


def _refusal(config: Config, name: str, stored: list[StoredSchema]) -> TailraceError | None:
    try:
        view = declare(config, name)
        captured = {schema.subject for schema in stored}
        if view.text is not None and not view.views and all(f"{topic}-value" in captured for topic in view.topics):
            declared_query(config, view, stored)
        if view.soft_deletes:
            table = table_of(Topics(config.kafka.prefix), config.views[name].table or "", stored)
            check_soft_deletes(view, table.columns if table is not None else ())
    except TailraceError as error:
        return error
    return None


def _as_json(error: TailraceError) -> dict[str, str]:
    return {"code": error.code, "message": error.message, "detail": error.detail, "hint": error.hint}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
