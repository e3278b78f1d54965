"""Reads what is in a vhost, without changing it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from broker_client.config import VhostConfig
from broker_client.errors import ChannelClosedError, ManagementError
from broker_client.planning.inventory import Found, Inventory
from broker_client.transport.base import Link

_NOT_FOUND, _LOCKED = 404, 405

ListObjects = Callable[[str], Awaitable[list[dict[str, Any]]]]
"""Lists the ``exchanges``, ``queues`` or ``bindings`` of a vhost."""


async def read_management(list_objects: ListObjects) -> Inventory:
    """Everything in a vhost, from the management API.

    Raises:
        ManagementError: it did not answer, or refused.
    """
    try:
        exchanges = await list_objects("exchanges")
    except ManagementError as error:
        if error.status != _NOT_FOUND:
            raise
        return Inventory(has_vhost=False)
    return Inventory.of_lists(
        exchanges, await list_objects("queues"), await list_objects("bindings")
    )


async def read_passively(link: Link, config: VhostConfig) -> Inventory:
    """Which declared exchanges and queues there are, by passive declarations over AMQP.

    They show neither settings nor bindings, nor undeclared objects.

    Raises:
        TransportError: the link failed, or the user may not ask.
    """
    inventory = Inventory(is_complete=False)
    for exchange in config.exchanges.values():
        if exchange.name:
            name = exchange.qualified_name
            channel = await link.open_channel()
            try:
                await channel.check_exchange(name)
                inventory.entities["exchange", name] = Found()
            except ChannelClosedError as error:
                _expect(error, _NOT_FOUND)
            await channel.close()
    for queue in config.queues.values():
        name = queue.qualified_name
        channel = await link.open_channel()
        try:
            state = await channel.check_queue(name)
            found = Found(None, state.message_count, state.consumer_count)
            inventory.entities["queue", name] = found
        except ChannelClosedError as error:
            _expect(error, _NOT_FOUND, _LOCKED)
            if error.reply_code == _LOCKED:
                inventory.entities["queue", name] = Found(is_reserved=True)
        await channel.close()
    return inventory


def _expect(error: ChannelClosedError, *codes: int) -> None:
    if error.reply_code not in codes:
        raise error
