"""Seeded interleavings of calls of a Broker, some cancelled, while its link is lost and
restored."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import pytest

from broker_client.ackornack import AckOrNack
from broker_client.errors import BrokerClientError, ConnectionLostError
from broker_client.message import Message
from broker_client.publication import Publication
from broker_client.runtime.emitter import close_unstarted
from broker_client.subscription import Subscription
from tests.support.fake_client import FakeBroker
from tests.support.links import FakeChannel
from tests.support.warp import WarpLoop, settle

SEEDS, AT_A_TIME = 200, 50
STEPS = 120
PUBLISH_TIMEOUT = 10.0  # seconds of virtual time; the default of a publication
PATIENCE = 120.0


@pytest.fixture(autouse=True)
def _no_noise() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


class SeedRun:
    """One run of a seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._calls: set[asyncio.Task[Any]] = set()
        self._ends: Counter[int] = Counter()
        self._published: dict[int, tuple[Publication, float]] = {}
        self._subscriptions: list[Subscription] = []
        self._numbers = 0
        self._is_over = False

    async def run(self) -> None:
        self._broker = broker = await FakeBroker.up()
        for _ in range(STEPS):
            self._chance.choice(self._moves())()
            for _ in range(self._chance.choice((0, 1, 2, 5))):
                await asyncio.sleep(0)
            if self._chance.random() < 0.1:
                await asyncio.sleep(self._chance.uniform(0.0, 4.0))
            if self._is_over:
                break
        broker.connector.always = None
        self._open_gates()
        async with asyncio.timeout(PATIENCE):
            await broker.shutdown()
            if self._calls:
                await asyncio.wait(self._calls)
        self._check_ends()
        await self._check_nothing_is_left()

    # ------------------------------------------------------------------ what may happen

    def _moves(self) -> list[Callable[[], object]]:
        rare = [self._bounce, self._end] if self._chance.random() < 0.03 else []
        return [
            *[self._publish] * 4,
            *[self._deliver] * 4,
            *[self._cancel_a_call] * 3,
            self._publish_many,
            self._request,
            self._subscribe,
            self._pause,
            self._resume,
            self._cancel,
            self._lose_link,
            self._refuse,
            self._accept,
            self._fail_a_channel,
            self._fill_a_socket,
            self._open_gates,
            self._block,
            self._unblock,
            self._lose_consumer,
            *rare,
        ]

    def _call(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(work)
        task.add_done_callback(partial(close_unstarted, work))
        self._calls.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._calls.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            assert isinstance(error, BrokerClientError), repr(error)

    def _cancel_a_call(self) -> None:
        if self._calls:
            self._chance.choice(sorted(self._calls, key=lambda each: each.get_name())).cancel()

    def _publish(self) -> None:
        self._numbers += 1
        self._call(self._publish_one(self._numbers))

    async def _publish_one(self, number: int) -> None:
        now = asyncio.get_running_loop().time()
        publication = await self._broker.publish("p", str(number), message_id=str(number))
        self._published[number] = publication, now
        for event in ("success", "error", "return"):
            publication.on(event, lambda *args: self._ended(number))
        await publication

    def _ended(self, number: int) -> None:
        self._ends[number] += 1
        publication, began = self._published[number]
        late = asyncio.get_running_loop().time() - began - PUBLISH_TIMEOUT
        assert late < 0.1, f"{publication} ended {late} s late"

    def _publish_many(self) -> None:
        self._call(self._broker.publish_many("p", range(5), window=2))

    def _request(self) -> None:
        self._call(self._broker.request("p", "?", timeout=5.0))

    def _subscribe(self) -> None:
        if len(self._subscriptions) < 3:
            self._call(self._subscribe_one())

    async def _subscribe_one(self) -> None:
        subscription = await self._broker.subscribe("s")

        async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
            assert not subscription.is_ended, "a handler is called after the end"
            await asyncio.sleep(self._chance.choice((0.0, 0.0, 1.0, 30.0)))
            await ack_or_nack(
                *self._chance.choice(((), ("failed",), ("failed", {"strategy": "nack"})))
            )

        subscription.on("error", lambda error: None)
        subscription.on("message", handle)
        self._subscriptions.append(subscription)

    def _some(self) -> Subscription | None:
        return self._chance.choice(self._subscriptions) if self._subscriptions else None

    def _pause(self) -> None:
        if (some := self._some()) is not None:
            self._call(some.pause())

    def _resume(self) -> None:
        if (some := self._some()) is not None:
            self._call(some.resume())

    def _cancel(self) -> None:
        if (some := self._some()) is not None and self._chance.random() < 0.3:
            self._call(self._cancel_one(some))

    async def _cancel_one(self, subscription: Subscription) -> None:
        try:
            await subscription.cancel()
        finally:
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)

    def _channels(self) -> list[FakeChannel]:
        return [each for each in self._broker.link.channels if each.is_usable]

    def _deliver(self) -> None:
        consuming = [each for each in self._channels() if len(each.consumers) == 1]
        if consuming:
            self._chance.choice(consuming).deliver()

    def _lose_link(self) -> None:
        if self._broker.link.is_open and self._chance.random() < 0.5:
            self._broker.link.lose()

    def _refuse(self) -> None:
        self._broker.connector.always = ConnectionLostError("fake", "refused")

    def _accept(self) -> None:
        self._broker.connector.always = None

    def _fail_a_channel(self) -> None:
        if channels := self._channels():
            self._chance.choice(channels).fail()

    def _fill_a_socket(self) -> None:
        if channels := self._channels():
            self._chance.choice(channels).gate = asyncio.Event()

    def _open_gates(self) -> None:
        for link in self._broker.connector.links:
            for channel in link.channels:
                if channel.gate is not None:
                    channel.gate.set()

    def _block(self) -> None:
        link = self._broker.link
        if link.is_open and link.on_blocked is not None:
            link.on_blocked("low on memory")

    def _unblock(self) -> None:
        link = self._broker.link
        if link.is_open and link.on_unblocked is not None:
            link.on_unblocked()

    def _lose_consumer(self) -> None:
        consuming = [each for each in self._channels() if each.consumers]
        if consuming and self._chance.random() < 0.3:
            self._chance.choice(consuming).cancel_consumer()

    def _bounce(self) -> None:
        self._call(self._broker.bounce(timeout=20))

    def _end(self) -> None:
        self._call(self._chance.choice((self._broker.shutdown, self._broker.nuke))())
        self._is_over = self._chance.random() < 0.5

    # ------------------------------------------------------------------ what must hold

    def _check_ends(self) -> None:
        for number, (publication, _) in self._published.items():
            assert publication.is_ended, publication
            assert self._ends[number] == 1, f"{publication} ended {self._ends[number]} times"
        stats = self._broker.stats().vhosts["/"].publish_queue
        assert stats.waiting == stats.unconfirmed == stats.held_bytes == 0, stats
        assert stats.published == stats.succeeded + stats.returned + stats.failed, stats
        firsts: list[int] = []
        for link in self._broker.connector.links:
            for channel in link.channels:
                for name in channel.ids:
                    if name is not None and name.isdigit() and int(name) not in firsts:
                        firsts.append(int(name))
        assert firsts == sorted(firsts), "the order of a publication does not hold"

    async def _check_nothing_is_left(self) -> None:
        await settle()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert [each for each in self._broker.connector.links if each.is_open] == []
        for subscription in self._subscriptions:
            assert subscription.is_ended, subscription


def _note(
    failures: list[dict[str, Any]], loop: asyncio.AbstractEventLoop, context: dict[str, Any]
) -> None:
    failures.append(context)


@pytest.mark.parametrize("first", range(0, SEEDS, AT_A_TIME))
def test_whatever_is_called_and_cancelled_meanwhile_all_comes_to_its_end(first: int) -> None:
    for seed in range(first, first + AT_A_TIME):
        failures: list[dict[str, Any]] = []
        with asyncio.Runner(loop_factory=WarpLoop) as runner:
            note = partial(_note, failures)
            runner.get_loop().set_exception_handler(note)
            try:
                runner.run(SeedRun(seed).run())
                assert failures == []
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise
