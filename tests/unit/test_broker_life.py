"""Forks, brokers that failed to open, health."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from broker_client.broker import Broker
from broker_client.errors import (
    BrokerClosedError,
    ConnectFailedError,
    PublishError,
    StoreError,
    WrongLoopError,
)
from broker_client.publication import Publication
from broker_client.store.sqlite import StoreFile
from broker_client.subscription import Subscription
from tests.support.eventually import eventually

CONFIG = {"vhosts": {"/": {"queues": ["q"], "subscriptions": {"q": {"queue": "q"}}}}}


def _waiting(broker: Broker) -> list[Callable[[], Any]]:
    """Every call of a Broker that has to be made in its loop."""
    return [
        lambda: broker.publish("/q", "x"),
        lambda: broker.publish_many("/q", ["x"]),
        lambda: broker.request("/q", "x", timeout=1.0),
        lambda: broker.subscribe("q"),
        broker.subscribe_all,
        broker.unsubscribe_all,
        lambda: broker.handle("q"),
        broker.connect,
        broker.purge,
        broker.nuke,
        broker.bounce,
        broker.shutdown,
    ]


async def _use_in_child(broker: Broker, subscription: Subscription) -> None:
    for call in _waiting(broker):
        with pytest.raises(WrongLoopError, match="before the process forked"):
            await call()
    with pytest.raises(WrongLoopError):
        await subscription.cancel()


async def _use_elsewhere(broker: Broker, subscription: Subscription, waiting: Publication) -> None:
    for call in (
        *_waiting(broker),
        subscription.cancel,
        subscription.pause,
        subscription.resume,
        lambda: subscription.set_channel_prefetch(1),
        lambda: anext(subscription.__aiter__()),
        lambda: subscription.handle(print),
        lambda: waiting,
        waiting.abort,
        lambda: waiting.on("success", print),
    ):
        async with asyncio.timeout(5):
            with pytest.raises(WrongLoopError, match=r"event loop"):
                await call()  # type: ignore[no-untyped-call] # of many kinds


async def test_call_in_another_loop_or_without_one_is_refused_and_the_broker_goes_on() -> None:
    async with Broker.create(CONFIG) as broker:
        subscription = await broker.subscribe("q")
        publication = await broker.publish("/q", "x")  # not sent before the loop's next turn
        elsewhere = _use_elsewhere(broker, subscription, publication)
        with ThreadPoolExecutor(1) as threads:  # blocks the loop, so the publication is waiting
            threads.submit(asyncio.run, elsewhere).result()
        await publication
        with pytest.raises(WrongLoopError, match="run_coroutine_threadsafe"):
            await asyncio.to_thread(publication.on, "success", print)
        assert await broker.purge("q") == 1


def _in_child(broker: Broker, subscription: Subscription) -> int:
    """Use the parent's broker in a fresh loop; 0 when it refuses."""
    try:
        asyncio.run(_use_in_child(broker, subscription))
    except BaseException:  # noqa: BLE001 - a child may only end by its status
        traceback.print_exc()
        return 1
    return 0


