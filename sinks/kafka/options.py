"""Kafka client options from the configuration, for librdkafka and for Spark's Java client."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from tailrace.schemas.config.model import Kafka
from tailrace.schemas.config.secret import kafka_secrets, redacted
from tailrace.schemas.errors import ConfigError
from tailrace.sinks.kafka.client_log import LOGGER

_BACKOFF_MS: Final = 20
"""Doubles with each failure, up to 10 s. librdkafka waits half of it before the first connection, too."""


def client_options(kafka: Kafka) -> dict[str, Any]:
    """Return librdkafka options for any client: bootstrap servers, `options`, `secret_options`, logger.

    ConfigError (TR-306) if no client can be created with them. The caller decides which value wins by the order of
    merging; here its own does: ``{**client_options(kafka), "enable.idempotence": True}``.
    """
    options = _options(kafka) | {"logger": LOGGER}
    _try(tuple(options.items()), frozenset(kafka_secrets(kafka)))
    return options


def _options(kafka: Kafka) -> dict[str, Any]:
    secrets = {name: value.get_secret_value() for name, value in kafka.secret_options.items()}
    return {"bootstrap.servers": kafka.bootstrap, "reconnect.backoff.ms": _BACKOFF_MS, **kafka.options, **secrets}


@lru_cache(maxsize=8)
def _try(options: tuple[tuple[str, Any], ...], secrets: frozenset[str]) -> None:
    """Validate the options with a client that does not connect; takes 2 ms, once per set of options."""
    try:
        AdminClient({**dict(options), "bootstrap.servers": "", "log_level": 0})
    except KafkaException as error:
        raise unusable(error.args[0], secrets) from None


def unusable(error: KafkaError, secrets: Iterable[str] = ()) -> ConfigError:
    """Return the error for an option that the client refuses: unknown, out of range, file unreadable."""
    reason = re.sub(r'^Invalid value ".*" for', "Invalid value for", error.str(), flags=re.S)
    return ConfigError(
        "TR-306",
        "the Kafka client does not accept its options",
        detail=f"{redacted(reason, secrets)}.",
        hint="Correct kafka.options or kafka.secret_options: names as in librdkafka, files readable by this user.",
    )


_SAME_NAME: Final = (
    "security.protocol",
    "client.rack",
    "metadata.max.age.ms",
    "ssl.endpoint.identification.algorithm",
)
"""Options that have the same name in both clients and are relevant for reading."""

_LOGIN: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def java_options(kafka: Kafka) -> dict[str, str]:
    """Return the connection options for the Java client that Spark uses.

    Covers plain text, TLS with PEM files and SASL with PLAIN or SCRAM. ConfigError for a security option that has no
    translation: if it were ignored, the broker would seem to be down. `java_options`, if set, replace all of them.
    """
    if kafka.java_options:
        given_java = {name: value.get_secret_value() for name, value in kafka.java_options.items()}
        return {"bootstrap.servers": kafka.bootstrap, **given_java}
    given = _options(kafka)
    java = {"bootstrap.servers": str(given.pop("bootstrap.servers"))}
    java |= {name: str(given[name]) for name in _SAME_NAME if name in given}
    _translate_tls(given, java)
    mechanism = given.get("sasl.mechanism", given.get("sasl.mechanisms"))
    if mechanism is not None:
        if mechanism not in _LOGIN:
            raise _untranslatable(f"sasl.mechanism = {mechanism}")
        user, password = _jaas(given.get("sasl.username", "")), _jaas(given.get("sasl.password", ""))
        java["sasl.mechanism"] = str(mechanism)
        java["sasl.jaas.config"] = f"{_LOGIN[mechanism]} required username={user} password={password};"
    known = {*_SAME_NAME, *_TLS_FILES, "sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"}
    for name in given:
        if name.startswith(("ssl.", "sasl.", "enable.ssl.", "enable.sasl.")) and name not in known:
            raise _untranslatable(name)
    return java


def _pem(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            "TR-504",
            f'file "{path}" of kafka.options cannot be read',
            detail=f"{error.strerror}.",
            hint=f"ls -l {path}",
        ) from None


_TLS_FILES: Final[Mapping[str, tuple[str, Callable[[str], str]]]] = {
    "ssl.ca.location": ("ssl.truststore.certificates", _pem),
    "ssl.certificate.location": ("ssl.keystore.certificate.chain", _pem),
    "ssl.key.location": ("ssl.keystore.key", _pem),
    "ssl.key.password": ("ssl.key.password", str),
}


def _translate_tls(given: Mapping[str, Any], java: dict[str, str]) -> None:
    for name, (java_name, read) in _TLS_FILES.items():
        if name in given:
            java[java_name] = read(str(given[name]))
    if "ssl.ca.location" in given:
        java["ssl.truststore.type"] = "PEM"
    if "ssl.certificate.location" in given:
        java["ssl.keystore.type"] = "PEM"


def _jaas(value: object) -> str:
    """Quote a value for a JAAS line."""
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _untranslatable(what: str) -> ConfigError:
    return ConfigError(
        "TR-505",
        f'Spark\'s Kafka client has no counterpart of "{what}" in kafka.options',
        detail="Views read Kafka with the Java client, which has other names for its options.",
        hint='java_options = { "security.protocol" = ..., "ssl.truststore.location" = ... }  # under [kafka]\n'
        "       kafka.java_options must have all options that the Java client needs, under its own names.",
    )
