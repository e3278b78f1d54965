"""Reads exchanges, queues and bindings out of definitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker_client.core.arguments import (
    EXCHANGE_ARGUMENTS,
    QUEUE_ARGUMENTS,
    check_encodable,
    check_new_queue,
    queue_settings,
)
from broker_client.core.exchange import DELAYED, TYPES, Destination, Exchange, HeadersMatch
from broker_client.core.queue import Queue
from broker_client.core.virtual_host import VirtualHost, check_binding, check_short
from broker_client.errors import ReplyError
from broker_client.node.definitions.exporting import RESERVED
from broker_client.node.definitions.items import Item
from broker_client.node.definitions.plan import Plan, reason_of

_DIFFERENT = "a different one exists already and is not changed"


def read_exchange(plan: Plan, item: Item) -> bool:
    """An exchange."""
    vhost = plan.vhost_of(item)
    if vhost is None:
        return False
    name, kind = item.get("name", str), item.get("type", str)
    durable = item.get("durable", bool, True)
    auto_delete = item.get("auto_delete", bool, False)
    internal = item.get("internal", bool, False)
    arguments = _arguments(item)
    what = f"exchange {name!r} in vhost {vhost!r}"
    if not item.is_right:
        return False
    if (vhost, name) in plan.exchanges:
        there = plan.node.view.vhost(vhost)
        current = None if there is None else there.exchanges.get(name)
        if current is not None and (
            current.type,
            current.durable,
            current.auto_delete,
            current.internal,
            current.arguments,
        ) != (kind, durable, auto_delete, internal, arguments):
            plan.notes.append(f"{what}: {_DIFFERENT}")
        return True
    if name.startswith(RESERVED) or kind not in (*TYPES, DELAYED):
        why = f"type {kind}" if kind not in (*TYPES, DELAYED) else "a reserved name"
        plan.notes.append(f"{what}: {why} is not supported, left out")
        plan.left_out.add(("exchange", vhost, name))
        return False
    try:
        exchange = Exchange(
            name,
            kind,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=arguments,
        )
        VirtualHost(vhost, version=plan.version).declare_exchange(exchange)
    except ReplyError as error:
        item.problem("", reason_of(error))
        return False
    for key in arguments:
        if key not in EXCHANGE_ARGUMENTS:
            plan.notes.append(f"{what}: argument {key} has no effect here")
    plan.exchanges[vhost, name] = exchange.kind
    plan.steps.append(lambda: plan.there(vhost).declare_exchange(exchange))
    return True


def read_queue(plan: Plan, item: Item) -> bool:
    """A queue."""
    vhost = plan.vhost_of(item)
    if vhost is None:
        return False
    name = item.get("name", str)
    durable = item.get("durable", bool, True)
    auto_delete = item.get("auto_delete", bool, False)
    arguments: Mapping[str, Any] = _arguments(item)
    what = f"queue {name!r} in vhost {vhost!r}"
    if not item.is_right:
        return False
    arguments = plan.metadata[vhost].typed(
        arguments, durable=durable, exclusive=False, auto_delete=auto_delete
    )
    if (vhost, name) in plan.queues:
        there = plan.node.view.vhost(vhost)
        current = None if there is None else there.queues.get(name)
        if current is not None and (
            current.durable,
            current.auto_delete,
            _typed(current.arguments),
        ) != (durable, auto_delete, _typed(arguments)):
            plan.notes.append(f"{what}: {_DIFFERENT}")
        return True
    if arguments.get("x-queue-type") not in (None, "classic", "quorum"):
        kind = arguments["x-queue-type"]
        plan.notes.append(f"{what}: type {kind} is not supported, left out")
        plan.left_out.add(("queue", vhost, name))
        return False
    try:
        check_short("queue name", name)
        settings = queue_settings(arguments, name, vhost, plan.version)
        check_new_queue(arguments, name, vhost, plan.version)
    except ReplyError as error:
        item.problem("", reason_of(error))
        for key, value in arguments.items():  # the others that are wrong too
            with_type = {"x-queue-type": arguments.get("x-queue-type", "classic"), key: value}
            try:
                queue_settings(with_type, name, vhost, plan.version)
            except ReplyError as other:
                if reason_of(other) != reason_of(error):
                    item.problem(f"arguments.{key}", reason_of(other))
        return False
    if not name:
        item.problem("name", "a name must not be empty")
    for key in arguments:
        if key not in QUEUE_ARGUMENTS or key == "x-queue-mode":
            plan.notes.append(f"{what}: argument {key} has no effect here")
    plan.queues.add((vhost, name))
    plan.steps.append(
        lambda: _add_queue(
            plan,
            Queue(
                name,
                vhost,
                durable=durable,
                owner=None,
                auto_delete=auto_delete,
                arguments=arguments,
                settings=settings,
                last_used=plan.node.now(),
            ),
        )
    )
    return True


def _add_queue(plan: Plan, queue: Queue) -> None:
    # A definition may name what only a server may: the queues that it has named itself.
    vhost = plan.there(queue.vhost)
    if queue.name not in vhost.queues:  # a client may have declared it meanwhile
        vhost.add_queue(queue, server_named=True)
        plan.node.engine.state.used(queue, plan.node.now())


def read_binding(plan: Plan, item: Item) -> bool:
    """A binding, whose ends are there or come with the file."""
    vhost = plan.vhost_of(item)
    if vhost is None:
        return False
    source, name = item.get("source", str), item.get("destination", str)
    kind = item.get("destination_type", str, "queue")
    key = item.get("routing_key", str, "")
    arguments = _arguments(item)
    if kind not in ("queue", "exchange"):
        item.problem("destination_type", f"{kind!r} is neither queue nor exchange")
    if not item.is_right:
        return False
    ends = (("source", "exchange", source), ("destination", kind, name))
    lost = [f"{what} {n!r}" for _, what, n in ends if (what, vhost, n) in plan.left_out]
    if lost:
        plan.notes.append(
            f"binding from {source!r} to {name!r} in vhost {vhost!r}: left out with "
            f"{' and '.join(lost)}"
        )
        return False
    for end, what, n in ends:
        known = plan.queues if what == "queue" else plan.exchanges
        if (vhost, n) not in known:
            item.problem(end, f"there is no {what} {n!r} in vhost {vhost!r}")
    destination = Destination(kind, name)
    if item.is_right:
        try:
            check_binding(source, destination, key)
            if plan.exchanges[vhost, source] == "headers":
                HeadersMatch(arguments, plan.version)
        except ReplyError as error:
            item.problem("", reason_of(error))
    plan.steps.append(lambda: plan.there(vhost).bind(destination, source, key, arguments))
    return True


def _arguments(item: Item) -> dict[str, Any]:
    arguments: dict[str, Any] = item.get("arguments", dict, {})
    try:
        check_encodable(arguments)
    except ReplyError as error:
        item.problem("", reason_of(error))
    return arguments


def _typed(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a queue with its type, which RabbitMQ 4 writes into every export."""
    return {"x-queue-type": "classic", **arguments}
