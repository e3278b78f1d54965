"""Reads runs of whole deliveries: a broker often sends many at once.

It takes three frames at a time (method, content header, a single body frame) and keeps nothing of
one delivery for the next but what they have in common. Whatever else arrives, or is not sound, is
left where it is, for one who reads single frames.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from broker_client.amqp import decode
from broker_client.errors import MalformedFrameError
from broker_client.message import Delivery, Properties

Header = Callable[[bytes], tuple[int, Properties, str]]
"""Decodes a content header: (body size, properties, what is wrong), as `readable_header`."""

_new = tuple.__new__  # a named tuple's own constructor is a Python call
_METHOD_FRAME = struct.Struct(">BHII").unpack_from  # type, channel, payload size, method
_TAG = struct.Struct(">QB")  # delivery tag, redelivered
_UNREADABLE = (MalformedFrameError, IndexError, struct.error)
_BEFORE, _END = decode.FRAME_HEADER_SIZE, decode.FRAME_END


class DeliveryReader:
    """Reads the deliveries of one connection.

    Channel, consumer tag, exchange and routing key are often those of the previous delivery. Then
    they are compared, not decoded.
    """

    __slots__ = ("_consumer_tag", "_exchange", "_head", "_number", "_routing_key", "_tail")

    def __init__(self) -> None:
        self._number = 0
        self._consumer_tag = self._exchange = self._routing_key = ""
        self._head = self._tail = b"\0"  # a method frame before and behind `_TAG`

    def __call__(
        self, buffer: bytes, at: int, frame_max: int, header: Header
    ) -> tuple[list[tuple[int, Delivery]], int]:
        """Take the whole deliveries that begin at `at`.

        Args:
            buffer: what was received.
            at: where a frame begins.
            frame_max: largest frame, in bytes.
            header: decodes content headers.

        Returns:
            The deliveries with the numbers of their channels, and where the first frame begins
            that was not taken.
        """
        end = len(buffer)
        deliveries: list[tuple[int, Delivery]] = []
        head, tail, number = self._head, self._tail, self._number
        try:
            while True:
                tag_at = at + len(head)
                tail_at = tag_at + _TAG.size
                if not (buffer.startswith(head, at) and buffer.startswith(tail, tail_at)):
                    if not self._learn(buffer, at, frame_max):
                        break
                    head, tail, number = self._head, self._tail, self._number
                    continue
                second = tail_at + len(tail)
                kind, channel, size = decode.frame_header(buffer, second)
                third = second + _BEFORE + size + 1
                if kind != decode.HEADER or channel != number or third - second > frame_max:
                    break
                kind, channel, size = decode.frame_header(buffer, third)
                body = third + _BEFORE
                stop = body + size
                if kind != decode.BODY or channel != number or stop >= end:
                    break
                if stop + 1 - third > frame_max or not buffer[third - 1] == buffer[stop] == _END:
                    break
                body_size, properties, fault = header(buffer[second + _BEFORE : third - 1])
                if body_size != size:
                    break
                delivery_tag, bits = _TAG.unpack_from(buffer, tag_at)
                fields = (
                    self._consumer_tag,
                    delivery_tag,
                    bits & 1 == 1,
                    self._exchange,
                    self._routing_key,
                    buffer[body:stop],
                    properties,
                    None,
                    fault,
                )
                deliveries.append((number, _new(Delivery, fields)))
                at = stop + 1
        except _UNREADABLE:  # incomplete, or not sound
            pass
        return deliveries, at

    def _learn(self, buffer: bytes, at: int, frame_max: int) -> bool:
        """Decode the method frame at `at`; False if it is no whole basic.deliver."""
        kind, number, size, method = _METHOD_FRAME(buffer, at)
        end = at + _BEFORE + size + 1
        if (
            method != decode.BASIC_DELIVER
            or kind != decode.METHOD
            or end - at > frame_max
            or end > len(buffer)
            or buffer[end - 1] != _END
        ):
            return False
        arguments = at + _BEFORE + 4
        fields, behind = decode.deliver(buffer, arguments)
        if behind != end - 1:
            return False
        tag_at = arguments + 1 + buffer[arguments]
        self._head, self._tail = buffer[at:tag_at], buffer[tag_at + _TAG.size : end]
        self._consumer_tag, _, _, self._exchange, self._routing_key = fields
        self._number = number
        return True
