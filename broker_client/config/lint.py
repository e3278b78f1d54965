"""Checks of a whole configuration: likely mistakes, and what no broker can do.

The models are valid, each by itself, and every name exists: this checks how they work
together. Warnings are kept and logged, mistakes refuse the configuration.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from broker_client.config import BrokerConfig
from broker_client.config.consuming import SubscriptionConfig
from broker_client.config.problems import Key
from broker_client.config.recovery import Ack, Forward, Nack, Republish, Strategy
from broker_client.config.topology import QueueConfig
from broker_client.errors import install_extra, nearest


class LintFinding(NamedTuple):
    """One thing found."""

    path: tuple[Key, ...]
    """Of the value, in the models."""
    message: str
    fatal: bool = False
    """True where the configuration cannot work."""


def findings(config: BrokerConfig) -> list[LintFinding]:
    """Everything worth saying about `config`."""
    found = [
        *_dead_letter_exchanges(config),
        *_addresses(config),
        *_missing_extras(config),
        *_channels(config),
        *_refused_by_4(config),
        *_schedules(config),
    ]
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
        if queue.kind == "quorum":
            found += _quorum(config, path, subscription, queue)
        found += _chain((*path, "recovery"), subscription.recovery or ())
    for name, chain in config.recovery.items():
        found += _chain(("recovery", name), chain)
    return found


# --------------------------------------------------------------------------- addresses


def _addresses(config: BrokerConfig) -> Iterator[LintFinding]:
    for key, vhost in config.vhosts.items():
        for index, connection in enumerate(vhost.connections):
            name = connection.hostname
            if connection.scheme == "embedded" and name.endswith((".db", ".sqlite", ".sqlite3")):
                yield LintFinding(
                    ("vhosts", key, "connections", index),
                    f"embedded://{name} keeps its messages in memory; for a file of that name "
                    f"write embedded://./{name}",
                )


# --------------------------------------------------------------------------- extras


def _missing_extras(config: BrokerConfig) -> Iterator[LintFinding]:
    """What needs a package that is not installed, once for each extra."""
    needed: dict[str, tuple[str, list[tuple[Key, ...]]]] = {
        "crypto": ("cryptography", list(_encrypted(config))),
        "redis": ("redis", list(_on_redis(config))),
        "schedules": ("cronsim", list(_by_cron(config))),
    }
    for extra, (package, places) in needed.items():
        if places and importlib.util.find_spec(package) is None:
            text = f"needs the package {package}: {install_extra(extra)}"
            yield LintFinding(places[0], text, fatal=True)


def _encrypted(config: BrokerConfig) -> Iterator[tuple[Key, ...]]:
    yield from (("encryption", name) for name in config.encryption)
    for publication in config.publications.values():
        if publication.encryption is not None:
            yield "publications", publication.name, "encryption"
    for subscription in config.subscriptions.values():
        if subscription.encryption:
            yield "subscriptions", subscription.name, "encryption"


def _on_redis(config: BrokerConfig) -> Iterator[tuple[Key, ...]]:
    for name, subscription in config.subscriptions.items():
        if subscription.deduplicate is not None and subscription.deduplicate.store == "redis":
            yield "subscriptions", name, "deduplicate"
        vhost = config.vhosts.get(subscription.vhost)
        counter = None
        if vhost is not None:
            with contextlib.suppress(KeyError):  # a name that a configuration of Python's lacks
                counter = config.counter_of(subscription)
        if counter is not None and counter.type == "redis":
            yield "subscriptions", name, "redeliveries"


def _by_cron(config: BrokerConfig) -> Iterator[tuple[Key, ...]]:
    for name, schedule in config.schedules.items():
        if schedule.cron is not None:
            yield "schedules", name, "cron"


# --------------------------------------------------------------------------- schedules


def _schedules(config: BrokerConfig) -> Iterator[LintFinding]:
    for name, schedule in config.schedules.items():
        publication = config.find_publication(schedule.publication)
        if publication is not None and not publication.confirm:
            yield LintFinding(
                ("schedules", name, "publication"),
                f"{schedule.publication!r} has `confirm: false`, so a message could be lost and "
                "would not be published again; a schedule needs a publication with confirms",
                fatal=True,
            )


# --------------------------------------------------------------------------- channels


def _channels(config: BrokerConfig) -> Iterator[LintFinding]:
    """Where `channel_max` is below what the declarations may need at a time."""
    for key, vhost in config.vhosts.items():
        consuming = [each.name for each in config.subscriptions.values() if each.vhost == key]
        confirmed = {each.confirm for each in config.publications.values() if each.vhost == key}
        pools = vhost.publication_channel_pools
        publishing = {}
        # Recovery and publications by the name of a queue or exchange use the confirm pool.
        if True in confirmed or not confirmed:
            publishing["publication_channel_pools.confirm.max"] = pools.confirm.max
        if False in confirmed:
            publishing["publication_channel_pools.regular.max"] = pools.regular.max
        for index, connection in enumerate(vhost.connections):
            limit = connection.channel_max
            if not limit or connection.is_embedded:
                continue
            users = [f"{count} by {name}" for name, count in publishing.items()]
            if not vhost.separate_connections and consuming:
                users.append(f"{len(consuming)} by subscriptions ({', '.join(consuming)})")
            needed = sum(publishing.values()) + len(consuming) * (not vhost.separate_connections)
            if vhost.separate_connections and len(consuming) > needed:
                needed = len(consuming)
                users = [f"{needed} by subscriptions ({', '.join(consuming)})"]
            if needed > limit:
                yield LintFinding(
                    ("vhosts", key, "connections", index, "channel_max"),
                    f"{limit} channels are less than may be needed at a time on one connection: "
                    f"{' and '.join(users)}; raise channel_max to {needed}, or lower what uses "
                    "them",
                )


# --------------------------------------------------------------------------- dead letters


def _sink(queue: QueueConfig) -> str | None:
    """Where refused messages of `queue` go; None where they are lost."""
    exchange = queue.options.all_arguments.get("x-dead-letter-exchange")
    return None if exchange is None else str(exchange)


def _dead_letter_exchanges(config: BrokerConfig) -> Iterator[LintFinding]:
    for key, vhost in config.vhosts.items():
        for name, queue in vhost.queues.items():
            sink = _sink(queue)
            if sink is not None and sink not in vhost.exchanges:
                # RabbitMQ: a dead-letter exchange that is not there drops messages silently.
                yield LintFinding(
                    ("vhosts", key, "queues", name, "options"),
                    f"dead-letter exchange {sink!r} is not declared{_near(sink, vhost.exchanges)}; "
                    "where it is missing, messages are dropped",
                )
            key_given = "x-dead-letter-routing-key" in queue.options.all_arguments
            if sink == "" and not key_given:
                # Those published to the queue by its name come back at once, forever.
                yield LintFinding(
                    ("vhosts", key, "queues", name, "options"),
                    "the default exchange leads dead letters back to the queue they come from; "
                    "write dead_letter_routing_key: the name of another queue",
                )


def _near(name: str, known: Iterable[str]) -> str:
    near = nearest(name, list(known))
    return f" (did you mean {near!r}?)" if near else ""


def _losses(
    config: BrokerConfig, subscription: SubscriptionConfig, queue: QueueConfig
) -> Iterator[LintFinding]:
    sink, at = _sink(queue), ("vhosts", subscription.vhost, "queues", queue.name)
    if sink is None and not subscription.options.no_ack:
        if queue.kind == "quorum" and _requeues(subscription):
            yield LintFinding(
                at,
                "has no dead-letter exchange: RabbitMQ 4 drops a message of a quorum queue that "
                "was requeued 20 times (x-delivery-limit); write options: "
                "{dead_letter_exchange: ...}",
            )
        elif not _takes_dead_letters(config, subscription):
            yield LintFinding(
                at,
                "has no dead-letter exchange: a message that its subscription refuses, or cannot "
                "read, is lost; write options: {dead_letter_exchange: ...}",
            )


def _refused_by_4(config: BrokerConfig) -> Iterator[LintFinding]:
    """What works on older servers only; see the table in docs/amqp-support.md."""
    for key, vhost in config.vhosts.items():
        remote = not all(each.is_embedded for each in vhost.connections)
        for index, connection in enumerate(vhost.connections):
            small = 0 < (connection.frame_max or 0) < _LEAST_FRAME_MAX
            if small and not connection.is_embedded:
                yield LintFinding(
                    ("vhosts", key, "connections", index, "frame_max"),
                    f"RabbitMQ 4.3 refuses a connection with frame_max below {_LEAST_FRAME_MAX}",
                )
        for name, queue in vhost.queues.items():
            newest = remote or config.node.compatibility != "3.10"
            for message in _refused_queue(queue, newest):
                yield LintFinding(("vhosts", key, "queues", name, "options"), message)
            options = queue.options
            if remote and queue.assert_ and not options.durable and not options.exclusive:
                yield LintFinding(
                    ("vhosts", key, "queues", name, "options", "durable"),
                    "RabbitMQ 4 deprecates queues that are neither durable nor exclusive, and can "
                    "be configured to refuse them; leave out durable: false, and write expires or "
                    "auto_delete for a queue that should be deleted automatically",
                )
    for name, subscription in config.subscriptions.items():
        owner = config.vhosts.get(subscription.vhost)
        if subscription.channel_prefetch is None or owner is None:
            continue
        if not all(each.is_embedded for each in owner.connections):
            yield LintFinding(
                ("subscriptions", name, "channel_prefetch"),
                "is an error on RabbitMQ 4.3, which has no shared prefetch; write prefetch",
            )


_LEAST_FRAME_MAX = 8192


def _refused_queue(queue: QueueConfig, newest: bool) -> Iterator[str]:
    arguments = queue.options.all_arguments
    if newest and queue.kind == "classic" and "x-consumer-timeout" in arguments:
        yield (
            "x-consumer-timeout is refused by RabbitMQ 4.3 and the built-in broker for classic "
            "queues; leave it out, or write arguments: {x-queue-type: quorum}"
        )
    if queue.kind == "quorum" and "x-max-priority" in arguments:
        yield (
            "x-max-priority is refused for quorum queues; leave it out: from RabbitMQ 4.0 on they "
            "have priorities without it"
        )


def _quorum(
    config: BrokerConfig,
    path: tuple[Key, ...],
    subscription: SubscriptionConfig,
    queue: QueueConfig,
) -> Iterator[LintFinding]:
    arguments = queue.options.all_arguments
    if subscription.options.exclusive and not arguments.get("x-single-active-consumer"):
        yield LintFinding(
            (*path, "options", "exclusive"),
            "RabbitMQ does not enforce an exclusive consumer of a quorum queue; declare the queue "
            "with arguments: {x-single-active-consumer: true}",
        )
    limit = arguments.get("x-delivery-limit")
    remote = not all(each.is_embedded for each in config.vhosts[subscription.vhost].connections)
    if remote and isinstance(limit, int) and 0 <= limit < _DELIVERY_LIMIT:
        yield LintFinding(
            ("vhosts", subscription.vhost, "queues", queue.name, "options"),
            f"x-delivery-limit {limit} counts orderly shutdowns too: before 4.3, RabbitMQ does not "
            "distinguish a message that is returned unhandled from one that failed, so after "
            f"{limit} restarts of its consumer a good message may be dead-lettered or dropped; "
            f"raise the limit to {_DELIVERY_LIMIT} or more, and limit failures by attempts in "
            "recovery",
        )
    redeliveries = subscription.redeliveries
    most = redeliveries.limit if "limit" in redeliveries.model_fields_set else 0
    taken_out = _DELIVERY_LIMIT if limit is None else limit
    if remote and isinstance(taken_out, int) and 0 <= taken_out < most:
        yield LintFinding(
            (*path, "redeliveries", "limit"),
            f"{most} redeliveries are never reached: RabbitMQ 4 removes a message from a quorum "
            f"queue after {taken_out} (x-delivery-limit of {queue.name!r})",
        )


_DELIVERY_LIMIT = 20
"""RabbitMQ 4: the delivery limit of a quorum queue that states none."""


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


def _stream(path: tuple[Key, ...], subscription: SubscriptionConfig) -> Iterator[LintFinding]:
    # RabbitMQ streams: consumers must set a prefetch and acknowledge; nothing is requeued,
    # and a copy would come behind everything else.
    if not subscription.prefetch:
        yield LintFinding((*path, "prefetch"), "a stream needs a prefetch, 1 or more", fatal=True)
    if subscription.options.no_ack:
        yield LintFinding(
            (*path, "options", "no_ack"), "a stream cannot be read with no_ack", fatal=True
        )
    if any(isinstance(each, Republish) for each in subscription.recovery or ()):
        yield LintFinding(
            (*path, "recovery"),
            "a stream cannot be the target of republish; forward to another queue",
            fatal=True,
        )
    if "x-stream-offset" not in subscription.options.all_arguments:
        yield LintFinding(
            path,
            "a stream is read from its next message on, and messages that arrive while nothing "
            "reads are skipped; write options: {offset: first}, or {offset: next} to say so",
        )


# --------------------------------------------------------------------------- chains


def _chain(path: tuple[Key, ...], chain: Sequence[Strategy]) -> Iterator[LintFinding]:
    if not chain:
        return
    last = chain[-1]
    if isinstance(last, Republish | Forward) and last.attempts is not None:
        yield LintFinding(
            (*path, len(chain) - 1),
            f"after {last.attempts} attempts the message is nacked without requeue; say so with "
            "{strategy: nack} at the end, or name another strategy",
        )
    for index, strategy in enumerate(chain):
        if isinstance(strategy, Republish) and _spins(strategy):
            yield LintFinding(
                (*path, index),
                "a message that always fails is retried forever, without a pause; "
                "write attempts, defer or both",
            )
    for index, strategy in enumerate(chain[:-1]):
        if isinstance(strategy, Ack | Nack):
            yield LintFinding(
                (*path, index + 1),
                f"is never reached: the {strategy.strategy} before it always settles",
            )
            return


def _spins(strategy: Republish) -> bool:
    return not (strategy.attempts or strategy.defer or strategy.immediate_nack)
