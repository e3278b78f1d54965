"""What the core asks the node to do, in the order in which it must be done.

Among these effects stand the records that a store must keep, see `records`.
Named tuples where one is made a message, frozen dataclasses elsewhere.
"""

from __future__ import annotations

from typing import NamedTuple

from broker_client.core.records import Record
from broker_client.message import Delivery, Returned
from broker_client.runtime.slotted import slotted


class Deliver(NamedTuple):
    """Hand a message to a consumer of `channel`."""

    channel: int
    delivery: Delivery


class Confirm(NamedTuple):
    """Publishes `first`..`last` of `channel` are safe (`acked`) or were refused."""

    channel: int
    first: int
    last: int
    acked: bool


@slotted
class Return:
    """Return an unroutable mandatory message; always comes before its Confirm."""

    channel: int
    returned: Returned


@slotted
class CancelConsumer:
    """Notify the consumer that its queue was deleted."""

    channel: int
    consumer_tag: str


@slotted
class MessageTimedOut:
    """Notify the consumer that a delivery timed out and returned to its queue."""

    channel: int
    consumer_tag: str
    delivery_tag: int


@slotted
class CloseChannel:
    """The engine has closed `channel` without being asked; tell its owner why."""

    channel: int
    reply_code: int
    reply_text: str


Effect = Record | Deliver | Confirm | Return | CancelConsumer | MessageTimedOut | CloseChannel
