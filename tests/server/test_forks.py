"""Children that outlive the parent hold neither its ports nor its connections."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from broker_client import Broker
from broker_client.transport.rabbitmq.connector import NetworkConnector
from tests.support.eventually import eventually
from tests.support.listening import Listening


@contextmanager
def a_living_child() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: threads and fork
        reader, writer = os.pipe()
        child = os.fork()
    if not child:
        try:
            os.write(writer, b"!")
            time.sleep(60)
        finally:
            os._exit(0)
    try:
        os.close(writer)
        os.read(reader, 1)  # it runs, and has left to its parent what is not its own
        os.close(reader)
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


async def test_port_of_a_broker_that_was_closed_refuses_though_a_child_lives() -> None:
    config = {"vhosts": {"/": {"connection": "embedded://"}}, "node": {"listen": "127.0.0.1:0"}}
    broker = await Broker.create(config)
    [address] = broker.listening_on
    host, _, port = address.removeprefix("amqp://").partition(":")
    with a_living_child():
        await broker.shutdown()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), timeout=5).close()


async def test_connection_that_is_dropped_ends_for_the_server_though_a_child_lives() -> None:
    async with Listening.started() as listening:
        link = await NetworkConnector(listening.url).connect(timeout=10.0)
        with a_living_child():
            link.abort()
            await eventually(lambda: not listening.server.connections(), timeout=5.0)
        await link.close()


async def test_connection_that_the_server_drops_ends_for_the_client_though_a_child_lives() -> None:
    async with Listening.started() as listening:
        link = await NetworkConnector(listening.url).connect(timeout=10.0)
        lost = asyncio.Event()
        link.on_close = lambda error: lost.set()
        with a_living_child():
            await listening.server.stop(0.0)
            async with asyncio.timeout(5.0):
                await lost.wait()
        await link.close()
