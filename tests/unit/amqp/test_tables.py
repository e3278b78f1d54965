"""Whatever AMQP can carry comes back from its bytes as a client on a network would see it."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_client.amqp.properties import decode_properties, encode_properties
from broker_client.amqp.table_decoding import decode_arguments
from broker_client.amqp.tables import (
    FrozenTable,
    encode_arguments,
    has_none_of,
    preceded,
    without_first,
)
from broker_client.errors import InvalidMessageError, MalformedFrameError
from broker_client.message import Properties

TEXT = st.text(st.characters(codec="utf-8"), max_size=60)
TIMES = st.datetimes(datetime(1970, 1, 2), datetime(9000, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - hypothesis wants them naive
SECONDS = TIMES.map(lambda time: time.replace(microsecond=0))
DECIMALS = st.builds(
    lambda number, places: Decimal(number).scaleb(-places),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 20),
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
    | st.binary(max_size=60)
    | SECONDS
    | DECIMALS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
TABLES = st.dictionaries(TEXT, VALUES, max_size=6)
PROPERTIES = st.builds(
    Properties,
    *(
        st.none()
        | {
            "headers": TABLES,
            "delivery_mode": st.integers(0, 255),
            "priority": st.integers(0, 255),
            "timestamp": SECONDS,
        }.get(name, TEXT)
        for name in Properties._fields
    ),
)


@given(PROPERTIES)
def test_properties_come_back_as_they_were(properties: Properties) -> None:
    assert decode_properties(encode_properties(properties)) == properties


@given(TABLES)
def test_arguments_come_back_as_they_were(arguments: dict[str, Any]) -> None:
    decoded = decode_arguments(encode_arguments(arguments))
    assert decoded == arguments
    assert {k: type(v) for k, v in decoded.items()} == {k: type(v) for k, v in arguments.items()}


@given(TABLES)
def test_equal_arguments_in_another_order_are_equal_bytes(arguments: dict[str, Any]) -> None:
    turned = dict(reversed(list(arguments.items())))
    assert encode_arguments(turned) == encode_arguments(arguments)


def test_a_time_loses_its_fraction_and_a_tuple_becomes_a_list() -> None:
    properties = Properties(
        headers={"both": (1, 2)}, timestamp=datetime(2020, 1, 1, 0, 0, 0, 999, tzinfo=UTC)
    )
    assert decode_properties(encode_properties(properties)) == Properties(
        headers={"both": [1, 2]}, timestamp=datetime(2020, 1, 1, tzinfo=UTC)
    )


@pytest.mark.parametrize(
    "properties",
    [
        Properties(headers={"x": {1, 2}}),
        Properties(headers={"x": 2**64}),
        Properties(priority=256),
        Properties(timestamp=datetime(1960, 1, 1, tzinfo=UTC)),
        Properties(message_id="x" * 256),
    ],
)
def test_what_amqp_cannot_carry_is_refused(properties: Properties) -> None:
    with pytest.raises(InvalidMessageError):
        encode_properties(properties)


@given(PROPERTIES, st.data())
def test_bytes_that_are_cut_off_or_wrong_are_malformed_and_nothing_else(
    properties: Properties, data: st.DataObject
) -> None:
    encoded = bytearray(encode_properties(properties))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(encoded)))
    with contextlib.suppress(MalformedFrameError):
        found = decode_properties(bytes(encoded[:cut]))
        assert type(found) is Properties


def test_properties_alike_but_for_what_varies_are_told_apart() -> None:
    alike = Properties(content_type="text/plain", delivery_mode=2, type="t")
    then = datetime(2020, 1, 1, tzinfo=UTC)
    varied = [
        alike,
        alike._replace(message_id="1"),
        alike._replace(message_id="2"),
        alike._replace(correlation_id="1"),
        alike._replace(headers={}),
        alike._replace(headers={"a": 1}, message_id="1"),
        alike._replace(timestamp=then),
        alike._replace(timestamp=then, correlation_id="1"),
    ]
    for properties in varied * 2:  # the second time from what is remembered
        assert decode_properties(encode_properties(properties)) == properties


def test_encoded_table_when_asked_for_keys_then_not_decoded_unless_it_may_have_one() -> None:
    unreadable = FrozenTable(b"\x00\x00\x00\x05\x03abcZ")
    assert has_none_of(unreadable, frozenset(("CC", "BCC")))
    table = FrozenTable.of({"BCC": ["a"], "other": 1})
    assert not has_none_of(table, frozenset(("BCC",)))
    nested = FrozenTable.of({"other": {"BCC": 1}})
    assert has_none_of(nested, frozenset(("BCC",)))
    assert has_none_of({"a": 1}, frozenset(("BCC",)))
    assert not has_none_of({"BCC": 1}, frozenset(("BCC",)))


def test_entries_put_first_are_taken_off_again_and_only_there() -> None:
    mine, table = FrozenTable.of({"mine": 1}), FrozenTable.of({"a": 2.5, "b": {"mine": 1}})
    both = preceded(table, mine)
    assert isinstance(both, FrozenTable)
    assert list(both) == ["mine", "a", "b"]
    rest = without_first(both, mine)
    assert rest is not None
    assert rest.encoded == table.encoded
    assert without_first(table, mine) is None, "inside of a value they are not ours"
    assert preceded({"a": 2.5}, mine) == {"mine": 1, "a": 2.5}
