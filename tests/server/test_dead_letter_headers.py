"""A broker that adds headers to a message keeps the bytes of the other headers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pamqp import commands

from broker_client.amqp.tables import encode_table
from tests.server.peer import Peer
from tests.server.test_pass_through import header_after, nested
from tests.support.served import Served
from tests.support.wire import content_header, frame, method

_ENTRIES = (
    b"\x01ab\x05",
    b"\x01bs\x00\x07",
    b"\x01cl\x00\x00\x00\x00\x00\x00\x00\x05",
    b"\x01dI\x00\x00\x00\x05",
    b"\x01ef\x3d\xcc\xcc\xcd",
    b"\x01fD\x02\x00\x00\x00\x7b",
    b"\x01gS\x00\x00\x00\x02\xff\xfe",
    b"\x01hx\x00\x00\x00\x01a",
    b"\x01iT\x00\x00\x01\x8b\xcf\xe5\x68\x00",
    b"\x01jF\x00\x00\x00\x05\x01as\x00\x05",
    b"\x01kA\x00\x00\x00\x02b\x05",
    b"\x01lB\xfe",
    b"\x01mu\xff\xfe",
    b"\x01ni\xff\xff\xff\xfe",
    b"\x01oV",
    b"\x00t\x01",
    b"\x01pI\x00\x00\x00\x01",
    b"\x01pI\x00\x00\x00\x02",
    b"\x02\xff\xfet\x01",
    b"\x01qD\xff\xff\xff\xff\xff",
    b"\x01rT\x7f" + b"\xff" * 7,
    b"\x01s" + nested(60),
)
"""Types that Python's values do not distinguish, text and a key that are not UTF-8, a key that is
empty and one that comes twice, a time and a decimal without a meaning, and tables 60 deep."""

_FLAGS_AT, _TABLE_AT = 12, 14
_HEADERS = 0x2000


@pytest.fixture(params=["memory", "file", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
async def port(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[int]:
    if request.param == "rabbitmq":
        yield urlsplit(request.getfixturevalue("rabbitmq").url()).port or 5672
        return
    data = tmp_path / "broker.db" if request.param == "file" else None
    with Served(data=data) as server:
        yield server.port


async def _declare(peer: Peer, queue: str, **arguments: Any) -> None:
    given = {name.replace("_", "-"): value for name, value in arguments.items()}
    peer.send(1, commands.Queue.Declare(queue=queue, durable=True, arguments=given))
    await peer.expect(commands.Queue.DeclareOk)


async def _publish(peer: Peer, queue: str, extra: bytes = b"") -> None:
    entries = b"".join(_ENTRIES) + extra
    values = len(entries).to_bytes(4, "big") + entries + b"\x02"
    peer.write(
        method(commands.Basic.Publish(routing_key=queue), 1)
        + content_header(4, flags=_HEADERS | 0x1000, values=values)
        + frame(3, 1, b"body")
    )


async def _got(peer: Peer, queue: str, *, no_ack: bool = True) -> bytes:
    """The header table of the next message, without its size."""
    async with asyncio.timeout(30.0):
        while True:
            peer.send(1, commands.Queue.Declare(queue=queue, passive=True))
            if (await peer.expect(commands.Queue.DeclareOk)).message_count:
                break
            await asyncio.sleep(0.01)
        peer.send(1, commands.Basic.Get(queue=queue, no_ack=no_ack))
        header = await header_after(peer, commands.Basic.GetOk)
    assert int.from_bytes(header[_FLAGS_AT:_TABLE_AT], "big") & _HEADERS
    size = int.from_bytes(header[_TABLE_AT : _TABLE_AT + 4], "big")
    return header[_TABLE_AT + 4 : _TABLE_AT + 4 + size]


def _changed(table: bytes) -> list[bytes]:
    """Published entries that are not in `table` unchanged."""
    return [entry for entry in _ENTRIES if entry not in table]


def _has(table: bytes, name: str) -> bool:
    return bytes((len(name),)) + name.encode() in table


@pytest.mark.parametrize("reason", ["expired", "maxlen", "rejected", "delivery_limit", "chain"])
async def test_other_headers_keep_their_bytes_when_a_message_is_dead_lettered(
    port: int, reason: str
) -> None:
    run = uuid.uuid4().hex
    source, dead = f"source-{run}", f"dead-{run}"
    to_dead = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": dead}
    extra: dict[str, Any] = {}
    async with Peer.on_channel(port) as peer:
        await _declare(peer, dead)
        if reason == "expired":
            extra = {"x_message_ttl": 1}
        elif reason == "maxlen":
            extra = {"x_max_length": 0}
        elif reason == "delivery_limit":
            extra = {"x_queue_type": "quorum", "x_delivery_limit": 0}
        elif reason == "chain":
            await _declare(peer, f"second-{run}", x_message_ttl=1, **to_dead)
            to_dead["x_dead_letter_routing_key"] = f"second-{run}"
            extra = {"x_message_ttl": 1}
        await _declare(peer, source, **to_dead, **extra)
        copies = encode_table({"CC": [f"nobody-{run}"]})[4:]
        await _publish(peer, source, copies)
        if reason in ("rejected", "delivery_limit"):
            await _got(peer, source, no_ack=False)
            peer.send(1, commands.Basic.Reject(1, requeue=reason == "delivery_limit"))
        table = await _got(peer, dead)
    assert _changed(table) == []
    assert _has(table, "x-death")
    assert _has(table, "x-first-death-queue")
    assert not _has(table, "CC")


async def test_other_headers_keep_their_bytes_when_returns_are_counted(port: int) -> None:
    queue = f"quorum-{uuid.uuid4().hex}"
    async with Peer.on_channel(port) as peer:
        await _declare(peer, queue, x_queue_type="quorum")
        await _publish(peer, queue)
        await _got(peer, queue, no_ack=False)
        peer.send(1, commands.Basic.Reject(1, requeue=True))
        table = await _got(peer, queue)
    assert _changed(table) == []
    assert _has(table, "x-delivery-count")


async def test_dead_letter_keeps_the_bytes_of_other_headers_after_a_restart(
    tmp_path: Path,
) -> None:
    with Served(data=tmp_path / "broker.db") as server:
        async with Peer.on_channel(server.port) as peer:
            await _declare(peer, "dead")
            to_dead = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"}
            await _declare(peer, "source", **to_dead)
            peer.send(1, commands.Confirm.Select())
            await peer.expect(commands.Confirm.SelectOk)
            await _publish(peer, "source")
            await peer.expect(commands.Basic.Ack)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        async with Peer.on_channel(server.port) as peer:
            await _got(peer, "source", no_ack=False)
            peer.send(1, commands.Basic.Reject(1, requeue=False))
            table = await _got(peer, "dead")
    assert _changed(table) == []
    assert _has(table, "x-death")


async def test_other_headers_keep_their_bytes_when_a_message_is_delayed_or_copied() -> None:
    with Served() as server:
        async with Peer.on_channel(server.port) as peer:
            await _declare(peer, "q")
            await _publish(peer, "q", encode_table({"x-delay": 1, "BCC": ["nowhere"]})[4:])
            table = await _got(peer, "q")
    assert _changed(table) == []
    assert encode_table({"x-delay": -1})[4:] in table
    assert not _has(table, "BCC")
