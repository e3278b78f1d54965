"""Clients that are slow, silent, greedy or invalid: each is limited, and others are not
affected."""

from __future__ import annotations

import asyncio
import gc
import random
from typing import Any

import aio_pika
import psutil
import pytest
from pamqp import commands

from tests.server.conftest import Listen
from tests.server.peer import HEADER, HEARTBEAT, Peer
from tests.support.builders import a_message
from tests.support.eventually import eventually
from tests.support.receivers import RecordingReceiver
from tests.support.served import Served
from tests.support.wire import publish

_MIB = 1024 * 1024


@pytest.mark.parametrize("sent", [b"", HEADER[:3], HEADER], ids=["nothing", "half", "header"])
async def test_a_client_that_does_not_finish_its_handshake_is_cut(
    listen: Listen, sent: bytes
) -> None:
    listening = await listen(handshake_timeout=0.2)
    peer = await Peer.connect(listening.port)
    peer.write(sent)
    await peer.ended()
    await eventually(lambda: listening.server.socket_count == 0)
    await peer.close()


async def test_another_protocol_gets_our_header_and_no_more(listen: Listen) -> None:
    listening = await listen()
    peer = await Peer.connect(listening.port)
    peer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert await peer.ended() == HEADER
    await peer.close()


async def test_a_violation_costs_its_own_connection_only(listen: Listen) -> None:
    listening = await listen()
    good, bad = await Peer.open(listening.port), await Peer.open(listening.port)
    await good.channel()
    await bad.channel()
    bad.send(1, commands.Basic.Publish(exchange="", routing_key="q"))
    bad.send(1, commands.Queue.Declare(queue="q"))  # in place of the content header
    closing = await bad.expect(commands.Connection.Close)
    assert (closing.reply_code, closing.class_id, closing.method_id) == (505, 60, 40)
    bad.send(1, commands.Queue.Declare(queue="ignored"))
    bad.send(0, commands.Connection.CloseOk())
    assert await bad.ended() == b""
    good.send(1, commands.Queue.Declare(queue="ignored", passive=True))
    assert (await good.expect(commands.Channel.Close)).reply_code == 404
    for peer in (good, bad):
        await peer.close()


async def test_a_client_that_does_not_answer_a_close_is_cut(listen: Listen) -> None:
    listening = await listen(close_timeout=0.2)
    peer = await Peer.open(listening.port)
    peer.send(0, commands.Connection.TuneOk(1, 4096, 0))
    await peer.expect(commands.Connection.Close)
    assert await peer.ended() == b""
    await peer.close()


async def test_a_client_that_sends_on_behind_its_close_still_reads_close_ok(listen: Listen) -> None:
    listening = await listen()
    peer = await Peer.open(listening.port)
    for _ in range(3):
        peer.send(0, commands.Connection.Close(200, "", 0, 0))
    peer.write(HEARTBEAT * 200_000)  # more than one read
    await peer.writer.drain()
    await peer.expect(commands.Connection.CloseOk)
    await peer.close()
    await eventually(lambda: not listening.server.connections())


async def test_a_client_that_sends_on_behind_its_violation_still_reads_why(listen: Listen) -> None:
    listening = await listen()
    peer = await Peer.open(listening.port)
    peer.write(b"\x01\x00\x00\x00\x00\x00\x04\x00\x0a\x00\x0aX" + bytes(2_000_000))
    closing = await peer.expect(commands.Connection.Close)
    assert closing.reply_code == 501
    assert await peer.reader.read(-1) == b"", "and no reset"
    await peer.close()
    await eventually(lambda: not listening.server.socket_count)


async def test_a_client_that_does_not_end_its_socket_after_close_ok_is_cut(listen: Listen) -> None:
    listening = await listen(close_timeout=0.2)
    peer = await Peer.open(listening.port)
    peer.send(0, commands.Connection.Close(200, "", 0, 0))
    await peer.expect(commands.Connection.CloseOk)

    def is_cut() -> bool:
        peer.write(HEARTBEAT)
        return peer.writer.transport.is_closing()

    await eventually(is_cut)
    await peer.close()


async def test_a_consumer_that_never_reads_is_sent_a_bounded_amount(listen: Listen) -> None:
    listening = await listen(write_buffer=_MIB)
    peer = await Peer.open(listening.port)
    await peer.channel()
    peer.send(1, commands.Queue.Declare(queue="q"))
    await peer.expect(commands.Queue.DeclareOk)
    node = listening.node
    channel = node.open_channel(
        node.open_connection("/", RecordingReceiver()), RecordingReceiver(), confirm=False
    )
    node.commands.publish(channel, [a_message(body=bytes(_MIB))] * 200)
    peer.send(1, commands.Basic.Consume(queue="q", no_ack=True, nowait=True))
    peer.reader._transport.pause_reading()  # type: ignore[attr-defined] # noqa: SLF001 - it never reads

    def left() -> int:
        return node.commands.check_queue(channel, "q").message_count

    await eventually(lambda: left() < 200)
    before = -1
    while before != left():  # until deliveries stop
        before = left()
        await asyncio.sleep(0.05)
        await node.drain()
    assert before > 150
    peer.reader._transport.resume_reading()  # type: ignore[attr-defined] # noqa: SLF001 - and now it does
    delivered = 0
    while delivered < 200:
        await peer.expect(commands.Basic.Deliver)
        delivered += 1
    await peer.close()


