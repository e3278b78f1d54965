"""A message passes through the server byte by byte, whatever its header types are."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest
from pamqp import commands

from tests.server.conftest import Listen
from tests.server.peer import Peer
from tests.support.served import Served
from tests.support.wire import content_header, frame, method

_TABLE = b"\x01af\x3d\xcc\xcc\xcd\x01bs\x00\x07\x01cb\xff\x01dB\xfe\x01eV"
"""Types that Python does not have: a 32-bit float, numbers of 8 and 16 bits."""
_FLAGS = 0x2000 | 0x1000 | 0x0080  # headers, delivery_mode, message_id
_PROPERTIES = struct.pack(">I", len(_TABLE)) + _TABLE + b"\x02" + b"\x03\xff\xfeX"
"""Also with a message id that is not UTF-8."""


def _publish(routing_key: str, *, mandatory: bool = False) -> bytes:
    values = commands.Basic.Publish(routing_key=routing_key, mandatory=mandatory)
    return (
        method(values, 1)
        + content_header(4, flags=_FLAGS, values=_PROPERTIES)
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


@pytest.mark.parametrize("how", ["consumed", "got", "returned"])
async def test_properties_come_out_as_the_bytes_that_went_in(listen: Listen, how: str) -> None:
    server = await listen()
    async with Peer.on_channel(server.port) as peer:
        peer.send(1, commands.Queue.Declare(queue="q"))
        await peer.expect(commands.Queue.DeclareOk)
        if how == "returned":
            peer.write(_publish("nowhere", mandatory=True))
            header = await header_after(peer, commands.Basic.Return)
        elif how == "got":
            peer.write(_publish("q"))
            peer.send(1, commands.Basic.Get(queue="q", no_ack=True))
            header = await header_after(peer, commands.Basic.GetOk)
        else:
            peer.write(_publish("q"))
            peer.send(1, commands.Basic.Consume(queue="q", consumer_tag="c", no_ack=True))
            header = await header_after(peer, commands.Basic.Deliver)
    assert header == struct.pack(">HHQH", 60, 0, 4, _FLAGS) + _PROPERTIES


async def test_properties_come_out_as_the_bytes_that_went_in_after_a_restart(
    tmp_path: Path,
) -> None:
    with Served(data=tmp_path / "broker.db") as server:
        async with Peer.on_channel(server.port) as peer:
            peer.send(1, commands.Queue.Declare(queue="q", durable=True))
            await peer.expect(commands.Queue.DeclareOk)
            peer.send(1, commands.Confirm.Select())
            await peer.expect(commands.Confirm.SelectOk)
            peer.write(_publish("q"))
            await peer.expect(commands.Basic.Ack)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        async with Peer.on_channel(server.port) as peer:
            peer.send(1, commands.Basic.Get(queue="q", no_ack=True))
            header = await header_after(peer, commands.Basic.GetOk)
    assert header == struct.pack(">HHQH", 60, 0, 4, _FLAGS) + _PROPERTIES
