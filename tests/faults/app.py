"""The application under test: it publishes, consumes, and records both."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from broker_client.ackornack import AckOrNack
from broker_client.broker import Broker
from broker_client.message import Message
from broker_client.publication import Publication
from broker_client.subscription import Subscription
from broker_client.transport.base import ConsumerCallbacks
from broker_client.transport.rabbitmq.connector import NetworkConnector
from tests.support.eventually import eventually

QUICK = {"min": "20ms", "max": "100ms", "factor": 1.5}


def a_config(url: str, vhost: str, **changes: Any) -> dict[str, Any]:
    """Two publications and two durable queues behind one exchange.

    `work` has a subscription; `record` has no consumer, so it shows what the broker received, and
    in which order. Keyword arguments go to every publication.
    """
    publications = {
        name: {"exchange": "orders", "routing_key": f"order.{name}", "vhost": vhost, **changes}
        for name in ("a", "b")
    }
    return {
        "vhosts": {
            vhost: {
                "connection": {
                    "url": url,
                    "vhost": vhost,
                    "heartbeat": "5s",
                    "connect_timeout": "5s",
                    "retry": QUICK,
                },
                "exchanges": ["orders", "dead"],
                "queues": {
                    "work": {"options": {"dead_letter_exchange": "dead"}},
                    "record": {},
                },
                "bindings": ["orders[order.#] -> work", "orders[order.#] -> record"],
                "publications": publications,
                "subscriptions": {
                    "work": {"queue": "work", "prefetch": 100, "retry": QUICK},
                },
            }
        },
    }


class App:
    """Publishes numbered messages and records their events by message id."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.publications: list[Publication] = []
        self.ends: dict[str, list[str]] = {}
        """Message id to its terminal events."""
        self.handled: list[str] = []
        """Message ids of deliveries, in order."""
        self.wrong_bodies: list[str] = []
        self.ack_lost = 0
        self.errors: list[Exception] = []
        """Of the subscription."""
        self.on_progress: Callable[[], None] = lambda: None

    @property
    def progress(self) -> int:
        """Publishes that have ended and deliveries so far."""
        return len(self.ends) + len(self.handled)

    async def publish(self, count: int, *, names: tuple[str, ...] = ("a", "b")) -> None:
        """Publish `count` messages, by turns through each of `names`."""
        for number in range(count):
            name = names[number % len(names)]
            message_id = f"{name}{len(self.publications):05}"
            publication = await self.broker.publish(name, {"id": message_id}, message_id=message_id)
            self.publications.append(publication)
            publication.on("success", lambda message_id: self._ended(message_id, "success"))
            publication.on("error", lambda error, message_id: self._ended(message_id, "error"))

    def _ended(self, message_id: str, how: str) -> None:
        self.ends.setdefault(message_id, []).append(how)
        self.on_progress()

    async def consume(self) -> Subscription:
        subscription = await self.broker.subscribe("work")
        subscription.on("error", self.errors.append)
        subscription.on("ack_lost", self._count_lost)
        return subscription.on("message", self._handle)

    def _count_lost(self, message: Message, error: Exception) -> None:
        self.ack_lost += 1

    async def _handle(self, message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        assert message.message_id is not None
        if content != {"id": message.message_id}:
            self.wrong_bodies.append(message.message_id)
        self.handled.append(message.message_id)
        self.on_progress()
        await asyncio.sleep(0)  # work: the link may be lost meanwhile
        await ack_or_nack()

    async def all_handled(self, *, timeout: float) -> None:
        """Wait until each published message has been delivered at least once."""
        expected = {publication.message_id for publication in self.publications}
        await eventually(
            lambda: len(self.handled) >= len(expected) and expected <= set(self.handled), timeout
        )

    def check_ends(self) -> None:
        """Check that each publication ended once, as confirmed."""
        expected = {publication.message_id: ["success"] for publication in self.publications}
        assert self.ends == expected

    def check_record(self, record: list[str]) -> None:
        """Check that `record` has all published messages, in order apart from repeats."""
        published = [publication.message_id for publication in self.publications]
        missing = sorted(set(published) - set(record))
        assert not missing, f"confirmed and lost: {missing}"
        for name in sorted({message_id[0] for message_id in published}):
            first_seen = list(dict.fromkeys(each for each in record if each[0] == name))
            assert first_seen == [each for each in published if each[0] == name]


async def drained(
    url: str, vhost: str, queue: str, *, offset: str | None = None, least: int = 0
) -> list[str]:
    """Take all messages of `queue`, on a separate connection; returns their ids in order.

    Args:
        url: of the broker.
        vhost: where the queue is.
        queue: its name.
        offset: from where to read a stream, which keeps what is read.
        least: different messages that are expected of a stream, which has repeats as well.
    """
    link = await NetworkConnector(url, vhost=vhost).connect(timeout=30.0)
    try:
        channel = await link.open_channel()
        count = (await channel.check_queue(queue)).message_count
        taken: list[str] = []
        different: set[str] = set()
        complete = asyncio.Event()

        def take(delivery: Any) -> None:
            taken.append(delivery.properties.message_id)
            assert delivery.body == b'{"id":"%s"}' % taken[-1].encode(), "an id on another's body"
            if offset is not None:
                channel.ack(delivery.delivery_tag)
                different.add(taken[-1])
                if len(different) >= least:
                    complete.set()
            elif len(taken) >= count:
                complete.set()

        callbacks = ConsumerCallbacks(take, lambda tag: None, lambda tag: None)
        if offset is None:
            await channel.consume(queue, callbacks, no_ack=True)
        else:
            await channel.qos(1_000)
            await channel.consume(queue, callbacks, arguments={"x-stream-offset": offset})
        if least:  # what is missing then is missing
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(30.0):
                    await complete.wait()
        elif count:
            async with asyncio.timeout(30.0):
                await complete.wait()
        return taken
    finally:
        await link.close()
