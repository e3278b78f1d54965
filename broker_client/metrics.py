"""Metrics of a Broker for Prometheus (extra `prometheus`).

::

    async with Broker.create("app.yaml") as broker:
        REGISTRY.register(BrokerCollector(broker))  # before subscribing

Counters and gauges are read from `Broker.stats` when they are collected. Durations are measured
by middleware, which the collector adds to the Broker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from typing import Any

from broker_client.broker import Broker
from broker_client.consuming.handle_call import HandleCall, HandleNext
from broker_client.errors import UnsupportedError, install_extra
from broker_client.events.stats import SubscriptionStats, VhostStats
from broker_client.publication import Publication
from broker_client.publishing.publish_call import PublishCall, PublishNext
from broker_client.runtime.tasks import wait_in_thread

try:
    from prometheus_client import Counter, Histogram
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as _error:
    raise UnsupportedError("metrics", install_extra("prometheus")) from _error

_BUCKETS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
)
_OTHER = "(other)"
"""Label of queues that the configuration does not name: there may be any number of them."""

Labels = tuple[str, ...]
Sample = tuple[Labels, float]


class BrokerCollector(Collector):
    """The metrics of one Broker, for a registry of prometheus_client.

    A registry accepts only one, since names would clash. It may be collected in any thread.
    """

    def __init__(self, broker: Broker) -> None:
        """
        Args:
            broker: an open Broker that has no subscriptions yet.

        Raises:
            InvalidMiddlewareError: it has subscriptions, whose handlers cannot be measured.
            BrokerClosedError: it was shut down.
        """
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self._publishes = Counter(
            "broker_client_publishes",
            "Publications that ended, by the event they ended with.",
            ("publication", "outcome"),
            registry=None,
        )
        self._publish_seconds = Histogram(
            "broker_client_publish_seconds",
            "Seconds from the call of publish to the confirm.",
            ("publication",),
            registry=None,
            buckets=_BUCKETS,
        )
        self._handler_seconds = Histogram(
            "broker_client_handler_seconds",
            "Seconds that handlers ran, whether they returned or raised.",
            ("subscription",),
            registry=None,
            buckets=_BUCKETS,
        )
        broker.middleware("handle")(self._measure_handler)
        broker.middleware("publish")(self._measure_publish)

    def __repr__(self) -> str:
        return f"<BrokerCollector of {self._broker!r}>"

    # ------------------------------------------------------------------ measuring

    async def _measure_publish(self, call: PublishCall, call_next: PublishNext) -> Publication:
        began = time.perf_counter()
        publication = await call_next(call)
        publication.observe(lambda ended: self._published(ended, time.perf_counter() - began))
        return publication

    def _published(self, publication: Publication, seconds: float) -> None:
        if publication.error is None:
            self._publish_seconds.labels(publication.name).observe(seconds)
        self._publishes.labels(publication.name, publication.event).inc()

    async def _measure_handler(self, call: HandleCall, call_next: HandleNext) -> Any:
        began = time.perf_counter()
        try:
            return await call_next(call)
        finally:
            seconds = time.perf_counter() - began
            self._handler_seconds.labels(call.subscription).observe(seconds)

    # ------------------------------------------------------------------ collecting

    def collect(self) -> Iterable[Metric]:
        """The current metrics."""
        yield from self._publishes.collect()
        yield from self._publish_seconds.collect()
        yield from self._handler_seconds.collect()
        yield from self._snapshot()

    def _snapshot(self) -> list[Metric]:
        """The Broker's statistics, read in its event loop while that runs."""
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here or not self._loop.is_running():
            return list(self._families())

        async def in_loop() -> list[Metric]:
            return list(self._families())

        return wait_in_thread(self._loop, in_loop())

    def _families(self) -> Iterator[Metric]:
        stats = self._broker.stats()
        yield from self._of_vhosts(list(stats.vhosts.values()))
        yield from self._of_subscriptions(list(stats.subscriptions.values()))
        yield from self._of_queues()

    def _of_vhosts(self, vhosts: list[VhostStats]) -> Iterator[Metric]:
        health = self._broker.health().vhosts
        connections = [(v.name, each) for v in vhosts for each in v.connections]
        yield _gauge(
            "connection_up",
            "1 while the connection is up.",
            ("vhost", "role"),
            (((vhost, each.role), each.state == "up") for vhost, each in connections),
        )
        yield _counter(
            "connects",
            "Times the connection came up; all but the first are reconnects.",
            ("vhost", "role"),
            (((vhost, each.role), each.connects) for vhost, each in connections),
        )
        yield _gauge(
            "blocked",
            "1 while the broker blocks publishers, or has no channel left for them.",
            ("vhost",),
            (((name,), any(c.blocked for c in each.connections)) for name, each in health.items()),
        )
        queues = [((vhost.name,), vhost.publish_queue) for vhost in vhosts]
        yield _gauge(
            "publishes_waiting",
            "Publishes that were accepted and not sent.",
            ("vhost",),
            ((labels, queue.waiting) for labels, queue in queues),
        )
        yield _gauge(
            "publishes_unconfirmed",
            "Publishes that were sent and not confirmed.",
            ("vhost",),
            ((labels, queue.unconfirmed) for labels, queue in queues),
        )
        yield _gauge(
            "publish_queue_bytes",
            "Bytes of the bodies of waiting and unconfirmed publishes.",
            ("vhost",),
            ((labels, queue.held_bytes) for labels, queue in queues),
        )
        yield _counter(
            "publishes_resent",
            "Publishes sent again after a channel or connection was lost.",
            ("vhost",),
            ((labels, queue.resent) for labels, queue in queues),
        )
        pools = [((vhost.name, pool.mode), pool) for vhost in vhosts for pool in vhost.pools]
        states = [((*labels, "leased"), pool.leased) for labels, pool in pools]
        states += [((*labels, "idle"), pool.idle) for labels, pool in pools]
        yield _gauge(
            "channels", "Channels for publishing, by state.", ("vhost", "mode", "state"), states
        )
        yield _gauge(
            "channel_waiters",
            "Senders that wait for a channel.",
            ("vhost", "mode"),
            ((labels, pool.waiting) for labels, pool in pools),
        )

    def _of_subscriptions(self, subscriptions: list[SubscriptionStats]) -> Iterator[Metric]:
        yield _counter(
            "deliveries",
            "Deliveries that ended, by how they ended.",
            ("subscription", "outcome"),
            (
                ((each.name, outcome), count)
                for each in subscriptions
                for outcome, count in _outcomes(each)
            ),
        )
        yield _gauge(
            "deliveries_unsettled",
            "Deliveries in hand.",
            ("subscription",),
            (((each.name,), each.unsettled) for each in subscriptions),
        )
        yield _gauge(
            "deliveries_waiting",
            "Deliveries that no handler has begun.",
            ("subscription",),
            (((each.name,), each.waiting) for each in subscriptions),
        )
        yield _counter(
            "handler_errors",
            "Handlers that raised.",
            ("subscription",),
            (((each.name,), each.handler_errors) for each in subscriptions),
        )
        yield _counter(
            "settles_lost",
            "Settlements that came after the delivery had returned to its queue.",
            ("subscription",),
            (((each.name,), each.lost_settles) for each in subscriptions),
        )

    def _of_queues(self) -> Iterator[Metric]:
        """Of the built-in broker."""
        vhosts = self._broker.config.vhosts
        known = {
            (name, queue.qualified_name)
            for name, vhost in vhosts.items()
            for queue in vhost.queues.values()
        }
        queues = [
            ((each.vhost, each.name if (each.vhost, each.name) in known else _OTHER), each)
            for node in self._broker.nodes.all()
            for each in node.stats().queues
        ]
        states: list[Sample] = []
        for labels, each in queues:
            states += [
                ((*labels, "ready"), each.ready),
                ((*labels, "in_flight"), each.in_flight),
                ((*labels, "deferred"), each.deferred),
            ]
        yield _gauge(
            "queue_messages",
            "Messages in a queue of the built-in broker, by state.",
            ("vhost", "queue", "state"),
            states,
        )
        oldest: dict[Labels, float] = {}
        for labels, each in queues:
            oldest[labels] = max(oldest.get(labels, 0.0), each.oldest)
        yield _gauge(
            "queue_oldest_seconds",
            "Seconds for which the first message of a queue has been ready.",
            ("vhost", "queue"),
            oldest.items(),
        )
        yield _counter(
            "queue_dead_lettered",
            "Messages that died in a queue and went to its dead-letter exchange.",
            ("vhost", "queue"),
            ((labels, each.dead_letter_count) for labels, each in queues),
        )
        yield _counter(
            "queue_dropped",
            "Messages that died in a queue without a dead-letter exchange.",
            ("vhost", "queue"),
            ((labels, each.drop_count) for labels, each in queues),
        )


def _outcomes(stats: SubscriptionStats) -> Iterator[tuple[str, int]]:
    yield "acked", stats.acked
    yield "nacked", stats.nacked
    yield "republished", stats.republished
    yield "forwarded", stats.forwarded
    yield "released", stats.given_back
    yield "duplicate", stats.duplicates
    yield "lost", stats.lost
    yield "timed_out", stats.timed_out


def _sums(samples: Iterable[Sample]) -> Iterable[Sample]:
    """Merge samples with equal labels: several subscriptions may have one name."""
    found: dict[Labels, float] = {}
    for labels, value in samples:
        found[labels] = found.get(labels, 0) + value
    return found.items()


def _gauge(name: str, text: str, labels: Labels, samples: Iterable[Sample]) -> Metric:
    family = GaugeMetricFamily(f"broker_client_{name}", text, labels=labels)
    for values, value in _sums(samples):
        family.add_metric(values, value)
    return family


def _counter(name: str, text: str, labels: Labels, samples: Iterable[Sample]) -> Metric:
    family = CounterMetricFamily(f"broker_client_{name}", text, labels=labels)
    for values, value in _sums(samples):
        family.add_metric(values, value)
    return family
