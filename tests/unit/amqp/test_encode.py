import pickle
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from broker_client.amqp.encode import check_publish, publish_frames
from broker_client.amqp.table_decoding import MAX_DEPTH
from broker_client.amqp.tables import FrozenTable
from broker_client.errors import InvalidMessageError
from broker_client.message import Outgoing, Properties


def with_properties(**properties: Any) -> Outgoing:
    return Outgoing("orders", "placed", b"", Properties(**properties))


def test_publish_is_a_method_a_header_and_a_body_frame() -> None:
    # AMQP 0-9-1 §4.2.3 to §4.2.6, by hand
    data = publish_frames(3, Outgoing("x", "k", b"hi", Properties(delivery_mode=2), True), 0)
    assert data == (
        b"\x01\x00\x03\x00\x00\x00\x0b\x00\x3c\x00\x28\x00\x00\x01x\x01k\x01\xce"
        b"\x02\x00\x03\x00\x00\x00\x0f\x00\x3c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x10\x00\x02\xce"
        b"\x03\x00\x03\x00\x00\x00\x02hi\xce"
    )


@pytest.mark.parametrize(("size", "frames"), [(0, 0), (1, 1), (4_088, 1), (4_089, 2), (10_000, 3)])
def test_body_is_split_at_frame_max(size: int, frames: int) -> None:
    data = publish_frames(1, Outgoing("", "q", b"x" * size, Properties()), 4_096)
    assert data.count(b"\x03\x00\x01\x00") == frames


def test_headers_larger_than_a_frame_are_refused() -> None:
    # RabbitMQ closes the whole connection over it (501 FRAME_ERROR).
    message = with_properties(headers={"x": "y" * 5_000})
    with pytest.raises(
        InvalidMessageError, match=r"headers make a frame of \d+ bytes; this broker takes 4096"
    ):
        publish_frames(1, message, 4_096)
    assert publish_frames(1, message, 131_072)


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"type": 7}, "type is an int; text is needed"),
        ({"app_id": b"x"}, "app_id is a bytes; text is needed"),
        ({"type": "\ud800"}, "type holds half of a surrogate pair"),
        ({"type": "ü" * 128}, "type is 256 bytes long; AMQP allows 255"),
        ({"priority": 256}, "priority is 256; 0 to 255 is allowed"),
        ({"priority": -1}, "priority is -1; 0 to 255 is allowed"),
        ({"delivery_mode": "2"}, "delivery_mode is a str; a number is needed"),
        ({"timestamp": 1.5}, "timestamp is a float; a datetime is needed"),
        ({"timestamp": datetime(1969, 1, 1, tzinfo=UTC)}, "AMQP times start in 1970"),
        ({"headers": [1]}, "headers is a list; a mapping is needed"),
        ({"headers": {1: 2}}, "headers has the key 1; keys are strings"),
        ({"headers": {"k" * 256: 1}}, "key in headers is 256 bytes long"),
        ({"headers": {"x": "\ud800"}}, r"headers['x'] holds half of a surrogate pair"),
        ({"headers": {"x": 2**63}}, "headers['x'] is an integer of more than 64 bits"),
        ({"headers": {"x": float("nan")}}, "headers['x'] is nan, which AMQP cannot carry"),
        ({"headers": {"x": [float("inf")]}}, "headers['x'][0] is inf, which AMQP cannot carry"),
        ({"headers": {"x": {"y": float("-inf")}}}, "headers['x']['y'] is -inf, which"),
        ({"headers": {"x": object()}}, "headers['x'] is an object, which AMQP cannot carry"),
        ({"headers": {"x": {"y": [0, {1}]}}}, "headers['x']['y'][1] is a set"),
        ({"headers": {"x": Decimal("NaN")}}, "headers['x'] is NaN"),
        ({"headers": {"x": Decimal("12345678901")}}, "headers['x'] is 12345678901, too long"),
        ({"headers": {"x": Decimal("1e-300")}}, "too long for an AMQP decimal"),
        ({"headers": {"x": Decimal("1e999999")}}, "too long for an AMQP decimal"),
    ],
)
def test_value_that_amqp_cannot_carry_is_refused_and_its_place_named(
    properties: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidMessageError) as caught:
        check_publish(with_properties(**properties))
    assert text in str(caught.value)
    assert str(caught.value).startswith("cannot publish: ")


LONG = "é" * 128


@pytest.mark.parametrize(
    ("message", "name"),
    [
        (Outgoing(LONG, "k", b"", Properties()), "exchange"),
        (Outgoing("x", LONG, b"", Properties()), "routing key"),
    ],
)
def test_name_longer_than_255_bytes_is_refused(message: Outgoing, name: str) -> None:
    with pytest.raises(InvalidMessageError, match=f"{name} is 256 bytes long"):
        check_publish(message)


@pytest.mark.parametrize(
    "value", [Decimal("1e5"), Decimal("-1.50"), Decimal(0), Decimal("0e999999"), Decimal(2**31 - 1)]
)
def test_decimal_within_32_bits_is_carried(value: Decimal) -> None:
    check_publish(with_properties(headers={"x": value}))


def test_naive_time_is_taken_as_utc() -> None:
    naive = with_properties(timestamp=datetime(2026, 1, 2))  # noqa: DTZ001 - the point of it
    aware = with_properties(timestamp=datetime(2026, 1, 2, tzinfo=UTC))
    assert publish_frames(1, naive, 0) == publish_frames(1, aware, 0)


@pytest.mark.parametrize("container", [list, dict])
def test_tables_in_each_other_are_written_up_to_the_limit(container: type) -> None:
    def nested(levels: int) -> dict[str, Any]:
        value: Any = 1
        for _ in range(levels - 1):
            value = [value] if container is list else {"k": value}
        return {"x": value}

    check_publish(with_properties(headers=nested(MAX_DEPTH)))
    for levels in (MAX_DEPTH + 1, 100_000):
        with pytest.raises(InvalidMessageError, match="nested more than 64 levels deep") as caught:
            check_publish(with_properties(headers=nested(levels)))
        assert len(str(caught.value)) < 200


def test_table_that_holds_itself_is_refused() -> None:
    headers: dict[str, Any] = {}
    headers["a"] = headers["b"] = [headers, headers]
    with pytest.raises(InvalidMessageError, match="nested more than 64 levels deep"):
        check_publish(with_properties(headers=headers))


def test_property_that_only_equals_one_of_the_right_type_is_refused() -> None:
    publish_frames(1, with_properties(priority=1), 0)
    with pytest.raises(InvalidMessageError, match="priority is a float"):
        publish_frames(1, with_properties(priority=1.0), 0)
    with pytest.raises(InvalidMessageError, match="priority is a bool"):
        publish_frames(1, with_properties(priority=True), 0)
    with pytest.raises(InvalidMessageError, match="type is a list"):
        publish_frames(1, with_properties(type=[]), 0)


def test_frozen_table_is_what_it_was_made_of_then() -> None:
    inner = {"n": 1}
    headers: dict[str, Any] = {"meta": inner, "tags": ("a", "b")}
    frozen = FrozenTable.of(headers)
    inner["n"] = 2
    headers["more"] = True
    assert frozen == {"meta": {"n": 1}, "tags": ["a", "b"]}
    assert publish_frames(1, with_properties(headers=frozen), 0) == publish_frames(
        1, with_properties(headers={"meta": {"n": 1}, "tags": ["a", "b"]}), 0
    )
    assert pickle.loads(pickle.dumps(frozen)) == frozen
