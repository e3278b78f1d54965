"""What answers is not a RabbitMQ: the error says what it is, at once."""

from __future__ import annotations

import asyncio

import pytest

from broker_client.errors import ConnectFailedError
from broker_client.transport.rabbitmq.connector import NetworkConnector
from broker_client.transport.rabbitmq.other_protocols import other_protocol

SAID = [
    (b"HTTP/1.1 400 Bad Request\r\n\r\n", "a web server answers there (HTTP/1.1 400 Bad Request)"),
    (b"\x15\x03\x01\x00\x02\x02\x46", "the server there uses TLS: write amqps://"),
    (b"AMQP\x00\x01\x00\x00", "the server there speaks AMQP 1.0, and not 0-9-1 as RabbitMQ does"),
    (b"AMQP\x03\x01\x00\x00", "the server there speaks AMQP 1.0, and not 0-9-1 as RabbitMQ does"),
    (b"AMQP\x01\x01\x00\x0a", "the server there speaks AMQP 0-10, and not 0-9-1"),
    (b"AMQP\x01\x01\x08\x00", "the server there speaks AMQP 8-0, and not 0-9-1"),
    (b"AMQP\x00\x00\x09\x01", "did not take the protocol header of AMQP 0-9-1"),
    (b"SSH-2.0-OpenSSH_9.2\r\n", "does not speak AMQP: SSH-2.0-OpenSSH_9.2"),
    (b"-ERR unknown command\r\n", "does not speak AMQP: -ERR unknown command"),
    (b"\r\n", r"does not speak AMQP: b'\r\n'"),
    (b"-", "does not speak AMQP: -"),
    (b"J\x00\x00\x00\n8.0.31\x00", r"does not speak AMQP: b'J\x00\x00\x00\n8.0.31\x00'"),
    (b"x" * 10_000, "does not speak AMQP: " + "x" * 60),
    (b"\xff" * 10_000, "does not speak AMQP: " + repr(b"\xff" * 60)),
]


@pytest.mark.parametrize(("first", "reason"), SAID)
async def test_error_says_at_once_what_answers(first: bytes, reason: str) -> None:
    """The server leaves the connection open, as one that waits for the rest of a request."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(first)
        await reader.read()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        connector = NetworkConnector(f"amqp://guest:secret@127.0.0.1:{port}")
        with pytest.raises(ConnectFailedError) as raised:
            await connector.connect(timeout=60.0)
    assert reason in raised.value.reason
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("first", [b"\x01", b"\x01\x00\x00", b"A", b"AMQP\x00\x00\x09"])
def test_what_may_still_become_amqp_is_waited_for(first: bytes) -> None:
    assert other_protocol(first) is None


async def test_server_that_waits_for_more_is_asked_about_when_the_time_is_over() -> None:
    """A web server may wait for the rest of a request."""

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(
            ConnectFailedError, match=r"no answer within 0\.2 s; .* its port for AMQP"
        ):
            await NetworkConnector(f"amqp://127.0.0.1:{port}").connect(timeout=0.2)
