"""A plain client for tests that are not asyncio: declares, publishes, counts and takes messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from broker_client.message import PERSISTENT, Delivery, Outgoing, Properties
from broker_client.spark.loop_thread import LoopThread
from broker_client.spark.writing.publish_job import PublishJob, PublishLimits
from broker_client.spark.writing.publishing_link import PublishingLink
from broker_client.transport.rabbitmq.connector import NetworkConnector
from tests.support.rabbitmq import RabbitMQ

_LIMITS = PublishLimits(window=1000, confirm_timeout=10.0, retries=0, connect_timeout=10.0)


def until(condition: Callable[[], bool], what: str, timeout: float = 60.0) -> None:
    """Wait for `condition`; the error says what did not happen."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout:g} s for {what}"
        time.sleep(0.02)


class Queues:
    """The queues of one vhost."""

    def __init__(self, server: RabbitMQ, vhost: str) -> None:
        self.server, self.vhost = server, vhost
        self.url = server.url(vhost)
        self._thread = LoopThread("test queues")
        self._publishing = PublishingLink([self.connector()])
        self._asking = PublishingLink([self.connector()])

    def connector(self, port: int | None = None) -> NetworkConnector:
        """A connector to this vhost, optionally through another `port`."""
        url = f"amqp://guest:guest@127.0.0.1:{port or self.server.port}/"
        return NetworkConnector(url, vhost=self.vhost)

    def close(self) -> None:
        self._thread.call(self._publishing.close())
        self._thread.call(self._asking.close())
        self._thread.stop()

    def declare(self, *names: str, arguments: Mapping[str, Any] | None = None) -> None:
        async def declare() -> None:
            channel = await self._asking.channel(10.0)
            for name in names:
                await channel.declare_queue(name, arguments=arguments)

        self._thread.call(declare())

    def publish_all(self, messages: Sequence[Outgoing]) -> None:
        """Publish `messages`, and wait for their confirms."""

        async def publish() -> None:
            job = PublishJob(self._publishing, _LIMITS)
            await job.send(messages)
            await job.finish()

        self._thread.call(publish())

    def publish(
        self, queue: str, ids: Iterable[str | None], *, body: Callable[[Any], bytes] | None = None
    ) -> None:
        """One confirmed message for each of `ids`; its body is its id unless told otherwise."""
        messages = [
            Outgoing(
                "",
                queue,
                body(each) if body is not None else str(each).encode(),
                Properties(message_id=each, delivery_mode=PERSISTENT),
                mandatory=True,
            )
            for each in ids
        ]
        self.publish_all(messages)

    def depth(self, queue: str) -> int:
        """Ready messages."""

        async def ask() -> int:
            channel = await self._asking.channel(10.0)
            return (await channel.check_queue(queue)).message_count

        return self._thread.call(ask())

    def consumers(self, queue: str) -> int:
        async def ask() -> int:
            channel = await self._asking.channel(10.0)
            return (await channel.check_queue(queue)).consumer_count

        return self._thread.call(ask())

    def unacked(self, queue: str) -> int:
        """As RabbitMQ counts them now, without the lag of its statistics."""
        code = (
            f'{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"{self.vhost}">>, queue, '
            f'<<"{queue}">>)), [{{_, N}}] = rabbit_amqqueue:info(Q, '
            "[messages_unacknowledged]), N."
        )
        return int(self.server.ctl("eval", code))

    def take(self, queue: str, count: int | None = None) -> list[Delivery]:
        """Take and ack `count` messages, or all that are ready."""

        async def take() -> list[Delivery]:
            channel = await self._asking.channel(10.0)
            taken: list[Delivery] = []
            while count is None or len(taken) < count:
                delivery = await channel.get(queue, no_ack=True)
                if delivery is None:
                    break
                taken.append(delivery)
            return taken

        return self._thread.call(take())

    def take_ids(self, queue: str) -> list[str]:
        return [str(each.properties.message_id) for each in self.take(queue)]


def numbered(count: int, prefix: str = "m") -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def sorted_ids(rows: Sequence[Any]) -> list[str]:
    return sorted(str(row["message_id"]) for row in rows)
