"""Model of tracing."""

from __future__ import annotations

from typing import Literal

from broker_client.config.values import Settings


class TracingConfig(Settings):
    """Traces with OpenTelemetry (extra `otel`), see the page on observability."""

    process: Literal["link", "parent"] = "link"
    """How the span of a handler belongs to the span that published its message: `link` begins a
    trace of its own, with a link; `parent` continues the publisher's trace."""
    settle: bool = True
    """Make a span for each `ack` and `nack`, too."""
