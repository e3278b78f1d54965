"""Dead letters: the messages published in place of those that died, and their routing keys."""

from __future__ import annotations

from broker_client.amqp.properties import ReceivedProperties
from broker_client.amqp.tables import FrozenTable, preceded, replaced
from broker_client.amqp.x_death import dead_lettered, without_deaths
from broker_client.core.queue import Queue
from broker_client.core.settings import RabbitMQVersion
from broker_client.message import Outgoing

OUR_DEATHS = "x-deaths-by-broker"
"""Header of dead letters, which no consumer sees and no client can publish: the deaths in their
headers were written here. RabbitMQ 4 takes no account of those that a client publishes."""

WRITTEN_HERE: FrozenTable = FrozenTable.of({OUR_DEATHS: 1})
"""That header, which is the first of all."""
_NO_HEADERS = FrozenTable.of({})


def dead_letter(
    message: Outgoing, queue: Queue, reason: str, now: float, version: RabbitMQVersion
) -> Outgoing:
    """The message to publish to the dead-letter exchange of `queue`, where `message` died.

    Headers that came over a port keep their bytes, and with them types that Python does not have.
    Where the queue has a dead-letter routing key, the CC and BCC headers go, since those keys no
    longer count (RabbitMQ).
    """
    exchange, routing_key = (
        queue.settings.dead_letter_exchange,
        queue.settings.dead_letter_routing_key,
    )
    assert exchange is not None, "queues without one make no dead letters"
    properties, headers = message.properties, message.properties.headers
    if type(properties) is ReceivedProperties:
        headers = _NO_HEADERS if headers is None else headers
    elif type(headers) is FrozenTable:
        headers = headers.plain()  # published in this process: its values are all that it has
    follows_4 = version >= (4, 0)
    if follows_4 and (headers is None or headers.get(OUR_DEATHS) is None):
        headers = preceded(without_deaths({} if headers is None else headers), WRITTEN_HERE)
    properties = properties._replace(headers=headers)
    properties = dead_lettered(
        properties,
        queue=queue.name,
        reason=reason,
        exchange=message.exchange,
        routing_keys=[message.routing_key, *extra_keys(message, "CC")],
        now=now,
        with_last=follows_4,
    )
    if routing_key is None:
        return Outgoing(exchange, message.routing_key, message.body, properties)
    headers = replaced(properties.headers or {}, ("CC", "BCC"))
    return Outgoing(exchange, routing_key, message.body, properties._replace(headers=headers))


def extra_keys(message: Outgoing, *names: str) -> list[str]:
    """The routing keys in the headers `names` of `message`: CC or BCC."""
    headers = message.properties.headers or {}
    return [
        key
        for name in names
        if isinstance(keys := headers.get(name), list)
        for key in keys
        if isinstance(key, str)
    ]
