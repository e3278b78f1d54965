"""Frames that aiormq reads in place of those that the broker sent."""

from __future__ import annotations

import struct
from typing import NamedTuple

from broker_client.amqp import decode

TUNE, _CLOSE_OK = 10 << 16 | 30, 10 << 16 | 51  # connection.tune, connection.close-ok
_METHOD_FRAME = struct.Struct(">BHII")  # frame type, channel, payload size, method
CLOSE_OK_FRAME = _METHOD_FRAME.pack(decode.METHOD, 0, 4, _CLOSE_OK) + bytes((decode.FRAME_END,))
_TUNE_ARGUMENTS = struct.Struct(">HIH")  # channel_max, frame_max, heartbeat


class Limits(NamedTuple):
    """Limits that we propose for a connection; None takes what the broker proposes."""

    channel_max: int | None = None
    frame_max: int | None = None


def readable_close(number: int, method: int, buffer: bytes, at: int) -> bytes:
    """A close by the broker whose text aiormq can decode.

    RabbitMQ cuts it after 255 bytes, which may be within a character.
    """
    _, text = decode.close_reason(buffer, at)
    cause = at + 2 + 1 + buffer[at + 2]  # class and method that the broker complains of
    data = text.encode()
    arguments = buffer[at : at + 2] + bytes((len(data),)) + data + buffer[cause : cause + 4]
    head = _METHOD_FRAME.pack(decode.METHOD, number, 4 + len(arguments), method)
    return head + arguments + bytes((decode.FRAME_END,))


def lowered_tune(buffer: bytes, at: int, limits: Limits) -> bytes:
    """The broker's connection.tune with what we want less of (AMQP 0-9-1 §4.2.3, 1.4.2.5).

    aiormq agrees to whatever it reads there.
    """
    channel_max, frame_max, heartbeat = _TUNE_ARGUMENTS.unpack_from(buffer, at)
    arguments = _TUNE_ARGUMENTS.pack(
        _lower(limits.channel_max, channel_max), _lower(limits.frame_max, frame_max), heartbeat
    )
    head = _METHOD_FRAME.pack(decode.METHOD, 0, 4 + len(arguments), TUNE)
    return head + arguments + bytes((decode.FRAME_END,))


def _lower(ours: int | None, theirs: int) -> int:
    """The smaller of two limits, where 0 is none."""
    return min(ours, theirs) if ours and theirs else ours or theirs
