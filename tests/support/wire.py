"""AMQP 0-9-1 frames as bytes, also invalid ones."""

from __future__ import annotations

import struct
from typing import Any

from pamqp import commands
from pamqp.base import Frame
from pamqp.frame import marshal, unmarshal

from broker_client.amqp.connection_limits import ConnectionLimits
from broker_client.amqp.encode import publish_frames
from broker_client.amqp.server_connection import ServerConnection
from broker_client.message import Outgoing, Properties

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
PATIENT = {"capabilities": {"authentication_failure_close": True}}


def frame(kind: int, channel: int, payload: bytes = b"", end: int = 0xCE) -> bytes:
    """One frame, valid or not."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes((end,))


def method(value: Frame, channel: int = 0) -> bytes:
    """A method frame."""
    return marshal(value, channel)


def raw_method(channel: int, class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
    """A method frame with any bytes as arguments."""
    return frame(METHOD, channel, struct.pack(">HH", class_id, method_id) + arguments)


def content_header(
    size: int,
    *,
    channel: int = 1,
    class_id: int = 60,
    weight: int = 0,
    flags: int = 0,
    values: bytes = b"",
) -> bytes:
    """A content header frame, valid or not."""
    payload = struct.pack(">HHQH", class_id, weight, size, flags) + values
    return frame(HEADER, channel, payload)


def publish(
    body: bytes = b"body",
    properties: Properties | None = None,
    *,
    channel: int = 1,
    exchange: str = "",
    routing_key: str = "q",
    mandatory: bool = False,
    frame_max: int = 131_072,
) -> bytes:
    """All frames of a publish."""
    message = Outgoing(exchange, routing_key, body, properties or Properties(), mandatory)
    return publish_frames(channel, message, frame_max)


def start_ok(
    mechanism: str = "PLAIN", response: str = "\0guest\0guest", properties: Any = None
) -> bytes:
    """connection.start-ok."""
    properties = PATIENT if properties is None else properties
    return method(commands.Connection.StartOk(properties, mechanism, response, "en_US"))


def tune_ok(channel_max: int = 2_047, frame_max: int = 131_072, heartbeat: int = 0) -> bytes:
    """connection.tune-ok."""
    return method(commands.Connection.TuneOk(channel_max, frame_max, heartbeat))


def open_vhost(name: str = "/") -> bytes:
    """connection.open."""
    return method(commands.Connection.Open(name))


def frames_in(data: bytes) -> list[tuple[int, Any]]:
    """(channel, frame) of all whole frames in `data`."""
    found = []
    while data:
        used, channel, value = unmarshal(data)
        found.append((channel, value))
        data = data[used:]
    return found


def names_in(data: bytes) -> list[str]:
    """Names of all frames in `data`."""
    return [value.name for _, value in frames_in(data)]


def a_server_connection(**limits: int) -> ServerConnection:
    """A connection that waits for the protocol header."""
    return ServerConnection(ConnectionLimits(**limits), {"product": "test"}, ["PLAIN"])


def an_open_connection(*channels: int, frame_max: int = 131_072, **limits: int) -> ServerConnection:
    """An open connection with these channels open, and nothing left to send."""
    connection = a_server_connection(frame_max=frame_max, **limits)
    connection.receive_data(PROTOCOL_HEADER)
    connection.receive_data(start_ok())
    connection.tune()
    channel_max = limits.get("channel_max", 2_047)
    connection.receive_data(tune_ok(channel_max, frame_max) + open_vhost())
    connection.open_ok()
    for channel in channels:
        connection.receive_data(method(commands.Channel.Open(), channel))
        connection.send(channel, commands.Channel.OpenOk())
    connection.data_to_send()
    return connection
