"""Whatever happens in whatever order, a message is in exactly one place (G1)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from broker_client.core.effects import Deliver
from broker_client.core.queue import Queue
from tests.support.builders import Desk, a_message

STEPS = 10_000


class Crowd:
    """Three channels that do things at random, and know which deliveries are theirs."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.desk = Desk(message_timeout=5.0, max_message_timeout=20.0)
        self.desk.queue()
        self.tags: dict[int, list[int]] = {}
        self.published = 0
        self.done: list[bytes] = []
        self.bodies: dict[tuple[int, int], bytes] = {}
        for _ in range(3):
            self.open()

    @property
    def queue(self) -> Queue:
        return self.desk.engine.vhosts["/"].queues["q"]

    def open(self) -> None:
        channel = self.desk.another_channel()
        self.desk.engine.qos(channel, self.rng.randint(1, 6))
        arguments = {"x-message-timeout": self.rng.randint(1, 9) * 1000}
        self.tags[channel] = []
        self.desk.consume(channel=channel, arguments=arguments)

    def listen(self) -> None:
        for effect in self.desk.take():
            if isinstance(effect, Deliver) and effect.channel in self.tags:
                delivery = effect.delivery
                self.tags[effect.channel].append(delivery.delivery_tag)
                self.bodies[effect.channel, delivery.delivery_tag] = delivery.body

    def step(self) -> None:
        desk, rng = self.desk, self.rng
        channel = rng.choice(list(self.tags))
        tag = rng.choice(self.tags[channel][-12:] or [99])  # often late
        action = rng.choices(
            ("publish", "delay", "finish", "requeue", "defer", "touch", "time", "close", "run"),
            (30, 4, 30, 8, 8, 8, 8, 1, 1),
        )[0]
        if action == "publish" or (action == "delay" and rng.random() < 0.5):
            self.published += 1
            desk.publish(a_message(body=b"%d" % self.published))
        elif action == "delay":
            self.published += 1
            headers = {"x-delay": rng.randint(1, 9_000)}
            desk.publish(a_message(body=b"%d" % self.published, headers=headers))
        elif action == "finish":
            if desk.engine.finish(channel, tag, desk.now):
                self.done.append(self.bodies[channel, tag])
        elif action == "requeue":
            desk.engine.requeue(channel, tag, desk.now)
        elif action == "defer":
            desk.engine.requeue(channel, tag, desk.now, delay=rng.random() * 10)
        elif action == "touch":
            desk.engine.extend(channel, tag, desk.now)
        elif action == "time":
            desk.advance(rng.random() * 3)
        elif action == "run":
            desk.engine.run_deferred("/", "q", desk.now)
        else:
            del self.tags[channel]
            desk.engine.close_channel(channel, desk.now)
            self.open()
        self.listen()

    def check(self) -> None:
        """Each message in one place; map and deadlines of every ledger hold the same tags."""
        queue = self.queue
        queue.check_conservation()
        flying = 0
        for state in self.desk.engine._channels.values():
            for tag, entry in state.ledger.items():
                deadline = state.ledger.deadline(tag)
                assert entry.out
                assert deadline is not None
                assert entry.delivered_at < deadline <= entry.delivered_at + 20.0
                flying += 1
            for consumer in state.consumers.values():
                mine = sum(entry.consumer is consumer for _, entry in state.ledger.items())
                assert consumer.in_flight == mine
                assert consumer.able == consumer.has_room
        assert flying == queue.in_flight
        waiting = [*queue.ready, *queue.deferred.keys()]
        assert not any(entry.out for entry in waiting)
        assert not (queue.ready and queue.able)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_ten_thousand_random_commands_lose_and_double_nothing(seed: int) -> None:
    """G1, G7: checked after each; at the end all is drained."""
    crowd = Crowd(seed)
    for step in range(STEPS):
        crowd.step()
        if step % 5 == 0:
            crowd.check()
    crowd.check()
    for channel in list(crowd.tags):
        crowd.desk.engine.close_channel(channel, crowd.desk.now)
    crowd.desk.advance(3_600.0)
    left = crowd.desk.drain()
    assert sorted([*crowd.done, *left], key=int) == [
        b"%d" % n for n in range(1, crowd.published + 1)
    ]
    stats = crowd.desk.stats()
    assert (stats.ready, stats.in_flight, stats.deferred) == (0, 0, 0)


def every_way(desk: Desk) -> Iterator[Callable[[], object]]:
    engine, channel = desk.engine, desk.channel
    yield lambda: engine.finish(channel, 1, desk.now)
    yield lambda: engine.requeue(channel, 1, desk.now)
    yield lambda: engine.requeue(channel, 1, desk.now, delay=1.0)
    yield lambda: desk.advance(60.0)
    yield lambda: engine.close_channel(channel, desk.now)
    yield lambda: engine.purge("/", "q", desk.now, in_flight=True, deferred=True)
    yield lambda: engine.delete_queue(engine.open_channel(desk.connection), "q")


@pytest.mark.parametrize("first", range(7))
@pytest.mark.parametrize("second", range(7))
def test_two_ends_of_one_delivery_never_both_count(first: int, second: int) -> None:
    """G3, G7: whichever comes first wins, in every pair."""
    desk = Desk()
    desk.queue()
    desk.publish(a_message(body=b"once"))
    desk.get()
    list(every_way(desk))[first]()
    if "q" in desk.engine.vhosts["/"].queues or second < 5:
        list(every_way(desk))[second]()
    desk.engine.check_conservation()
    queue = desk.engine.vhosts["/"].queues.get("q")
    if queue is not None:
        here = len(queue.ready) + queue.in_flight + len(queue.deferred)
        assert here + queue.acked + queue.purged == 1


def test_a_consumer_that_goes_gives_everything_back_in_order(desk: Desk) -> None:
    """at once, also what it had not taken in order."""
    desk.queue()
    desk.publish(*(a_message(body=b"%d" % n) for n in range(6)))
    other = desk.another_channel()
    desk.consume(channel=other)
    desk.take()
    desk.engine.finish(other, 3, desk.now)
    desk.engine.close_channel(other, desk.now)
    assert desk.drain() == [b"0", b"1", b"3", b"4", b"5"]
