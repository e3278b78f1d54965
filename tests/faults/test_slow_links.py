"""A link that is slow or stalled, or whose broker is, is not treated as dead.

`docs/operating.md` says what is sent twice, and how soon publishing works again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from broker_client.broker import Broker
from broker_client.errors import PublishTimeoutError
from broker_client.publication import Publication
from broker_client.transport.rabbitmq.connector import NetworkConnector
from tests.faults.app import a_config
from tests.faults.conftest import Place
from tests.faults.test_silence import drained_ids
from tests.support.eventually import eventually

TIMEOUT = 3.0
BODY = "x" * 1_000

Result = TypeVar("Result")


class Load:
    """Publishes at an even rate and records the outcome and time of each publish."""

    def __init__(self, broker: Broker, rate: float) -> None:
        self.broker, self.rate = broker, rate
        self.started: dict[str, float] = {}
        self.ends: dict[str, str] = {}
        self.now = asyncio.get_running_loop().time

    async def run(self, seconds: float) -> None:
        begun, tick = self.now(), 0.02
        due = 0.0
        while (elapsed := self.now() - begun) < seconds:
            while due < elapsed * self.rate:
                due += 1
                self.watch(await self.broker.publish("a", BODY))
            await asyncio.sleep(tick)

    def watch(self, publication: Publication) -> None:
        message_id = publication.message_id
        self.started[message_id] = self.now()
        publication.on("success", lambda _: self.ends.setdefault(message_id, "success"))
        publication.on(
            "error", lambda error, _: self.ends.setdefault(message_id, type(error).__name__)
        )

    def of(self, when: Callable[[float], bool]) -> Counter[str]:
        """The outcomes of those published at `when`."""
        return Counter(self.ends[key] for key, at in self.started.items() if when(at))


async def settled(load: Load) -> None:
    await eventually(lambda: len(load.ends) == len(load.started), timeout=20 * TIMEOUT)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("stalls", [1, 3])
async def test_throttled_link_that_stalls_sends_nothing_twice_and_confirms_again(
    place: Place, stalls: int
) -> None:
    config = a_config(place.url, place.vhost, timeout=f"{TIMEOUT:g}s")
    async with Broker.create(config) as broker:
        broker.on("error", lambda error, vhost: None)
        load = Load(broker, 200.0)  # some 210 KB a second
        await load.run(0.5)
        place.proxy.throttle(400_000.0)
        for _ in range(stalls):
            place.proxy.stall()
            await load.run(1.5 * TIMEOUT)
            place.proxy.resume()
            await load.run(0.2)
        resumed = load.now()
        await load.run(4 * TIMEOUT)
        await settled(load)
    record = await drained_ids(place)
    duplicates = len(record) - len(set(record))
    late = load.of(lambda at: at > resumed + 2 * TIMEOUT)
    print(f"{duplicates=} {load.of(lambda at: True)} after the stall {late}")  # noqa: T201 - shown with a failure
    assert duplicates == 0
    assert set(late) == {"success"}
    confirmed = {key for key, end in load.ends.items() if end == "success"}
    assert confirmed <= set(record)
    unsent = {key for key, end in load.ends.items() if end == "PublishTimeoutError"}
    assert not unsent & set(record), "sent, after it was said that it never would be"


@pytest.mark.timeout(120)
async def test_link_slower_than_what_is_published_confirms_what_it_carries(place: Place) -> None:
    config = a_config(place.url, place.vhost, timeout=f"{TIMEOUT:g}s")
    place.proxy.throttle(200_000.0)
    async with Broker.create(config) as broker:
        broker.on("error", lambda error, vhost: None)
        load = Load(broker, 400.0)
        await load.run(5 * TIMEOUT)
        await settled(load)
    record = await drained_ids(place)
    ends = load.of(lambda at: True)
    print(f"{len(record)} arrived, {ends}")  # noqa: T201 - shown with a failure
    assert len(record) == len(set(record))
    assert ends["success"] > 0.7 * len(record)


@pytest.mark.timeout(120)
async def test_memory_alarm_longer_than_the_time_out_sends_nothing_twice(place: Place) -> None:
    config = a_config(place.url, place.vhost, timeout=f"{TIMEOUT:g}s")
    async with Broker.create(config) as broker:
        broker.on("error", lambda error, vhost: None)
        load = Load(broker, 500.0)
        await load.run(0.5)
        await asyncio.to_thread(place.server.block)
        try:
            await load.run(3 * TIMEOUT)
        finally:
            await asyncio.to_thread(place.server.unblock)
        resumed = load.now()
        await load.run(4 * TIMEOUT)
        await settled(load)
    record = await drained_ids(place)
    late = load.of(lambda at: at > resumed + 3 * TIMEOUT)
    print(f"{len(record) - len(set(record))} twice, {load.of(lambda at: True)}")  # noqa: T201 - shown with a failure
    assert len(record) == len(set(record))
    assert set(late) == {"success"}


def impatient(place: Place, **changes: str) -> dict[str, Any]:
    """A configuration with an operation timeout of one second."""
    config = a_config(place.url, place.vhost, **changes)
    connection = config["vhosts"][place.vhost]["connection"]
    connection["connect_timeout"] = "1s"
    connection["heartbeat"] = "1m"
    return config


async def through_a_stall(
    place: Place, call: Coroutine[Any, Any, Result], logged: str, caplog: pytest.LogCaptureFixture
) -> Result:
    """The result of `call`, begun on a link that moves again only once `logged` was logged."""
    place.proxy.stall()
    calling = asyncio.create_task(call)
    await eventually(lambda: logged in caplog.text, timeout=20.0)
    assert not calling.done()
    place.proxy.resume()
    return await calling


async def has_one(place: Place) -> bool:
    """True when one message is in the queue."""
    link = await NetworkConnector(place.server.url(), vhost=place.vhost).connect(timeout=10.0)
    try:
        channel = await link.open_channel()
        return (await channel.check_queue("record")).message_count == 1
    finally:
        await link.close()


@pytest.mark.timeout(120)
async def test_delayed_publish_on_a_link_that_stands_still_waits_as_any_other(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "broker_client")
    async with Broker.create(impatient(place, timeout="1m")) as broker:
        broker.on("error", lambda error, vhost: None)
        publishing = broker.publish("a", "late", delay=0.01)
        await (await through_a_stall(place, publishing, "no answer within 1 s", caplog))
        await eventually(lambda: has_one(place), timeout=20.0)


@pytest.mark.timeout(120)
async def test_delayed_publish_on_a_link_that_stands_still_ends_at_its_time_out(
    place: Place,
) -> None:
    async with Broker.create(impatient(place)) as broker:
        broker.on("error", lambda error, vhost: None)
        place.proxy.stall()
        with pytest.raises(PublishTimeoutError, match=r"was not sent within 0\.2 s"):
            await broker.publish("a", "late", delay=0.01, timeout=0.2)
        place.proxy.resume()
        await (await broker.publish("a", "soon", delay=0.01, timeout=30.0))
        await eventually(lambda: has_one(place), timeout=20.0)


@pytest.mark.timeout(120)
async def test_request_on_a_link_that_stands_still_is_sent_when_it_moves_again(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "broker_client")
    async with Broker.create(impatient(place, timeout="1m")) as broker:
        broker.on("error", lambda error, vhost: None)

        @broker.handle("work")
        async def answer(content: str) -> str:
            return f"{content}!"

        await eventually(lambda: broker.stats().subscriptions["work"].state == "subscribed")
        asking = broker.request("a", "late", timeout=60.0)
        answered = await through_a_stall(place, asking, "opening a reply queue", caplog)
        assert answered.content == "late!"
