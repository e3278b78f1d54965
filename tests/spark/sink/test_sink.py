"""The sink: repeated work has the same message ids."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from broker_client.spark.errors import OptionError
from tests.spark import faulty
from tests.spark.queues import Queues, numbered
from tests.spark.streams import WAIT, Stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def save(frame: DataFrame, queues: Queues, source: str = "broker", **options: Any) -> None:
    given = {"url": queues.url, "routingKey": "out", **options}
    frame.write.format(source).options(**given).mode("append").save()


def forward(
    stream: Stream, source: str = "broker", *, checkpoint: str = "out-checkpoint", **options: Any
) -> None:
    """Write the rows of `stream` to the queue `out`, in one run."""
    frame = stream.frame().select("body", "message_id")
    given = {"url": stream.queues.url, "routingKey": "out", **options}
    writer = frame.writeStream.format(source).options(**given).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(stream.folder / checkpoint)).start()
    try:
        assert query.awaitTermination(WAIT)
    finally:
        query.stop()


def test_frame_arrives_whole_with_ids_from_its_column(
    spark: SparkSession, queues: Queues, tmp_path: Path
) -> None:
    queues.declare("out")
    frame = spark.range(500).selectExpr("cast(id as string) body", "concat('m', id) message_id")
    report = tmp_path / "report"
    save(frame, queues, window=50, report=str(report))
    assert sorted(queues.take_ids("out")) == sorted(numbered(500))
    assert '"confirmed": 500' in report.read_text()


def test_batch_whose_commit_was_lost_is_published_again_with_the_same_ids(
    spark: SparkSession, queues: Queues, tmp_path: Path
) -> None:
    queues.declare("in", "out")
    queues.publish("in", numbered(100))
    stream = Stream(spark, queues, "in", tmp_path, segmentRows=50)
    forward(stream, ids="content")
    first = queues.take_ids("out")
    assert len(set(first)) == 100
    commits = tmp_path / "out-checkpoint" / "commits"
    for entry in commits.iterdir():
        entry.unlink()
    forward(stream, ids="content")
    assert sorted(queues.take_ids("out")) == sorted(first)


def test_task_killed_half_way_is_tried_again_and_every_row_has_one_id(
    spark: SparkSession, queues: Queues, tmp_path: Path
) -> None:
    """After a shuffle, with equal rows, and a retry in another worker."""
    faulty.register(spark)
    queues.declare("out")
    frame = spark.range(600).selectExpr("cast(id % 100 as string) body").repartition(2)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    try:
        mark = tmp_path / "mark"
        save(frame, queues, "faulty", fault="in task", mark=str(mark))
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert mark.exists()
    taken = queues.take("out")
    bodies = {str(each.properties.message_id): each.body for each in taken}
    assert len(bodies) == 600, "one id for every row, six equal ones included"
    assert Counter(bodies.values()) == {str(number).encode(): 6 for number in range(100)}
    assert len(taken) > 600, "half a task was published twice"


def test_failing_commit_aborts_and_the_restart_publishes_the_same_ids(
    spark: SparkSession, queues: Queues, tmp_path: Path
) -> None:
    from pyspark.errors import StreamingQueryException

    faulty.register(spark)
    queues.declare("in", "out")
    queues.publish("in", numbered(100))
    stream = Stream(spark, queues, "in", tmp_path)
    mark = tmp_path / "mark"
    with pytest.raises(StreamingQueryException, match="fault commit"):
        forward(stream, "faulty", fault="commit", mark=str(mark), ids="content")
    assert mark.with_suffix(".aborted").exists()
    first = queues.take_ids("out")
    assert len(set(first)) == 100
    forward(stream, "faulty", fault="commit", mark=str(mark), ids="content")
    assert sorted(queues.take_ids("out")) == sorted(first)


def test_repeated_save_differs_unless_it_is_named(spark: SparkSession, queues: Queues) -> None:
    queues.declare("out")
    frame = spark.range(20).selectExpr("'same' body")
    save(frame, queues)
    save(frame, queues)
    assert len(set(queues.take_ids("out"))) == 40
    save(frame, queues, writeId="monday")
    save(frame, queues, writeId="monday")
    assert len(set(queues.take_ids("out"))) == 20


def test_position_ids_warn_and_are_refused_with_speculation(spark: SparkSession) -> None:
    from broker_client.spark.options import SinkOptions
    from broker_client.spark.writing.sink import BrokerBatchWriter, PositionalIdsWarning

    schema = spark.range(1).selectExpr("'x' body").schema
    options = SinkOptions(url="amqp://host", ids="position")
    with pytest.warns(PositionalIdsWarning, match="shuffle"):
        BrokerBatchWriter(options, schema, False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        BrokerBatchWriter(SinkOptions(url="amqp://host"), schema, False)
        with pytest.raises(OptionError, match="speculation"):
            BrokerBatchWriter(options, schema, False, speculates=True)


def test_workers_keep_one_connection_each_however_many_jobs(
    spark: SparkSession, queues: Queues
) -> None:
    queues.declare("out")
    for number in range(10):
        frame = spark.range(10, numPartitions=2).selectExpr(f"concat('{number}-', id) body")
        save(frame, queues)
    names = queues.server.connection_names(queues.vhost)
    ours = [name for name in names if name.startswith("broker_client spark, process")]
    assert len(set(ours)) == len(ours), "a process has one"
    # Spark forks a further worker where the last one is not back yet when its next job begins.
    assert 1 <= len(ours) <= 4, "for 20 tasks"
    assert len(set(queues.take_ids("out"))) == 100


def test_wrong_option_fails_the_write_before_anything_is_published(
    spark: SparkSession, queues: Queues
) -> None:
    from pyspark.errors import PySparkException

    queues.declare("out")
    frame = spark.range(1).selectExpr("'x' body")
    with pytest.raises(PySparkException, match="did you mean 'window'"):
        save(frame, queues, windows=5)
    assert queues.depth("out") == 0


def test_address_is_not_shown_in_plans(spark: SparkSession, queues: Queues, tmp_path: Path) -> None:
    queues.declare("in")
    stream = Stream(spark, queues, "in", tmp_path)
    plan = stream.frame()._jdf.queryExecution().toString()
    assert "guest:guest" not in plan


def test_rows_that_no_broker_takes_go_to_the_dead_queue_and_the_others_arrive(
    spark: SparkSession, queues: Queues
) -> None:
    queues.declare("out", "dead")
    frame = spark.sql(
        "select if(id = 7, null, 'text') as body, concat('m', id) as message_id, "
        "if(id = 8, repeat('k', 300), 'out') as routing_key, "
        "if(id = 9, 'soon', null) as expiration from range(20)"
    )
    writer = frame.write.format("broker").option("url", queues.url)
    writer.option("invalid", "dead").option("deadQueue", "dead").mode("append").save()
    bad = {"m7", "m8", "m9"}
    assert set(queues.take_ids("out")) == set(numbered(20)) - bad
    assert set(queues.take_ids("dead")) == bad
