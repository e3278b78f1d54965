"""Spans and metrics with OpenTelemetry, after its messaging conventions 1.44.

https://opentelemetry.io/docs/specs/semconv/messaging/ and, for names of destinations,
https://opentelemetry.io/docs/specs/semconv/messaging/rabbitmq/. On the API alone: without an SDK
in the program, spans are not recorded, and only the context in the headers is passed on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from broker_client.config import BrokerConfig, PublicationConfig
from broker_client.config.tracing import TracingConfig
from broker_client.consuming.delivery import DeliveryOutcome
from broker_client.consuming.handle_call import HandleCall, HandleNext
from broker_client.errors import UnsupportedError, described, install_extra
from broker_client.message import Headers, Properties
from broker_client.publication import Publication
from broker_client.publishing.publish_call import PublishCall, PublishNext

try:
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import Getter
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
except ImportError as _error:
    raise UnsupportedError("tracing", install_extra("otel")) from _error

Attributes = dict[str, str | int]

_SCOPE = "broker_client"
_SCHEMA = "https://opentelemetry.io/schemas/1.44.0"
_SYSTEM = "rabbitmq"  # of the built-in broker too: the conventions ask for the protocol's
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Boundaries that the conventions give for durations."""

_SETTLED_BY = {
    DeliveryOutcome.ACKED: "ack",
    DeliveryOutcome.REPUBLISHED: "ack",  # of the original, once its copy was confirmed
    DeliveryOutcome.FORWARDED: "ack",
    DeliveryOutcome.NACKED: "nack",
    DeliveryOutcome.RELEASED: "nack",
}


class Tracing:
    """Middleware that makes spans, and passes the context on in the headers of messages."""

    def __init__(
        self, config: BrokerConfig, settings: TracingConfig, url_of: Callable[[str], str]
    ) -> None:
        """
        Args:
            config: the whole configuration.
            settings: what to trace.
            url_of: the address a vhost is connected to, by the vhost's name.
        """
        self._config = config
        self._settings = settings
        self._url_of = url_of
        self._servers: dict[str, Attributes] = {}
        self._tracer = trace.get_tracer(_SCOPE, schema_url=_SCHEMA)
        meter = metrics.get_meter(_SCOPE, schema_url=_SCHEMA)
        self._sent = meter.create_counter(
            "messaging.client.sent.messages",
            "{message}",
            "Messages that the client attempted to send.",
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages",
            "{message}",
            "Messages that were delivered to the application.",
        )
        self._operation = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of publishing, until the outcome was known.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._process = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of handling a message.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )

    def __repr__(self) -> str:
        return f"<Tracing: process spans by {self._settings.process}>"

    # ------------------------------------------------------------------ publishing

    async def publish(self, call: PublishCall, call_next: PublishNext) -> Publication:
        """Middleware around publishing: the span ends when the outcome is known."""
        config = self._config.find_publication(call.publication)
        if config is None:
            return await call_next(call)  # which says so
        template, attributes = self._target(config, call)
        common = _operation("publish", "send", template) | self._server(config.vhost)
        context, links = self._origin_of(call)
        span = self._tracer.start_span(
            f"publish {template}",
            context,
            SpanKind.PRODUCER,
            common | attributes,
            links,
        )
        began = time.perf_counter()
        self._pass_on(call, trace.set_span_in_context(span, context))
        try:
            with _failures_of(span, common):
                publication = await call_next(call)
        except BaseException:
            span.end()
            raise
        if span.is_recording():
            outgoing = publication.outgoing
            span.set_attributes(_message(outgoing.properties, outgoing.body))

        def ended(publication: Publication) -> None:
            error = publication.error
            if error is not None:
                _fail(span, error, common)
            span.end()
            if publication.was_sent:
                self._sent.add(1, common)
            self._operation.record(time.perf_counter() - began, common)

        publication.observe(ended)
        return publication

    def _target(self, config: PublicationConfig, call: PublishCall) -> tuple[str, Attributes]:
        """The name of low cardinality, and the attributes with all names."""
        exchange, key = self._config.target_of(config)
        if config.queue is not None:
            return key, _destination(key, key)
        key = key if call.routing_key is None else call.routing_key
        if call.message is not None:
            key = call.routing_key or config.routing_key or call.message.routing_key
        return exchange or "amq.default", _destination(_joined(exchange, key), key)

    def _pass_on(self, call: PublishCall, context: Context) -> None:
        """Put `context` into the headers, and what a forwarded message brings along out of them."""
        propagate.inject(call.headers, context)
        message = call.message
        if message is None:
            return
        stale = propagate.get_global_textmap().fields - call.headers.keys()
        headers = message.properties.headers or {}
        if stale & headers.keys():
            kept = {name: headers[name] for name in headers if name not in stale}
            call.message = message.with_properties(message.properties._replace(headers=kept))

    def _origin_of(self, call: PublishCall) -> tuple[Context, list[Link]]:
        """The parent of a publish: the current span, or else that in its headers.

        A forward has those of its message, a publish from a database's outbox those of the call.
        """
        current = trace.set_span_in_context(trace.get_current_span())
        headers = call.headers if call.message is None else call.message.properties.headers
        if not headers:
            return current, []
        theirs = _context_of(headers)
        span = trace.get_current_span(theirs).get_span_context()
        if not span.is_valid:
            return current, []
        if not trace.get_current_span().get_span_context().is_valid:
            return theirs, []
        return current, [Link(span)]

    # ------------------------------------------------------------------ handling

    async def handle(self, call: HandleCall, call_next: HandleNext) -> Any:
        """Middleware around handlers; the settlement gets a span of its own."""
        message, queue = call.message, call.message.queue
        server = self._server(message.vhost)
        common = _operation("process", "process", queue) | server
        delivery = message.delivery
        attributes = _message(message.properties, message.body)
        attributes |= _destination(
            _consumed_from(delivery.exchange, delivery.routing_key, queue), delivery.routing_key
        )
        attributes["messaging.rabbitmq.message.delivery_tag"] = delivery.delivery_tag
        theirs = _context_of(message.properties.headers)
        origin = trace.get_current_span(theirs).get_span_context()
        context = theirs
        if self._settings.process == "link":
            context = trace.set_span_in_context(trace.INVALID_SPAN, theirs)  # the baggage stays
        span = self._tracer.start_span(
            f"process {queue}",
            context,
            SpanKind.CONSUMER,
            common | attributes,
            [Link(origin)] if origin.is_valid else [],
        )
        if (ours := span.get_span_context()).is_valid:
            call.trace_id = trace.format_trace_id(ours.trace_id)
        if self._settings.settle:
            within = trace.set_span_in_context(span, context)
            told = attributes | server
            call.when_settled(lambda outcome: self._settled(outcome, queue, within, told))
        self._consumed.add(1, common)
        began = time.perf_counter()
        try:
            with (
                _failures_of(span, common),
                trace.use_span(span, record_exception=False, set_status_on_exception=False),
            ):
                return await call_next(call)
        finally:
            span.end()
            self._process.record(time.perf_counter() - began, common)

    def _settled(
        self, outcome: DeliveryOutcome, queue: str, context: Context, attributes: Attributes
    ) -> None:
        operation = _SETTLED_BY.get(outcome)
        if operation is None:
            return  # the broker took it back: there was no operation
        self._tracer.start_span(
            f"{operation} {queue}",
            context,
            SpanKind.CLIENT,
            attributes | _operation(operation, "settle", queue),
        ).end()

    # ------------------------------------------------------------------ attributes

    def _server(self, vhost: str) -> Attributes:
        """`server.address` and `server.port`; none for the built-in broker."""
        url = self._url_of(vhost)
        known = self._servers.get(url)
        if known is None:
            known = self._servers[url] = _server_in(url)
        return known


