"""Publishing from the driver, batches that Spark repeats, and errors for misuse."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace

from broker_client import Broker
from broker_client.errors import BrokerClosedError, UnknownNameError
from broker_client.message import Message
from broker_client.spark import DriverPublisher, FrameReport
from broker_client.spark.errors import DriverMisuseError, FramePublishError, OptionError
from tests.spark.queues import Queues, numbered, until
from tests.spark.streams import WAIT, Stream
from tests.support.telemetry import telemetry

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


def taken(publisher: DriverPublisher, count: int) -> list[tuple[Message, Any]]:
    """`count` messages of the queue `out`, each with its content."""

    async def take(broker: Broker) -> list[tuple[Message, Any]]:
        got: list[tuple[Message, Any]] = []
        done = asyncio.Event()

        async def handle(message: Message, content: Any, ack_or_nack: Any) -> None:
            got.append((message, content))
            await ack_or_nack()
            if len(got) >= count:
                done.set()

        subscription = await broker.subscribe("/out", handle)
        async with asyncio.timeout(30.0):
            await done.wait()
        await subscription.cancel()
        return got

    return publisher.run(take)


def received(publisher: DriverPublisher, count: int) -> list[Any]:
    """(id, content, routing key, headers) of `count` messages of the queue `out`."""
    return [
        (message.message_id, content, message.routing_key, message.headers)
        for message, content in taken(publisher, count)
    ]


def bodies(publisher: DriverPublisher, count: int) -> list[str]:
    """The bodies of `count` messages of the queue `out`, not decoded."""
    return [message.body.decode() for message, _ in taken(publisher, count)]


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


OF_EVERY_TYPE = {
    "cast(null as string)": "null",
    "cast(null as struct<a: int>)": "null",
    "null": "null",
    "true": "true",
    "cast(-1 as tinyint)": "-1",
    "cast(2 as smallint)": "2",
    "3": "3",
    "9223372036854775807L": "9223372036854775807",
    "cast(1.5 as float)": "1.5",
    "cast(0.1 as double)": "0.1",
    "cast('NaN' as double)": '"NaN"',
    "cast('-Infinity' as float)": '"-Infinity"',
    "cast(1.23456789012345678901 as decimal(38,20))": "1.23456789012345678901",
    "cast(1e30 as decimal(38,0))": "1000000000000000000000000000000",
    "'text ü'": '"text ü"',
    "X'00ff'": '"AP8="',
    "date'2024-02-29'": '"2024-02-29"',
    "timestamp'2024-01-01 00:00:00.123456Z'": '"2024-01-01T00:00:00.123456Z"',
    "timestamp'2024-01-01 00:00:00Z'": '"2024-01-01T00:00:00.000000Z"',
    "timestamp_ntz'2024-01-01 00:00:00.123456'": '"2024-01-01T00:00:00.123456"',
    "time'12:34:56.123456'": '"12:34:56.123456"',
    "interval '1-2' year to month": "\"INTERVAL '1-2' YEAR TO MONTH\"",
    "interval '1 02:03:04.567891' day to second": (
        "\"INTERVAL '1 02:03:04.567891' DAY TO SECOND\""
    ),
    "array(1, null)": "[1,null]",
    "map('a', null, 'b', 1)": '{"a":null,"b":1}',
    "map(1, 'x')": '{"1":"x"}',
    "named_struct('a', null, 'b', named_struct('c', timestamp_ntz'2024-01-01 00:00:00.000001'))": (
        '{"a":null,"b":{"c":"2024-01-01T00:00:00.000001"}}'
    ),
    "array(named_struct('x', X'01', 'y', cast(null as int)))": '[{"x":"AQ==","y":null}]',
    "parse_json('{\"a\":[1,null]}')": '{"a":[1,null]}',
}
"""A value in SQL, and how it is written in JSON."""


def test_row_as_json_has_every_field_of_every_type_whole(
    spark: SparkSession, publisher: DriverPublisher
) -> None:
    from pyspark.sql import functions as sf

    values = ", ".join(f"{value} as v{number}" for number, value in enumerate(OF_EVERY_TYPE))
    frame = spark.sql(f"select {values}")
    expected = ",".join(f'"v{number}":{text}' for number, text in enumerate(OF_EVERY_TYPE.values()))
    frame = frame.withColumn("body", sf.struct("*"))
    whole_row = frame.drop("body")
    publisher.publish_frame(whole_row, "to_queue")
    publisher.publish_frame(frame, "to_queue")  # a struct is written as a row is
    assert bodies(publisher, 2) == [f"{{{expected}}}"] * 2


def test_offset_of_a_zone_before_its_standard_time_is_whole(
    spark: SparkSession, publisher: DriverPublisher
) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        frame = spark.sql("select timestamp_micros(-3786829200000001) as t")
        publisher.publish_frame(frame, "to_queue")
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    ((_, content, _, _),) = received(publisher, 1)
    moment = datetime.fromisoformat(content["t"])
    assert (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) == (
        -3786829200000001
    )


@pytest.mark.parametrize(
    "key", ["X'01'", "date'2024-01-01'", "timestamp'2024-01-01 00:00:00'", "struct(1)"]
)
def test_map_whose_keys_json_cannot_express_is_refused(
    spark: SparkSession, publisher: DriverPublisher, key: str
) -> None:
    frame = spark.sql(f"select array(named_struct('m', map({key}, 1))) as deep")
    with pytest.raises(OptionError, match=r"'deep\.m' is a map with keys of type .*JSON"):
        publisher.publish_frame(frame, "to_queue")


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


def test_row_that_is_refused_ends_the_frame(
    spark: SparkSession, publisher: DriverPublisher
) -> None:
    frame = spark.range(5000).selectExpr("'x' body", "repeat('i', if(id < 2, 9, 300)) message_id")
    report = publisher.publish_frame(frame.coalesce(1), "to_queue", check=False)
    assert (report.published, report.confirmed, report.failed) == (3, 2, 1)
    assert "message_id is 300 bytes long" in str(report.first_error)


def test_named_write_gives_the_same_ids_again(
    spark: SparkSession, publisher: DriverPublisher
) -> None:
    frame = spark.range(6).selectExpr("cast(id % 3 as string) body")
    for _ in range(2):
        publisher.publish_frame(frame, "to_queue", write_id="monday")
    ids = [each[0] for each in received(publisher, 12)]
    assert len(set(ids)) == 6


def test_progress_is_reported(spark: SparkSession, publisher: DriverPublisher) -> None:
    told: list[FrameReport] = []
    frame = spark.range(10).selectExpr("'x' body")
    report = publisher.publish_frame(frame, "to_queue", progress=told.append)
    assert told[-1] == report


def test_failing_batch_is_published_again_with_identical_ids(
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


def test_publisher_captured_in_a_function_for_executors_says_what_to_do(
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
    with pytest.raises(OptionError, match="not a column of the frame"):
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


# --------------------------------------------------------------------------- traces


def test_trace_of_the_driver_goes_on_in_the_messages_and_links_to_that_of_a_row(
    spark: SparkSession,
) -> None:
    recorded = telemetry()
    recorded.spans.clear()
    theirs = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    frame = spark.createDataFrame(
        [("plain", None), ("traced", {"traceparent": theirs})],
        "body string, headers map<string,string>",
    )
    with DriverPublisher({**HERE, "tracing": {"process": "parent"}}) as publisher:
        with trace.get_tracer("app").start_as_current_span("job") as job:
            publisher.publish_frame(frame, "to_queue", progress=False)
        sent = [message.headers["traceparent"] for message, _ in taken(publisher, 2)]
    ours = job.get_span_context()
    assert {each.split("-")[1] for each in sent} == {trace.format_trace_id(ours.trace_id)}
    spans = recorded.named("publish out")
    assert [span.parent.span_id for span in spans if span.parent] == [ours.span_id] * 2
    links = [trace.format_span_id(link.context.span_id) for span in spans for link in span.links]
    assert links == [theirs.split("-")[2]]
    recorded.spans.clear()
