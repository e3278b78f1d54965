"""Deliveries as rows."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from broker_client.message import Delivery, Properties
from broker_client.spark.reading.rows import DDL, SCHEMA, Row, of_present_schema, to_batch


def a_delivery(properties: Properties | None = None, *, redelivered: bool = False) -> Delivery:
    return Delivery("c", 1, redelivered, "ex", "key", b"body", properties or Properties())


def deep(levels: int) -> list[Any]:
    """Nested lists."""
    inside: list[Any] = []
    for _ in range(levels):
        inside = [inside]
    return inside


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


def test_undecodable_message_comes_with_what_can_be_read_of_it_and_the_reason() -> None:
    delivery = a_delivery(Properties(message_id="m"))._replace(fault="tables are too deep")
    good, bad = to_batch([Row(a_delivery(), 0), Row(delivery, 0)], "q").to_pylist()
    assert good["fault"] is None
    assert (bad["message_id"], bad["body"]) == ("m", b"body")
    assert bad["fault"] == "tables are too deep"


@pytest.mark.parametrize(
    "poison",
    [
        Properties(headers={"n": float("nan")}),
        Properties(headers={"half \ud800": "x"}),
        Properties(headers={"text": "half \ud800"}),
        Properties(correlation_id="half \ud800"),
        Properties(priority=2**40),
        Properties(timestamp=datetime(2024, 1, 1)),  # noqa: DTZ001 - no zone, so no instant
        Properties(headers={"deep": deep(100_000)}),
    ],
    ids=["NaN", "header name", "header", "property", "priority", "naive time", "deep"],
)
def test_value_that_fits_no_column_is_null_and_the_fault_names_its_property(
    poison: Properties,
) -> None:
    poison = poison._replace(message_id="m", app_id="app")
    batch = to_batch([Row(a_delivery(), 0), Row(a_delivery(poison), 0)], "q")
    good, bad = batch.to_pylist()
    assert good["fault"] is None
    assert (bad["message_id"], bad["app_id"], bad["body"]) == ("m", "app", b"body")
    (name,) = {"headers", "correlation_id", "priority", "timestamp"} & {
        key for key, value in poison._asdict().items() if value is not None
    }
    assert bad[name] is None
    assert name in bad["fault"]


@pytest.mark.parametrize("year", [1, 9999])
def test_time_that_python_cannot_show_everywhere_is_null_and_told(year: int) -> None:
    properties = Properties(timestamp=datetime(year, 12, 31, tzinfo=UTC))
    (row,) = to_batch([Row(a_delivery(properties), 0)], "q").to_pylist()
    assert row["timestamp"] is None
    assert (
        row["fault"] == f"timestamp: {year:04d}-12-31T00:00:00+00:00 is outside the years 2 to 9998"
    )


def test_time_of_a_far_year_keeps_its_milliseconds() -> None:
    stamp = datetime(9998, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
    (row,) = to_batch([Row(a_delivery(Properties(timestamp=stamp)), 0)], "q").to_pylist()
    assert row["timestamp"] == stamp


@pytest.mark.parametrize("count", [2**31 - 1, 2**62, -1, True, "7"])
def test_delivery_count_that_a_publisher_made_up_is_not_taken_for_one(count: object) -> None:
    delivery = a_delivery(Properties(headers={"x-delivery-count": count}))
    (row,) = to_batch([Row(delivery, 0)], "q").to_pylist()
    assert row["attempt"] == 1


def test_batch_from_before_the_last_column_was_added_is_filled_up() -> None:
    stored = to_batch([Row(a_delivery(), 0)], "q").select(SCHEMA.names[:-1])
    present = of_present_schema(stored)
    assert present.schema == SCHEMA
    assert present.column("fault").null_count == 1


def test_no_rows_make_an_empty_batch() -> None:
    batch = to_batch([], "q")
    assert (batch.num_rows, batch.schema) == (0, SCHEMA)
