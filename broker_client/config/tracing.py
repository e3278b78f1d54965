"""Model of tracing."""

from __future__ import annotations

from typing import Literal

from broker_client.config.values import Settings


class TracingConfig(Settings):
    """Traces with OpenTelemetry (extra `otel`), see the page on observability."""

    process: Literal["link", "parent"] = "link"
    """Relation of a handler's span to the span that published its message: `link` begins a new
    trace with a link, `parent` continues the publisher's trace."""
    settle: bool = True
    """Also make a span for each `ack` and `nack`."""
