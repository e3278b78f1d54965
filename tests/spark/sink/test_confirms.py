"""The broker nacks, returns, is silent, or is cut off within a window."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from broker_client.message import PERSISTENT, Outgoing, Properties
from broker_client.spark.errors import SinkError
from broker_client.spark.loop_thread import LoopThread
from broker_client.spark.writing.publish_job import (
    OnFailure,
    PublishCounts,
    PublishJob,
    PublishLimits,
)
from broker_client.spark.writing.publishing_link import PublishingLink
from tests.spark.queues import Queues, numbered, until
from tests.support.eventually import eventually
from tests.support.proxy import Proxy

WINDOW = 64


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    made = LoopThread("test sink")
    yield made
    made.stop()


@pytest.fixture
def proxy(queues: Queues, thread: LoopThread) -> Iterator[Proxy]:
    made = Proxy("127.0.0.1", queues.server.port)
    thread.call(made.__aenter__())
    yield made
    thread.call(made.__aexit__(None, None, None))


def messages(ids: list[str], queue: str = "out") -> list[Outgoing]:
    return [
        Outgoing(
            "", queue, each.encode(), Properties(message_id=each, delivery_mode=PERSISTENT), True
        )
        for each in ids
    ]


def publish(
    thread: LoopThread,
    link: PublishingLink,
    batch: list[Outgoing],
    *,
    retries: int = 3,
    confirm_timeout: float = 10.0,
    unroutable: OnFailure = "raise",
    invalid: OnFailure = "raise",
    dead_queue: str | None = None,
) -> PublishCounts:
    limits = PublishLimits(WINDOW, confirm_timeout, retries, 10.0, unroutable, invalid, dead_queue)

    async def run() -> PublishCounts:
        job = PublishJob(link, limits)
        try:
            await job.send(batch)
            await job.finish()
        finally:
            await link.close()
        return job.counts

    return thread.call(run(), 60)


def test_everything_is_confirmed_within_the_window(queues: Queues, thread: LoopThread) -> None:
    queues.declare("out")
    ids = numbered(1000)
    counts = publish(thread, PublishingLink([queues.connector()]), messages(ids))
    assert queues.take_ids("out") == ids
    assert (counts.published, counts.confirmed, counts.retried) == (1000, 1000, 0)
    assert 1 < counts.max_in_flight <= WINDOW


def test_nacked_messages_go_again_with_their_ids_and_then_fail(
    queues: Queues, thread: LoopThread
) -> None:
    # RabbitMQ: a full queue with overflow=reject-publish answers basic.nack.
    queues.declare("out", arguments={"x-max-length": 5, "x-overflow": "reject-publish"})
    with pytest.raises(SinkError) as caught:
        publish(thread, PublishingLink([queues.connector()]), messages(numbered(20)), retries=1)
    assert "not confirmed in 2 attempts" in str(caught.value)
    assert set(caught.value.message_ids) <= set(numbered(20))
    assert set(queues.take_ids("out")) < set(numbered(20))


def test_nacked_messages_arrive_once_there_is_room(queues: Queues, thread: LoopThread) -> None:
    queues.declare("out", arguments={"x-max-length": 5, "x-overflow": "reject-publish"})
    taken: list[str] = []
    future = thread.start(_publishing(queues, messages(numbered(12))))

    def published_or_taken() -> bool:
        taken.extend(queues.take_ids("out"))
        return future.done()

    until(published_or_taken, "the confirms")
    counts = future.result()
    taken += queues.take_ids("out")
    assert set(taken) == set(numbered(12))
    assert counts.confirmed == 12
    assert counts.retried >= counts.nacked > 0


async def _publishing(queues: Queues, batch: list[Outgoing]) -> PublishCounts:
    link = PublishingLink([queues.connector()])
    job = PublishJob(link, PublishLimits(WINDOW, 10.0, 50, 10.0))
    await _all_of(job, batch)
    await link.close()
    return job.counts


def test_returned_message_fails_the_task_and_is_named(queues: Queues, thread: LoopThread) -> None:
    queues.declare("out")
    batch = [*messages(["good"]), *messages(["lost"], "nowhere")]
    with pytest.raises(SinkError) as caught:
        publish(thread, PublishingLink([queues.connector()]), batch)
    assert caught.value.message_ids == ("lost",)
    assert "312 NO_ROUTE" in str(caught.value)


def test_returned_messages_are_dropped_or_go_to_the_dead_queue_when_asked(
    queues: Queues, thread: LoopThread
) -> None:
    queues.declare("out", "dead")
    batch = [*messages(["good"]), *messages(["lost"], "nowhere")]
    link = PublishingLink([queues.connector()])
    counts = publish(thread, link, batch, unroutable="drop")
    assert (counts.confirmed, counts.returned) == (1, 1)
    link = PublishingLink([queues.connector()])
    counts = publish(thread, link, batch, unroutable="dead", dead_queue="dead")
    assert (counts.confirmed, counts.returned) == (2, 1)
    assert queues.take_ids("out") == ["good", "good"]
    (dead,) = queues.take("dead")
    assert dead.properties.message_id == "lost"
    assert (dead.properties.headers or {})["x-unroutable-routing-key"] == "nowhere"


def test_silent_broker_is_left_after_the_confirm_timeout_and_ids_stay(
    queues: Queues, thread: LoopThread, proxy: Proxy
) -> None:
    queues.declare("out")
    ids = numbered(40)
    link = PublishingLink([queues.connector(proxy.port)])

    async def run() -> PublishCounts:
        job = PublishJob(link, PublishLimits(WINDOW, 1.0, 8, 10.0))
        await job.send(messages(["first"]))
        await job.finish()
        proxy.stall()
        await job.send(messages(ids))
        try:
            # Resumed when the first attempt has been given up: its bytes still arrive.
            stalled = proxy.accepted
            finishing = thread.loop.create_task(job.finish())
            await eventually(lambda: proxy.accepted > stalled or finishing.done())
            proxy.resume()
            await finishing
        finally:
            proxy.resume()
            await link.close()
        return job.counts

    counts = thread.call(run(), 60)
    assert counts.retried >= 40
    assert set(queues.take_ids("out")) == {"first", *ids}


def test_connection_cut_within_a_window_resends_what_is_unconfirmed_with_its_ids(
    queues: Queues, thread: LoopThread, proxy: Proxy
) -> None:
    queues.declare("out")
    ids = numbered(2000)
    link = PublishingLink([queues.connector(proxy.port)])

    async def run() -> PublishCounts:
        job = PublishJob(link, PublishLimits(WINDOW, 10.0, 3, 10.0))
        for start in range(0, len(ids), 500):
            await job.send(messages(ids[start : start + 500]))
            proxy.cut()
        await job.finish()
        await link.close()
        return job.counts

    counts = thread.call(run(), 60)
    assert counts.retried > 0
    taken = queues.take_ids("out")
    assert set(taken) == set(ids)
    assert len(taken) <= len(ids) + counts.retried


def test_stalls_of_a_slow_link_cost_no_more_than_a_window_of_duplicates_each(
    queues: Queues, thread: LoopThread, proxy: Proxy
) -> None:
    queues.declare("out")
    ids = numbered(1500)
    body = b"x" * 1_000
    batch = [each._replace(body=body) for each in messages(ids)]
    link = PublishingLink([queues.connector(proxy.port)])
    # Below what the window needs in the confirm timeout, though never silent for so long.
    proxy.throttle(200_000)

    async def run() -> PublishCounts:
        job = PublishJob(link, PublishLimits(WINDOW, 1.0, 8, 10.0))
        publishing = asyncio.ensure_future(_all_of(job, batch))
        for confirmed in (300, 900):
            await eventually(lambda at=confirmed: job.counts.confirmed >= at)
            proxy.stall()
            links = proxy.accepted + 1
            await eventually(lambda at=links: proxy.accepted >= at)
            proxy.resume()
        await publishing
        await link.close()
        return job.counts

    counts = thread.call(run(), 60)
    assert counts.confirmed == len(ids)
    losses = proxy.accepted - 1
    # One for each stall; one more where the handshake fell into it, or the machine stood still.
    assert 2 <= losses <= 6
    assert counts.retried <= losses * WINDOW
    taken = queues.take_ids("out")
    assert set(taken) == set(ids)
    assert len(taken) <= len(ids) + losses * WINDOW


async def _all_of(job: PublishJob, batch: list[Outgoing]) -> None:
    await job.send(batch)
    await job.finish()


def test_missing_exchange_fails_at_once(queues: Queues, thread: LoopThread) -> None:
    batch = [Outgoing("nowhere", "k", b"x", Properties(message_id="m"), True)]
    with pytest.raises(SinkError, match="404"):
        publish(thread, PublishingLink([queues.connector()]), batch)


# --------------------------------------------------------------------------- hostile rows


def hostile() -> list[Outgoing]:
    """One message of each kind that AMQP cannot carry or RabbitMQ refuses; each has an id."""
    kinds: dict[str, dict[str, Any]] = {
        "key": {"routing_key": "k" * 300},
        "id" * 200: {},
        "header name": {"headers": {"h" * 300: "x"}},
        "headers": {"headers": {"h": "x" * 200_000}},
        "priority": {"priority": -1},
        "time": {"timestamp": datetime(1969, 12, 31, tzinfo=UTC)},
        "expiration": {"expiration": "soon"},
        "long expiration": {"expiration": str(2**32)},
        "missing exchange": {"exchange": "nowhere"},
        "user": {"user_id": "somebody else"},
        "body": {"body": None},
    }
    made = []
    for name, wrong in kinds.items():
        (message,) = messages([name])
        outside = {
            key: wrong.pop(key) for key in ("routing_key", "exchange", "body") if key in wrong
        }
        properties = message.properties._replace(**wrong)
        made.append(message._replace(properties=properties, **outside))
    return made


def among_good_ones(bad: list[Outgoing]) -> tuple[list[str], list[Outgoing]]:
    ids = numbered(20 * len(bad))
    batch = messages(ids)
    for position, message in enumerate(bad):
        batch.insert(20 * position + 7, message)
    return ids, batch


@pytest.mark.parametrize("fate", ["drop", "dead"])
def test_invalid_rows_are_set_aside_and_all_others_arrive(
    queues: Queues, thread: LoopThread, fate: OnFailure
) -> None:
    queues.declare("out", "dead")
    bad = hostile()
    ids, batch = among_good_ones(bad)
    counts = publish(
        thread,
        PublishingLink([queues.connector()]),
        batch,
        invalid=fate,
        dead_queue="dead" if fate == "dead" else None,
    )
    assert counts.invalid == len(bad)
    assert counts.confirmed == len(ids) + (len(bad) if fate == "dead" else 0)
    assert set(queues.take_ids("out")) == set(ids)
    dead = {
        str((each.properties.headers or {})["x-invalid-message-id"]): each
        for each in queues.take("dead")
    }
    if fate == "drop":
        assert not dead
        return
    assert dead.keys() == {str(each.properties.message_id) for each in bad}
    for message in bad:
        copy = dead[str(message.properties.message_id)]
        assert copy.body == (message.body or b"")
        assert (copy.properties.headers or {})["x-invalid-reason"]
    assert "user_id" in (dead["user"].properties.headers or {})["x-invalid-reason"]
    assert "nowhere" in (dead["missing exchange"].properties.headers or {})["x-invalid-reason"]


@pytest.mark.parametrize("bad", hostile(), ids=lambda each: str(each.properties.message_id)[:20])
def test_invalid_row_fails_the_task_and_is_the_only_one_named(
    queues: Queues, thread: LoopThread, bad: Outgoing
) -> None:
    queues.declare("out")
    _, batch = among_good_ones([bad])
    with pytest.raises(SinkError) as caught:
        publish(thread, PublishingLink([queues.connector()]), batch)
    assert caught.value.message_ids == (bad.properties.message_id,)


def test_dead_queue_that_is_missing_fails_the_task(queues: Queues, thread: LoopThread) -> None:
    queues.declare("out")
    _, batch = among_good_ones(hostile()[:1])
    link = PublishingLink([queues.connector()])
    with pytest.raises(SinkError, match="312 NO_ROUTE"):
        publish(thread, link, batch, invalid="dead", dead_queue="dead")
