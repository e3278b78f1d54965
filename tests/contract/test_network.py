"""Faults of links over a network: refusals, cuts, silence and a server that dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from broker_client.errors import (
    AuthenticationRefusedError,
    ConnectFailedError,
    ConnectionLostError,
    TransportError,
)
from broker_client.transport.base import Link
from broker_client.transport.rabbitmq.connector import NetworkConnector
from tests.contract.observers import Watch, a_message, numbered
from tests.support.eventually import eventually
from tests.support.own_server import free_port
from tests.support.proxy import Proxy
from tests.support.rabbitmq import RabbitMQ

CONNECT_TIMEOUT = 30.0


@pytest.fixture
async def proxy(rabbitmq: RabbitMQ) -> AsyncIterator[Proxy]:
    async with Proxy("127.0.0.1", rabbitmq.port) as proxy:
        yield proxy


@pytest.fixture
async def link(proxy: Proxy, rabbitmq: RabbitMQ) -> AsyncIterator[Link]:
    """A link to an empty vhost through the proxy; its heartbeat is 1 s."""
    vhost = rabbitmq.make_vhost()
    url = f"amqp://guest:guest@127.0.0.1:{proxy.port}/"
    link = await NetworkConnector(url, vhost=vhost, heartbeat=1).connect(timeout=CONNECT_TIMEOUT)
    yield link
    link.abort()
    await link.close()
    rabbitmq.delete_vhost(vhost)


def losses(link: Link) -> list[TransportError]:
    found: list[TransportError] = []
    link.on_close = found.append
    return found


async def test_address_without_a_listener_is_connect_failed() -> None:
    connector = NetworkConnector(f"amqp://guest:guest@127.0.0.1:{free_port()}/")
    with pytest.raises(ConnectFailedError, match="failed to connect to amqp://guest:"):
        await connector.connect(timeout=CONNECT_TIMEOUT)


async def test_silent_server_is_connect_failed_in_time() -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        connector = NetworkConnector(f"amqp://guest:guest@127.0.0.1:{port}/")
        with pytest.raises(ConnectFailedError, match=r"0\.05 s"):
            await connector.connect(timeout=0.05)


async def test_server_that_hangs_up_is_connect_failed(proxy: Proxy) -> None:
    proxy.refuse()
    connector = NetworkConnector(f"amqp://guest:guest@127.0.0.1:{proxy.port}/")
    with pytest.raises(ConnectFailedError):
        await connector.connect(timeout=CONNECT_TIMEOUT)


async def test_wrong_password_is_refused_and_not_told(rabbitmq: RabbitMQ) -> None:
    connector = NetworkConnector(f"amqp://guest:sesame@127.0.0.1:{rabbitmq.port}/")
    with pytest.raises(AuthenticationRefusedError) as refusal:
        await connector.connect(timeout=CONNECT_TIMEOUT)
    assert "sesame" not in str(refusal.value) + repr(refusal.value)


async def test_unknown_vhost_is_refused(rabbitmq: RabbitMQ) -> None:
    connector = NetworkConnector(rabbitmq.url(), vhost="nowhere")
    with pytest.raises(AuthenticationRefusedError, match="nowhere"):
        await connector.connect(timeout=CONNECT_TIMEOUT)


@pytest.mark.parametrize("how", ["cut", "fin"])
async def test_lost_connection_is_reported_once(how: str, proxy: Proxy, link: Link) -> None:
    reports, watch = losses(link), await Watch.open(link)
    getattr(proxy, how)()
    await eventually(lambda: reports)
    assert isinstance(reports[0], ConnectionLostError)
    assert len(reports) == len(watch.closes) == 1
    assert not link.is_open
    assert not watch.channel.is_usable
    with pytest.raises(TransportError):
        await link.open_channel()


async def test_silence_is_a_lost_connection_after_the_heartbeat(proxy: Proxy, link: Link) -> None:
    reports = losses(link)
    proxy.stall()
    await eventually(lambda: reports)
    assert isinstance(reports[0], ConnectionLostError)
    assert not link.is_open


async def test_idle_link_stays_open_by_its_heartbeat(proxy: Proxy, link: Link) -> None:
    reports, before = losses(link), proxy.bytes_to_client
    await eventually(lambda: proxy.bytes_to_client >= before + 24)  # three of them
    assert link.is_open
    assert reports == []


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_ending_a_stalled_link_takes_bounded_time(how: str, proxy: Proxy, link: Link) -> None:
    reports = losses(link)
    await link.open_channel()
    proxy.stall()
    async with asyncio.timeout(30.0):
        if how == "abort":
            link.abort()
        await link.close()
    assert not link.is_open
    assert reports == []


async def test_question_that_the_cut_leaves_unanswered_raises(proxy: Proxy, link: Link) -> None:
    channel = await link.open_channel()
    proxy.stall()
    asking = asyncio.create_task(channel.declare_queue("q"))
    await asyncio.sleep(0)
    proxy.cut()
    async with asyncio.timeout(30.0):
        with pytest.raises(TransportError):
            await asking


async def test_memory_alarm_blocks_and_unblocks_the_link(rabbitmq: RabbitMQ, link: Link) -> None:
    notices: list[str] = []
    link.on_blocked = lambda reason: notices.append(f"blocked: {reason}")
    link.on_unblocked = lambda: notices.append("unblocked")
    watch = await Watch.open(link)
    await watch.channel.declare_queue("q")
    await asyncio.to_thread(rabbitmq.block)
    try:
        await watch.channel.publish([a_message()])  # RabbitMQ tells only those who publish
        await eventually(lambda: notices)
    finally:
        await asyncio.to_thread(rabbitmq.unblock)
    await eventually(lambda: len(notices) == 2)
    assert notices[0].startswith("blocked: ")
    assert notices[1] == "unblocked"
    await eventually(lambda: watch.outcomes == {1: True})


async def test_server_killed_and_started_again_has_what_it_confirmed(
    rabbitmq_restartable: RabbitMQ,
) -> None:
    server = rabbitmq_restartable
    connector = NetworkConnector(server.url())
    link = await connector.connect(timeout=CONNECT_TIMEOUT)
    reports, watch = losses(link), await Watch.open(link)
    await watch.channel.declare_queue("q")
    kept = [
        message._replace(properties=a_message(delivery_mode=2).properties)
        for message in numbered(1, 50)
    ]
    assert await watch.publish(*kept) == [True] * 50
    await asyncio.to_thread(server.sync)
    await asyncio.to_thread(server.kill)
    await eventually(lambda: reports)
    with pytest.raises(ConnectFailedError):
        await connector.connect(timeout=CONNECT_TIMEOUT)
    await asyncio.to_thread(server.start)
    again = await connector.connect(timeout=CONNECT_TIMEOUT)
    try:
        assert await (await Watch.open(again)).depth("q") == 50
    finally:
        await again.close()
        await link.close()


async def test_connection_closed_by_the_server_says_why(rabbitmq: RabbitMQ, link: Link) -> None:
    reports = losses(link)
    await asyncio.to_thread(rabbitmq.close_connections, "maintenance")
    await eventually(lambda: reports)
    assert "320" in str(reports[0])  # AMQP 0-9-1 §1.3: connection-forced
    assert "maintenance" in str(reports[0])
