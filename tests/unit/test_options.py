"""The Java client's options, translated from librdkafka's or as they are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.schemas.config.model import Kafka
from tailrace.schemas.errors import ConfigError
from tailrace.sinks.kafka.options import java_options


def kafka(**values: object) -> Kafka:
    return Kafka.model_validate({"bootstrap": "k:9093", **values})


def test_a_login_over_tls_is_translated(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("ca", "chain", "key")}
    for name, file in files.items():
        file.write_text(f"PEM of {name}")
    options = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(files["ca"]),
        "ssl.certificate.location": str(files["chain"]),
        "ssl.key.location": str(files["key"]),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "reader",
        "linger.ms": 5,
    }
    found = java_options(kafka(options=options, secret_options={"sasl.password": 'a"b\\c'}))
    assert found == {
        "bootstrap.servers": "k:9093",
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "PEM of ca",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "PEM of chain",
        "ssl.keystore.key": "PEM of key",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required"
        ' username="reader" password="a\\"b\\\\c";',
    }


@pytest.mark.parametrize(
    "options",
    [
        {"ssl.ca.pem": "PEM"},
        {"ssl.engine.id": "x"},
        {"sasl.oauthbearer.config": "x"},
        {"sasl.mechanism": "GSSAPI"},
        {"enable.ssl.certificate.verification": False},
    ],
)
def test_an_option_without_a_counterpart_is_refused_with_a_useful_hint(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as refused:
        java_options(kafka(options=options))
    assert refused.value.code == "TR-505"
    assert refused.value.hint is not None
    assert "kafka.java_options" in refused.value.hint
    given = {"security.protocol": "SSL", "ssl.truststore.location": "/etc/ca.jks"}
    assert java_options(kafka(options=options, java_options=given)) == {"bootstrap.servers": "k:9093", **given}


def test_a_missing_certificate_file_is_named() -> None:
    with pytest.raises(ConfigError, match="no-such-ca") as refused:
        java_options(kafka(options={"ssl.ca.location": "/no-such-ca"}))
    assert refused.value.code == "TR-504"
