"""The JSON of RabbitMQ's management API for exchanges, queues, bindings and consumers.

What this broker has besides stands under the key `broker_client`.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import quote_plus

from broker_client.core.access import DEFAULT_EXCHANGE, TopicPermissions
from broker_client.core.exchange import Binding, Exchange
from broker_client.core.latency import LatencyStats
from broker_client.core.queue import ChannelState, Queue, QueueConsumer
from broker_client.core.virtual_host import VirtualHost
from broker_client.message import Properties
from broker_client.node.definitions import exporting
from broker_client.node.definitions.exporting import plain
from broker_client.runtime.pace import paced
from broker_client.server.http.rates import Counts, counts_of


def properties_object(properties: Properties) -> dict[str, Any]:
    """The properties that a message has."""
    fields = properties._asdict()
    return {key: plain(value) for key, value in fields.items() if value is not None}


def _details(rate: float) -> dict[str, float]:
    return {"rate": round(rate, 3)}


def message_stats(counts: Counts, rates: Counts) -> dict[str, Any]:
    """Counters and their rates."""
    stats: dict[str, Any] = {}
    for key, count, rate in zip(Counts._fields, counts, rates, strict=True):
        stats[key] = int(count)
        stats[f"{key}_details"] = _details(rate)
    return stats


# --------------------------------------------------------------------------- exchanges, bindings


def exchange_object(vhost: str, exchange: Exchange) -> dict[str, Any]:
    return {
        "name": exchange.name,
        "vhost": vhost,
        "type": exchange.type,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": plain(exchange.arguments),
        "policy": exchange.policy.policy,
        "user_who_performed_action": "",
    }


async def binding_objects(vhost: VirtualHost) -> AsyncIterator[dict[str, Any]]:
    """All bindings of a vhost; those of the default exchange to each queue come first."""
    async for name in paced(sorted(vhost.queues)):
        yield default_binding_object(vhost.name, name)
    for _, exchange in sorted(vhost.exchanges.items()):
        async for binding, arguments in paced(list(exchange.bindings.items())):
            yield binding_object(vhost.name, binding, arguments)


def default_binding_object(vhost: str, queue: str) -> dict[str, Any]:
    """That of the default exchange to a queue."""
    return {
        "source": "",
        "vhost": vhost,
        "destination": queue,
        "destination_type": "queue",
        "routing_key": queue,
        "arguments": {},
        "properties_key": _quoted(queue),
    }


def binding_object(vhost: str, binding: Binding, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "source": binding.source,
        "vhost": vhost,
        "destination": binding.destination.name,
        "destination_type": binding.destination.kind,
        "routing_key": binding.binding_key,
        "arguments": plain(arguments),
        "properties_key": properties_key(binding),
    }


def properties_key(binding: Binding) -> str:
    """What names a binding among those of the same two ends; ``~`` is an empty key."""
    key = _quoted(binding.binding_key)
    if not binding.frozen_arguments:
        return key or "~"
    digest = hashlib.sha256(repr(binding.frozen_arguments).encode()).digest()
    return f"{key}~{base64.urlsafe_b64encode(digest[:16]).decode().rstrip('=')}"


def _quoted(key: str) -> str:
    return quote_plus(key).replace("~", "%7E")


# --------------------------------------------------------------------------- queues


def queue_object(queue: Queue, rates: Counts, node: str, now: float) -> dict[str, Any]:
    ready, in_flight = len(queue.ready), queue.in_flight
    stats = queue.stats(now)
    exclusive = next((each.tag for each in queue.consumers if each.exclusive), None)
    single = None
    if queue.settings.single_active:
        single = next((each.tag for each in queue.consumers if each.active), None)
    return {
        "name": queue.name,
        "vhost": queue.vhost,
        "node": node,
        "type": queue.type,
        "state": "paused" if queue.paused else "running",
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "exclusive": queue.owner is not None,
        "arguments": plain(queue.arguments),
        "policy": queue.policy.policy,
        "operator_policy": queue.policy.operator_policy,
        "effective_policy_definition": plain(queue.policy.definition),
        "consumers": len(queue.consumers),
        "consumer_utilisation": None,
        "exclusive_consumer_tag": exclusive,
        "single_active_consumer_tag": single,
        "messages": ready + in_flight,
        "messages_ready": ready,
        "messages_unacknowledged": in_flight,
        "message_stats": message_stats(counts_of(queue), rates),
        "broker_client": {
            "deferred": len(queue.deferred),
            "paused": queue.paused,
            "requeued": queue.requeued,
            "timed_out": queue.timed_out,
            "dead_lettered": queue.dead_lettered,
            "dropped": queue.dropped,
            "purged": queue.purged,
            "age": round(stats.oldest, 3) if stats.oldest else None,
            "latency": _latency(stats.latency),
        },
    }


def _latency(latency: LatencyStats) -> dict[str, float | int]:
    shown: dict[str, float | int] = {"count": latency.count}
    for quantile, seconds in latency.percentiles:
        shown[f"p{quantile * 100:g}"] = seconds
    return shown


def consumer_object(consumer: QueueConsumer, channel_details: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "queue": {"name": consumer.queue.name, "vhost": consumer.queue.vhost},
        "consumer_tag": consumer.tag,
        "channel_details": channel_details,
        "ack_required": not consumer.no_ack,
        "active": consumer.active,
        "activity_status": "up" if consumer.active else "waiting",
        "exclusive": consumer.exclusive,
        "prefetch_count": consumer.prefetch,
        "arguments": {"x-priority": consumer.priority} if consumer.priority else {},
        "broker_client": {
            "channel": consumer.channel.id,
            "in_flight": consumer.in_flight,
            "since": consumer.since,
            "message_timeout": consumer.timeout,
            "acked": consumer.acked,
            "requeued": consumer.requeued,
            "rejected": consumer.rejected,
            "timed_out": consumer.timed_out,
        },
    }


def channel_object(
    channel: ChannelState, connection: Mapping[str, Any], node: str
) -> dict[str, Any]:
    """One channel; `connection` is what is known of its connection."""
    return {
        **channel_details(channel, connection, node),
        "vhost": channel.vhost,
        "state": "running",
        "confirm": channel.confirms,
        "transactional": channel.transaction is not None,
        "consumer_count": len(channel.consumers),
        "prefetch_count": channel.prefetch,
        "global_prefetch_count": channel.shared_prefetch,
        "messages_unacknowledged": len(channel.ledger),
        "messages_unconfirmed": 0,
        "messages_uncommitted": 0,
        "acks_uncommitted": 0,
        "connection_details": {
            "name": connection.get("name", ""),
            "peer_host": connection.get("peer_host", ""),
            "peer_port": connection.get("peer_port", 0),
        },
    }


def channel_details(
    channel: ChannelState, connection: Mapping[str, Any], node: str
) -> dict[str, Any]:
    """The description of a channel, without its consumers."""
    name = connection.get("name", f"in this process, connection {channel.connection}")
    return {
        "name": f"{name} ({channel.number})",
        "number": channel.number,
        "node": node,
        "user": connection.get("user", ""),
        "connection_name": name,
        "peer_host": connection.get("peer_host", ""),
        "peer_port": connection.get("peer_port", 0),
    }


# --------------------------------------------------------------------------- permissions


def topic_permission_object(permissions: TopicPermissions) -> dict[str, Any]:
    """The topic permissions of a user for an exchange."""
    described = exporting.topic_permission_object(permissions)
    if permissions.exchange == DEFAULT_EXCHANGE:
        described["exchange"] = ""
    return described
