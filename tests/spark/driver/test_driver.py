"""Publishing from the driver; failures 2 and 13, and every misuse with what to do instead."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from broker_client import Broker
from broker_client.errors import BrokerClosedError, UnknownNameError
from broker_client.spark import DriverPublisher, FrameReport
from broker_client.spark.errors import DriverMisuseError, FramePublishError, OptionError
from tests.spark.queues import Queues, numbered, until
from tests.spark.streams import WAIT, Stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HERE = {
    "vhosts": {
        "/": {
            "connection": "embedded://",
            "exchanges": ["ex"],
            "queues": ["out"],
            "bindings": ["ex[bound.#] -> out"],
            "publications": {"to_queue": {"queue": "out"}, "to_exchange": {"exchange": "ex"}},
        }
    }
}


@pytest.fixture
def publisher() -> Iterator[DriverPublisher]:
    with DriverPublisher(HERE) as made:
        yield made


def received(publisher: DriverPublisher, count: int) -> list[Any]:
    """(id, content, routing key, headers) of `count` messages of the queue `out`."""

    async def take(broker: Broker) -> list[Any]:
        got: list[Any] = []
        done = asyncio.Event()

        async def handle(message: Any, content: Any, ack_or_nack: Any) -> None:
            got.append((message.message_id, content, message.routing_key, message.headers))
            await ack_or_nack()
            if len(got) >= count:
                done.set()

        subscription = await broker.subscribe("/out", handle)
        async with asyncio.timeout(20):
            await done.wait()
        await subscription.cancel()
        return got

    return publisher.run(take)


@pytest.mark.parametrize("mode", ["iterator", "arrow"])
def test_frame_arrives_whole_by_the_built_in_broker(
    spark: SparkSession, publisher: DriverPublisher, mode: Any
) -> None:
    frame = spark.range(700).selectExpr("cast(id as string) body", "concat('m', id) message_id")
    report = publisher.publish_frame(frame, "to_queue", mode=mode, window=64)
    assert (report.published, report.confirmed, report.returned, report.nacked) == (700, 700, 0, 0)
    assert 1 < report.max_in_flight <= 64
    assert report.first_error is None
    messages = received(publisher, 700)
    assert sorted(each[0] for each in messages) == sorted(numbered(700))
    assert all(f"m{content}" == name for name, content, _, _ in messages)


def test_row_without_a_body_column_becomes_json(
    spark: SparkSession, publisher: DriverPublisher
) -> None:
    frame = spark.sql("select 'JFK' as origin, 4 as flights")
    publisher.publish_frame(frame, "to_exchange", routing_key="bound.late")
    ((_, content, key, _),) = received(publisher, 1)
    assert content == {"origin": "JFK", "flights": 4}
    assert key == "bound.late"


def test_columns_give_routing_key_id_and_headers(
    spark: SparkSession, publisher: DriverPublisher
) -> None:
    frame = spark.sql("select 'text' b, 'bound.x' k, 'id-1' i, map('h', '1') hs")
    publisher.publish_frame(
        frame, "to_exchange", body="b", routing_key="k", message_id="i", headers="hs"
    )
    ((name, content, key, headers),) = received(publisher, 1)
    assert (name, content, key, headers["h"]) == ("id-1", "text", "bound.x", "1")


def test_unroutable_rows_are_counted_and_raise(
    spark: SparkSession, publisher: DriverPublisher
) -> None:
    frame = spark.range(10).selectExpr("'x' body", "if(id < 4, 'bound.x', 'lost') k")
    with pytest.raises(FramePublishError, match="NO_ROUTE") as caught:
        publisher.publish_frame(frame, "to_exchange", routing_key="k")
    report = caught.value.report
    assert (report.published, report.confirmed, report.returned) == (10, 4, 6)
    again = publisher.publish_frame(frame, "to_exchange", routing_key="k", check=False)
    assert again.returned == 6


def test_named_write_gives_the_same_ids_again(
    spark: SparkSession, publisher: DriverPublisher
) -> None:
    frame = spark.range(6).selectExpr("cast(id % 3 as string) body")
    for _ in range(2):
        publisher.publish_frame(frame, "to_queue", write_id="monday")
    ids = [each[0] for each in received(publisher, 12)]
    assert len(set(ids)) == 6


def test_progress_is_told(spark: SparkSession, publisher: DriverPublisher) -> None:
    told: list[FrameReport] = []
    frame = spark.range(10).selectExpr("'x' body")
    report = publisher.publish_frame(frame, "to_queue", progress=told.append)
    assert told[-1] == report


def test_02_failing_batch_is_published_again_with_identical_ids(
    spark: SparkSession, queues: Queues, tmp_path: Path
) -> None:
    from pyspark.errors import StreamingQueryException

    queues.declare("in")
    queues.publish("in", numbered(60))
    config = {
        "vhosts": {
            queues.vhost: {
                "connection": queues.url,
                "queues": ["out"],
                "publications": {"p": {"queue": "out"}},
            }
        }
    }
    stream = Stream(spark, queues, "in", tmp_path)
    batches: list[int] = []
    with DriverPublisher(config) as publisher:
        publish = publisher.foreach_batch("p")

        def fails_once(frame: DataFrame, batch: int) -> None:
            publish(frame.select("body"), batch)
            batches.append(batch)
            if len(batches) == 1:
                raise RuntimeError("after publishing")

        def run() -> None:
            writer = stream.frame().writeStream.foreachBatch(fails_once)
            writer = writer.option("checkpointLocation", str(stream.checkpoint))
            query = writer.trigger(availableNow=True).start()
            try:
                assert query.awaitTermination(WAIT)
            finally:
                query.stop()

        with pytest.raises(StreamingQueryException, match="after publishing"):
            run()
        first = sorted((each.properties.message_id, each.body) for each in queues.take("out"))
        assert len({name for name, _ in first}) == 60
        run()
    assert batches == [0, 0]
    second = sorted((each.properties.message_id, each.body) for each in queues.take("out"))
    assert second == first


def test_13_publisher_captured_in_a_function_for_executors_says_what_to_do(
    spark: SparkSession, publisher: DriverPublisher
) -> None:
    with pytest.raises(DriverMisuseError, match=r'format\("broker"\)'):
        pickle.dumps(publisher)
    with pytest.raises(pickle.PicklingError, match=r'format\("broker"\)'):
        spark.range(1).rdd.foreach(lambda row: print(publisher))  # noqa: T201 - never runs


def test_running_loop_is_refused_with_what_to_do(publisher: DriverPublisher) -> None:
    async def call() -> None:
        publisher.run(lambda broker: asyncio.sleep(0))

    with pytest.raises(DriverMisuseError, match="to_thread"):
        asyncio.run(call())


def test_unknown_publication_and_column_are_named(
    spark: SparkSession, publisher: DriverPublisher
) -> None:
    frame = spark.range(1).selectExpr("'x' body")
    with pytest.raises(UnknownNameError, match="to_queue"):
        publisher.publish_frame(frame, "to_quee")
    with pytest.raises(OptionError, match="no column of the frame"):
        publisher.publish_frame(frame, "to_queue", message_id="key")


def test_arrow_is_refused_for_a_large_frame(
    spark: SparkSession, publisher: DriverPublisher
) -> None:
    frame = spark.range(5000).selectExpr("repeat('x', 100) body")
    with pytest.raises(OptionError, match="iterator"):
        publisher.publish_frame(frame, "to_queue", mode="arrow", arrow_max_bytes=100_000)


def test_close_twice_is_harmless_and_ends_the_thread(spark: SparkSession) -> None:
    import threading

    publisher = DriverPublisher(HERE)
    publisher.close()
    publisher.close()
    until(lambda: all(each.name != "broker-loop" for each in threading.enumerate()), "the thread")
    with pytest.raises(BrokerClosedError):
        publisher.publish_frame(spark.range(1).selectExpr("'x' body"), "to_queue")
