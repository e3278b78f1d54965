"""Reads runs of acks for single deliveries: clients often write many at once."""

from __future__ import annotations

import struct

from pamqp.commands import Basic

from broker_client.amqp import decode

ACK_SIZE = 13
"""Bytes of a basic.ack: class, method, tag and bits."""

_ACK = Basic.Ack.index
_FRAME = struct.Struct(">BHIIQBB")  # frame, class and method, tag, bits, frame end


def read_acks(buffer: bytes, at: int, number: int, tags: list[int]) -> int:
    """Take the whole frames of acks, without `multiple`, that begin at `at`.

    Args:
        buffer: what was received.
        at: where a frame begins.
        number: of the channel.
        tags: gets their delivery tags.

    Returns:
        Where the first frame begins that was not taken.
    """
    expected = (decode.METHOD, number, ACK_SIZE, _ACK)
    size = _FRAME.size
    whole = (len(buffer) - at) // size * size
    for *head, tag, bits, frame_end in _FRAME.iter_unpack(memoryview(buffer)[at : at + whole]):
        if bits & 1 or frame_end != decode.FRAME_END or tuple(head) != expected:
            break
        tags.append(tag)
    return at + len(tags) * size
