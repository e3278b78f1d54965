import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_client.amqp.decode import DeliverDecoder, DeliverMethod
from broker_client.errors import MalformedFrameError

NAMES = st.sampled_from(["", "a", "b", "ab", "orders", "ü" * 100])
METHODS = st.builds(DeliverMethod, NAMES, st.integers(0, 2**64 - 1), st.booleans(), NAMES, NAMES)


def short(text: str) -> bytes:
    data = text.encode()
    return bytes((len(data),)) + data


def encoded(method: DeliverMethod) -> bytes:
    tag, number, redelivered, exchange, routing_key = method
    between = struct.pack(">QB", number, redelivered)
    return short(tag) + between + short(exchange) + short(routing_key)


@given(st.lists(METHODS, max_size=8), st.binary(max_size=3), st.binary(max_size=3))
def test_deliveries_are_decoded_whatever_came_before_them(
    methods: list[DeliverMethod], before: bytes, behind: bytes
) -> None:
    decode = DeliverDecoder()
    for method in methods:
        data = encoded(method)
        buffer = before + data + behind
        assert decode(buffer, len(before), len(before) + len(data)) == method


@pytest.mark.parametrize("cut", range(1, len(encoded(DeliverMethod("ab", 7, True, "cd", "ef")))))
def test_delivery_that_is_cut_off_is_refused_also_behind_a_whole_one(cut: int) -> None:
    decode = DeliverDecoder()
    data = encoded(DeliverMethod("ab", 7, True, "cd", "ef"))
    decode(data, 0, len(data))
    with pytest.raises((MalformedFrameError, IndexError, struct.error)):
        decode(data[:cut], 0, cut)
