"""Deliveries as rows."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from broker_client.message import Delivery, Properties
from broker_client.spark.reading.rows import DDL, SCHEMA, Row, to_batch


def a_delivery(properties: Properties | None = None, *, redelivered: bool = False) -> Delivery:
    return Delivery("c", 1, redelivered, "ex", "key", b"body", properties or Properties())


def test_row_has_every_column_of_the_schema() -> None:
    stamp = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    properties = Properties(
        message_id="m",
        priority=4,
        content_type="text/plain",
        timestamp=stamp,
        headers={"text": "a", "number": 7, "table": {"deep": [1, None]}, "bytes": b"b"},
    )
    (row,) = to_batch([Row(a_delivery(properties), 1_000_000)], "q").to_pylist()
    assert list(row) == [column.split()[0] for column in DDL.split(", ")]
    assert row["message_id"] == "m"
    assert row["timestamp"] == stamp
    assert row["delivered_at"] == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert dict(row["headers"]) == {
        "text": "a",
        "number": "7",
        "table": '{"deep": [1, null]}',
        "bytes": "b",
    }
    assert (row["queue"], row["body"], row["attempt"]) == ("q", b"body", 1)


def test_headers_as_json_keep_their_types() -> None:
    headers = {"text": "7", "number": 7, "flag": True, "none": None, "table": {"deep": [1]}}
    batch = to_batch([Row(a_delivery(Properties(headers=headers)), 0)], "q", "json")
    (row,) = batch.to_pylist()
    assert {name: json.loads(value) for name, value in row["headers"]} == headers


def test_absent_properties_are_null() -> None:
    (row,) = to_batch([Row(a_delivery(), 0)], "q").to_pylist()
    assert row["message_id"] is None
    assert row["headers"] is None
    assert row["timestamp"] is None


def test_attempt_is_unknown_on_a_redelivery_and_counted_by_quorum_queues() -> None:
    counted = Properties(headers={"x-delivery-count": 2})
    rows = [Row(a_delivery(redelivered=True), 0), Row(a_delivery(counted, redelivered=True), 0)]
    assert to_batch(rows, "q").column("attempt").to_pylist() == [None, 3]


def test_no_rows_make_an_empty_batch() -> None:
    batch = to_batch([], "q")
    assert (batch.num_rows, batch.schema) == (0, SCHEMA)
