"""What a configuration may say, but hardly means; and what no broker can do.

The models are right, each by itself, and every name names something: this looks at how they work
together. Warnings are kept and logged, mistakes refuse the configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from broker_client.config import BrokerConfig
from broker_client.config.consuming import SubscriptionConfig
from broker_client.config.problems import Key
from broker_client.config.recovery import Ack, Forward, Nack, Republish, Strategy
from broker_client.config.topology import QueueConfig
from broker_client.errors import nearest


class Finding(NamedTuple):
    """One thing found."""

    path: tuple[Key, ...]
    """Of the value, in the models."""
    message: str
    fatal: bool = False
    """True where the configuration cannot work."""


def findings(config: BrokerConfig) -> list[Finding]:
    """Everything worth saying about `config`."""
    found = [*_dead_letter_exchanges(config), *_addresses(config)]
    for name, subscription in config.subscriptions.items():
        path: tuple[Key, ...] = ("subscriptions", name)
        vhost = config.vhosts.get(subscription.vhost)
        queue = None if vhost is None else vhost.queues.get(subscription.queue)
        if queue is None:
            continue  # a configuration made in Python may know of queues that others declare
        if queue.kind == "stream":
            found += _stream(path, subscription)
        else:
            found += _losses(config, subscription, queue)
        found += _chain((*path, "recovery"), subscription.recovery or ())
    for name, chain in config.recovery.items():
        found += _chain(("recovery", name), chain)
    return found


# --------------------------------------------------------------------------- addresses


def _addresses(config: BrokerConfig) -> Iterator[Finding]:
    for key, vhost in config.vhosts.items():
        for index, connection in enumerate(vhost.connections):
            name = connection.hostname
            if connection.scheme == "embedded" and name.endswith((".db", ".sqlite", ".sqlite3")):
                yield Finding(
                    ("vhosts", key, "connections", index),
                    f"embedded://{name} keeps its messages in memory; for a file of that name "
                    f"write embedded://./{name}",
                )


# --------------------------------------------------------------------------- dead letters


def _sink(queue: QueueConfig) -> str | None:
    """Where refused messages of `queue` go; None where they are lost."""
    exchange = queue.options.all_arguments.get("x-dead-letter-exchange")
    return None if exchange is None else str(exchange)


def _dead_letter_exchanges(config: BrokerConfig) -> Iterator[Finding]:
    for key, vhost in config.vhosts.items():
        for name, queue in vhost.queues.items():
            sink = _sink(queue)
            if sink is not None and sink not in vhost.exchanges:
                # RabbitMQ: a dead-letter exchange that is not there drops messages silently.
                yield Finding(
                    ("vhosts", key, "queues", name, "options"),
                    f"dead-letter exchange {sink!r} is not declared{_near(sink, vhost.exchanges)}; "
                    "where it is missing, messages are dropped",
                )
            key_given = "x-dead-letter-routing-key" in queue.options.all_arguments
            if sink == "" and not key_given:
                # Those published to the queue by its name come back at once, for ever.
                yield Finding(
                    ("vhosts", key, "queues", name, "options"),
                    "the default exchange leads dead letters back to the queue they come from; "
                    "write dead_letter_routing_key: the name of another queue",
                )


def _near(name: str, known: Iterable[str]) -> str:
    near = nearest(name, list(known))
    return f" (did you mean {near!r}?)" if near else ""


def _losses(
    config: BrokerConfig, subscription: SubscriptionConfig, queue: QueueConfig
) -> Iterator[Finding]:
    sink, at = _sink(queue), ("vhosts", subscription.vhost, "queues", queue.name)
    if sink is None and not subscription.options.no_ack:
        if queue.kind == "quorum" and _requeues(subscription):
            yield Finding(
                at,
                "has no dead-letter exchange: RabbitMQ 4 drops a message of a quorum queue that "
                "was requeued 20 times (x-delivery-limit); write options: "
                "{dead_letter_exchange: ...}",
            )
        elif not _takes_dead_letters(config, subscription):
            yield Finding(
                at,
                "has no dead-letter exchange: a message that its subscription refuses, or cannot "
                "read, is lost; write options: {dead_letter_exchange: ...}",
            )


def _requeues(subscription: SubscriptionConfig) -> bool:
    if subscription.recovery is None:
        return True
    return any(isinstance(each, Nack) and each.requeue for each in subscription.recovery)


def _takes_dead_letters(config: BrokerConfig, subscription: SubscriptionConfig) -> bool:
    """True for the end of the line: a queue behind somebody's dead-letter exchange."""
    vhost = config.vhosts[subscription.vhost]
    sinks = {_sink(queue) for queue in vhost.queues.values()}
    if "" in sinks:
        keys = (each.options.all_arguments for each in vhost.queues.values())
        if subscription.queue in (each.get("x-dead-letter-routing-key") for each in keys):
            return True
    return any(
        binding.source in sinks and binding.destination == subscription.queue
        for binding in vhost.bindings
        if binding.destination_type == "queue"
    )


# --------------------------------------------------------------------------- streams


def _stream(path: tuple[Key, ...], subscription: SubscriptionConfig) -> Iterator[Finding]:
    # RabbitMQ streams: consumers must set a prefetch and acknowledge; nothing is requeued,
    # and a copy would come behind everything else.
    if not subscription.prefetch:
        yield Finding((*path, "prefetch"), "a stream needs a prefetch, 1 or more", fatal=True)
    if subscription.options.no_ack:
        yield Finding(
            (*path, "options", "no_ack"), "a stream cannot be read with no_ack", fatal=True
        )
    if any(isinstance(each, Republish) for each in subscription.recovery or ()):
        yield Finding(
            (*path, "recovery"),
            "a stream cannot be the target of republish; forward to another queue",
            fatal=True,
        )
    if "x-stream-offset" not in subscription.options.all_arguments:
        yield Finding(
            path,
            "a stream is read from its next message on, and what comes while nobody reads is "
            "passed over; write options: {offset: first}, or {offset: next} to say so",
        )


# --------------------------------------------------------------------------- chains


def _chain(path: tuple[Key, ...], chain: Sequence[Strategy]) -> Iterator[Finding]:
    if not chain:
        return
    last = chain[-1]
    if isinstance(last, Republish | Forward) and last.attempts is not None:
        yield Finding(
            (*path, len(chain) - 1),
            f"after {last.attempts} attempts the message is nacked without requeue; say so with "
            "{strategy: nack} at the end, or name another strategy",
        )
    for index, strategy in enumerate(chain):
        if isinstance(strategy, Republish) and _spins(strategy):
            yield Finding(
                (*path, index),
                "a message that always fails goes round without end and without a pause; "
                "write attempts, defer or both",
            )
    for index, strategy in enumerate(chain[:-1]):
        if isinstance(strategy, Ack | Nack):
            yield Finding(
                (*path, index + 1),
                f"is never reached: the {strategy.strategy} before it always settles",
            )
            return


def _spins(strategy: Republish) -> bool:
    return not (strategy.attempts or strategy.defer or strategy.immediate_nack)
