"""What a configuration declares in a vhost, in the form in which a broker lists it."""

from __future__ import annotations

from broker_client.config import VhostConfig
from broker_client.planning.inventory import Found, Inventory, ListedBinding


def declared_inventory(config: VhostConfig) -> Inventory:
    """All its exchanges, queues and bindings, by their names on the broker."""
    inventory = Inventory()
    for exchange in config.exchanges.values():
        if exchange.name:
            settings = {"type": exchange.type, **exchange.arguments}
            inventory.entities["exchange", exchange.qualified_name] = Found(settings)
    for queue in config.queues.values():
        inventory.entities["queue", queue.qualified_name] = Found(dict(queue.arguments))
    for each in config.bindings:
        destination = (each.destination_type, each.qualified_destination)
        for key in each.qualified_keys:
            inventory.bindings.add(
                ListedBinding.of(each.qualified_source, destination, key, each.options.arguments)
            )
    return inventory
