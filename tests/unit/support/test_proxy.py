import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.eventually import eventually
from tests.support.proxy import Proxy

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def echo_port() -> AsyncIterator[int]:
    """A server that echoes everything until the client closes."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1024):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.fixture
async def proxy(echo_port: int) -> AsyncIterator[Proxy]:
    async with Proxy("127.0.0.1", echo_port) as proxy:
        yield proxy


@pytest.fixture
async def streams(proxy: Proxy) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    yield reader, writer
    writer.transport.abort()


async def say(streams: Streams, text: bytes) -> bytes:
    reader, writer = streams
    writer.write(text)
    async with asyncio.timeout(5):
        return await reader.readexactly(len(text))


async def test_bytes_travel_both_ways_and_are_counted(proxy: Proxy, streams: Streams) -> None:
    assert await say(streams, b"hello") == b"hello"
    assert (proxy.bytes_to_server, proxy.bytes_to_client) == (5, 5)
    assert (proxy.accepted, proxy.connections) == (1, 1)


async def test_cut_resets_the_client(proxy: Proxy, streams: Streams) -> None:
    await say(streams, b"hello")
    assert proxy.cut() == 1
    with pytest.raises(ConnectionResetError):
        async with asyncio.timeout(5):
            await streams[0].read(1)
    await eventually(lambda: proxy.connections == 0)


async def test_fin_ends_the_stream_without_an_error(proxy: Proxy, streams: Streams) -> None:
    await say(streams, b"hello")
    assert proxy.fin() == 1
    async with asyncio.timeout(5):
        assert await streams[0].read(1) == b""
    await eventually(lambda: proxy.connections == 0)


async def test_close_by_the_client_closes_the_pair(proxy: Proxy, streams: Streams) -> None:
    await say(streams, b"hello")
    streams[1].close()
    await eventually(lambda: proxy.connections == 0)


async def test_stalled_bytes_arrive_after_resume(proxy: Proxy, streams: Streams) -> None:
    await say(streams, b"hello")
    proxy.stall()
    reply = asyncio.create_task(say(streams, b"later"))
    done, _ = await asyncio.wait([reply], timeout=0.05)
    assert not done
    assert proxy.connections == 1
    proxy.resume()
    assert await reply == b"later"


async def test_cut_works_while_stalled(proxy: Proxy, streams: Streams) -> None:
    await say(streams, b"hello")
    proxy.stall()
    streams[1].write(b"never")
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        async with asyncio.timeout(5):
            await streams[0].read(1)
    proxy.resume()
    await eventually(lambda: proxy.connections == 0)


async def test_refuse_resets_new_connections_and_keeps_the_old(
    proxy: Proxy, streams: Streams
) -> None:
    await say(streams, b"hello")
    proxy.refuse()
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    with pytest.raises(ConnectionResetError):
        async with asyncio.timeout(5):
            await reader.read(1)
    writer.transport.abort()
    assert await say(streams, b"still here") == b"still here"


async def test_accept_takes_connections_after_a_refusal(proxy: Proxy) -> None:
    proxy.refuse()
    proxy.accept()
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    assert await say((reader, writer), b"again") == b"again"
    writer.transport.abort()


async def test_server_that_is_gone_looks_like_a_reset() -> None:
    listener = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    listener.close()
    await listener.wait_closed()
    async with Proxy("127.0.0.1", port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        with pytest.raises(ConnectionResetError):
            async with asyncio.timeout(5):
                await reader.read(1)
        writer.transport.abort()


async def test_leaving_the_block_cuts_connections(echo_port: int) -> None:
    async with Proxy("127.0.0.1", echo_port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        await say((reader, writer), b"hello")
    with pytest.raises(ConnectionResetError):
        async with asyncio.timeout(5):
            await reader.read(1)
    writer.transport.abort()
