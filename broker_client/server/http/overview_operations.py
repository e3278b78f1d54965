"""The node, its connections, channels and consumers, and health checks, over HTTP."""

from __future__ import annotations

from operator import add
from typing import Any

from pamqp import commands

from broker_client.core.access import ADMINISTRATOR
from broker_client.message import Outgoing, Properties
from broker_client.runtime.pace import paced
from broker_client.server.http.callers import MONITORING
from broker_client.server.http.calls import NO_CONTENT, Call, Operations
from broker_client.server.http.descriptions import (
    channel_object,
    consumer_object,
    message_stats,
)
from broker_client.server.http.errors import failed, not_authorized, not_found
from broker_client.server.http.rates import Counts, counts_of
from broker_client.server.http.topology_operations import the_channel

operations: Operations = Operations()

_ALIVENESS_QUEUE = "aliveness-test"


@operations.get("/api/overview", "The node at a glance")
async def overview(call: Call) -> Any:
    management, node = call.management, call.node
    vhosts = call.watched_vhosts()
    queues = [queue for vhost in vhosts for queue in vhost.queues.values()]
    ready = in_flight = deferred = consumers = 0
    counts, rates = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
    async for queue in paced(queues):
        ready += len(queue.ready)
        in_flight += queue.in_flight
        deferred += len(queue.deferred)
        consumers += len(queue.consumers)
        counts = list(map(add, counts, counts_of(queue)))
        rates = list(map(add, rates, management.rates.of(queue)))
    connections = management.connections(call.caller)
    described: dict[str, Any] = {
        **management.versions(),
        "rates_mode": "basic",
        "cluster_name": management.cluster_name,
        "node": management.name,
        "exchange_types": [
            {"name": each, "description": "", "enabled": True}
            for each in ("direct", "fanout", "headers", "topic", "x-delayed-message")
        ],
        "message_stats": message_stats(Counts(*counts), Counts(*rates)),
        "churn_rates": {},
        "queue_totals": {
            "messages": ready + in_flight,
            "messages_ready": ready,
            "messages_unacknowledged": in_flight,
        },
        "object_totals": {
            "connections": len(connections),
            "channels": sum(each["channels"] for each in connections),
            "exchanges": sum(len(vhost.exchanges) for vhost in vhosts),
            "queues": len(queues),
            "consumers": consumers,
        },
        "statistics_db_event_queue": 0,
        "listeners": management.listeners() if call.caller.has(MONITORING) else [],
        "contexts": [],
        "broker_client": {
            "deferred": deferred,
            "alarms": list(node.alarms),
        },
    }
    return described


@operations.listing("/api/extensions", "Plugins: none")
async def extensions(call: Call) -> Any:
    return []


@operations.listing("/api/nodes", "The node", MONITORING)
async def list_nodes(call: Call) -> Any:
    return [call.management.node_object()]


@operations.get("/api/nodes/{node}", "The node, by name", MONITORING)
async def get_node(call: Call) -> Any:
    if call.name("node") != call.management.name:
        raise not_found()
    return call.management.node_object()


# --------------------------------------------------------------------------- connections


@operations.listing("/api/connections", "Open connections; without the tag monitoring, one's own")
async def list_connections(call: Call) -> Any:
    return call.management.connections(call.caller)


@operations.listing("/api/vhosts/{vhost}/connections", "Open connections of a vhost")
async def list_vhost_connections(call: Call) -> Any:
    vhost = call.vhost().name
    found = call.management.connections(call.caller)
    return [each for each in found if each["vhost"] == vhost]


@operations.get("/api/connections/{name}", "One connection")
async def get_connection(call: Call) -> Any:
    return _the_connection(call)


@operations.delete("/api/connections/{name}", "Close a connection; its client gets X-Reason")
async def delete_connection(call: Call) -> int:
    found = _the_connection(call)
    if found["user"] != call.caller.name and not call.caller.has(ADMINISTRATOR):
        raise not_authorized("User not authorised to access object")
    reason = call.request.headers.get("x-reason", "Closed via management plugin")
    call.management.close_connection(found["name"], reason)
    return NO_CONTENT


@operations.listing("/api/connections/{name}/channels", "Channels of a connection")
async def connection_channels(call: Call) -> Any:
    name = _the_connection(call)["name"]
    return [each for each in await _channels(call) if each["connection_details"]["name"] == name]


