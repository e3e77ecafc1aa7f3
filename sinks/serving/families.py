"""Metrics of `schemas.metrics` as families of prometheus_client, collected on request."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tailrace.schemas.metrics import PREFIX, Description

Samples = Mapping[tuple[str, ...], float]

_FAMILIES: Final = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}


class StateCollector(Collector):
    """Collector of a process' state: gauges and counters from the values that `samples` yields.

    A described metric that has no value at the time is in the answer with its help and kind and without a sample.
    """

    def __init__(self, descriptions: Mapping[str, Description]) -> None:
        self._descriptions = descriptions

    @abstractmethod
    def samples(self) -> Iterator[tuple[str, Samples]]:
        """Yield the name of a metric and its values by labels; at most once for each name."""

    def collect(self) -> Iterator[Metric]:
        found: dict[str, Samples] = {"build_info": {(version("tailrace"),): 1.0}}
        found.update(self.samples())
        for name, values in found.items():
            yield self._family(name, values)
        for name, each in self._descriptions.items():
            if name not in found and each.kind != "histogram":
                yield self._family(name, {})

    def _family(self, name: str, samples: Samples) -> Metric:
        described = self._descriptions[name]
        family: CounterMetricFamily | GaugeMetricFamily = _FAMILIES[described.kind](
            f"{PREFIX}{name}", described.text, labels=described.labels
        )
        for labels, value in samples.items():
            family.add_metric(labels, value)
        return family


class Metrics:
    """All metrics of a process: its own, plus memory, CPU and start time."""

    def __init__(self, *collectors: Collector) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        for each in collectors:
            self._registry.register(each)
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format, version 0.0.4."""
        return generate_latest(self._registry)


def single(value: float) -> Samples:
    """Return the only sample of a metric without labels."""
    return {(): value}
