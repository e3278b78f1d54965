"""Messages over HTTP: publish, get, and what RabbitMQ does not have: pause, in flight, deferred."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pamqp import commands

from broker_client.amqp.encode import check_publish
from broker_client.amqp.json_values import body_of, timestamp_of
from broker_client.core.queue import Queue
from broker_client.core.replies import resource_locked
from broker_client.message import Delivery, Outgoing, Properties
from broker_client.node.node import Node
from broker_client.runtime.pace import paced
from broker_client.server.http.calls import NO_CONTENT, Call, Operations, flag, number, table, text
from broker_client.server.http.descriptions import properties_object
from broker_client.server.http.errors import bad_request
from broker_client.server.http.topology_operations import (
    the_channel,
    the_exchange,
    the_queue,
)

operations: Operations = Operations()

_MAX_GET = 10_000
_IDS_AT_ONCE = 1_000  # deferred messages dropped in one turn of the event loop
_ACK_MODES = (
    "ack_requeue_true",
    "ack_requeue_false",
    "reject_requeue_true",
    "reject_requeue_false",
)
_NUMBERS = ("delivery_mode", "priority")


# --------------------------------------------------------------------------- publish


@operations.post(
    "/api/exchanges/{vhost}/{name}/publish",
    "Publish a message; answers whether a queue took it",
    body=("properties", "routing_key", "payload", "payload_encoding"),
)
async def publish(call: Call) -> Any:
    data = await call.json()
    properties = _properties(table(data, "properties"))
    payload, encoding = text(data, "payload"), text(data, "payload_encoding", "string")
    try:
        body = body_of(payload, encoding)
    except ValueError as error:
        raise bad_request(str(error)) from None
    key = text(data, "routing_key")
    message = Outgoing(the_exchange(call), key, body, properties, mandatory=True)
    check_publish(message)
    with the_channel(call) as channel:
        routed = await channel.publish(message)
    return {"routed": routed}


def _properties(given: Mapping[str, Any]) -> Properties:
    unknown = sorted(set(given) - set(Properties._fields))
    if unknown:
        raise bad_request(
            f"unknown properties: {', '.join(unknown)}; known: {', '.join(Properties._fields)}"
        )
    fields: dict[str, Any] = {}
    for key, value in given.items():
        if key == "headers":
            fields[key] = table(given, "headers")
        elif key == "timestamp":
            try:
                fields[key] = timestamp_of(value)
            except ValueError as error:
                raise bad_request(str(error)) from None
        elif key in _NUMBERS:
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 255:
                raise bad_request(f"{key} must be a number from 0 to 255")
            fields[key] = value
        elif isinstance(value, str):
            fields[key] = value
        elif key == "expiration" and isinstance(value, int):
            fields[key] = str(value)
        else:
            raise bad_request(f"{key} must be a string")
    return Properties(**fields)


# --------------------------------------------------------------------------- get


@operations.post(
    "/api/queues/{vhost}/{name}/get",
    "Take messages, or look at them: ackmode ack_requeue_true puts them back",
    body=("count", "ackmode", "encoding", "truncate"),
)
async def get_messages(call: Call) -> Any:
    name = the_queue(call).name
    data = await call.json()
    count, ackmode = _count(data, "count"), text(data, "ackmode")
    encoding = text(data, "encoding", "auto")
    truncate = _count(data, "truncate") if "truncate" in data else None
    if ackmode not in _ACK_MODES:
        raise bad_request(f"ackmode is one of {', '.join(_ACK_MODES)}")
    if encoding not in ("auto", "base64"):
        raise bad_request("encoding is auto or base64")
    get = commands.Basic.Get()
    get.queue = name
    node = call.node
    taken: list[tuple[Delivery, int]] = []
    with the_channel(call) as channel:
        channel.check(get)
        async for _ in paced(range(min(count, _MAX_GET))):
            got = node.commands.get(channel.id, name, no_ack=False)
            if got is None:
                break
            taken.append(got)
        async for delivery, _ in paced(taken):
            _settle(node, channel.id, delivery.delivery_tag, ackmode)
    return [_message(each, left, encoding, truncate) async for each, left in paced(taken)]


def _settle(node: Node, channel: int, tag: int, ackmode: str) -> None:
    match ackmode:
        case "ack_requeue_true":
            node.commands.release(channel, tag)  # looked at only: this is not an attempt
        case "ack_requeue_false":
            node.commands.ack(channel, tag)
        case "reject_requeue_true" | "reject_requeue_false":
            node.commands.nack(channel, tag, requeue=ackmode == "reject_requeue_true")


def _count(data: Mapping[str, Any], key: str) -> int:
    count = number(data, key)
    if count < 0:
        raise bad_request(f"{key} must not be negative")
    return count


def _message(delivery: Delivery, left: int, encoding: str, truncate: int | None) -> dict[str, Any]:
    payload = delivery.body if truncate is None else delivery.body[:truncate]
    shown, how = "", "string"
    try:
        if encoding == "base64":
            raise UnicodeError
        shown = payload.decode("utf-8")
    except UnicodeError:
        shown, how = base64.b64encode(payload).decode("ascii"), "base64"
    return {
        "payload_bytes": len(delivery.body),
        "redelivered": delivery.redelivered,
        "exchange": delivery.exchange,
        "routing_key": delivery.routing_key,
        "message_count": left,
        "properties": properties_object(delivery.properties),
        "payload": shown,
        "payload_encoding": how,
    }


# --------------------------------------------------------------------------- beyond RabbitMQ


@operations.put("/api/queues/{vhost}/{name}/pause", "Deliver nothing from a queue")
async def pause_queue(call: Call) -> int:
    queue = _changeable(call, commands.Queue.Delete())
    call.node.pause_queue(queue, vhost=call.vhost().name)
    return NO_CONTENT


@operations.put("/api/queues/{vhost}/{name}/resume", "Deliver from a paused queue again")
async def resume_queue(call: Call) -> int:
    queue = _changeable(call, commands.Queue.Delete())
    call.node.resume_queue(queue, vhost=call.vhost().name)
    return NO_CONTENT


@operations.listing("/api/queues/{vhost}/{name}/in-flight", "Messages in flight, longest first")
async def in_flight(call: Call) -> Any:
    queue = _readable(call)
    found = call.node.in_flight(queue, vhost=call.vhost().name, most=_most(call))
    return [asdict(each) for each in found]


@operations.listing("/api/queues/{vhost}/{name}/deferred", "Deferred messages, earliest first")
async def deferred(call: Call) -> Any:
    queue = _readable(call)
    found = call.node.deferred(queue, vhost=call.vhost().name, most=_most(call))
    return [asdict(each) for each in found]


@operations.post(
    "/api/queues/{vhost}/{name}/deferred/run",
    "Make deferred messages ready now; all, or those with the ids",
    body=("ids",),
)
async def run_deferred(call: Call) -> Any:
    queue = _changeable(call, commands.Queue.Purge())
    ids = _ids(await call.json())
    await asyncio.sleep(0)  # there may be many
    wanted = None if ids is None else frozenset(ids)
    await asyncio.sleep(0)
    return {"count": call.node.run_deferred(queue, wanted, vhost=call.vhost().name)}


@operations.post(
    "/api/queues/{vhost}/{name}/deferred/cancel",
    "Drop deferred messages; all, or those with the ids",
    body=("ids",),
)
async def cancel_deferred(call: Call) -> Any:
    queue = _changeable(call, commands.Queue.Purge())
    ids, vhost = _ids(await call.json()), call.vhost().name
    await asyncio.sleep(0)  # there may be many
    if ids is None:
        return {"count": call.node.cancel_deferred(queue, vhost=vhost)}
    count = 0
    for first in range(0, len(ids), _IDS_AT_ONCE):
        chosen = ids[first : first + _IDS_AT_ONCE]
        count += call.node.cancel_deferred(queue, chosen, vhost=vhost)
        await asyncio.sleep(0)  # others have their turns
    return {"count": count}


@operations.post(
    "/api/queues/{vhost}/{name}/purge",
    "Drop messages by their state; ready ones by default",
    body=("ready", "deferred", "in_flight"),
)
async def purge_by_state(call: Call) -> Any:
    queue, data = _changeable(call, commands.Queue.Purge()), await call.json()
    purged = call.node.purge(
        queue,
        vhost=call.vhost().name,
        ready=flag(data, "ready", True),
        deferred=flag(data, "deferred", False),
        in_flight=flag(data, "in_flight", False),
    )
    await call.node.drain()  # until then it counts
    return asdict(purged)


_OfQueue = commands.Queue.Delete | commands.Queue.Purge


def _readable(call: Call) -> str:
    """The queue of the path, if the caller may take its messages."""
    return _permitted(call, commands.Queue.Purge()).name


def _changeable(call: Call, method: _OfQueue) -> str:
    """The queue of the path, if the caller may do what needs the permissions of `method`.

    Raises:
        ReplyError: 405 for an exclusive queue, which is another connection's.
    """
    queue = _permitted(call, method)
    if queue.owner is not None:
        raise resource_locked(queue.name, queue.vhost)
    return queue.name


def _permitted(call: Call, method: _OfQueue) -> Queue:
    queue = the_queue(call)
    method.queue = queue.name
    the_channel(call).check(method)
    return queue


def _ids(data: Mapping[str, Any]) -> list[int] | None:
    ids = data.get("ids")
    if ids is None:
        return None
    if not isinstance(ids, list) or not all(type(each) is int for each in ids):
        raise bad_request("ids must be a list of numbers")
    return ids


def _most(call: Call) -> int:
    most = number(call.query, "most", 100)
    if not 0 < most <= _MAX_GET:
        raise bad_request(f"most is 1 to {_MAX_GET}")
    return most
