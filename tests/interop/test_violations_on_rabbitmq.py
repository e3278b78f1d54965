"""RabbitMQ answers protocol violations as the unit tests of our server expect."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from pamqp import commands

from tests.support.rabbitmq import RabbitMQ
from tests.support.violations import FRAMING, VIOLATIONS, Violation
from tests.support.wire import PROTOCOL_HEADER, frames_in, method, open_vhost, start_ok, tune_ok

CASES = [case for case in (*FRAMING, *VIOLATIONS) if case.like_rabbitmq]


class RawClient:
    """A socket that speaks AMQP, and reads method frames."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._data = b""

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def expect(self, name: str) -> Any:
        """The next frame of this name."""
        for frame in self._frames():
            if frame.name == name:
                return frame
        raise AssertionError(f"no {name}")

    def _frames(self) -> Iterator[Any]:
        while True:
            size = 8 + int.from_bytes(self._data[3:7], "big")
            if len(self._data) >= max(8, size):
                (frame,) = frames_in(self._data[:size])
                self._data = self._data[size:]
                yield frame[1]
                continue
            received = self._socket.recv(65_536)
            assert received, "the broker has closed the connection"
            self._data += received


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_violation_on_rabbitmq_then_the_close_that_we_give(
    case: Violation, rabbitmq: RabbitMQ
) -> None:
    port = urlsplit(rabbitmq.url()).port
    assert port is not None
    with RawClient(port) as client:
        client.send(PROTOCOL_HEADER)
        client.expect("Connection.Start")
        client.send(start_ok())
        client.expect("Connection.Tune")
        client.send(tune_ok() + open_vhost() + method(commands.Channel.Open(), 1))
        client.expect("Channel.OpenOk")
        client.send(case.data)
        close = client.expect("Connection.Close")
    assert (close.reply_code, close.reply_text) == (case.code, case.text)
    assert (close.class_id, close.method_id) == case.ids
