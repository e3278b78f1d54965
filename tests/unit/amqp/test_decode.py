import struct
from datetime import UTC, datetime

import pytest

from broker_client.amqp import decode
from broker_client.errors import MalformedFrameError


def a_table(*fields: bytes) -> bytes:
    data = b"".join(fields)
    return struct.pack(">I", len(data)) + data


def a_header_with_timestamp(number: int) -> bytes:
    return struct.pack(">HHQHQ", 60, 0, 0, 0x0040, number)


@pytest.mark.parametrize(
    ("number", "time"),
    [
        (0, datetime(1970, 1, 1, tzinfo=UTC)),
        (1_767_312_000, datetime(2026, 1, 2, tzinfo=UTC)),
        (253_402_300_799, datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
        # Date.now() of JavaScript, as many publishers write it
        (1_767_312_000_000, datetime(2026, 1, 2, tzinfo=UTC)),
        (1_767_312_000_500, datetime(2026, 1, 2, 0, 0, 0, 500_000, tzinfo=UTC)),
        (2**64 - 1, None),
    ],
)
def test_timestamp_is_seconds_or_milliseconds_or_none_and_never_an_error(
    number: int, time: datetime | None
) -> None:
    _, properties = decode.content_header(a_header_with_timestamp(number), 0)
    assert properties.timestamp == time


def test_header_that_is_no_time_is_its_number() -> None:
    data = a_table(b"\x01tT" + struct.pack(">Q", 2**64 - 1))
    assert decode.table(data, 0)[0] == {"t": 2**64 - 1}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (b"t\x01", True),
        (b"b\xff", -1),
        (b"B\xff", 255),
        (b"s\xff\xfe", -2),
        (b"u\xff\xfe", 65_534),
        (b"I\xff\xff\xff\xff", -1),
        (b"i\xff\xff\xff\xff", 2**32 - 1),
        (b"l\xff\xff\xff\xff\xff\xff\xff\xff", -1),
        (b"f\x3f\x80\x00\x00", 1.0),
        (b"d\x3f\xf0\x00\x00\x00\x00\x00\x00", 1.0),
        (b"S\x00\x00\x00\x02hi", "hi"),
        (b"S\x00\x00\x00\x02\xff\xfe", b"\xff\xfe"),
        (b"x\x00\x00\x00\x02hi", b"hi"),
        (b"V", None),
        (b"A\x00\x00\x00\x03Vt\x00", [None, False]),
        (b"F\x00\x00\x00\x03\x01aV", {"a": None}),
    ],
)
def test_each_type_of_field(field: bytes, value: object) -> None:
    assert decode.table(a_table(b"\x01k" + field), 0)[0] == {"k": value}


@pytest.mark.parametrize(
    "data",
    [
        a_table(b"\x01kQ"),
        a_table(b"\x01kS\x00\x00\x00\xff" + b"hi"),
        a_table(b"\x01kA\x00\x00\x00\xff" + b"V"),
        a_table(b"\x01kF\x00\x00\x00\xff" + b"\x01aV"),
        b"\x00\x00\x00\xff",
        a_table(b"\xffk"),
    ],
)
def test_table_that_lies_about_its_length_or_type_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedFrameError):
        decode.table(data, 0)


def test_second_word_of_property_flags_is_refused() -> None:
    with pytest.raises(MalformedFrameError):
        decode.content_header(struct.pack(">HHQH", 60, 0, 0, 1), 0)
