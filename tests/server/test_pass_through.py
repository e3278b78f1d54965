"""A message passes through the server byte by byte, whatever its header types are."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from broker_client import Broker
from broker_client.amqp.table_decoding import decode_arguments
from tests.server.conftest import Listen
from tests.server.peer import Peer
from tests.support.served import Served
from tests.support.wire import content_header, frame, method


def nested(depth: int) -> bytes:
    """A table, type included, in which others stand `depth` deep."""
    value = b"F\0\0\0\0"
    for _ in range(depth - 1):
        value = b"F" + struct.pack(">I", 2 + len(value)) + b"\x01x" + value
    return value


TABLES = {
    "numbers": b"\x01af\x3d\xcc\xcc\xcd\x01bs\x00\x07\x01cb\xff\x01dB\xfe\x01eV",
    "64 bits": b"\x01aL" + b"\xff" * 8 + b"\x01bT\x7f" + b"\xff" * 7 + b"\x01cT" + b"\xff" * 8,
    "bytes": b"\x01ax\0\0\0\x03\0\xff\xfe\x01bS\0\0\0\x02\xff\xfe",
    "decimals": b"\x01aD\xff\xff\xff\xff\xff\x01bD\0\x80\0\0\0",
    "keys": b"\0t\1\x01kt\1\x01kt\0\x02\xff\xfet\1\xff" + b"k" * 255 + b"V",
    "60 deep": b"\x01a" + nested(60),
    "array": b"\x01aA\0\0\0\x09VVt\x02A\0\0\0\0",
    "empty": b"",
}
"""Types that Python does not have, keys that no mapping has, and values without a meaning."""
_AFTER_TABLE = b"\x02" + b"\x03\xff\xfeX"
_FLAGS = 0x2000 | 0x1000 | 0x0080  # headers, delivery_mode, message_id


def _properties(table: str) -> bytes:
    """Also with a message id that is not UTF-8."""
    return struct.pack(">I", len(TABLES[table])) + TABLES[table] + _AFTER_TABLE


def publish_with(
    routing_key: str,
    table: str,
    *,
    exchange: str = "",
    mandatory: bool = False,
    body: bytes = b"body",
) -> bytes:
    values = commands.Basic.Publish(exchange=exchange, routing_key=routing_key, mandatory=mandatory)
    return (
        method(values, 1)
        + content_header(4, flags=_FLAGS, values=_properties(table))
        + frame(3, 1, b"body")
    )


async def header_after(peer: Peer, answer: type[object]) -> bytes:
    """The payload of the content header behind the method `answer`, as received."""
    data = b""
    while True:
        at = 0
        seen = False
        while len(data) >= at + 8:
            kind, _, size = struct.unpack_from(">BHI", data, at)
            if len(data) < at + 8 + size:
                break
            payload = data[at + 7 : at + 7 + size]
            if kind == 1:
                seen = int.from_bytes(payload[:4], "big") == getattr(answer, "index", None)
            if kind == 2 and seen:
                return payload
            at += 8 + size
        data += await peer.reader.read(65_536)


def _whole(table: str) -> bytes:
    return struct.pack(">HHQH", 60, 0, 4, _FLAGS) + _properties(table)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("how", ["consumed", "got", "returned", "routed by headers", "redelivered"])
async def test_properties_come_out_as_the_bytes_that_went_in(
    listen: Listen, how: str, table: str
) -> None:
    server = await listen()
    async with Peer.on_channel(server.port) as peer:
        peer.send(1, commands.Queue.Declare(queue="q"))
        await peer.expect(commands.Queue.DeclareOk)
        if how == "returned":
            peer.write(publish_with("nowhere", table, mandatory=True))
            header = await header_after(peer, commands.Basic.Return)
        elif how == "consumed":
            peer.write(publish_with("q", table))
            peer.send(1, commands.Basic.Consume(queue="q", consumer_tag="c", no_ack=True))
            header = await header_after(peer, commands.Basic.Deliver)
        else:
            exchange = "amq.headers" if how == "routed by headers" else ""
            if exchange:
                peer.send(1, commands.Queue.Bind(queue="q", exchange=exchange, arguments={}))
                await peer.expect(commands.Queue.BindOk)
            peer.write(publish_with("q", table, exchange=exchange))
            if how == "redelivered":
                peer.send(1, commands.Basic.Get(queue="q"))
                assert await header_after(peer, commands.Basic.GetOk) == _whole(table)
                peer.send(1, commands.Basic.Recover(requeue=True))
                await peer.expect(commands.Basic.RecoverOk)
            peer.send(1, commands.Basic.Get(queue="q", no_ack=True))
            header = await header_after(peer, commands.Basic.GetOk)
    assert header == _whole(table)


async def test_properties_come_out_as_the_bytes_that_went_in_after_a_restart(
    tmp_path: Path,
) -> None:
    with Served(data=tmp_path / "broker.db") as server:
        async with Peer.on_channel(server.port) as peer:
            peer.send(1, commands.Queue.Declare(queue="q", durable=True))
            await peer.expect(commands.Queue.DeclareOk)
            peer.send(1, commands.Confirm.Select())
            await peer.expect(commands.Confirm.SelectOk)
            for table in TABLES:
                peer.write(publish_with("q", table))
                await peer.expect(commands.Basic.Ack)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        async with Peer.on_channel(server.port) as peer:
            for table in TABLES:
                peer.send(1, commands.Basic.Get(queue="q", no_ack=True))
                assert await header_after(peer, commands.Basic.GetOk) == _whole(table)


@pytest.mark.parametrize("table", TABLES)
async def test_the_application_of_an_embedded_broker_reads_such_headers(table: str) -> None:
    config = {
        "vhosts": {
            "/": {
                "connection": "embedded://",
                "queues": ["q"],
                "subscriptions": {"q": {"queue": "q"}},
            }
        },
        "node": {"listen": "127.0.0.1:0"},
    }
    async with Broker.create(config) as broker:
        port = int(broker.listening_on[0].rpartition(":")[2])
        async with Peer.on_channel(port) as peer:
            peer.write(publish_with("q", table))
            received: dict[str, Any] = {}
            subscription = await broker.subscribe("q")
            async for message, _, ack_or_nack in subscription:
                received.update(message.headers)
                await ack_or_nack()
                break
    headers = {key: value for key, value in received.items() if key != "rascal"}
    assert headers == decode_arguments(_properties(table)[: -len(_AFTER_TABLE)])