def _the_connection(call: Call) -> dict[str, Any]:
    name = call.name("name")
    for each in call.management.connections(call.caller):
        if each["name"] == name:
            return each
    raise not_found()


# --------------------------------------------------------------------------- channels, consumers


@operations.listing("/api/channels", "Open channels; without the tag monitoring, one's own")
async def list_channels(call: Call) -> Any:
    return await _channels(call)


@operations.listing("/api/vhosts/{vhost}/channels", "Open channels of a vhost")
async def list_vhost_channels(call: Call) -> Any:
    vhost = call.vhost().name
    return [each for each in await _channels(call) if each["vhost"] == vhost]


@operations.get("/api/channels/{name}", "One channel, with its consumers")
async def get_channel(call: Call) -> Any:
    name = call.name("name")
    for each in await _channels(call):
        if each["name"] == name:
            return each
    raise not_found()


@operations.listing("/api/consumers", "All consumers")
@operations.listing("/api/consumers/{vhost}", "All consumers of a vhost")
async def list_consumers(call: Call) -> Any:
    consumers = [
        consumer
        for vhost in call.watched_vhosts()
        for _, queue in sorted(vhost.queues.items())
        for consumer in queue.consumers
    ]
    known = call.management.connections_by_id()
    return [
        consumer_object(each, call.management.details_of(each.channel, known))
        async for each in paced(consumers)
    ]


async def _channels(call: Call) -> list[dict[str, Any]]:
    management = call.management
    known = management.connections_by_id()
    own_only = not call.caller.has(MONITORING)
    found = []
    async for channel in paced(call.node.view.channels()):
        connection = known.get(channel.connection, {})
        if own_only and connection.get("user") != call.caller.name:
            continue
        described = channel_object(channel, connection, management.name)
        described["consumer_details"] = [
            consumer_object(each, management.details_of(channel, known))
            for each in channel.consumers.values()
        ]
        found.append(described)
    return found


# --------------------------------------------------------------------------- health


@operations.get("/api/aliveness-test/{vhost}", "Declare a queue, publish into it, and get it back")
async def aliveness_test(call: Call) -> Any:
    node, name = call.node, _ALIVENESS_QUEUE
    declare = commands.Queue.Declare()
    declare.queue = name
    with the_channel(call) as channel:
        channel.check(declare)
        node.commands.declare_queue(channel.id, name, durable=True)
        await channel.publish(Outgoing("", name, b"test_message", Properties(), mandatory=True))
        if node.commands.get(channel.id, name, no_ack=True) is None:
            raise failed("the message did not come back")
        await node.drain()
    return {"status": "ok"}


@operations.get("/api/health/checks/alarms", "503 while memory or disk is short")
@operations.get("/api/health/checks/local-alarms", "503 while memory or disk is short")
async def check_alarms(call: Call) -> Any:
    alarms = call.node.alarms
    if alarms:
        raise failed(f"There are alarms in effect: {', '.join(alarms)}")
    return {"status": "ok"}


@operations.get("/api/health/checks/virtual-hosts", "All vhosts are there")
@operations.get("/api/health/checks/node-is-mirror-sync-critical", "There are no mirrors")
@operations.get("/api/health/checks/node-is-quorum-critical", "There is no quorum to lose")
async def check_nothing(call: Call) -> Any:
    if not call.node.accepts:
        raise failed(str(call.node.failure or "the node is closing"))
    return {"status": "ok"}


@operations.get("/api/health/checks/port-listener/{port}", "503 unless a listener uses this port")
async def check_port(call: Call) -> Any:
    port = call.name("port")
    if port not in {str(each["port"]) for each in call.management.listeners()}:
        raise failed(f"No active listener on port {port}")
    return {"status": "ok", "port": int(port)}


@operations.get(
    "/api/health/checks/protocol-listener/{protocol}", "503 unless a listener speaks this protocol"
)
async def check_protocol(call: Call) -> Any:
    protocol = call.name("protocol")
    if protocol not in {each["protocol"] for each in call.management.listeners()}:
        raise failed(f"No active listener for protocol {protocol}")
    return {"status": "ok", "protocol": protocol}
