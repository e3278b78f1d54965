"""Settings that a subscription needs from the whole configuration, and the shared stores.

Counters of redeliveries and stores of handled ids are shared by the subscriptions that name them,
and live as long as the broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import field
from typing import Self

from broker_client.codec.claim_check import BodyStore
from broker_client.config import (
    BrokerConfig,
    CounterConfig,
    EncryptionConfig,
    SubscriptionConfig,
    VhostConfig,
)
from broker_client.config.topology import QueueConfig
from broker_client.consuming.deduplication import HandledIds, handled_ids_from
from broker_client.consuming.redeliveries import CounterFactory, RedeliveryCounter, counter_from
from broker_client.errors import UnsupportedError
from broker_client.runtime.slotted import slotted
from broker_client.transport.base import Capabilities, no_shared_prefetch

log: logging.Logger = logging.getLogger("broker_client.consuming")

_CLOSE_TIMEOUT = 5.0  # seconds for a store to close

_KEYLESS = ("fanout", "headers")  # exchange types that do not look at routing keys

_TIMEOUTS = ("x-consumer-timeout", "x-message-timeout")  # milliseconds


@slotted
class ConsumingSetup:
    """Settings of one subscription."""

    config: SubscriptionConfig
    queue: str
    """Name of the queue on the broker."""
    profiles: Mapping[str, EncryptionConfig] = field(default_factory=dict)
    """What to decrypt with, by name."""
    counter: RedeliveryCounter | None = None
    """Counter of redeliveries, or None."""
    handled: HandledIds | None = None
    """Store of handled ids, or None without deduplication."""
    bodies: BodyStore | None = None
    """Where bodies are that are not in their messages, or None."""
    dead_letter_exchange: str | None = None
    """The queue's, where it may not know the key of a republished copy."""
    is_stream: bool = False
    settle_within: float | None = None
    """Seconds a delivery may stay unsettled; None where the configuration does not tell."""
    has_delayed_retry: bool = False
    """The queue holds back what failed, on a broker that can (RabbitMQ 4.3)."""
    dead_letters: tuple[str, str | None] | None = None
    """Where the queue sends its dead letters: an exchange, and a key unless they keep theirs."""

    @classmethod
    def plain(cls, config: SubscriptionConfig) -> Self:
        """Settings of a subscription without a shared configuration."""
        return cls(config, config.queue)


def check_capabilities(config: SubscriptionConfig, capabilities: Capabilities) -> None:
    """Check that this broker supports the subscription `config`.

    Raises:
        UnsupportedError: it cannot; the error says what to write instead.
    """
    if config.channel_prefetch is not None and not capabilities.shared_prefetch:
        raise no_shared_prefetch(f"channel_prefetch of subscription {config.name!r}")


class ConsumingStores:
    """Makes the setups of one broker's subscriptions, and owns what they share.

    Args:
        config: the whole configuration.
        factories: makers of `custom` counters, by the counter's name.

    Raises:
        UnsupportedError: a subscription uses a custom counter that has no factory, or a store of
            bodies whose package is missing.
    """

    def __init__(self, config: BrokerConfig, factories: Mapping[str, CounterFactory]) -> None:
        self._config = config
        self._factories = dict(factories)
        self._counters: dict[int, tuple[CounterConfig, RedeliveryCounter]] = {}
        self._handled: dict[str, HandledIds] = {}
        self._bodies = {
            name: BodyStore(each.claim_check, f"subscription {name!r}")
            for name, each in config.subscriptions.items()
            if each.claim_check is not None
        }
        for subscription in config.subscriptions.values():
            counter = config.counter_of(subscription)
            if counter.type == "custom" and counter.name not in self._factories:
                raise UnsupportedError(
                    f"redelivery counter {counter.name!r}",
                    "it is custom: give Broker.create a factory, counters={name: factory}",
                )

    def setup(self, config: SubscriptionConfig) -> ConsumingSetup:
        """Settings of the subscription `config`.

        Raises:
            UnsupportedError: the package behind a store is missing.
        """
        vhost = self._config.vhosts[config.vhost]
        queue = vhost.queues.get(config.queue)
        return ConsumingSetup(
            config,
            self._config.source_of(config),
            self._config.profiles_of(config),
            self._counter(config),
            self._handled_ids(config),
            self._bodies.get(config.name),
            _keyed_dead_letter_exchange(vhost, config.queue),
            queue is not None and queue.kind == "stream",
            self._settle_within(vhost, config),
            queue is not None and _has_delayed_retry(queue),
            None if queue is None else _dead_letters(queue),
        )

    def _settle_within(self, vhost: VhostConfig, config: SubscriptionConfig) -> float | None:
        """The time-out of the consumer, else of its queue, else of the built-in broker."""
        if config.options.no_ack:
            return None
        queue = vhost.queues.get(config.queue)
        for arguments in (config.options.all_arguments, {} if queue is None else queue.arguments):
            for key in _TIMEOUTS:
                value = arguments.get(key)
                if isinstance(value, int) and value > 0:
                    return value / 1000
        if any(not each.is_embedded for each in vhost.connections):
            return None  # RabbitMQ's consumer_timeout is not told to clients
        return self._config.node.message_timeout or None

    def _counter(self, subscription: SubscriptionConfig) -> RedeliveryCounter | None:
        config = self._config.counter_of(subscription)
        if config.type == "stub":
            return None
        known = self._counters.get(id(config))
        if known is None:
            made = counter_from(config, self._factories.get(config.name))
            known = self._counters[id(config)] = (config, made)
        return known[1]

    def _handled_ids(self, config: SubscriptionConfig) -> HandledIds | None:
        if config.deduplicate is None:
            return None
        if config.name not in self._handled:
            self._handled[config.name] = handled_ids_from(config.deduplicate)
        return self._handled[config.name]

    async def close(self) -> None:
        """Close every file and socket. May be called more than once."""
        stores: list[RedeliveryCounter | HandledIds] = [*self._handled.values()]
        stores += [counter for _, counter in self._counters.values()]
        self._handled, self._counters = {}, {}
        for store in stores:
            try:
                async with asyncio.timeout(_CLOSE_TIMEOUT):
                    await store.close()
            except Exception as error:  # noqa: BLE001 - a store of the user's choice
                log.warning("%r: while closing: %r", store, error)


def _has_delayed_retry(queue: QueueConfig) -> bool:
    """RabbitMQ: `returned` is for basic.nack, and we refuse by basic.reject, which counts."""
    arguments = queue.arguments
    return queue.kind == "quorum" and arguments.get("x-delayed-retry-type") in ("all", "failed")


def _dead_letters(queue: QueueConfig) -> tuple[str, str | None] | None:
    exchange = queue.arguments.get("x-dead-letter-exchange")
    if exchange is None:
        return None
    key = queue.arguments.get("x-dead-letter-routing-key")
    return str(exchange), None if key is None else str(key)


def _keyed_dead_letter_exchange(vhost: VhostConfig, name: str) -> str | None:
    queue = vhost.queues.get(name)
    arguments = {} if queue is None else queue.arguments
    exchange = arguments.get("x-dead-letter-exchange")
    if not exchange or "x-dead-letter-routing-key" in arguments:
        return None
    for declared in vhost.exchanges.values():
        if declared.qualified_name == exchange and declared.type in _KEYLESS:
            return None
    return str(exchange)
