"""A broker with a dashboard for tests in a browser, and programs that use it."""

from __future__ import annotations

import json
import urllib.request
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import pika
from pika.adapters.blocking_connection import BlockingChannel

LOGIN = f"Basic {b64encode(b'guest:guest').decode()}"


class OperatedBroker:
    """A broker, its management API and its dashboard.

    Args:
        amqp_url: of the broker, with a login.
        management_url: of its API.
        dashboard_url: ends with a slash.
    """

    def __init__(self, amqp_url: str, management_url: str, dashboard_url: str) -> None:
        self.amqp_url, self.management_url, self.dashboard_url = (
            amqp_url,
            management_url,
            dashboard_url,
        )

    def page(self, *parts: str, **query: str) -> str:
        """The address of a page: ``page("queue", "/", "orders")``."""
        path = "/".join(quote(part, safe="") for part in parts)
        search = "&".join(f"{key}={quote(value, safe='')}" for key, value in query.items())
        return f"{self.dashboard_url}#/{path}{'?' + search if search else ''}"

    # ------------------------------------------------------------------ the API

    def ask(self, method: str, *parts: str, body: Any = None) -> Any:
        """The answer of the management API, logged in as guest."""
        path = "/".join(quote(part, safe="") for part in parts)
        request = urllib.request.Request(
            f"{self.management_url}/api/{path}",
            None if body is None else json.dumps(body).encode(),
            {"Authorization": LOGIN, "Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            said = response.read()
        return json.loads(said) if said else None

    def ready(self, queue: str, vhost: str = "/") -> int:
        """How many messages of a queue are ready."""
        with self.channel(vhost) as channel:
            return int(channel.queue_declare(queue, passive=True).method.message_count)

    # ------------------------------------------------------------------ programs

    @contextmanager
    def channel(self, vhost: str = "/", name: str = "tests") -> Iterator[BlockingChannel]:
        """A channel of a connection of its own, with publisher confirms."""
        url = f"{self.amqp_url.rpartition('/')[0]}/{quote(vhost, safe='')}"
        parameters = pika.URLParameters(url)
        parameters.client_properties = {"connection_name": name, "product": "shop", "version": "7"}
        parameters.heartbeat = 0  # no heartbeats are sent while a test uses a page
        parameters.socket_timeout, parameters.stack_timeout = 60, 90
        connection = pika.BlockingConnection(parameters)
        try:
            channel = connection.channel()
            yield channel
        finally:
            connection.close()

    def declare(self, queue: str, dead: str | None = None, **arguments: Any) -> None:
        """A durable queue; its dead letters go to the queue `dead`."""
        table = {key.replace("_", "-"): value for key, value in arguments.items()}
        if dead is not None:
            table |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
        with self.channel() as channel:
            channel.queue_declare(queue, durable=True, arguments=table)

    def publish(
        self,
        queue: str,
        bodies: Iterable[bytes | str],
        *,
        exchange: str = "",
        headers: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> None:
        """Publish messages with the ids "QUEUE-0", "QUEUE-1", ...; returns once all are
        confirmed."""
        with self.channel() as channel:
            for number, body in enumerate(bodies):
                properties = pika.BasicProperties(
                    content_type=content_type,
                    delivery_mode=2,
                    headers=dict(headers or {}),
                    message_id=f"{queue}-{number}",
                )
                text = body.encode() if isinstance(body, str) else body
                channel.basic_publish(exchange, queue, text, properties)
            channel.queue_declare(queue, passive=True)  # so all of them have arrived

    def reject(self, queue: str, count: int) -> None:
        """A consumer that rejects what it gets."""
        with self.channel() as channel:
            for _ in range(count):
                method, _, _ = channel.basic_get(queue)
                assert method is not None, f"{queue} is empty"
                channel.basic_reject(method.delivery_tag, requeue=False)

    def handle(self, queue: str, count: int) -> list[bytes]:
        """A consumer that handles `count` messages; returns their bodies."""
        bodies = []
        with self.channel() as channel:
            for _ in range(count):
                method, _, body = channel.basic_get(queue)
                assert body is not None, f"{queue} is empty"
                bodies.append(body)
                channel.basic_ack(method.delivery_tag)
        return bodies


def an_order(number: int, **more: Any) -> str:
    """The JSON of an order."""
    order = {"order": number, "customer": "Ada Lovelace", "lines": [{"sku": "A-1", "count": 2}]}
    return json.dumps(order | more)


def a_shop(broker: OperatedBroker) -> None:
    """Exchanges, queues, messages and dead letters, as of an application with failures."""
    with broker.channel() as channel:
        for name, kind in (("shop", "topic"), ("audit", "fanout"), ("nowhere", "direct")):
            channel.exchange_declare(name, kind, durable=True)
        channel.queue_declare("orders.dead", durable=True)
        channel.queue_declare("orders", durable=True, arguments=dead_to("orders.dead"))
        channel.queue_declare("mail", durable=True, arguments={"x-message-ttl": 3_600_000})
        channel.queue_bind("orders", "shop", "order.#")
        channel.queue_bind("mail", "shop", "order.*.shipped")
    broker.publish("orders", (an_order(number) for number in range(12)))
    broker.reject("orders", 7)
    broker.publish("mail", (an_order(number) for number in range(3)))
    failed = {"error": {"name": "ValueError", "message": "no price for A-1"}, "tries": 3}
    headers = {
        "rascal": failed | {"originalQueue": "orders", "originalExchange": "shop"},
        "x-death": [
            {
                "queue": "orders",
                "reason": "rejected",
                "count": 1,
                "exchange": "shop",
                "routing-keys": ["order.new"],
            }
        ],
    }
    broker.publish("orders.dead", (an_order(number) for number in (101, 102, 103)), headers=headers)


def dead_to(queue: str) -> dict[str, Any]:
    """The arguments of a queue whose dead letters go to `queue`."""
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
