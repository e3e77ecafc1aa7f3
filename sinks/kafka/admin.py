"""Create topics and check their settings at every start, because our guarantees depend on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from tailrace.schemas.config.model import Kafka
from tailrace.schemas.errors import SinkError
from tailrace.sinks.kafka.options import client_options

_TIMEOUT_S = 15.0
_AT_A_TIME = 100
"""Topics per request; Kafka answers when all of them exist."""

_FOREVER: Final = (("retention.ms", "-1"), ("retention.bytes", "-1"))
"""The settings of a topic that loses no record although it is not compacted."""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """The required settings of a topic; `partitions` applies only when it is created."""

    name: str
    partitions: int
    settings: Mapping[str, str]


def ensure_topics(kafka: Kafka, specs: list[TopicSpec]) -> dict[str, int]:
    """Check the existing topics, create the missing ones, and return each topic's number of partitions.

    A topic of a table that had no key until now becomes compacted. SinkError (TR-302) names the first topic whose
    settings would break a guarantee, and the command that repairs them.
    """
    admin = AdminClient({**client_options(kafka), "log_level": 0})
    try:
        there = admin.list_topics(timeout=_TIMEOUT_S).topics
        missing = [spec for spec in specs if spec.name not in there]
        _check(admin, kafka, [spec for spec in specs if spec.name in there])
        _create(admin, kafka, missing)
        return {
            spec.name: len(there[spec.name].partitions) if spec.name in there else spec.partitions for spec in specs
        }
    except KafkaException as error:
        raise kafka_error(kafka, error.args[0]) from None


def setting_errors(kafka: Kafka, specs: list[TopicSpec]) -> list[SinkError]:
    """Return an error (TR-302) for each topic whose settings would make `ensure_topics` fail. Nothing is changed.

    SinkError if Kafka does not answer, or refuses to describe the topics.
    """
    admin = AdminClient({**client_options(kafka), "log_level": 0})
    try:
        there = admin.list_topics(timeout=_TIMEOUT_S).topics
        return [
            _setting_error(kafka, spec, broken, settings)
            for spec, settings in _described(admin, [spec for spec in specs if spec.name in there])
            if (broken := _broken(spec, settings)) and not _becomes_compacted(spec, settings)
        ]
    except KafkaException as error:
        raise kafka_error(kafka, error.args[0]) from None


def topic_id(kafka: Kafka, topic: str) -> str:
    """Return Kafka's topic ID, which differs from that of an earlier topic with the same name."""
    admin = AdminClient({**client_options(kafka), "log_level": 0})
    try:
        (future,) = admin.describe_topics(TopicCollection([topic])).values()
        return str(_result(future).topic_id)
    except KafkaException as error:
        raise kafka_error(kafka, error.args[0]) from None


def _create(admin: AdminClient, kafka: Kafka, specs: list[TopicSpec]) -> None:
    if not specs:
        return
    topics = [
        NewTopic(
            spec.name,
            num_partitions=spec.partitions,
            replication_factor=kafka.replication_factor,
            config=dict(spec.settings),
        )
        for spec in specs
    ]
    for i in range(0, len(topics), _AT_A_TIME):
        for future in admin.create_topics(topics[i : i + _AT_A_TIME], operation_timeout=_TIMEOUT_S).values():
            try:
                _result(future)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise


def _check(admin: AdminClient, kafka: Kafka, specs: list[TopicSpec]) -> None:
    for spec, settings in _described(admin, specs):
        if _becomes_compacted(spec, settings) and _compact(admin, spec):
            continue
        if broken := _broken(spec, settings):
            raise _setting_error(kafka, spec, broken, settings)


def _described(admin: AdminClient, specs: list[TopicSpec]) -> list[tuple[TopicSpec, dict[str, str | None]]]:
    """Return each topic's spec with its present settings."""
    resources = [ConfigResource(ResourceType.TOPIC, spec.name) for spec in specs]
    described = {
        resource.name: _result(future)
        for i in range(0, len(resources), _AT_A_TIME)
        for resource, future in admin.describe_configs(resources[i : i + _AT_A_TIME]).items()
    }
    return [(spec, {name: entry.value for name, entry in described[spec.name].items()}) for spec in specs]


def _broken(spec: TopicSpec, settings: Mapping[str, str | None]) -> list[str]:
    return [name for name, wanted in spec.settings.items() if not _holds(settings.get(name), wanted)]


def _setting_error(
    kafka: Kafka, spec: TopicSpec, broken: Sequence[str], settings: Mapping[str, str | None]
) -> SinkError:
    found = [f"{name} = {settings.get(name)}, not {spec.settings[name]}" for name in broken]
    wanted = ",".join(f"{name}={spec.settings[name]}" for name in broken)
    return SinkError(
        "TR-302",
        f'topic "{spec.name}" has {"; ".join(found)}',
        detail="With this setting the state of a key or of a cut could be lost.",
        hint=f"kafka-configs.sh --bootstrap-server {kafka.bootstrap} --alter --entity-type topics"
        f" --entity-name {spec.name} --add-config {wanted}",
    )


def _becomes_compacted(spec: TopicSpec, settings: Mapping[str, str | None]) -> bool:
    return _was_log(settings) and spec.settings.get("cleanup.policy") == "compact"


def _was_log(settings: Mapping[str, str | None]) -> bool:
    """Whether a topic has the settings of a table without a key: it has lost no record."""
    return settings.get("cleanup.policy") == "delete" and all(settings.get(name) == value for name, value in _FOREVER)


def _compact(admin: AdminClient, spec: TopicSpec) -> bool:
    """Give a topic the settings of a compacted one; False if Kafka refuses.

    Its records without a key are outdated: they precede a truncate.
    """
    resource = ConfigResource(ResourceType.TOPIC, spec.name)
    for name, value in spec.settings.items():
        resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
    try:
        _result(admin.incremental_alter_configs([resource])[resource])
    except KafkaException:
        return False
    return True


def _result(future: Future[Any]) -> Any:
    try:
        return future.result(timeout=_TIMEOUT_S)
    except TimeoutError:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None


def _holds(found: str | None, wanted: str) -> bool:
    """Return whether a setting suffices; numbers are lower bounds: more lag, retention or size is safe."""
    if wanted.isdigit():
        return found is not None and found.isdigit() and int(found) >= int(wanted)
    return found == wanted


def kafka_error(kafka: Kafka, error: KafkaError) -> SinkError:
    """Return the SinkError: TR-301 (no answer; names the address), TR-305 (fenced) or TR-303 (refused)."""
    if error.code() in (
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._RESOLVE,
    ):
        return SinkError(
            "TR-301",
            f"no answer from Kafka at {kafka.bootstrap}",
            detail=f"{error.name()}: {error.str()}.",
            hint="Check that the broker runs and that kafka.bootstrap and kafka.options fit its listener.",
        )
    if error.code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH):
        return SinkError(
            "TR-305",
            "the producer was fenced: another daemon has taken over, or a Kafka transaction has timed out",
            detail=f"{error.name()}: {error.str()}.",
            hint="Nothing is lost or sent twice: the open transaction is aborted, and the owner of the slot continues.",
        )
    return SinkError("TR-303", f"Kafka refused a request: {error.str()}", detail=f"{error.name()}.")
