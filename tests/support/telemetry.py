"""OpenTelemetry's SDK for tests: what was recorded stays in memory.

Providers are global and can be set once in a process, so all tests share these.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Telemetry(NamedTuple):
    spans: InMemorySpanExporter
    metrics: InMemoryMetricReader

    def named(self, name: str) -> list[ReadableSpan]:
        """The ended spans called `name`, in the order they began."""
        found = [span for span in self.spans.get_finished_spans() if span.name == name]
        return sorted(found, key=lambda span: span.start_time or 0)


@cache
def telemetry() -> Telemetry:
    """The providers of this process, installed at the first call."""
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([reader], shutdown_on_exit=False))
    return Telemetry(exporter, reader)
