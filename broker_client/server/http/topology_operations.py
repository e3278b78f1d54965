"""Exchanges, queues and bindings over HTTP."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from pamqp import commands
from starlette.responses import Response

from broker_client.core.access import DEFAULT_EXCHANGE
from broker_client.core.exchange import Binding, Destination
from broker_client.core.queue import Queue
from broker_client.core.virtual_host import VirtualHost
from broker_client.runtime.pace import paced
from broker_client.server.http.calls import (
    CREATED,
    NO_CONTENT,
    Call,
    Operations,
    arguments_of,
    flag,
    text,
)
from broker_client.server.http.channels import RequestChannel
from broker_client.server.http.descriptions import (
    binding_object,
    binding_objects,
    consumer_object,
    default_binding_object,
    exchange_object,
    properties_key,
    queue_object,
)
from broker_client.server.http.errors import Refusal, not_authorized, not_found

operations: Operations = Operations()

_EXCHANGE = ("type", "durable", "auto_delete", "internal", "arguments")
_QUEUE = ("durable", "auto_delete", "arguments")


def the_exchange(call: Call, part: str = "name") -> str:
    """The name of the exchange of the path."""
    name = call.name(part)
    return "" if name == DEFAULT_EXCHANGE else name


def the_queue(call: Call) -> Queue:
    """The queue of the path, which must be there."""
    queue = call.vhost().queues.get(call.name("name"))
    if queue is None:
        raise not_found()
    return queue


def the_channel(call: Call) -> RequestChannel:
    """For commands of the caller in the vhost of the path."""
    vhost = call.vhost().name
    if not call.node.access.may_use_vhost(call.caller.name, vhost):
        raise not_authorized(f"access to vhost '{vhost}' refused for user '{call.caller.name}'")
    return RequestChannel(call.node, call.caller.name, vhost)


# --------------------------------------------------------------------------- exchanges


@operations.listing("/api/exchanges", "All exchanges")
@operations.listing("/api/exchanges/{vhost}", "All exchanges of a vhost")
async def list_exchanges(call: Call) -> Any:
    return [
        exchange_object(vhost.name, exchange)
        for vhost in call.vhosts()
        for _, exchange in sorted(vhost.exchanges.items())
    ]


@operations.get("/api/exchanges/{vhost}/{name}", "One exchange")
async def get_exchange(call: Call) -> Any:
    vhost = call.vhost()
    exchange = vhost.exchanges.get(the_exchange(call))
    if exchange is None:
        raise not_found()
    return exchange_object(vhost.name, exchange)


@operations.put("/api/exchanges/{vhost}/{name}", "Declare an exchange", body=_EXCHANGE)
async def put_exchange(call: Call) -> int:
    data, name = await call.json(), the_exchange(call)
    arguments = arguments_of(data)
    is_new = name not in call.vhost().exchanges
    declare = commands.Exchange.Declare()
    declare.exchange, declare.arguments = name, arguments
    with the_channel(call) as channel:
        channel.check(declare)
        call.node.commands.declare_exchange(
            channel.id,
            name,
            text(data, "type", "direct"),
            durable=flag(data, "durable", True),
            auto_delete=flag(data, "auto_delete", False),
            internal=flag(data, "internal", False),
            arguments=arguments,
        )
    return CREATED if is_new else NO_CONTENT


@operations.delete("/api/exchanges/{vhost}/{name}", "Delete an exchange; ?if-unused=true")
async def delete_exchange(call: Call) -> int:
    name = the_exchange(call)
    if name not in call.vhost().exchanges:
        raise not_found()
    delete = commands.Exchange.Delete()
    delete.exchange = name
    with the_channel(call) as channel:
        channel.check(delete)
        if_unused = call.query.get("if-unused") == "true"
        call.node.commands.delete_exchange(channel.id, name, if_unused=if_unused)
    return NO_CONTENT


@operations.listing("/api/exchanges/{vhost}/{name}/bindings/source", "Bindings from an exchange")
async def bindings_from(call: Call) -> Any:
    name = the_exchange(call)
    return [each for each in await _bindings(call, name) if each["source"] == name]


@operations.listing("/api/exchanges/{vhost}/{name}/bindings/destination", "Bindings to an exchange")
async def bindings_to_exchange(call: Call) -> Any:
    name = the_exchange(call)
    return [
        each
        for each in await _bindings(call, name)
        if (each["destination_type"], each["destination"]) == ("exchange", name)
    ]


async def _bindings(call: Call, exchange: str) -> list[dict[str, Any]]:
    vhost = call.vhost()
    if exchange not in vhost.exchanges:
        raise not_found()
    return [each async for each in binding_objects(vhost)]


# --------------------------------------------------------------------------- queues


@operations.listing("/api/queues", "All queues")
@operations.listing("/api/queues/{vhost}", "All queues of a vhost")
async def list_queues(call: Call) -> Any:
    now, management = call.node.now(), call.management
    queues = [queue for vhost in call.vhosts() for _, queue in sorted(vhost.queues.items())]
    return [
        queue_object(queue, management.rates.of(queue), management.name, now)
        async for queue in paced(queues)
    ]


@operations.get("/api/queues/{vhost}/{name}", "One queue, with its consumers")
async def get_queue(call: Call) -> Any:
    queue, management = the_queue(call), call.management
    described = queue_object(queue, management.rates.of(queue), management.name, call.node.now())
    known = management.connections_by_id()
    described["consumer_details"] = [
        consumer_object(each, management.details_of(each.channel, known))
        for each in queue.consumers
    ]
    return described


@operations.put("/api/queues/{vhost}/{name}", "Declare a queue", body=_QUEUE)
async def put_queue(call: Call) -> int:
    data, name = await call.json(), call.name("name")
    arguments = arguments_of(data)
    is_new = name not in call.vhost().queues
    declare = commands.Queue.Declare()
    declare.queue, declare.arguments = name, arguments
    with the_channel(call) as channel:
        channel.check(declare)
        call.node.commands.declare_queue(
            channel.id,
            name,
            durable=flag(data, "durable", True),
            auto_delete=flag(data, "auto_delete", False),
            exclusive=False,
            arguments=arguments,
        )
    return CREATED if is_new else NO_CONTENT


@operations.delete("/api/queues/{vhost}/{name}", "Delete a queue; ?if-empty=true, ?if-unused=true")
async def delete_queue(call: Call) -> int:
    name = the_queue(call).name
    delete = commands.Queue.Delete()
    delete.queue = name
    with the_channel(call) as channel:
        channel.check(delete)
        call.node.commands.delete_queue(
            channel.id,
            name,
            if_unused=call.query.get("if-unused") == "true",
            if_empty=call.query.get("if-empty") == "true",
        )
    return NO_CONTENT


@operations.delete("/api/queues/{vhost}/{name}/contents", "Drop what is ready in a queue")
async def purge_queue(call: Call) -> int:
    name = the_queue(call).name
    purge = commands.Queue.Purge()
    purge.queue = name
    with the_channel(call) as channel:
        channel.check(purge)
        call.node.commands.purge_queue(channel.id, name)
    return NO_CONTENT


@operations.listing("/api/queues/{vhost}/{name}/bindings", "Bindings to a queue")
async def bindings_to_queue(call: Call) -> Any:
    queue = the_queue(call)
    return [
        each
        async for each in binding_objects(call.vhost())
        if (each["destination_type"], each["destination"]) == ("queue", queue.name)
    ]


# --------------------------------------------------------------------------- bindings


@operations.listing("/api/bindings", "All bindings")
@operations.listing("/api/bindings/{vhost}", "All bindings of a vhost")
async def list_bindings(call: Call) -> Any:
    return [each for vhost in call.vhosts() async for each in binding_objects(vhost)]


@operations.listing(
    "/api/bindings/{vhost}/e/{source}/q/{target}", "Bindings of an exchange to a queue"
)
async def bindings_exchange_queue(call: Call) -> Any:
    return _between(call, "queue")


@operations.listing(
    "/api/bindings/{vhost}/e/{source}/e/{target}", "Bindings of an exchange to an exchange"
)
async def bindings_exchange_exchange(call: Call) -> Any:
    return _between(call, "exchange")


@operations.post(
    "/api/bindings/{vhost}/e/{source}/q/{target}",
    "Bind a queue",
    body=("routing_key", "arguments"),
    status=CREATED,
)
async def bind_queue(call: Call) -> Response:
    return await _bind(call, "queue")


@operations.post(
    "/api/bindings/{vhost}/e/{source}/e/{target}",
    "Bind an exchange",
    body=("routing_key", "arguments"),
    status=CREATED,
)
async def bind_exchange(call: Call) -> Response:
    return await _bind(call, "exchange")


@operations.get("/api/bindings/{vhost}/e/{source}/q/{target}/{props}", "One binding of a queue")
async def get_queue_binding(call: Call) -> Any:
    return _the_binding(call, "queue")[1]


@operations.get("/api/bindings/{vhost}/e/{source}/e/{target}/{props}", "One binding of an exchange")
async def get_exchange_binding(call: Call) -> Any:
    return _the_binding(call, "exchange")[1]


@operations.delete("/api/bindings/{vhost}/e/{source}/q/{target}/{props}", "Unbind a queue")
async def unbind_queue(call: Call) -> int:
    return await _unbind(call, "queue")


@operations.delete("/api/bindings/{vhost}/e/{source}/e/{target}/{props}", "Unbind an exchange")
async def unbind_exchange(call: Call) -> int:
    return await _unbind(call, "exchange")


def _ends(call: Call, kind: str) -> tuple[VirtualHost, str, Destination]:
    """The two ends of the path, which must be there."""
    vhost, source = call.vhost(), the_exchange(call, "source")
    target = call.name("target") if kind == "queue" else the_exchange(call, "target")
    known = vhost.queues if kind == "queue" else vhost.exchanges
    if source not in vhost.exchanges or target not in known:
        raise not_found()
    return vhost, source, Destination(kind, target)


def _between(call: Call, kind: str) -> list[dict[str, Any]]:
    try:
        vhost, source, destination = _ends(call, kind)
    except Refusal:
        call.vhost()  # which must be there; RabbitMQ: but not the ends
        return []
    if not source:
        return [default_binding_object(vhost.name, destination.name)] if kind == "queue" else []
    return [
        binding_object(vhost.name, binding, arguments)
        for binding, arguments in vhost.exchanges[source].bindings.items()
        if binding.destination == destination
    ]


async def _bind(call: Call, kind: str) -> Response:
    vhost, source, destination = _ends(call, kind)
    data = await call.json()
    key, arguments = text(data, "routing_key", ""), arguments_of(data)
    with the_channel(call) as channel:
        channel.check(_bind_method(source, destination, key, unbind=False))
        call.node.commands.bind(channel.id, destination, source, key, arguments)
    made = next(
        binding
        for binding in reversed(vhost.exchanges[source].bindings)
        if (binding.destination, binding.binding_key) == (destination, key)
        and vhost.exchanges[source].bindings[binding] == arguments
    )
    parts = (vhost.name, "e", source, kind[0], destination.name, properties_key(made))
    location = "/api/bindings/" + "/".join(quote(part, safe="") for part in parts)
    return Response(status_code=CREATED, headers={"Location": location})


async def _unbind(call: Call, kind: str) -> int:
    (binding, arguments), _ = _the_binding(call, kind)
    destination = binding.destination
    with the_channel(call) as channel:
        channel.check(_bind_method(binding.source, destination, binding.binding_key, unbind=True))
        call.node.commands.unbind(
            channel.id, destination, binding.source, binding.binding_key, arguments
        )
    return NO_CONTENT


def _the_binding(call: Call, kind: str) -> tuple[tuple[Binding, dict[str, Any]], dict[str, Any]]:
    vhost, source, destination = _ends(call, kind)
    wanted = call.name("props")
    for binding, arguments in vhost.exchanges[source].bindings.items():
        if binding.destination == destination and wanted in (
            properties_key(binding),
            binding.binding_key if not arguments else None,
        ):
            described = binding_object(vhost.name, binding, arguments)
            return (binding, dict(arguments)), described
    raise not_found()


def _bind_method(
    source: str, destination: Destination, key: str, *, unbind: bool
) -> (
    commands.Queue.Bind | commands.Queue.Unbind | commands.Exchange.Bind | commands.Exchange.Unbind
):
    if destination.kind == "queue":
        queue = commands.Queue.Unbind() if unbind else commands.Queue.Bind()
        queue.queue, queue.exchange, queue.routing_key = destination.name, source, key
        return queue
    exchange = commands.Exchange.Unbind() if unbind else commands.Exchange.Bind()
    exchange.destination, exchange.source = destination.name, source
    exchange.routing_key = key
    return exchange
