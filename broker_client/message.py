"""Messages: their properties, and messages as they are published, returned and delivered."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

Headers = Mapping[str, Any]

TRANSIENT = 1
PERSISTENT = 2
"""Values of `delivery_mode` (AMQP 0-9-1 §1.8, basic class)."""


RASCAL = "rascal"
"""Header table in which recovery keeps a message's history; rascal's, so that both can share
queues (rascal's lib/amqp/SubscriberError.js)."""


ORIGINAL_USER_ID = "x-original-user-id"
"""Header in which a copy carries the `user_id` of its message. RabbitMQ refuses the property itself
of anybody but the user who publishes (https://www.rabbitmq.com/docs/validated-user-id)."""


FAILURE_KIND = "x-failure-kind"
"""Header of an answer that says that the request failed: the class of its error."""


class Properties(NamedTuple):
    """The properties of the basic class (AMQP 0-9-1 §1.8), each None when absent.

    Named tuples, because they are made once a message on the hot path and shared between the
    copies that several queues hold: they must be cheap and must not change.
    """

    content_type: str | None = None
    content_encoding: str | None = None
    headers: Headers | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    """Milliseconds as decimal digits, as on the wire."""
    message_id: str | None = None
    timestamp: datetime | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


def with_headers(properties: Properties, headers: Headers | None) -> Properties:
    """`properties` with other headers; `_replace` takes twice as long, and each message pays it."""
    return tuple.__new__(Properties, (*properties[:2], headers, *properties[3:]))


def with_original_user(properties: Properties) -> Properties:
    """`properties` of a copy: the `user_id` of its message goes into a header."""
    if properties.user_id is None:
        return properties
    headers = {**(properties.headers or {}), ORIGINAL_USER_ID: properties.user_id}
    return properties._replace(headers=headers, user_id=None)


class Outgoing(NamedTuple):
    """A message ready for the wire."""

    exchange: str
    routing_key: str
    body: bytes
    properties: Properties
    mandatory: bool = False
    fault: str = ""
    """Why the properties of a message from a file cannot be read; see `Delivery.fault`."""


class Returned(NamedTuple):
    """A mandatory message that no queue took (basic.return)."""

    reply_code: int
    reply_text: str
    exchange: str
    routing_key: str
    body: bytes
    properties: Properties


class Delivery(NamedTuple):
    """One delivery of a message to a consumer, as a transport reports it."""

    consumer_tag: str
    delivery_tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    body: bytes
    properties: Properties
    attempts: int | None = None
    """Number of deliveries including this one; None if the broker does not count them."""
    fault: str = ""
    """Why the properties that another client wrote cannot be decoded. The body is complete."""


def count_in(value: object) -> int:
    """The count in a header: 0 if it is not a count, and limited so that it can be sent on.

    The header may come from any client.
    """
    return min(max(value, 0), _MOST) if type(value) is int else 0


_MOST = 2**31 - 1


def counted_attempts(delivery: Delivery) -> int | None:
    """Number of deliveries of this copy including this one; None if the broker does not count them.

    RabbitMQ: quorum queues count returns in `x-delivery-count`, and from 4.3 on, where that is for
    failures alone, all of them in `x-acquired-count`. A first delivery may have neither.
    """
    if delivery.attempts is not None:
        return delivery.attempts
    headers = delivery.properties.headers or {}
    for count in (headers.get("x-acquired-count"), headers.get("x-delivery-count")):
        if type(count) is int and count >= 0:  # a publisher may have written anything
            return count_in(count) + 1
    return None


class Message:
    """A delivered message as handlers see it.

    `exchange` and `routing_key` are the original ones, even after the message was republished or
    forwarded (rascal's ``restoreRoutingHeaders``). `queue` is the queue's name on the broker,
    including its namespace. `headers` is a copy that the handler may change.
    """

    __slots__ = (
        "_headers",
        "_notes",
        "_touch",
        "delivery",
        "exchange",
        "queue",
        "redeliveries",
        "returns",
        "routing_key",
        "vhost",
    )

    def __init__(
        self,
        delivery: Delivery,
        queue: str,
        vhost: str,
        touch: Callable[[int], float],
        notes: Headers | None = None,
    ) -> None:
        """
        delivery: the message as received.
        queue: the queue's name on the broker.
        vhost: the queue's vhost.
        touch: extends the time-out of the delivery with the given tag.
        notes: entries that `headers` shows under ``rascal``, in addition to the redeliveries.
        """
        self.delivery: Delivery = delivery
        self._notes = notes
        self.redeliveries: int | None = None
        """Redeliveries according to the subscription's counter; None without a counter."""
        self.returns: int = 0
        """How often its subscription has returned it to the queue, as far as it remembers."""
        self.queue: str = queue
        self.vhost: str = vhost
        self.exchange: str = delivery.exchange
        self.routing_key: str = delivery.routing_key
        self._touch = touch
        self._headers: dict[str, Any] | None = None
        if delivery.properties.headers:
            history = delivery.properties.headers.get(RASCAL)
            if isinstance(history, Mapping) and history.get("restoreRoutingHeaders"):
                self.exchange = str(history.get("originalExchange", self.exchange))
                self.routing_key = str(history.get("originalRoutingKey", self.routing_key))

    def __repr__(self) -> str:
        return f"<Message {self.message_id} from {self.queue!r}, attempt {self.attempts or '?'}>"

    def with_properties(self, properties: Properties) -> Message:
        """Return a copy with other properties, or the message itself if they are equal."""
        if properties == self.delivery.properties:
            return self
        return Message(
            self.delivery._replace(properties=properties),
            queue=self.queue,
            vhost=self.vhost,
            touch=self._touch,
            notes=self._notes,
        )

    @property
    def body(self) -> bytes:
        """The body as received."""
        return self.delivery.body

    @property
    def properties(self) -> Properties:
        """The properties as received."""
        return self.delivery.properties

    @property
    def headers(self) -> dict[str, Any]:
        """The headers: a copy, which may be changed.

        Under ``rascal`` a subscription adds the entries that rascal adds: `originalQueue`,
        `originalVhost` and `redeliveries`.
        """
        if self._headers is None:
            headers = copy.deepcopy(dict(self.delivery.properties.headers or {}))
            if self._notes is not None:
                history = headers.get(RASCAL)
                known = history if isinstance(history, Mapping) else {}
                redeliveries = self.redeliveries or 0
                headers[RASCAL] = {**known, **self._notes, "redeliveries": redeliveries}
            self._headers = headers
        return self._headers

    @property
    def message_id(self) -> str | None:
        """The message id set by the publisher."""
        return self.delivery.properties.message_id

    @property
    def content_type(self) -> str | None:
        """The content type."""
        return self.delivery.properties.content_type

    @property
    def redelivered(self) -> bool:
        """True if it was delivered before."""
        return self.delivery.redelivered

    @property
    def attempts(self) -> int | None:
        """Number of deliveries of this copy including this one; None if the broker does not
        count them."""
        counted = counted_attempts(self.delivery)
        if counted is not None:
            return counted
        if self.redeliveries is not None:
            return self.redeliveries + 1
        return None if self.redelivered else 1

    @property
    def tries(self) -> int:
        """Number of attempts to handle this message, including this one.

        Includes the copies that recovery republished or forwarded, and redeliveries. If the
        broker does not count redeliveries (RabbitMQ's classic queues), the subscription counts
        those that it requested; a message redelivered after a crash counts as the second
        attempt.
        """
        history = (self.delivery.properties.headers or {}).get(RASCAL)
        before = history.get("tries") if isinstance(history, Mapping) else None
        here = max(self.attempts or (2 if self.redelivered else 1), self.returns + 1)
        return here + count_in(before)

    @property
    def republished(self) -> int:
        """How often the `republish` strategy has sent it back to this queue."""
        return self._recovery("republished")

    @property
    def forwarded(self) -> int:
        """How often the `forward` strategy has forwarded it from this queue."""
        return self._recovery("forwarded")

    def _recovery(self, counter: str) -> int:
        node: Any = self.delivery.properties.headers
        for key in (RASCAL, "recovery", self.queue, counter):
            node = node.get(key) if isinstance(node, Mapping) else None
        return count_in(node)

    def touch(self) -> float:
        """Extend the message time-out and return the seconds left. May be called in a thread.

        Raises:
            UnsupportedError: the broker has no message time-out that can be extended.
            StaleDeliveryError: the delivery has timed out or was settled.
        """
        return self._touch(self.delivery.delivery_tag)
