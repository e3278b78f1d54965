"""Metrics in Prometheus' text format, with RabbitMQ's names where the meaning is the same.

Written by hand: each scrape reads the node's own counters, so there is no registry to keep in
step with them (https://prometheus.io/docs/instrumenting/exposition_formats/).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from broker_client.core.queue import Queue
from broker_client.runtime.pace import paced
from broker_client.server.http.management import Management, open_files, resident_bytes

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Family(NamedTuple):
    name: str
    kind: str
    help: str
    group: str
    """RabbitMQ's name of a group of families, for ``/metrics/detailed?family=``."""
    of: Callable[[Queue], float]


_QUEUES = (
    _Family(
        "rabbitmq_queue_messages_ready",
        "gauge",
        "Messages ready to be delivered to consumers",
        "queue_coarse_metrics",
        lambda queue: len(queue.ready),
    ),
    _Family(
        "rabbitmq_queue_messages_unacked",
        "gauge",
        "Messages delivered to consumers but not yet acknowledged",
        "queue_coarse_metrics",
        lambda queue: queue.in_flight,
    ),
    _Family(
        "rabbitmq_queue_messages",
        "gauge",
        "Sum of ready and unacknowledged messages",
        "queue_coarse_metrics",
        lambda queue: len(queue.ready) + queue.in_flight,
    ),
    _Family(
        "rabbitmq_queue_consumers",
        "gauge",
        "Consumers on a queue",
        "queue_consumer_count",
        lambda queue: len(queue.consumers),
    ),
    _Family(
        "rabbitmq_queue_messages_published_total",
        "counter",
        "Total number of messages published to queues",
        "queue_metrics",
        lambda queue: queue.enqueued,
    ),
    _Family(
        "broker_client_queue_messages_deferred",
        "gauge",
        "Messages that are deferred",
        "broker_client",
        lambda queue: len(queue.deferred),
    ),
    _Family(
        "broker_client_queue_messages_delivered_total",
        "counter",
        "Total number of deliveries, redeliveries included",
        "broker_client",
        lambda queue: queue.delivered,
    ),
    _Family(
        "broker_client_queue_messages_acked_total",
        "counter",
        "Total number of messages acknowledged",
        "broker_client",
        lambda queue: queue.acked,
    ),
    _Family(
        "broker_client_queue_messages_requeued_total",
        "counter",
        "Total number of deliveries that were returned to their queue",
        "broker_client",
        lambda queue: queue.requeued,
    ),
    _Family(
        "broker_client_queue_messages_timed_out_total",
        "counter",
        "Total number of deliveries that took too long",
        "broker_client",
        lambda queue: queue.timed_out,
    ),
    _Family(
        "broker_client_queue_messages_dead_lettered_total",
        "counter",
        "Total number of messages that died and had a dead-letter exchange to go to",
        "broker_client",
        lambda queue: queue.dead_lettered,
    ),
    _Family(
        "broker_client_queue_messages_dropped_total",
        "counter",
        "Total number of messages that died without one",
        "broker_client",
        lambda queue: queue.dropped,
    ),
    _Family(
        "broker_client_queue_paused",
        "gauge",
        "Paused queues",
        "broker_client",
        lambda queue: queue.paused,
    ),
)


async def render_families(
    management: Management, *, by_queue: bool = False, only: Sequence[str] = ()
) -> str:
    """The metrics as text.

    Args:
        management: of the node.
        by_queue: with labels of vhost and queue, instead of sums over all queues.
        only: groups of families to show; all where it is empty.
    """
    lines: list[str] = []
    queues = list(management.node.view.queues())
    for family in _QUEUES:
        if only and family.group not in only:
            continue
        lines += _head(family.name, family.kind, family.help)
        if by_queue:
            lines += [_of_queue(family, queue) async for queue in paced(queues)]
        else:
            total = sum([family.of(queue) async for queue in paced(queues)])
            lines.append(f"{family.name} {_number(total)}")
    if not only:
        for name, kind, text, value in _node(management):
            lines += [*_head(name, kind, text), f"{name} {_number(value)}"]
        lines += _identity(management)
    return "\n".join(lines) + "\n"


def _of_queue(family: _Family, queue: Queue) -> str:
    labels = f'vhost="{_escaped(queue.vhost)}",queue="{_escaped(queue.name)}"'
    return f"{family.name}{{{labels}}} {_number(family.of(queue))}"


def _node(management: Management) -> Iterator[tuple[str, str, str, float]]:
    totals = management.node.view.totals()
    alarms = management.node.alarms
    consumers = sum(len(queue.consumers) for queue in management.node.view.queues())
    yield "rabbitmq_connections", "gauge", "Connections currently open", totals.connections
    yield "rabbitmq_channels", "gauge", "Channels currently open", totals.channels
    yield "rabbitmq_consumers", "gauge", "Consumers currently connected", consumers
    yield "rabbitmq_queues", "gauge", "Queues available", totals.queues
    yield "rabbitmq_process_resident_memory_bytes", "gauge", "Memory used", resident_bytes()
    yield "rabbitmq_process_open_fds", "gauge", "Open file descriptors", open_files()
    yield (
        "rabbitmq_alarms_memory_used_watermark",
        "gauge",
        "1 if the memory alarm is in effect",
        "memory" in alarms,
    )
    yield (
        "rabbitmq_alarms_free_disk_space_watermark",
        "gauge",
        "1 if the disk alarm is in effect",
        "disk" in alarms,
    )
    yield (
        "broker_client_late_settles_total",
        "counter",
        "Total number of settlements that came after their delivery had timed out",
        totals.late_settles,
    )


def _identity(management: Management) -> list[str]:
    versions = management.versions()
    labels = ",".join(
        f'{key}="{_escaped(value)}"'
        for key, value in (
            ("rabbitmq_node", management.name),
            ("rabbitmq_cluster", management.name),
            *versions.items(),
        )
        if key != "management_version"
    )
    return [
        *_head("rabbitmq_build_info", "gauge", "Names and versions"),
        f"rabbitmq_build_info{{{labels}}} 1",
    ]


def _head(name: str, kind: str, text: str) -> tuple[str, str]:
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _escaped(value: str) -> str:
    # Prometheus takes the octet 0 for the end of all metrics, and the format has no escape for it.
    value = value.replace("\0", "\N{REPLACEMENT CHARACTER}")
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
