"""Every type of header value arrives unchanged on every broker, or is refused by all."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any

import pytest

from broker_client.errors import InvalidMessageError
from broker_client.message import PERSISTENT, TRANSIENT
from tests.contract.conftest import EVERY_VERSION, Place
from tests.contract.observers import Watch, a_message, bodies


class Colour(StrEnum):
    RED = "red"


class Size(IntEnum):
    SMALL = 1


class Plain(Enum):
    ONE = 1


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"k": value}
    return value


NOON = datetime(2026, 7, 1, 12, 0, 0, tzinfo=UTC)
IN_DELHI = NOON.astimezone(timezone(timedelta(hours=5, minutes=30)))

SAME = object()
VALUES: list[tuple[Any, Any]] = [
    (value, SAME)
    for value in (
        *(None, True, False, "", "text", "Grüße", b"", b"bytes", b"\xff\x00"),
        *(0, 1, -1, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, -(2**63)),
        *(0.0, 1.5, 1e300, 5e-324, 0.1),
        *(Decimal("1.50"), Decimal("-7"), Decimal("0.0001")),
        *(NOON, [], {}, [1, "two", [3.0, {"four": None}]], {"a": {"b": [1]}}, nested(63)),
    )
] + [
    (NOON.replace(tzinfo=None), NOON),
    (NOON.replace(microsecond=999_999), NOON),
    (IN_DELHI, NOON),
    ((1, (2, "three")), [1, [2, "three"]]),
    (Colour.RED, "red"),
    (Size.SMALL, 1),
    ([Colour.RED, Size.SMALL], ["red", 1]),
    (bytearray(b"bytes"), b"bytes"),
    (memoryview(b"bytes"), b"bytes"),
    ({"t": (NOON.replace(microsecond=5),)}, {"t": [NOON]}),
    (Decimal("12E2"), Decimal(1200)),
]

REFUSED: list[Any] = [
    *(nested(64), nested(490), nested(20_000)),
    *(object(), {1, 2}, 1j, Plain.ONE, 2**63, -(2**63) - 1),
    *(float("nan"), float("inf"), float("-inf")),
    *("\ud800", {"\ud800": 1}, {1: 2}, {"k" * 256: 1}, ["\udfff"]),
    *(Decimal("NaN"), Decimal("1e20"), datetime(1960, 1, 1, tzinfo=UTC)),
    *(["x" * 200_000], b"x" * 131_072),
]


def plain(value: Any) -> Any:
    """`value` with the types of what it holds, so that True is not 1."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return type(value), value


@pytest.mark.parametrize("mode", [TRANSIENT, PERSISTENT])
async def test_header_values_of_every_type_come_back_as_amqp_carries_them(
    watch: Watch, queue: str, mode: int
) -> None:
    sent = {f"k{number}": value for number, (value, _) in enumerate(VALUES)}
    expected = {
        f"k{number}": value if wanted is SAME else wanted
        for number, (value, wanted) in enumerate(VALUES)
    }
    await watch.publish(a_message(headers=sent, delivery_mode=mode))
    [delivery] = await watch.drain(queue)
    assert plain(delivery.properties.headers) == plain(expected)


def str_of(value: Any) -> str:
    return type(value).__name__


@pytest.mark.parametrize("value", REFUSED, ids=str_of)
async def test_header_value_that_no_broker_carries_is_refused_and_costs_no_channel(
    watch: Watch, queue: str, value: Any
) -> None:
    with pytest.raises(InvalidMessageError):
        await watch.channel.publish([a_message(b"bad", headers={"k": value})])
    assert await watch.publish(a_message(b"good")) == [True]
    assert bodies(await watch.drain(queue)) == [b"good"]


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        (NOON, NOON),
        (NOON.replace(tzinfo=None, microsecond=7), NOON),
        (IN_DELHI, NOON),
    ],
)
async def test_timestamp_comes_back_in_whole_seconds_of_utc(
    watch: Watch, queue: str, sent: datetime, received: datetime
) -> None:
    await watch.publish(a_message(timestamp=sent))
    [delivery] = await watch.drain(queue)
    timestamp = delivery.properties.timestamp
    assert timestamp is not None
    assert (timestamp, timestamp.tzinfo) == (received, UTC)


async def test_headers_are_as_they_were_when_they_were_published(watch: Watch, queue: str) -> None:
    inner: dict[str, Any] = {}
    headers = {"inner": inner}
    for number in range(3):
        inner["n"] = number
        await watch.publish(a_message(headers=headers))
    inner["n"] = 9
    received = [delivery.properties.headers or {} for delivery in await watch.drain(queue)]
    assert [headers["inner"] for headers in received] == [{"n": 0}, {"n": 1}, {"n": 2}]


