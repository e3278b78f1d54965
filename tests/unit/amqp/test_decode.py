import math
import struct
from datetime import UTC, datetime

import pytest

from broker_client.amqp.properties import content_header, readable_header
from broker_client.amqp.table_decoding import MAX_DEPTH, decode_table
from broker_client.amqp.tables import encode_table
from broker_client.errors import MalformedFrameError
from broker_client.message import Properties


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
        # Java writes a time before 1970 as a negative number
        (2**64 - 1, datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)),
        (2**63 - 1, None),
        (2**63, None),
    ],
)
def test_timestamp_is_seconds_or_milliseconds_or_none_and_never_an_error(
    number: int, time: datetime | None
) -> None:
    _, properties = content_header(a_header_with_timestamp(number), 0)
    assert properties.timestamp == time


def test_header_that_is_no_time_is_its_number() -> None:
    data = a_table(
        b"\x01tT" + struct.pack(">Q", 2**63 - 1), b"\x01uT" + struct.pack(">q", -(2**63))
    )
    assert decode_table(data, 0)[0] == {"t": 2**63 - 1, "u": -(2**63)}


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
    assert decode_table(a_table(b"\x01k" + field), 0)[0] == {"k": value}


@pytest.mark.parametrize(
    "data",
    [
        a_table(b"\x01kQ"),
        a_table(b"\x01kS\x00\x00\x00\xff" + b"hi"),
        a_table(b"\x01kA\x00\x00\x00\xff" + b"V"),
        a_table(b"\x01kF\x00\x00\x00\xff" + b"\x01aV"),
        b"\x00\x00\x00\xff",
        a_table(b"\xffk"),
        a_table(b"\x01kd" + struct.pack(">d", math.nan)),
        a_table(b"\x01kf" + struct.pack(">f", -math.inf)),
        a_table(b"\x01kA\x00\x00\x00\x02" + b"I\x00\x00\x00\x00"),
    ],
)
def test_table_that_lies_about_its_length_or_type_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedFrameError):
        decode_table(data, 0)


def test_second_word_of_property_flags_is_refused() -> None:
    with pytest.raises(MalformedFrameError):
        content_header(struct.pack(">HHQH", 60, 0, 0, 1), 0)


def nested(kind: bytes, levels: int) -> bytes:
    """A table in which `levels` tables or arrays lie in each other, itself included."""
    inner = b""
    for _ in range(levels - 1):
        key = b"\x01k" if kind == b"F" else b""
        inner = kind + struct.pack(">I", len(inner)) + inner
        inner = key + inner
    return a_table(b"\x01k" + inner if kind == b"A" and inner else inner)


@pytest.mark.parametrize("kind", [b"F", b"A"])
def test_tables_in_each_other_are_read_up_to_the_limit(kind: bytes) -> None:
    value, end = decode_table(nested(kind, MAX_DEPTH), 0)
    assert (list(value), end) == (["k"], len(nested(kind, MAX_DEPTH)))


@pytest.mark.parametrize("kind", [b"F", b"A"])
@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 900, 100_000])
def test_tables_in_each_other_beyond_the_limit_are_malformed(kind: bytes, levels: int) -> None:
    with pytest.raises(MalformedFrameError, match="nested more than 64 levels"):
        decode_table(nested(kind, levels), 0)


def test_header_table_that_cannot_be_read_leaves_the_other_properties() -> None:
    headers = nested(b"F", 900)
    payload = struct.pack(">HHQH", 60, 0, 3, 0x2080) + headers + b"\x02m1"
    size, properties, fault = readable_header(payload)
    assert (size, properties) == (3, Properties(message_id="m1"))
    assert fault == "malformed frame: tables are nested more than 64 levels deep"


@pytest.mark.parametrize(
    "poison",
    [
        b"\x01pF" + nested(b"F", 900),
        b"\x01pd" + struct.pack(">d", float("nan")),
        b"\x01pf" + struct.pack(">f", float("inf")),
        b"\x01pA" + struct.pack(">I", 5) + b"S" + struct.pack(">I", 2**31),
    ],
    ids=["too deep", "NaN", "infinity", "array that lies about its length"],
)
def test_entry_that_cannot_be_read_leaves_the_other_headers(poison: bytes) -> None:
    headers = a_table(b"\x01aV" + poison + b"\x01zS" + struct.pack(">I", 1) + b"!")
    payload = struct.pack(">HHQH", 60, 0, 3, 0x2080) + headers + b"\x02m1"
    _, properties, fault = readable_header(payload)
    assert properties == Properties(message_id="m1", headers={"a": None, "z": "!"})
    assert fault


def test_entry_of_an_unknown_type_hides_those_behind_it_only() -> None:
    headers = a_table(b"\x01at\x01" + b"\x01?\x00" + b"\x01zV")
    payload = struct.pack(">HHQH", 60, 0, 3, 0x2080) + headers + b"\x02m1"
    _, properties, fault = readable_header(payload)
    assert properties == Properties(message_id="m1", headers={"a": True})
    assert "unknown field type" in fault


def test_names_that_are_no_text_stay_short_enough_to_be_written_again() -> None:
    raw = b"\xff" * 255
    value, _ = decode_table(a_table(b"\xff" + raw + b"V"), 0)
    assert value == {"?" * 255: None}
    encode_table(value)
