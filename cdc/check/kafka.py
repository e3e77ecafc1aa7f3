"""Check Kafka and the schema registry: reachability, rights, brokers' settings, settings of existing topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Final

from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from tailrace.cdc.check.finding import Findings, Severity
from tailrace.cdc.tables.schema_ids import check_origin
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import SinkError
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.positions import read_position, read_schemas
from tailrace.sinks.http.registry import Registry
from tailrace.sinks.kafka.admin import TopicSpec, setting_errors
from tailrace.sinks.kafka.options import client_options
from tailrace.sinks.kafka.producer import TRANSACTION_TIMEOUT_MS

_ANSWER_S: Final = 5.0
_NEEDED: Final = frozenset(("READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS"))


def check_kafka(config: Config, findings: Findings) -> bool:
    """Report brokers that do not answer or refuse what the daemon needs; return whether they answer."""
    answers = False
    with findings.probing("kafka"):
        read_position(config.kafka, Topics(config.kafka.prefix), config.source.slot, _ANSWER_S)
        answers = True
    if answers:
        admin = AdminClient({**client_options(config.kafka), "log_level": 0})
        with findings.probing("kafka"):
            _check_brokers(config, admin, findings)
        with findings.probing("kafka"):
            _check_rights(config, admin, findings)
    return answers


def check_topics(config: Config, specs: Sequence[TopicSpec], findings: Findings) -> None:
    """Report settings of existing topics that break a promise."""
    with findings.probing("kafka"):
        for error in setting_errors(config.kafka, list(specs)):
            findings.add("kafka", error)


def check_registry(config: Config, findings: Findings, *, first: bool) -> None:
    """Report a registry that does not answer, or that did not assign the ids on the topics.

    Only a first start needs its answer: later, tables with a known shape continue without it.
    """
    with findings.probing("registry"):
        stored = read_schemas(config.kafka, Topics(config.kafka.prefix), _ANSWER_S)
        for schema in stored[-1:]:
            check_origin(schema, registered=config.registry is not None)
        if config.registry is None:
            return
        known = stored[-1] if stored and stored[-1].registered else None
        with closing(Registry(config.registry)) as registry:
            try:
                registry.check(known)
            except SinkError as error:
                findings.add("registry", error, None if first else Severity.WARN)


def _check_brokers(config: Config, admin: AdminClient, findings: Findings) -> None:
    kafka, known = config.kafka, admin.list_topics(timeout=_ANSWER_S)
    resource = ConfigResource(ResourceType.BROKER, str(min(known.brokers)))
    described = admin.describe_configs([resource], request_timeout=_ANSWER_S)[resource].result()
    settings = {name: entry.value for name, entry in described.items()}
    exactly_once = config.delivery.guarantee == "exactly-once"
    least = {"socket.request.max.bytes": kafka.max_message_bytes}
    if exactly_once:
        least["transaction.max.timeout.ms"] = TRANSACTION_TIMEOUT_MS
    for name, needed in least.items():
        if (value := _number(settings, name)) is not None and value < needed:
            seen = f"The brokers have {name} = {value}; needed: {needed}."
            findings.advise("TR-916", Severity.STOP, "kafka", seen, f"{name}={needed}  # in server.properties")
    factor = kafka.replication_factor
    if factor == -1:
        factor = _number(settings, "default.replication.factor") or 1
    brokers, in_sync = len(known.brokers), _number(settings, "min.insync.replicas") or 1
    if not in_sync <= factor <= brokers:
        seen = f"New topics get {factor} replicas; there are {brokers} brokers, and min.insync.replicas is {in_sync}."
        paste = f"replication_factor = {max(in_sync, min(3, brokers))}  # under [kafka]"
        findings.advise("TR-917", Severity.STOP, "kafka", seen, paste)


def _check_rights(config: Config, admin: AdminClient, findings: Findings) -> None:
    """Report missing ACLs on existing topics of the pipeline, and that of creating topics if there are none."""
    prefix = f"{config.kafka.prefix}."
    named = [topic for topic in admin.list_topics(timeout=_ANSWER_S).topics if topic.startswith(prefix)]
    user = config.kafka.options.get("sasl.username") or "NAME"
    add = f"kafka-acls.sh --bootstrap-server {config.kafka.bootstrap} --add --allow-principal User:{user}"
    described = {}
    if named:
        described = admin.describe_topics(
            TopicCollection(named), include_authorized_operations=True, request_timeout=_ANSWER_S
        )
    for topic, future in described.items():
        allowed = {each.name for each in future.result().authorized_operations or ()}
        if allowed and (lacking := sorted(_NEEDED - allowed)):
            operations = " ".join(f"--operation {each.replace('_', '').title()}" for each in lacking)
            seen = f'On topic "{topic}" the user may not: {", ".join(lacking).lower()}.'
            paste = f"{add} {operations} --topic {prefix} --resource-pattern-type prefixed"
            findings.advise("TR-918", Severity.STOP, "kafka", seen, paste)


def _number(settings: Mapping[str, str | None], name: str) -> int | None:
    value = settings.get(name)
    return int(value) if value is not None and value.lstrip("-").isdigit() else None
