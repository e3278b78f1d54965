"""The application under simulation: publishes, and handles in every way that handlers do.

It knows nothing of simulation: it runs as well against a real RabbitMQ.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from pathlib import Path
from typing import Any

from broker_client import AckOrNack, Broker, Message, Nack, PublishItem, Republish
from broker_client.config import BrokerConfig
from broker_client.connection.substitutes import Substitutes
from broker_client.errors import (
    BrokerClientError,
    BrokerClosedError,
    PublishError,
    TransportError,
)
from broker_client.moving.move import replay
from broker_client.publication import Publication
from broker_client.subscription import Subscription
from tests.simulation.promises import ORDERED, Promises, message_id
from tests.simulation.variant import Variant

DEAD = "dead"
EVENTS = "events"
INBOX = "inbox"
WORK = "work"
_REPLAY_EVERY = 1.0  # seconds
_LETTERS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
_RETRY = {"min": "50ms", "max": "1s"}
_GIVES_IN = 4
"""Deliveries of one message after which its handler does nothing but ack."""


def a_config(url: str, vhost: str, variant: Variant, folder: Path | None = None) -> dict[str, Any]:
    """Two queues and their dead letters, a publication and a subscription for each.

    Args:
        url: of the broker.
        vhost: on it.
        variant: of the configuration.
        folder: for files of the application's, where the variant has some.
    """
    prefetch = variant.prefetch
    connection: dict[str, Any] = {
        "url": url,
        "vhost": vhost,
        "heartbeat": "5s",
        "connect_timeout": "5s",
        "retry": _RETRY,
    }
    config: dict[str, Any] = {
        "vhosts": {
            "/": {
                "connection": connection,
                "publish_queue": variant.publish_queue,
                "publication_channel_pools": {
                    "regular": variant.channels,
                    "confirm": variant.channels,
                },
                "exchanges": [EVENTS],
                "bindings": [f"{EVENTS}[#.{name}] -> {name}" for name in (WORK, ORDERED)],
                "queues": {
                    WORK: {"options": {"arguments": {**_LETTERS, **variant.arguments}}},
                    ORDERED: {
                        "options": {"arguments": {**_LETTERS, "x-single-active-consumer": True}}
                    },
                    DEAD: None,
                },
                "publications": {
                    name: {**_destination(name, variant), "timeout": "10m"}
                    for name in (WORK, ORDERED)
                },
                "subscriptions": {
                    WORK: {
                        "queue": WORK,
                        "prefetch": prefetch,
                        "retry": _RETRY,
                        "requeue_defer": _RETRY,
                        **variant.subscription,
                    },
                    ORDERED: {
                        "queue": ORDERED,
                        "prefetch": 5,
                        "concurrency": 1,
                        "retry": _RETRY,
                    },
                    DEAD: {"queue": DEAD, "prefetch": prefetch, "retry": _RETRY},
                },
            }
        }
    }
    _add_features(config, variant, folder)
    return config


def _add_features(config: dict[str, Any], variant: Variant, folder: Path | None) -> None:
    made = config["vhosts"]["/"]
    work = made["subscriptions"][WORK]
    if variant.outbox:
        made["publish_queue"] = {**variant.publish_queue, "outbox": f"{folder}/outbox.db"}
    if variant.shovel:
        made["queues"][INBOX] = {"options": {"arguments": _LETTERS}}
        made["subscriptions"][INBOX] = {"queue": INBOX, "prefetch": 5, "retry": _RETRY}
        made["publications"][INBOX] = {**made["publications"][WORK]}
        made["publications"][WORK] = {"queue": INBOX, "timeout": "10m"}
        config["shovels"] = [f"{INBOX} -> {INBOX}"]
    if variant.batch:
        made["subscriptions"][DEAD] |= {"batch": {"size": 3, "wait": "200ms"}, "prefetch": 5}
        made["subscriptions"][DEAD]["requeue_defer"] = _RETRY
    if variant.deduplicate:
        work["deduplicate"] = {"store": variant.deduplicate}
        if variant.deduplicate == "sqlite":
            work["deduplicate"]["path"] = f"{folder}/handled.db"
    if variant.counter == "sqlite":
        counters = {"shared": {"type": "sqlite", "path": f"{folder}/redeliveries.db"}}
        config["redeliveries"] = {"counters": counters}
        work["redeliveries"] = {"counter": "shared", "limit": 1_000}
    elif variant.counter:
        work["redeliveries"] = {"counter": variant.counter, "limit": 1_000}


def _destination(name: str, variant: Variant) -> dict[str, Any]:
    if variant.topic:
        return {"exchange": EVENTS, "routing_key": f"placed.{name}"}
    return {"queue": name}


class Application:
    """One process with a Broker."""

    def __init__(
        self,
        name: str,
        config: BrokerConfig,
        promises: Promises,
        *,
        salt: int,
        variant: Variant,
        substitutes: Substitutes | None = None,
        pace: float = 1.0,
        oversleep: float = 0.0,
    ) -> None:
        """
        Args:
            name: of its messages.
            config: of the Broker.
            promises: the books.
            salt: makes handlers of another run do other things with the same messages.
            variant: of the configuration, and of what it does.
            substitutes: of the Broker.
            pace: seconds of a handler that takes its time, at most.
            oversleep: seconds of one that takes longer than the broker allows; 0 for none.
        """
        self.name = name
        self.broker: Broker | None = None
        self.losses = 0
        """Connections that were lost."""
        self._config, self._promises, self._salt = config, promises, salt
        self._variant = variant
        self._substitutes = substitutes
        self._pace, self._oversleep = pace, oversleep
        self._numbers: dict[str, int] = {WORK: 0, ORDERED: 0}
        self._backlog: list[tuple[str, int]] = []
        self._last = ""
        """Id of the message that it was to publish last."""
        self._publishing: asyncio.Task[None] | None = None
        self._stop_asked = asyncio.Event()

    async def run(self) -> None:
        """Until told to stop."""
        while self.broker is None and not self._stop_asked.is_set():
            try:
                self.broker = await Broker.create(self._config, substitutes=self._substitutes)
            except TransportError:
                await asyncio.sleep(0.2)
        if self.broker is None:
            return
        try:
            await self._serve(self.broker)
        finally:
            await self.broker.shutdown()
        if self._publishing is not None:  # it may have begun after we were told to stop
            await self._publishing
        self._promises.closed(self.name)

    async def _serve(self, broker: Broker) -> None:
        for event in ("error", "close"):
            broker.on(event, lambda *args: None)
        for event in ("disconnect", "consumers_disconnected"):
            broker.on(event, self._count_loss)
        handlers = {WORK: self._work, ORDERED: self._ordered}
        if not self._variant.batch and not self._variant.replay:
            handlers[DEAD] = self._bury
        subscriptions = [await broker.subscribe(*each) for each in handlers.items()]
        if self._variant.batch and not self._variant.replay:
            subscriptions.append(self._bury_in_batches(broker))
        for subscription in subscriptions:
            for event in ("error", "ack_lost", "recovery_failed", "already_settled"):
                subscription.on(event, lambda *args: None)
            if subscription.config.deduplicate is not None:
                subscription.on("duplicate", self._skipped)
        self._publish_backlog()
        if self._variant.replay:
            await self._replay_until_stopped(broker)
        await self._stop_asked.wait()
        if self._publishing is not None:
            await self._publishing

    def _count_loss(self, vhost: str, url: str) -> None:
        self.losses += 1

    def stop(self) -> None:
        self._stop_asked.set()

    # ---------------------------------------------------------------- publishing

    @property
    def is_publishing(self) -> bool:
        """True while it has not passed on all that it was told to publish."""
        return bool(self._backlog) or (self._publishing is not None and not self._publishing.done())

    def publish(self, publication: str, count: int, loop: asyncio.AbstractEventLoop) -> None:
        """Publish `count` messages in `loop`, as soon as there is a Broker."""
        self._backlog.append((publication, count))
        loop.call_soon(self._publish_backlog)

    def _publish_backlog(self) -> None:
        if self.broker is None:
            return
        if self._publishing is None or self._publishing.done():
            loop = asyncio.get_running_loop()
            self._publishing = loop.create_task(self._publish_all(), name=f"{self.name}: publish")

    async def _publish_all(self) -> None:
        while self._backlog:
            self._last = ""
            try:
                await self._publish_some(*self._backlog.pop(0))
            except (PublishError, BrokerClosedError) as error:
                # The file of the outbox has failed, or we stop: that one was refused.
                if self._last:
                    self._promises.ended(self._last, f"error {error}")

    async def _publish_some(self, name: str, count: int) -> None:
        assert self.broker is not None
        items = (self._next(name) for _ in range(count))
        if self._variant.many:
            await self.broker.publish_many(name, items, window=5, on_end=self._ended)
            return
        for content, _, options in items:
            publication = await self.broker.publish(name, content, **(options or {}))
            if self._variant.outbox:
                self._promises.kept.add(content["id"])
            self._watch(publication)

    def _next(self, name: str) -> PublishItem:
        """The next message of a publication."""
        self._numbers[name] += 1
        id = message_id(name, self.name, self._numbers[name])
        self._promises.accepted(id)
        self._last = id
        several: Any = self._variant.overrides if name == WORK else ({},)
        overrides: dict[str, Any] = several[self._numbers[name] % len(several)]
        options: Any = {"message_id": id, **overrides}
        return PublishItem({"id": id}, None, options)

    def _ended(self, publication: Publication) -> None:
        how = "success" if publication.error is None else f"error {publication.error}"
        self._promises.ended(str(publication.message_id), how)

    def _watch(self, publication: Publication) -> None:
        ended = self._promises.ended
        publication.on("success", lambda id: ended(id, "success"))
        publication.on("error", lambda error, id: ended(id, f"error {error}"))
        publication.on("return", lambda *args: ended(str(publication.message_id), "return"))

    # ---------------------------------------------------------------- handling

    def _draw(self, id: str, count: int) -> int:
        """A number below 1,000, the same in each run of one seed."""
        text = f"{self._salt} {id} {count}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest()) % 1_000

    async def _work(self, message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        id = str(message.message_id)
        self._promises.arrived(id, content)
        count = self._promises.handled[id]
        draw = self._draw(id, count)
        if draw >= 700 and count < _GIVES_IN:
            await self._be_difficult(draw, id, ack_or_nack)
            return
        if draw % 2:
            await asyncio.sleep(self._pace * draw / 1_000)
        await self._settle(id, ack_or_nack)

    async def _be_difficult(self, draw: int, id: str, ack_or_nack: AckOrNack) -> None:
        error = ValueError("as its handler wants it")
        asked_again = self._promises.asked_again
        if draw < 760:
            asked_again[id] += 1
            raise error
        if draw < 820:
            asked_again[id] += 1
            await ack_or_nack(error, [Nack(requeue=True, defer=self._pace / 5)])
        elif draw < 880:
            asked_again[id] += 1
            await ack_or_nack(error, [Republish(defer=self._pace / 5, attempts=3), Nack()])
        elif draw < 950 or not self._oversleep:
            asked_again[id] += 1  # by the handler of dead letters
            await ack_or_nack(error, [Nack()])
        else:
            # Longer than the broker waits: it closes the channel, and its deliveries come again.
            self._promises.overslept += 1
            self._promises.asleep_until = asyncio.get_running_loop().time() + self._oversleep
            await asyncio.sleep(self._oversleep)
            await self._settle(id, ack_or_nack)

    async def _ordered(self, message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        id = str(message.message_id)
        self._promises.arrived(id, content)
        if self._draw(id, 0) < 300:
            await asyncio.sleep(self._pace / 20)
        await self._settle(id, ack_or_nack)

    async def _bury(self, message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        id = str(message.message_id)
        self._promises.arrived(id, content)
        await self._settle(id, ack_or_nack)

    def _bury_in_batches(self, broker: Broker) -> Subscription:
        @broker.handle(DEAD)
        async def bury(contents: list[Any], messages: list[Message]) -> None:
            ids = [str(message.message_id) for message in messages]
            for id, content in zip(ids, contents, strict=True):
                self._promises.arrived(id, content)
            if any(self._draw(id, self._promises.handled[id]) < 100 for id in ids):
                self._promises.asked_again.update(ids)
                raise ValueError("as its handler wants it")
            self._promises.settled.update(ids)

        subscription: Subscription = bury.subscription  # type: ignore[attr-defined]
        return subscription

    def _skipped(self, message: Message) -> None:
        self._promises.skipped(str(message.message_id))

    async def _replay_until_stopped(self, broker: Broker) -> None:
        """Put back dead letters now and then."""
        while not self._stop_asked.is_set():
            with contextlib.suppress(BrokerClientError):
                link = await broker.connect()
                try:
                    await replay(link, DEAD, dry_run=False)
                finally:
                    await link.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pace * _REPLAY_EVERY):
                    await self._stop_asked.wait()

    async def _settle(self, id: str, ack_or_nack: AckOrNack) -> None:
        self._promises.finished.add(id)
        await ack_or_nack()
        self._promises.settled.add(id)
