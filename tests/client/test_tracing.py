"""Traces with OpenTelemetry on both brokers: spans, their attributes, and the propagated
context."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.trace import SpanKind, StatusCode

from broker_client import Broker, Message, MessageReturnedError
from broker_client.errors import MessageTooLargeError
from broker_client.message import Outgoing, Properties
from tests.client.conftest import StartBroker
from tests.docs.documents import ROOT
from tests.support.eventually import eventually
from tests.support.telemetry import Telemetry, telemetry


@pytest.fixture
def recorded() -> Iterator[Telemetry]:
    recorded = telemetry()
    recorded.spans.clear()
    yield recorded
    recorded.spans.clear()


def a_config(process: str = "parent", **more: Any) -> dict[str, Any]:
    return {
        "tracing": {"process": process},
        "exchanges": ["orders", "dead"],
        "queues": {
            "work": {"options": {"dead_letter_exchange": "dead"}},
            "other": {},
            "cemetery": {},
        },
        "bindings": ["orders[order.#] -> work", "dead[#] -> cemetery"],
        "publications": {
            "orders": {"exchange": "orders", "routing_key": "order.placed"},
            "other": {"queue": "other"},
        },
        "subscriptions": {
            "work": {"queue": "work", "recovery": [{"strategy": "nack"}]},
            "other": {"queue": "other"},
            "cemetery": {"queue": "cemetery"},
        },
        **more,
    }


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.trace_id)


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    assert parent.context is not None
    return span.parent is not None and span.parent.span_id == parent.context.span_id


async def spans_named(recorded: Telemetry, name: str, count: int = 1) -> list[ReadableSpan]:
    await eventually(lambda: len(recorded.named(name)) >= count, message=name)
    found = recorded.named(name)
    assert len(found) == count
    return found


async def handle_all(broker: Broker, subscription: str, *, fail: int = 0) -> list[Message]:
    """Handle the messages of `subscription`; the first `fail` of them fail."""
    seen: list[Message] = []

    async def handle(message: Message) -> None:
        seen.append(message)
        if len(seen) <= fail:
            raise ValueError("told to fail")

    broker.handle(subscription)(handle)
    return seen


# --------------------------------------------------------------------------- spans


async def test_spans_of_one_message_are_named_and_described_after_the_conventions(
    start: StartBroker, recorded: Telemetry, url: str
) -> None:
    broker = await start(a_config())
    await handle_all(broker, "work")
    await (
        await broker.publish(
            "orders", {"id": 1}, "order.changed", message_id="m-1", correlation_id="talk"
        )
    )
    [publish] = await spans_named(recorded, "publish orders")
    [process] = await spans_named(recorded, "process work")
    [ack] = await spans_named(recorded, "ack work")
    assert [publish.kind, process.kind, ack.kind] == [
        SpanKind.PRODUCER,
        SpanKind.CONSUMER,
        SpanKind.CLIENT,
    ]
    both = {
        "messaging.system": "rabbitmq",
        "messaging.message.id": "m-1",
        "messaging.message.conversation_id": "talk",
        "messaging.message.body.size": 8,
        "messaging.rabbitmq.destination.routing_key": "order.changed",
    }
    if url.startswith("amqp"):
        both |= {"server.address": "127.0.0.1", "server.port": urlsplit(url).port}
    assert publish.attributes == both | {
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders:order.changed",
        "messaging.destination.template": "orders",
    }
    consumed = both | {
        "messaging.destination.name": "orders:order.changed:work",
        "messaging.destination.template": "work",
        "messaging.rabbitmq.message.delivery_tag": 1,
    }
    assert process.attributes == consumed | {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
    }
    assert ack.attributes == consumed | {
        "messaging.operation.name": "ack",
        "messaging.operation.type": "settle",
    }
    assert is_child(process, publish)
    assert is_child(ack, process)
    known = {v for k, v in vars(messaging_attributes).items() if k.startswith("MESSAGING_")}
    assert {name for name in (process.attributes or {}) if name.startswith("messaging.")} <= known


async def test_publish_to_a_queue_names_the_queue_once(
    start: StartBroker, recorded: Telemetry
) -> None:
    broker = await start(a_config())
    await handle_all(broker, "other")
    await (await broker.publish("other", 1))
    for name in ("publish other", "process other"):
        [span] = await spans_named(recorded, name)
        assert (span.attributes or {})["messaging.destination.name"] == "other"


async def test_process_span_that_links_begins_a_trace_of_its_own(
    start: StartBroker, recorded: Telemetry
) -> None:
    broker = await start(a_config("link"))
    tracer = trace.get_tracer("test")
    with tracer.start_as_current_span("start"):  # subscribed within another span
        await handle_all(broker, "work")
    with tracer.start_as_current_span("request") as request:
        await (await broker.publish("orders", 1))
    [publish] = await spans_named(recorded, "publish orders")
    [process] = await spans_named(recorded, "process work")
    assert trace_of(publish) == request.get_span_context().trace_id
    assert process.parent is None
    assert trace_of(process) != trace_of(publish)
    assert [link.context.span_id for link in process.links] == [
        publish.context.span_id if publish.context else None
    ]


async def test_publish_that_is_returned_ends_its_span_with_the_error(
    start: StartBroker, recorded: Telemetry
) -> None:
    broker = await start(a_config())
    with pytest.raises(MessageReturnedError):
        await (await broker.publish("orders", 1, "nowhere"))
    [publish] = await spans_named(recorded, "publish orders")
    assert publish.status.status_code is StatusCode.ERROR
    assert (publish.attributes or {})["error.type"] == "MessageReturnedError"


async def test_failure_that_nobody_awaits_is_still_logged_with_tracing(
    start: StartBroker, recorded: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await start(a_config())
    await broker.publish("orders", 1, "nowhere")
    await spans_named(recorded, "publish orders")
    await eventually(lambda: "nothing awaited it" in caplog.text)


async def test_handler_that_fails_ends_its_span_with_the_error_and_is_nacked(
    start: StartBroker, recorded: Telemetry
) -> None:
    broker = await start(a_config())
    await handle_all(broker, "work", fail=1)
    await (await broker.publish("orders", 1))
    [process] = await spans_named(recorded, "process work")
    [nack] = await spans_named(recorded, "nack work")
    assert (process.attributes or {})["error.type"] == "ValueError"
    assert process.status.status_code is StatusCode.ERROR
    assert [event.name for event in process.events] == ["exception"]
    assert is_child(nack, process)


async def test_settlements_are_not_traced_where_that_is_turned_off(
    start: StartBroker, recorded: Telemetry
) -> None:
    broker = await start({**a_config(), "tracing": {"settle": False}})
    await handle_all(broker, "work")
    await (await broker.publish("orders", 1))
    await eventually(lambda: broker.stats().subscriptions["work"].acked == 1)
    await spans_named(recorded, "process work")
    assert recorded.named("ack work") == []


async def test_no_span_is_made_and_no_header_sent_without_tracing(
    start: StartBroker, recorded: Telemetry
) -> None:
    broker = await start({**a_config(), "tracing": None})
    seen = await handle_all(broker, "work")
    await (await broker.publish("orders", 1))
    await eventually(lambda: broker.stats().subscriptions["work"].acked == 1)
    assert seen[0].properties.headers is None
    assert recorded.spans.get_finished_spans() == ()


async def test_context_of_a_peer_that_sends_bytes_or_nonsense_is_taken_or_left(
    start: StartBroker, recorded: Telemetry
) -> None:
    broker = await start(a_config())
    await handle_all(broker, "other")
    raw = await broker.connect()
    try:
        channel = await raw.open_channel(confirm=True)
        parent = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        for headers in ({"traceparent": parent}, {"traceparent": 7}, {"traceparent": [1, 2]}):
            await publish_raw(channel, headers)
        first, second, third = await spans_named(recorded, "process other", 3)
    finally:
        await raw.close()
    assert f"{trace_of(first):032x}" == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert [second.parent, third.parent] == [None, None]


async def publish_raw(channel: Any, headers: Mapping[str, Any]) -> None:
    await channel.publish([Outgoing("", "other", b"1", Properties(headers=headers))])


# --------------------------------------------------------------------------- context on all ways


async def test_context_survives_a_republished_copy(start: StartBroker, recorded: Telemetry) -> None:
    config = a_config()
    config["subscriptions"]["work"]["recovery"] = [
        {"strategy": "republish", "defer": "1ms", "attempts": 2}
    ]
    broker = await start(config)
    await handle_all(broker, "work", fail=2)
    await (await broker.publish("orders", 1))
    [publish] = await spans_named(recorded, "publish orders")
    tries = await spans_named(recorded, "process work", 3)
    assert [is_child(each, publish) for each in tries] == [True, True, True]
    assert len(await spans_named(recorded, "ack work", 3)) == 3  # two originals, and the last copy


async def test_context_survives_a_requeue_and_a_dead_letter(
    start: StartBroker, recorded: Telemetry
) -> None:
    broker = await start(a_config())
    await handle_all(broker, "work", fail=1)
    await handle_all(broker, "cemetery")
    await (await broker.publish("orders", 1))
    [publish] = await spans_named(recorded, "publish orders")
    [buried] = await spans_named(recorded, "process cemetery")
    assert is_child(buried, publish)


async def test_context_survives_a_forward_by_recovery(
    start: StartBroker, recorded: Telemetry
) -> None:
    config = a_config()
    config["subscriptions"]["work"]["recovery"] = [{"strategy": "forward", "publication": "other"}]
    broker = await start(config)
    await handle_all(broker, "work", fail=1)
    await handle_all(broker, "other")
    await (await broker.publish("orders", 1))
    [publish] = await spans_named(recorded, "publish orders")
    [forwarded] = await spans_named(recorded, "process other")
    assert is_child(forwarded, publish)


async def test_forward_out_of_a_handler_is_a_child_of_it_and_without_one_of_the_message(
    start: StartBroker, recorded: Telemetry
) -> None:
    broker = await start(a_config())
    kept: list[Message] = []

    @broker.handle("work")
    async def work(message: Message) -> None:
        kept.append(message)
        await (await broker.forward("other", message))

    seen = await handle_all(broker, "other")
    await (await broker.publish("orders", 1, headers={"tracestate": "vendor=1"}))
    await eventually(lambda: len(seen) == 1)
    await (await broker.forward("other", kept[0]))
    await eventually(lambda: len(seen) == 2)
    [publish] = await spans_named(recorded, "publish orders")
    [process] = await spans_named(recorded, "process work")
    inside, outside = await spans_named(recorded, "publish other", 2)
    assert is_child(inside, process)
    assert is_child(outside, publish)
    first, second = await spans_named(recorded, "process other", 2)
    assert is_child(first, inside)
    assert is_child(second, outside)


async def test_forward_without_a_routing_key_is_traced_with_that_of_the_message(
    start: StartBroker, recorded: Telemetry
) -> None:
    config = a_config()
    config["publications"]["again"] = {"exchange": "dead"}
    broker = await start(config)

    @broker.handle("work")
    async def work(message: Message) -> None:
        await (await broker.forward("again", message))

    seen = await handle_all(broker, "cemetery")
    await (await broker.publish("orders", 1))
    await eventually(lambda: len(seen) == 1)
    [span] = await spans_named(recorded, "publish dead")
    assert span.attributes is not None
    assert span.attributes["messaging.destination.name"] == "dead:order.placed"
    assert span.attributes["messaging.rabbitmq.destination.routing_key"] == "order.placed"


async def test_context_survives_a_delay(start: StartBroker, recorded: Telemetry) -> None:
    broker = await start(a_config())
    await handle_all(broker, "work")
    await (await broker.publish("orders", 1, delay=0.05))
    [publish] = await spans_named(recorded, "publish orders")
    [process] = await spans_named(recorded, "process work")
    assert is_child(process, publish)


async def test_context_survives_a_shovel(start: StartBroker, recorded: Telemetry) -> None:
    shovels = {"move": {"subscription": "work", "publication": "other"}}
    broker = await start(a_config(shovels=shovels))
    await handle_all(broker, "other")
    await (await broker.publish("orders", 1))
    [publish] = await spans_named(recorded, "publish orders")
    [moved] = await spans_named(recorded, "process other")
    assert trace_of(moved) == trace_of(publish)


async def test_context_survives_the_outbox(
    start: StartBroker, recorded: Telemetry, tmp_path: Path
) -> None:
    outbox = str(tmp_path / "outbox.db")
    broker = await start(a_config(publish_queue={"outbox": outbox}))
    await handle_all(broker, "work")
    await (await broker.publish("orders", 1))
    [publish] = await spans_named(recorded, "publish orders")
    [process] = await spans_named(recorded, "process work")
    assert is_child(process, publish)


# --------------------------------------------------------------------------- metrics


async def test_metrics_of_the_conventions_are_recorded(
    start: StartBroker, recorded: Telemetry
) -> None:
    recorded.metrics.get_metrics_data()
    broker = await start({**a_config(), "namespace": "metered"})
    await handle_all(broker, "work", fail=1)
    await broker.publish_many("orders", [1, 2])
    with pytest.raises(MessageReturnedError):
        await (await broker.publish("orders", 1, "nowhere"))
    await eventually(lambda: broker.stats().subscriptions["work"].acked == 1)

    def points() -> set[tuple[str, str, str | None, int]]:
        data = recorded.metrics.get_metrics_data()
        return {
            (
                metric.name,
                str((point.attributes or {})["messaging.destination.template"]),
                (point.attributes or {}).get("error.type"),  # type: ignore[misc]
                getattr(point, "count", None) or point.value,  # type: ignore[union-attr]
            )
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
            if str((point.attributes or {})["messaging.destination.template"]).startswith("metered")
        }

    expected = {
        ("messaging.client.sent.messages", "metered:orders", None, 2),
        ("messaging.client.sent.messages", "metered:orders", "MessageReturnedError", 1),
        ("messaging.client.operation.duration", "metered:orders", None, 2),
        ("messaging.client.operation.duration", "metered:orders", "MessageReturnedError", 1),
        ("messaging.client.consumed.messages", "metered:work", None, 2),
        ("messaging.process.duration", "metered:work", None, 1),
        ("messaging.process.duration", "metered:work", "ValueError", 1),
    }
    await eventually(lambda: points() == expected)


async def test_metrics_count_no_message_that_was_never_sent(recorded: Telemetry) -> None:
    vhost = {"queues": ["small"], "publications": {"small": {"queue": "small"}}}
    config = {"vhosts": {"/": vhost}, "node": {"max_message_size": 4}, "tracing": {}}
    async with Broker.create(config) as broker:
        with pytest.raises(MessageTooLargeError):
            await (await broker.publish("small", b"12345"))
        await (await broker.publish("small", b"1234"))

    def sent() -> list[tuple[str | None, int]]:
        data = recorded.metrics.get_metrics_data()
        return [
            ((point.attributes or {}).get("error.type"), point.value)  # type: ignore[misc,union-attr]
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
            if metric.name == "messaging.client.sent.messages"
            and (point.attributes or {})["messaging.destination.template"] == "small"
        ]

    await eventually(lambda: sent() == [(None, 1)])


# --------------------------------------------------------------------------- two processes

PROGRAM = ROOT / "tests" / "client" / "traced_program.py"


async def run_traced(role: str, url: str) -> list[dict[str, Any]]:
    """Run the traced program to its end; returns the spans that the SDK exported."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(PROGRAM),
        role,
        url,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"},
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return [json.loads(line) for line in out.splitlines()]


async def test_trace_goes_from_one_process_to_the_next(url: str, tmp_path: Path) -> None:
    if url == "embedded://":
        url = f"embedded://{tmp_path}/broker.db"  # one process after the other
    published = await run_traced("publish", url)
    handled = await run_traced("handle", url)
    names = {span["name"]: span for span in [*published, *handled]}
    assert set(names) == {"request", "publish orders", "process orders", "ack orders"}
    traces = {span["context"]["trace_id"] for span in names.values()}
    assert len(traces) == 1
    assert names["publish orders"]["parent_id"] == names["request"]["context"]["span_id"]
    assert names["process orders"]["parent_id"] == names["publish orders"]["context"]["span_id"]
