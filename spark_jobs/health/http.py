"""HTTP server of the views job: `/livez`, `/readyz` and `/metrics`, in the process that begins the batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tailrace.schemas.config.model import Config
from tailrace.sinks.serving.address import address_of, listen
from tailrace.sinks.serving.server import health_routes
from tailrace.sinks.serving.server import serving as serving_routes
from tailrace.spark_jobs.health.health import JobHealth
from tailrace.spark_jobs.health.metrics import metrics_of
from tailrace.spark_jobs.log import line


@contextmanager
def serving(config: Config, health: JobHealth) -> Iterator[None]:
    """Serve on `health.views_listen` while the block runs. ConfigError TR-112 if the address is unavailable."""
    address = config.health.views_address
    if address is None:
        yield
        return
    taken = listen(address, _warn)
    health.url = f"http://{address_of(taken)}"
    with serving_routes(taken, health_routes(health, metrics_of(health))):
        yield


def _warn(event: str, **values: Any) -> None:
    line(event=event, level="warning", **values)