def _operation(name: str, kind: str, template: str) -> Attributes:
    return {
        "messaging.system": _SYSTEM,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.template": template,
    }


def _destination(name: str, routing_key: str) -> Attributes:
    found: Attributes = {"messaging.destination.name": name}
    if routing_key:
        found["messaging.rabbitmq.destination.routing_key"] = routing_key
    return found


def _message(properties: Properties, body: bytes) -> Attributes:
    found: Attributes = {"messaging.message.body.size": len(body)}
    if properties.message_id:
        found["messaging.message.id"] = properties.message_id
    if properties.correlation_id:
        found["messaging.message.conversation_id"] = properties.correlation_id
    return found


def _joined(*names: str) -> str:
    """The conventions: a destination is what is not empty of exchange, routing key and queue."""
    return ":".join(name for name in names if name) or "amq.default"


def _consumed_from(exchange: str, routing_key: str, queue: str) -> str:
    return _joined(exchange, "" if routing_key == queue else routing_key, queue)


def _server_in(url: str) -> Attributes:
    parts = urlsplit(url)
    if parts.scheme not in ("amqp", "amqps") or not parts.hostname:
        return {}
    port = parts.port or (5671 if parts.scheme == "amqps" else 5672)
    return {"server.address": parts.hostname, "server.port": port}


class _HeaderGetter(Getter[Mapping[str, Any]]):
    """Reads texts from the headers of a message; a peer may have sent anything, bytes too."""

    def get(self, carrier: Mapping[str, Any], key: str) -> list[str] | None:
        value = carrier.get(key)
        if isinstance(value, bytes):
            value = value.decode("ascii", "replace")
        return [value] if isinstance(value, str) else None

    def keys(self, carrier: Mapping[str, Any]) -> list[str]:
        return list(carrier)


_GETTER = _HeaderGetter()


def current_context() -> dict[str, str]:
    """The current context as headers, for what is published later and elsewhere."""
    headers: dict[str, str] = {}
    propagate.inject(headers)
    return headers


def _context_of(headers: Headers | None) -> Context:
    """The context in the headers of a message, apart from any that is current."""
    return propagate.extract(headers or {}, Context(), _GETTER)


@contextmanager
def _failures_of(span: Span, common: Attributes) -> Iterator[None]:
    """Note in `span` and `common` what is raised here."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, asyncio.CancelledError):
            span.record_exception(error)
        _fail(span, error, common)
        raise


def _fail(span: Span, error: BaseException, common: Attributes) -> None:
    """The kind of the error goes to the span, and to the attributes of its metrics."""
    common["error.type"] = type(error).__qualname__
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, described(error)))
