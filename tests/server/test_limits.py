"""Limits of the server: each has a setting, which its refusal names."""

from __future__ import annotations

import asyncio
from typing import Any

import aio_pika
import aiormq.exceptions
import pytest
from pamqp import commands

from tests.server.conftest import Listen
from tests.server.peer import HEADER, Peer
from tests.support.eventually import eventually
from tests.support.listening import Listening


async def refused(listening: Listening) -> commands.Connection.Close:
    """The answer to one more connection."""
    peer = await Peer.connect(listening.port)
    peer.write(HEADER)
    await peer.expect(commands.Connection.Start)
    peer.send(0, commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"))
    tune = await peer.expect(commands.Connection.Tune)
    peer.send(0, commands.Connection.TuneOk(tune.channel_max, tune.frame_max, 0))
    peer.send(0, commands.Connection.Open("/"))
    closing: commands.Connection.Close = await peer.expect(commands.Connection.Close)
    await peer.close()
    return closing


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"max_connections": 2},
            "NOT_ALLOWED - access to vhost '/' refused for user 'guest': node connection limit (2) "
            "is reached",
        ),
        (
            {"max_connections_per_user": 2},
            "NOT_ALLOWED - Connection refused for user 'guest': user connection limit (2) is "
            "reached",
        ),
    ],
)
async def test_one_connection_too_many_is_refused_until_another_ends(
    listen: Listen, settings: dict[str, Any], said: str
) -> None:
    listening = await listen(**settings)
    peers = [await Peer.open(listening.port) for _ in range(2)]
    closing = await refused(listening)
    assert (closing.reply_code, closing.reply_text) == (530, said)
    assert (closing.class_id, closing.method_id) == (10, 40)
    await peers.pop().close()
    await eventually(lambda: len(listening.server.connections()) == 1)
    peers.append(await Peer.open(listening.port))
    for peer in peers:
        await peer.close()


async def test_channels_and_frames_are_what_was_agreed_on(listen: Listen) -> None:
    listening = await listen(channel_max=3, frame_max=8192)
    peer = await Peer.open(listening.port)
    for number in (1, 2, 3):
        await peer.channel(number)
    peer.send(4, commands.Channel.Open())
    closing = await peer.expect(commands.Connection.Close)
    assert (closing.reply_code, "channel_max (3)" in closing.reply_text) == (530, True)
    await peer.close()
    peer = await Peer.open(listening.port)
    await peer.channel()
    peer.write(b"\x03\x00\x01" + (8192).to_bytes(4, "big"))
    assert (await peer.expect(commands.Connection.Close)).reply_code == 501
    await peer.close()


async def test_one_consumer_too_many_costs_the_connection(listen: Listen) -> None:
    listening = await listen(max_consumers_per_channel=1)
    peer = await Peer.open(listening.port)
    await peer.channel()
    peer.send(1, commands.Queue.Declare(queue="q"))
    await peer.expect(commands.Queue.DeclareOk)
    for tag in ("a", "b", "c"):  # the first is cancelled, and does not count
        peer.send(1, commands.Basic.Consume(queue="q", consumer_tag=tag))
        if tag != "c":
            await peer.expect(commands.Basic.ConsumeOk)
        if tag == "a":
            peer.send(1, commands.Basic.Cancel(tag))
            await peer.expect(commands.Basic.CancelOk)
    closing = await peer.expect(commands.Connection.Close)
    assert closing.reply_text == "NOT_ALLOWED - reached maximum (1) of consumers per channel"
    assert (closing.class_id, closing.method_id) == (60, 20)
    await peer.close()


async def test_one_queue_too_many_is_refused_and_those_there_are_not(listen: Listen) -> None:
    listening = await listen(max_queues_per_vhost=1)
    async with await aio_pika.connect(listening.url) as connection:
        channel = await connection.channel()
        await channel.declare_queue("a")
        await channel.declare_queue("a")
        with pytest.raises(
            aiormq.exceptions.ChannelPreconditionFailed, match="queue limit in vhost '/'"
        ):
            await channel.declare_queue("b")


async def test_a_body_too_large_is_refused_by_its_header(listen: Listen) -> None:
    listening = await listen(engine={"max_message_size": 1000})
    async with await aio_pika.connect(listening.url) as connection:
        channel = await connection.channel()
        for size, fits in ((1000, True), (1001, False)):
            message = aio_pika.Message(bytes(size))
            if fits:
                await channel.default_exchange.publish(message, "nowhere", mandatory=False)
                continue
            with pytest.raises(aiormq.exceptions.AMQPError):
                await channel.default_exchange.publish(message, "nowhere", mandatory=False)


async def test_an_address_that_guesses_passwords_is_shut_out_for_a_second(listen: Listen) -> None:
    listening = await listen(max_login_failures=3)
    wrong = listening.url.replace("guest:guest", "guest:wrong")
    for _ in range(3):
        with pytest.raises(aiormq.exceptions.AMQPConnectionError, match="ACCESS_REFUSED"):
            await aio_pika.connect(wrong)
    peer = await Peer.connect(listening.port)
    peer.write(HEADER)
    assert await peer.ended() == b""
    await peer.close()

    async def opens() -> bool:
        try:
            await (await Peer.open(listening.port)).close()
        except (EOFError, ConnectionError):
            return False
        return True

    await eventually(opens)


# --------------------------------------------------------------------- alarms


async def test_publishers_are_blocked_while_memory_is_short_and_consumers_go_on(
    listen: Listen,
) -> None:
    listening = await listen(engine={"memory_high_watermark": 1000})
    publisher = await Peer.open(listening.port, connection__blocked=True)
    await publisher.channel()
    publisher.send(1, commands.Queue.Declare(queue="q"))
    await publisher.expect(commands.Queue.DeclareOk)
    publisher.send(1, commands.Basic.Publish(exchange="", routing_key="q"))
    header = b"\x00\x3c\x00\x00" + (2000).to_bytes(8, "big") + b"\x00\x00"
    for kind, payload in ((2, header), (3, bytes(2000))):
        publisher.write(
            bytes([kind]) + b"\x00\x01" + len(payload).to_bytes(4, "big") + payload + b"\xce"
        )
    blocked = await publisher.expect(commands.Connection.Blocked)
    assert blocked.reason == "low on memory"
    publisher.send(1, commands.Queue.Declare(queue="later"))  # is not read
    consumer = await Peer.open(listening.port)
    await consumer.channel()
    consumer.send(1, commands.Basic.Get(queue="q", no_ack=True))
    await consumer.expect(commands.Basic.GetOk)
    await publisher.expect(commands.Connection.Unblocked)
    await publisher.expect(commands.Queue.DeclareOk)
    for peer in (publisher, consumer):
        await peer.close()


async def test_a_blocked_client_without_the_capability_is_not_read_nevertheless(
    listen: Listen,
) -> None:
    listening = await listen()
    listening.node.set_alarm("disk", True)
    async with await aio_pika.connect(listening.url) as connection:
        channel = await connection.channel(publisher_confirms=True)
        await channel.declare_queue("q")
        publish = channel.default_exchange.publish(aio_pika.Message(b"x"), "q")
        published = asyncio.create_task(publish)
        await eventually(lambda: any(each.is_blocked for each in listening.server.connections()))
        assert not published.done()
        peer = await Peer.open(listening.port)
        await peer.channel()
        peer.send(1, commands.Basic.Get(queue="q"))
        await peer.expect(commands.Basic.GetEmpty)  # RabbitMQ: it is accepted at the end only
        await peer.close()
        listening.node.set_alarm("disk", False)
        await published
