"""Whatever happens in whatever order, a message is in exactly one place."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from broker_client.core.effects import Deliver
from broker_client.core.queue import Queue
from tests.support.builders import EngineHarness, a_message

STEPS = 10_000


class Crowd:
    """Three channels that do things at random, and know which deliveries are theirs."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.harness = EngineHarness(message_timeout=5.0, max_message_timeout=20.0)
        self.harness.queue()
        self.tags: dict[int, list[int]] = {}
        self.published = 0
        self.done: list[bytes] = []
        self.bodies: dict[tuple[int, int], bytes] = {}
        for _ in range(3):
            self.open()

    @property
    def queue(self) -> Queue:
        return self.harness.engine.state.vhosts["/"].queues["q"]

    def open(self) -> None:
        channel = self.harness.another_channel()
        self.harness.engine.consuming.qos(channel, self.rng.randint(1, 6))
        arguments = {"x-message-timeout": self.rng.randint(1, 9) * 1000}
        self.tags[channel] = []
        self.harness.consume(channel=channel, arguments=arguments)

    def listen(self) -> None:
        for effect in self.harness.take():
            if isinstance(effect, Deliver) and effect.channel in self.tags:
                delivery = effect.delivery
                self.tags[effect.channel].append(delivery.delivery_tag)
                self.bodies[effect.channel, delivery.delivery_tag] = delivery.body

    def step(self) -> None:
        harness, rng = self.harness, self.rng
        channel = rng.choice(list(self.tags))
        tag = rng.choice(self.tags[channel][-12:] or [99])  # often late
        action = rng.choices(
            ("publish", "delay", "finish", "requeue", "defer", "touch", "time", "close", "run"),
            (30, 4, 30, 8, 8, 8, 8, 1, 1),
        )[0]
        if action == "publish" or (action == "delay" and rng.random() < 0.5):
            self.published += 1
            harness.publish(a_message(body=b"%d" % self.published))
        elif action == "delay":
            self.published += 1
            headers = {"x-delay": rng.randint(1, 9_000)}
            harness.publish(a_message(body=b"%d" % self.published, headers=headers))
        elif action == "finish":
            if harness.engine.consuming.finish(channel, tag, harness.now):
                self.done.append(self.bodies[channel, tag])
        elif action == "requeue":
            harness.engine.consuming.requeue(channel, tag, harness.now)
        elif action == "defer":
            harness.engine.consuming.requeue(channel, tag, harness.now, delay=rng.random() * 10)
        elif action == "touch":
            harness.engine.consuming.touch(channel, tag, harness.now)
        elif action == "time":
            harness.advance(rng.random() * 3)
        elif action == "run":
            harness.engine.admin.run_deferred("/", "q", harness.now)
        else:
            del self.tags[channel]
            harness.engine.close_channel(channel, harness.now)
            self.open()
        self.listen()

    def check(self) -> None:
        """Each message in one place; map and deadlines of every ledger hold the same tags."""
        queue = self.queue
        queue.check_conservation()
        flying = 0
        for state in self.harness.engine.state.channels.values():
            for tag, entry in state.ledger.items():
                deadline = state.ledger.deadline(tag)
                assert entry.in_flight
                assert deadline is not None
                assert entry.delivered_at < deadline <= entry.delivered_at + 20.0
                flying += 1
            for consumer in state.consumers.values():
                mine = sum(entry.consumer is consumer for _, entry in state.ledger.items())
                assert consumer.in_flight == mine
                assert consumer.available == consumer.has_room
        assert flying == queue.in_flight
        waiting = [*queue.ready, *queue.deferred.entries()]
        assert not any(entry.in_flight for entry in waiting)
        assert not (queue.ready and queue.available)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_ten_thousand_random_commands_lose_and_double_nothing(seed: int) -> None:
    """Checked after each; at the end all is drained."""
    crowd = Crowd(seed)
    for step in range(STEPS):
        crowd.step()
        if step % 5 == 0:
            crowd.check()
    crowd.check()
    for channel in list(crowd.tags):
        crowd.harness.engine.close_channel(channel, crowd.harness.now)
    crowd.harness.advance(3_600.0)
    left = crowd.harness.drain()
    assert sorted([*crowd.done, *left], key=int) == [
        b"%d" % n for n in range(1, crowd.published + 1)
    ]
    stats = crowd.harness.stats()
    assert (stats.ready, stats.in_flight, stats.deferred) == (0, 0, 0)


def every_way(harness: EngineHarness) -> Iterator[Callable[[], object]]:
    engine, channel = harness.engine, harness.channel
    yield lambda: engine.consuming.finish(channel, 1, harness.now)
    yield lambda: engine.consuming.requeue(channel, 1, harness.now)
    yield lambda: engine.consuming.requeue(channel, 1, harness.now, delay=1.0)
    yield lambda: harness.advance(60.0)
    yield lambda: engine.close_channel(channel, harness.now)
    yield lambda: engine.admin.purge("/", "q", harness.now, in_flight=True, deferred=True)
    yield lambda: engine.topology.delete_queue(engine.open_channel(harness.connection), "q")


@pytest.mark.parametrize("first", range(7))
@pytest.mark.parametrize("second", range(7))
def test_two_ends_of_one_delivery_never_both_count(first: int, second: int) -> None:
    """Whichever comes first wins, in every pair."""
    harness = EngineHarness()
    harness.queue()
    harness.publish(a_message(body=b"once"))
    harness.get()
    list(every_way(harness))[first]()
    if "q" in harness.engine.state.vhosts["/"].queues or second < 5:
        list(every_way(harness))[second]()
    harness.engine.check_conservation()
    queue = harness.engine.state.vhosts["/"].queues.get("q")
    if queue is not None:
        here = len(queue.ready) + queue.in_flight + len(queue.deferred)
        assert here + queue.acked + queue.purged == 1


def test_a_consumer_that_goes_gives_everything_back_in_order(harness: EngineHarness) -> None:
    """at once, also what it had not taken in order."""
    harness.queue()
    harness.publish(*(a_message(body=b"%d" % n) for n in range(6)))
    other = harness.another_channel()
    harness.consume(channel=other)
    harness.take()
    harness.engine.consuming.finish(other, 3, harness.now)
    harness.engine.close_channel(other, harness.now)
    assert harness.drain() == [b"0", b"1", b"3", b"4", b"5"]