async def test_forked_child_is_refused_and_the_parent_goes_on() -> None:
    async with Broker.create(CONFIG) as broker:
        await (await broker.publish("/q", "before"))
        subscription = await broker.subscribe("q")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: threads and fork
            pid = os.fork()
        if not pid:
            status = 1
            try:
                status = _in_child(broker, subscription)
            finally:
                os._exit(status)
        _, status = await asyncio.to_thread(os.waitpid, pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        await (await broker.publish("/q", "after"))
        assert await broker.purge() == 2


async def test_error_of_a_start_carries_the_half_made_broker() -> None:
    config = {
        "vhosts": {
            "/": {},
            "away": {"connection": {"url": "amqp://127.0.0.1:1", "connect_timeout": "2s"}},
        }
    }
    with pytest.raises(ConnectFailedError) as caught:
        await Broker.create(config)
    broker = caught.value.broker
    assert isinstance(broker, Broker)
    with pytest.raises(BrokerClosedError):
        await broker.publish("/q", "x")
    with pytest.raises(ConnectFailedError):
        await broker.nuke()  # it tries, but nothing listens
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert again.broker is None


@pytest.mark.parametrize(("how", "expected"), [("failed", 0), ("closed", 0), ("forgotten", 1)])
def test_broker_that_is_collected_open_is_warned_of_and_no_other(how: str, expected: int) -> None:
    async def use() -> None:
        if how == "failed":
            with pytest.raises(ConnectFailedError):
                await Broker.create({"vhosts": {"/": {"connection": "amqp://127.0.0.1:1"}}})
            return
        broker = await Broker.create(CONFIG)
        await (await broker.publish("/q", "x"))
        if how == "closed":
            await broker.shutdown()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(use())
        gc.collect()
    told = [str(each.message) for each in caught if each.category is ResourceWarning]
    assert told == expected * [
        "unclosed Broker (vhosts /): await its shutdown(), or use `async with`"
    ]


async def test_shutdown_that_is_cancelled_at_any_time_is_completed_nevertheless() -> None:
    for turns in range(40):
        broker = await Broker.create(CONFIG)
        subscription = await broker.subscribe("q", lambda *args: None)
        await eventually(lambda subscription=subscription: subscription.is_subscribed)
        ending = asyncio.create_task(broker.shutdown())
        for _ in range(turns):
            await asyncio.sleep(0)
        ending.cancel()
        await asyncio.wait([ending])
        async with asyncio.timeout(2.0):
            await broker.shutdown()
        assert broker.connections() == [("/", "embedded://")]
        assert not broker.health().live


def test_publish_sync_while_the_loop_does_not_run_is_refused() -> None:
    loop = asyncio.new_event_loop()

    async def create() -> Broker:
        return await Broker.create(CONFIG)

    broker = loop.run_until_complete(create())
    try:
        with pytest.raises(WrongLoopError, match="needs a running event loop"):
            broker.publish_sync("/q", "x")
    finally:
        loop.run_until_complete(broker.shutdown())
        loop.close()


async def test_listener_of_an_event_may_shut_down() -> None:
    broker = await Broker.create(CONFIG)
    over = asyncio.Event()

    async def stop(error: Exception, vhost: str) -> None:
        await broker.shutdown()
        over.set()

    broker.on("error", stop)
    broker.emit("error", ValueError("the application gives up"), "/")
    async with asyncio.timeout(5.0):
        await over.wait()
    assert repr(broker).startswith("<Broker closed")


async def test_health_of_a_broker_that_is_up_and_of_one_that_is_closed() -> None:
    async with Broker.create(CONFIG) as broker:
        health = broker.health()
        assert (health.live, health.ready) == (True, True)
        assert await asyncio.to_thread(broker.health) == health
        [connection] = health.vhosts["/"].connections
        assert (connection.role, connection.state) == ("both", "up")
    assert (broker.health().live, broker.health().ready) == (False, False)


async def test_store_that_failed_is_told_to_probes_and_in_one_line_for_each_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: object, batch: object) -> None:
        raise StoreError("broker.db", "disk I/O error")

    caplog.set_level("INFO", "broker_client.connection")
    url = f"embedded://{tmp_path / 'broker.db'}"
    connection = {"url": url, "retry": {"min": "1ms", "max": "1ms"}}
    vhost = {"connection": connection, "queues": ["q"]}
    async with Broker.create({"vhosts": {"/": vhost}}) as broker:
        monkeypatch.setattr(StoreFile, "apply", fail)
        publication = await broker.publish("/q", 1, timeout=0.1)
        await eventually(lambda: not broker.health().live)
        await eventually(lambda: caplog.text.count("failed to connect") > 4)
        with pytest.raises(PublishError):
            await publication
    attempts = [each for each in caplog.records if "failed to connect" in each.getMessage()]
    assert {each.exc_info for each in attempts} == {None}


async def test_built_in_broker_has_one_link_for_everything() -> None:
    async with Broker.create(CONFIG) as broker:
        subscription = await broker.subscribe("q", lambda *args: None)
        await eventually(lambda: subscription.is_subscribed)
        assert broker.connections() == [("/", "embedded://")]
        [connection] = broker.stats().vhosts["/"].connections
        assert connection.role == "both"


async def test_nuke_ends_what_is_still_queued() -> None:
    broker = await Broker.create(CONFIG)
    publications = [await broker.publish("/q", number) for number in range(50)]
    await broker.nuke()
    ends = await asyncio.gather(*publications, return_exceptions=True)
    assert all(not isinstance(end, Exception) or isinstance(end, PublishError) for end in ends)
    assert broker.health().live is False


async def test_exclusive_queue_works_on_the_built_in_broker() -> None:
    config = {
        "vhosts": {"/": {"queues": {"q": {"options": {"exclusive": True}}}}},
        "defaults": {"subscriptions": {"close_timeout": "100ms"}},
    }
    async with Broker.create(config) as broker:
        got = asyncio.Event()

        async def handle(message: object, content: object, ack_or_nack: object) -> None:
            got.set()

        await broker.subscribe("/q", handle)
        await (await broker.publish("/q", "x"))
        async with asyncio.timeout(5.0):
            await got.wait()
        await broker.unsubscribe_all()
        await (await broker.publish("/q", "y"))
        assert await broker.purge() == 2  # the first one was not settled
