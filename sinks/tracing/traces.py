"""Traces of OpenTelemetry, from COMMIT over the topics to the views, without a context in any record.

A trace belongs to one Kafka transaction of the daemon. Its ids are computed from the position at which that transaction
ends, which the position record has anyway. So the views job can add its batches: one that ends at the cut of this
transaction has the same ids. Batches that skip the cut are in the trace of the transaction at which they end.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from tailrace.schemas.closes import Closes
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import ConfigError
from tailrace.schemas.lsn import format_lsn
from tailrace.schemas.records.position import Cut

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

_QUEUE: Final = 2048
"""The maximum number of spans that wait to be sent; further ones are dropped."""

_SEND_S: Final = 3.0
"""Maximum duration, in seconds, of a request to the receiver, and of the sending at the end."""

_SAY_AGAIN_S: Final = 60.0

_NEEDED: Final = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter")


class Traces(Closes):
    """Spans of one process, sent by a thread of their own. Without `traces.endpoint`, nothing is imported or sent.

    `committed` must be called from one thread.
    """

    def __init__(self, config: Config, service: str, say: Callable[[str], None]) -> None:
        """`service` is the service's name in the traces; `say` is called if they cannot be sent, once a minute at most.

        ConfigError (TR-110) if OpenTelemetry is not installed.
        """
        self._prefix = config.kafka.prefix
        self._sender = _Sender(config, service, say) if config.traces.endpoint else None

    def committed(self, cut: Cut, records: int, began_ns: int) -> None:
        """Record a Kafka transaction that has just been committed, from the source's COMMIT on.

        `records` are those on the topics of tables; a transaction without any is no news. `began_ns` is the time, in
        nanoseconds since 1970, at which its end began, with the flush.
        """
        if self._sender is None or not records:
            return
        # a snapshot has no COMMIT, and the source's clock may be ahead
        start_ns = min(cut.commit_ts_us * 1000 or began_ns, began_ns)
        values = {**_values(cut), "messaging.system": "kafka", "tailrace.records": records}
        self._sender.root(_context(self._prefix, cut), start_ns, began_ns, values)

    def applied(self, cut: Cut, values: Mapping[str, Any], began_ns: int, stages: Mapping[str, int]) -> None:
        """Record a batch that has just ended at a cut, as a part of the trace of the transaction there.

        `stages` are their milliseconds, one after the other from `began_ns` on.
        """
        if self._sender is not None:
            of_batch = {**_values(cut), **{f"tailrace.{name}": value for name, value in values.items()}}
            self._sender.batch(_context(self._prefix, cut), began_ns, stages, of_batch)

    def close(self) -> None:
        """Send what waits, for a short time."""
        if self._sender is not None:
            self._sender.close()


def check_installed(config: Config) -> None:
    """Raise ConfigError (TR-110) if traces are wanted and OpenTelemetry is not installed."""
    if not config.traces.endpoint:
        return
    try:
        for name in _NEEDED:
            import_module(name)
    except ImportError as error:
        raise ConfigError(
            "TR-110",
            "OpenTelemetry is not installed",
            detail=f"traces.endpoint is set, and: {error}.",
            hint="pip install 'tailrace[traces]'",
        ) from None


def _values(cut: Cut) -> dict[str, Any]:
    return {"tailrace.position": str(cut.position), "tailrace.lsn": format_lsn(cut.flushed_lsn)}


def _context(prefix: str, cut: Cut) -> SpanContext:
    """Return the ids of the transaction that ends at a cut, the same in each process."""
    from opentelemetry.trace import SpanContext, TraceFlags

    digest = hashlib.blake2b(f"{prefix} {cut.position}".encode(), digest_size=24).digest()
    trace_id, span_id = int.from_bytes(digest[:16]), int.from_bytes(digest[16:])
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))


class _Sender:
    """OpenTelemetry's SDK, which is imported here only."""

    def __init__(self, config: Config, service: str, say: Callable[[str], None]) -> None:
        check_installed(config)
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
        from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

        class Ids(RandomIdGenerator):
            """Random ids, but for the root of a trace."""

            root: SpanContext | None = None

            def generate_trace_id(self) -> int:
                return self.root.trace_id if self.root is not None else super().generate_trace_id()

            def generate_span_id(self) -> int:
                return self.root.span_id if self.root is not None else super().generate_span_id()

        self._ids = Ids()
        address = f"{(config.traces.endpoint or '').rstrip('/')}/v1/traces"
        self._exporter = OTLPSpanExporter(endpoint=address, timeout=_SEND_S)
        resource = Resource.create({"service.name": service, "tailrace.prefix": config.kafka.prefix})
        # decided by the trace's id: all processes choose the same traces
        sampler = TraceIdRatioBased(config.traces.share)
        self._provider = TracerProvider(sampler, resource, id_generator=self._ids, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter, max_queue_size=_QUEUE))
        self._tracer = self._provider.get_tracer("tailrace")
        self._log = logging.getLogger("opentelemetry")
        self._handler = _Said(say)
        self._log.addHandler(self._handler)

    def root(self, at: SpanContext, start_ns: int, flushed_ns: int, values: Mapping[str, Any]) -> None:
        """Record a transaction, and its end as a span of its own."""
        from opentelemetry.trace import SpanKind, set_span_in_context

        end_ns = time.time_ns()
        self._ids.root = at
        try:
            span = self._tracer.start_span("commit to topic", None, SpanKind.PRODUCER, values, start_time=start_ns)
        finally:
            self._ids.root = None
        part = self._tracer.start_span("kafka transaction", set_span_in_context(span), start_time=flushed_ns)
        part.end(end_ns)
        span.end(end_ns)

    def batch(self, at: SpanContext, start_ns: int, stages: Mapping[str, int], values: Mapping[str, Any]) -> None:
        """Record a batch, with a span for each stage, as a part of the trace `at`."""
        from opentelemetry.trace import NonRecordingSpan, SpanKind, set_span_in_context

        end_ns, parent = time.time_ns(), set_span_in_context(NonRecordingSpan(at))
        span = self._tracer.start_span("topic to view", parent, SpanKind.CONSUMER, values, start_time=start_ns)
        inside = set_span_in_context(span)
        for name, took_ms in stages.items():
            part = self._tracer.start_span(name, inside, start_time=start_ns)
            start_ns = min(start_ns + took_ms * 1_000_000, end_ns)
            part.end(start_ns)
        span.end(end_ns)

    def close(self) -> None:
        # the SDK alone would wait for half a minute if the receiver does not answer
        limit = threading.Timer(_SEND_S, self._exporter.shutdown)
        limit.daemon = True
        limit.start()
        self._provider.shutdown()
        limit.cancel()
        self._log.removeHandler(self._handler)


class _Said(logging.Handler):
    """Passes warnings of the SDK on, one a minute; its own would be plain text in a log of JSON lines."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say
        self._again_at = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Pass on the first record of a minute."""
        if (now := time.monotonic()) >= self._again_at:
            self._again_at = now + _SAY_AGAIN_S
            self._say(record.getMessage())
