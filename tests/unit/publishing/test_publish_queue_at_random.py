"""A publish queue on a random broker and network, from a seed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from broker_client.errors import ChannelClosedError, PublishRefusedError, PublishUnconfirmedError
from broker_client.publication import Publication
from tests.support.links import FakeChannel
from tests.support.publish_queue import PublishQueueHarness
from tests.support.warp import WarpLoop

loop_factory = WarpLoop

PUBLICATIONS = ("a", "b", "c")
SECONDS_OF_FAULTS = 40.0


class Chaos:
    """A broker that confirms, nacks, returns, closes, loses and stalls; records published
    messages."""

    def __init__(self, harness: PublishQueueHarness, chance: random.Random) -> None:
        self.harness, self.chance = harness, chance
        self.poison: set[str] = set()
        self.confirmed: set[str] = set()
        self.returned: set[str] = set()
        self.handled: dict[FakeChannel, set[int]] = {}
        """Sequence numbers that have their answer, by channel."""
        self.may_lose = chance.random() < 0.7
        self.may_close = chance.random() < 0.7
        self.may_storm = self.may_lose and chance.random() < 0.5
        self.storm = 0  # links yet to be lost before anything is answered
        self.stuck = chance.random() * 0.5  # share of moments at which nothing happens

    def open_numbers(self, channel: FakeChannel) -> list[int]:
        done = self.handled.setdefault(channel, set())
        return [number for number in range(1, channel.seq + 1) if number not in done]

    def step(self) -> None:
        if self.chance.random() < self.stuck:
            return
        if self.may_storm and self.chance.random() < 0.03:
            self.storm = self.chance.randint(5, 30)
        if self.storm:
            if any(self.open_numbers(channel) for channel in self.live_channels()):
                self.storm -= 1
                self.lose()
            return
        if self.may_lose and self.chance.random() < 0.15:
            self.lose()
            return
        for channel in self.live_channels():
            self.answer(channel)

    def live_channels(self) -> list[FakeChannel]:
        return [
            channel
            for channel in self.harness.channels
            if channel.is_usable and channel.on_confirm is not None
        ]

    def answer(self, channel: FakeChannel) -> None:
        numbers = self.open_numbers(channel)
        poisonous = [number for number in numbers if channel.ids[number - 1] in self.poison]
        if poisonous and self.may_close:
            self.settle(channel, [each for each in numbers if each < poisonous[0]], acked=True)
            channel.fail(ChannelClosedError(406, "PRECONDITION_FAILED"))
            return
        if not numbers:
            return
        kind = self.chance.random()
        if kind < 0.1:
            number = self.chance.choice(numbers)
            self.returned.add(channel.ids[number - 1] or "")
            channel.give_back(number)
            self.settle(channel, [number], acked=True)
        elif kind < 0.2:
            self.settle(channel, [self.chance.choice(numbers)], acked=False)
        elif kind < 0.25 and self.may_close:
            channel.fail(ChannelClosedError(self.chance.choice([404, 403, 0]), "for no reason"))
        elif kind < 0.6:
            chosen = self.chance.sample(numbers, self.chance.randint(1, len(numbers)))
            self.settle(channel, chosen, acked=True)
        else:
            self.settle(channel, numbers, acked=True)

    def settle(self, channel: FakeChannel, numbers: list[int], *, acked: bool) -> None:
        for number in numbers:
            self.handled[channel].add(number)
            if acked:
                self.confirmed.add(channel.ids[number - 1] or "")
            channel.confirm(number, acked=acked)

    def lose(self) -> None:
        if not self.harness.queue.is_paused:
            self.harness.lose_link()
            pause = 0.01 if self.storm else self.chance.choice([0.01, 0.5, 3.0])
            asyncio.get_running_loop().call_later(pause, self.harness.restore_link)

    def calm_step(self) -> None:
        for channel in self.live_channels():
            numbers = self.open_numbers(channel)
            good = [each for each in numbers if channel.ids[each - 1] not in self.poison]
            self.settle(channel, good, acked=True)
            if len(good) < len(numbers):
                channel.fail(ChannelClosedError(406, "PRECONDITION_FAILED"))


@pytest.mark.parametrize("seed", range(20))
async def test_each_publish_ends_once_and_as_the_broker_has_it_whatever_happens(seed: int) -> None:
    chance = random.Random(seed)
    harness = PublishQueueHarness(
        max_channels=chance.choice([1, 2, 3]),
        max_in_flight=chance.choice([1, 5, 1000]),
        batch=chance.choice([1, 3, 100]),
    )
    chaos = Chaos(harness, chance)
    made: list[Publication] = []
    loop = asyncio.get_running_loop()
    end = loop.time() + SECONDS_OF_FAULTS
    while loop.time() < end:
        if chance.random() < 0.3:
            for _ in range(chance.randint(1, 5)):
                name = chance.choice(PUBLICATIONS)
                timeout = 0.0 if chance.random() < 0.8 else chance.choice([0.5, 5.0, 30.0])
                publication = harness.make(name, timeout=timeout)
                made.append(publication)
                if chance.random() < 0.03:
                    chaos.poison.add(publication.message_id)
                await harness.queue.put(publication, confirm=True)
        if made and chance.random() < 0.05:
            chance.choice(made).abort()
        chaos.step()
        await asyncio.sleep(chance.choice([0.0, 0.001, 0.05, 0.3]))
    for _ in range(600):
        chaos.calm_step()
        await asyncio.sleep(0.1)
    ends = Counter(message_id for _, message_id in harness.ends())
    assert ends == Counter(publication.message_id for publication in made)
    stats = harness.queue.stats()
    assert (stats.waiting, stats.unconfirmed, stats.held_bytes) == (0, 0, 0)
    outcomes = {message_id: event for event, message_id in harness.ends()}
    succeeded = {each for each, event in outcomes.items() if event == "success"}
    assert succeeded <= chaos.confirmed
    assert {each for each, event in outcomes.items() if event == "return"} <= chaos.returned
    for publication in made:
        error = publication.error
        if isinstance(error, PublishRefusedError):
            assert publication.message_id in chaos.poison or chaos.may_close
        elif error is not None and not isinstance(error, PublishUnconfirmedError):
            assert (
                publication.message_id not in chaos.confirmed
                or outcomes[publication.message_id] == "return"
            )
    await harness.close()
