"""``broker-client tail``: prints messages as they arrive."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable
from typing import Annotated

import typer

from broker_client.cli.messages import print_delivery
from broker_client.cli.node_file import failed
from broker_client.cli.options import AsJson
from broker_client.cli.remote import run_on_broker
from broker_client.cli.steering import ByFile, Management, steering_of
from broker_client.cli.where import ConfigFile, Place, Url, VhostName, place_of
from broker_client.errors import TransportError
from broker_client.message import Delivery
from broker_client.planning.declared import declared_inventory
from broker_client.planning.inventory import Inventory, ListedBinding
from broker_client.transport.base import Channel, ConsumerCallbacks, Link

_PREFETCH = 200
_MOST_WAITING = 10_000
"""Maximum number of copies waiting to be printed, so that watching does not fill the broker."""


def tail(
    queue: Annotated[
        str | None,
        typer.Argument(
            metavar="[QUEUE]", help="Queue whose bindings are copied.", show_default=False
        ),
    ] = None,
    take: Annotated[
        bool, typer.Option("--take", help="Consume the messages of QUEUE instead of copies.")
    ] = False,
    exchange: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Exchange to listen to, instead of QUEUE.", show_default=False
        ),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Binding key for --exchange. May be repeated."),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", min=1, help="Number of messages. Default: until Ctrl-C."),
    ] = None,
    url: Url = None,
    config: ConfigFile = None,
    vhost: VhostName = None,
    management: Management = None,
    as_json: AsJson = False,
) -> None:
    """Print messages as they arrive: copies of them or, with --take, the messages themselves.

    The copies go to a temporary queue with the bindings of QUEUE, which is deleted with the
    connection. With --take, a message is acknowledged once it is printed.
    """
    if (queue is None) == (exchange is None) or (take and queue is None):
        raise typer.BadParameter("give QUEUE, or --exchange and its --key; --take needs QUEUE")
    if key and exchange is None:
        raise typer.BadParameter("is the key of an --exchange", param_hint="--key")
    place = place_of(url, config, vhost)
    if place.path and not ByFile(place, None).is_running:
        raise failed(
            f"{place.path}: no process has the file open, so no messages arrive; use "
            "broker-client peek or get"
        )
    if queue is None:
        assert exchange is not None, "one of them was given"
        bindings = [ListedBinding(exchange, "queue", "", each) for each in key or ["#"]]
    else:
        bindings = [] if take else _bindings(place, queue, management)

    async def command(link: Link) -> None:
        channel = await link.open_channel()
        await channel.qos(_PREFETCH if count is None else min(count, _PREFETCH))
        source = queue if take and queue is not None else await _copies(channel, bindings)
        await _print_all(channel, source, count, as_json=as_json)
        await channel.close()

    run_on_broker(place, command)


def _bindings(place: Place, queue: str, management: str | None) -> list[ListedBinding]:
    """Those of a queue, as the broker tells, or else the configuration."""
    found = _inventory(place, management)
    if ("queue", queue) not in found.entities:
        raise failed(f"{place.shown}: there is no queue {queue!r} in vhost {place.vhost!r}")
    bindings = [
        each
        for each in found.bindings
        if (each.destination_kind, each.destination) == ("queue", queue)
    ]
    if not bindings:
        raise failed(
            f"{queue} has no bindings: only what is published straight to it gets there, which "
            "cannot be copied; broker-client peek shows it, --take takes it"
        )
    return bindings


def _inventory(place: Place, management: str | None) -> Inventory:
    if place.path or management:
        address = place.path or None
        return steering_of(address, None, place.vhost, management).inventory(place.vhost)
    if place.declared is None:
        raise failed(
            f"{place.shown}: AMQP does not list bindings: give the management API, --management "
            "http://user:password@host:15672, or --exchange and --key instead of QUEUE, or --take"
        )
    return declared_inventory(place.declared)


async def _copies(channel: Channel, bindings: Iterable[ListedBinding]) -> str:
    """A queue that is bound like this, and that ends with its connection."""
    limit = {"x-max-length": _MOST_WAITING}
    made = await channel.declare_queue(
        "", durable=False, exclusive=True, auto_delete=True, arguments=limit
    )
    for each in bindings:
        await channel.bind_queue(made.name, each.source, each.key, json.loads(each.arguments))
    return made.name


async def _print_all(channel: Channel, queue: str, count: int | None, *, as_json: bool) -> None:
    arrived: asyncio.Queue[Delivery | TransportError | None] = asyncio.Queue()
    channel.on_close = arrived.put_nowait
    callbacks = ConsumerCallbacks(
        on_delivery=arrived.put_nowait,
        on_cancel=lambda tag: arrived.put_nowait(None),
        on_message_timeout=lambda tag: None,
    )
    await channel.consume(queue, callbacks)
    printed = 0
    while printed != count:
        each = await arrived.get()
        if each is None:
            raise failed(f"{queue} was deleted")
        if isinstance(each, TransportError):
            raise each
        print_delivery(each, as_json=as_json)
        sys.stdout.flush()
        channel.ack(each.delivery_tag)  # printed first: nothing is lost in between
        printed += 1
