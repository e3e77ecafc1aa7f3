"""Run all probes of `tailrace check`, each part even if another one fails. Nothing is changed."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final, Literal, get_args

import psycopg

from tailrace.cdc.changes.dead_letters import dead_topic
from tailrace.cdc.check.finding import Finding, Findings
from tailrace.cdc.check.host import check_host
from tailrace.cdc.check.kafka import check_kafka, check_registry, check_topics
from tailrace.cdc.check.source import check_room, check_server, connected
from tailrace.cdc.check.start import Begun, check_publications, check_slot, check_start
from tailrace.cdc.check.table_advice import advise_about_tables
from tailrace.cdc.check.tables import Tables, check_tables
from tailrace.cdc.check.views import check_views
from tailrace.cdc.tables.destinations import own_topic_specs, topic_specs
from tailrace.schemas.config.model import Config

Part = Literal["source", "kafka", "views"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)


def check(
    config: Config, parts: Collection[Part] = PARTS, path: Path | None = None, *, inside: bool = False
) -> list[Finding]:
    """Return the findings of these parts, those that stop a start first.

    The table of starts compares PostgreSQL with Kafka, so it needs both parts. `path` is the configuration's file,
    for the job that reads queries. `inside`: a daemon checks what its own next start needs; that it runs is no finding.
    """
    findings = Findings()
    answers = "kafka" in parts and check_kafka(config, findings)
    begun, runs = Begun(), False
    if "source" in parts:
        with connected(config, findings) as connection:
            if connection is not None:
                begun, runs = _check_source(config, connection, findings, kafka=answers, inside=inside)
        check_host(config, findings, runs=runs or inside)
    if answers:
        check_topics(config, own_topic_specs(config.kafka), findings)
        check_registry(config, findings, first=begun.states is None)
    if "views" in parts:
        arguments = ["--config", str(path)] if path is not None else []
        check_views(config, arguments, findings, kafka=answers)
    return findings.sorted()


def _check_source(
    config: Config, connection: psycopg.Connection, findings: Findings, *, kafka: bool, inside: bool
) -> tuple[Begun, bool]:
    """Return what earlier starts have left, and whether a daemon reads the slot."""
    if not check_server(config, connection, findings):
        return Begun(), False
    slot = check_slot(config, connection, findings, inside=inside)
    with findings.probing("source"):
        check_room(connection, findings, slot)
    if kafka:
        begun = check_start(config, connection, findings, slot, inside=inside)
    else:
        begun = Begun({} if slot is not None else None)
        check_publications(config, connection, findings)
    tables = check_tables(config, connection, findings, begun.states, begun.lost)
    with findings.probing("source"):
        advise_about_tables(config, connection, tables, findings)
    if kafka:
        _check_topics(config, tables, findings)
    return begun, slot is not None and slot.active_pid is not None


def _check_topics(config: Config, tables: Tables, findings: Findings) -> None:
    with findings.probing("kafka"):
        inspected = tables.inspected
        specs = topic_specs(config.kafka, inspected.relations, inspected.keys, inspected.keyed)
        if config.source.on_table_error == "divert":
            specs.append(dead_topic(config))
        check_topics(config, specs, findings)