async def test_a_client_that_asks_and_never_reads_is_no_longer_listened_to(listen: Listen) -> None:
    listening = await listen(write_buffer=65536)
    peer = await Peer.open(listening.port)
    await peer.channel()
    peer.send(1, commands.Queue.Declare(queue="q"))
    await peer.expect(commands.Queue.DeclareOk)
    node = listening.node
    channel = node.open_channel(
        node.open_connection("/", RecordingReceiver()), RecordingReceiver(), confirm=False
    )
    node.commands.publish(channel, [a_message(body=bytes(_MIB))] * 100)
    peer.reader._transport.pause_reading()  # type: ignore[attr-defined] # noqa: SLF001 - it never reads
    for _ in range(100):
        peer.send(1, commands.Basic.Get(queue="q", no_ack=True))
    await peer.writer.drain()
    await eventually(lambda: node.commands.check_queue(channel, "q").message_count < 100)
    for _ in range(5):
        await asyncio.sleep(0.02)
        await node.drain()
    assert node.commands.check_queue(channel, "q").message_count > 80
    peer.reader._transport.resume_reading()  # type: ignore[attr-defined] # noqa: SLF001 - and now it does
    for _ in range(100):
        await peer.expect(commands.Basic.GetOk)
    await peer.close()


async def test_a_client_that_never_reads_its_returned_messages_cannot_grow_memory(
    listen: Listen,
) -> None:
    listening = await listen(write_buffer=65536)
    peer = await Peer.open(listening.port)
    await peer.channel()
    peer.reader._transport.pause_reading()  # type: ignore[attr-defined] # noqa: SLF001 - it never reads
    unroutable = publish(bytes(100_000), routing_key="nowhere", mandatory=True)

    async def publish_all() -> None:
        for _ in range(400):
            peer.write(unroutable)
            await peer.writer.drain()

    publishing = asyncio.create_task(publish_all())
    try:
        with pytest.raises(TimeoutError):  # 40 MB are more than sockets and buffers hold
            await asyncio.wait_for(asyncio.shield(publishing), 2.0)
        peer.reader._transport.resume_reading()  # type: ignore[attr-defined] # noqa: SLF001 - and now it does
        for _ in range(400):
            await peer.expect(commands.Basic.Return)
        await publishing
    finally:
        publishing.cancel()
        await peer.close()


async def test_a_silent_client_is_cut_after_two_heartbeats_and_is_sent_ours(
    listen: Listen,
) -> None:
    listening = await listen()
    peer = await Peer.open(listening.port, heartbeat=1)
    began = asyncio.get_running_loop().time()
    with pytest.raises(EOFError):
        await peer.receive()
    assert 2.0 <= asyncio.get_running_loop().time() - began < 30.0
    assert peer.heartbeats >= 2
    await peer.close()


# --------------------------------------------------------------------- many


@pytest.mark.timeout(120)
async def test_ten_thousand_connections_of_garbage_leave_nothing_behind() -> None:
    chance = random.Random(11)
    with Served("--log-level", "error") as served:
        process = psutil.Process(served.pid)

        async def garbage() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            try:
                writer.write(chance.choice([b"", HEADER]) + chance.randbytes(chance.randrange(64)))
                writer.write_eof()
                await reader.read()
            except ConnectionError:
                pass
            finally:
                writer.transport.abort()

        for _ in range(20):
            await garbage()
        descriptors, memory = process.num_fds(), process.memory_info().rss
        for _ in range(10_000 // 50):
            await asyncio.gather(*(garbage() for _ in range(50)))
        await eventually(lambda: process.num_fds() <= descriptors + 2)
        assert process.memory_info().rss - memory < 20 * _MIB
        async with await aio_pika.connect(served.url()) as connection:
            await connection.channel()


@pytest.mark.timeout(120)
async def test_two_thousand_idle_connections_cost_little_and_give_it_back() -> None:
    with Served("--log-level", "error") as served:
        process = psutil.Process(served.pid)
        async with await aio_pika.connect(served.url()) as connection:
            await connection.channel()
        descriptors, memory = process.num_fds(), process.memory_info().rss
        peers: list[Any] = []
        for _ in range(2_000 // 100):
            peers += await asyncio.gather(
                *(Peer.open(served.port, heartbeat=30) for _ in range(100))
            )
        assert process.num_fds() >= descriptors + 1_990
        assert process.memory_info().rss - memory < 2_000 * 100 * 1024
        for peer in peers:
            await peer.close()
        peers.clear()
        gc.collect()
        await eventually(lambda: process.num_fds() <= descriptors + 2)