# --------------------------------------------------------------------------- headers exchange

ONE_SECOND = datetime.fromtimestamp(1, UTC)
NUMBERS_OF_3: list[list[Any]] = [[1, 1.0, ONE_SECOND], [0, 0.0, -0.0], [2**40, float(2**40)]]
NUMBERS_OF_4: list[list[Any]] = [[1], [1.0], [0], [0.0], [-0.0], [2**40], [float(2**40)]]
"""Timestamps are left out: in a binding they equal 1, and in a message nothing."""
OTHERS: list[list[Any]] = [
    [True],
    [False],
    ["1", b"1"],
    ["", b""],
    [Decimal("1")],
    [Decimal("1.0")],
    [Decimal("10")],
    [[], {}],
    [["1"]],
    [[b"1"]],
    [[2**40]],
]
"""Values that match those of their own group, and no others."""


@pytest.mark.parametrize("place", EVERY_VERSION, indirect=True)
async def test_headers_exchange_compares_values_as_rabbitmq_does(
    place: Place, watch: Watch
) -> None:
    groups = [*(NUMBERS_OF_4 if place.version >= (4, 0) else NUMBERS_OF_3), *OTHERS]
    values = [(number, value) for number, group in enumerate(groups) for value in group]
    for index, (_, value) in enumerate(values):
        await watch.channel.declare_queue(f"q{index}")
        arguments = {"x-match": "all", "k": _for_pamqp(value)}
        await watch.channel.bind_queue(f"q{index}", "amq.headers", "", arguments)
    for group, value in values:
        await watch.publish(a_message(exchange="amq.headers", to="", headers={"k": value}))
        matched = [other for index, other in enumerate(values) if await watch.drain(f"q{index}")]
        assert matched == [other for other in values if other[0] == group], value


@pytest.mark.parametrize("place", EVERY_VERSION, indirect=True)
async def test_time_and_number_in_a_headers_exchange(place: Place, watch: Watch) -> None:
    for name, value in (("number", 1), ("time", ONE_SECOND)):
        await watch.channel.declare_queue(name)
        await watch.channel.bind_queue(name, "amq.headers", "", {"x-match": "all", "k": value})
    for sent in (1, ONE_SECOND):
        await watch.publish(a_message(exchange="amq.headers", to="", headers={"k": sent}))
        matched = [name for name in ("number", "time") if await watch.drain(name)]
        follows_4 = place.version >= (4, 0)
        assert matched == ([] if follows_4 and sent == ONE_SECOND else ["number", "time"])


def _for_pamqp(value: Any) -> Any:
    """pamqp, which aio-pika declares with, knows bytes as bytearray only."""
    if isinstance(value, list):
        return [_for_pamqp(item) for item in value]
    return bytearray(value) if isinstance(value, bytes) else value


# --------------------------------------------------------------------------- headers that route


async def test_what_is_no_text_in_cc_is_passed_over(watch: Watch, queue: str) -> None:
    await watch.channel.declare_queue("copy")
    headers = {"CC": [1, "copy", None, b"copy2", 2.5]}
    assert await watch.publish(a_message(headers=headers)) == [True]
    assert (await watch.depth("q"), await watch.depth("copy")) == (1, 1)


@pytest.mark.parametrize("value", ["copy", 7, None, {"a": 1}])
async def test_cc_that_is_no_array_closes_the_channel(watch: Watch, queue: str, value: Any) -> None:
    await watch.channel.publish([a_message(headers={"CC": value})])
    assert await watch.closed_with() == 406


@pytest.mark.parametrize("value", ["soon", 1.5, True, None, [5_000], -1])
async def test_x_delay_that_is_no_number_delays_nothing(
    watch: Watch, queue: str, value: Any
) -> None:
    assert await watch.publish(a_message(headers={"x-delay": value})) == [True]
    assert await watch.depth("q") == 1


# --------------------------------------------------------------------------- names


@pytest.mark.parametrize("key", ["\ud800", "k" * 256, "ü" * 128])
async def test_routing_key_that_no_broker_carries_is_refused_and_costs_no_channel(
    watch: Watch, queue: str, key: str
) -> None:
    await watch.channel.bind_queue(queue, "amq.fanout", "")
    with pytest.raises(InvalidMessageError):
        await watch.channel.publish([a_message(exchange="amq.fanout", to=key)])
    longest = "ü" * 127 + "k"
    await watch.publish(a_message(exchange="amq.fanout", to=longest, delivery_mode=PERSISTENT))
    assert [delivery.routing_key for delivery in await watch.drain(queue)] == [longest]
