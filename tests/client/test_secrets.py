"""The error of a failed connect shows no password, even with the locals of each frame."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest

from broker_client import Broker
from broker_client.errors import BrokerClientError
from tests.support.rabbitmq import RabbitMQ
from tests.support.tracebacks import with_locals

SECRET = "hunter2" * 3


def a_config(port: int, **connection: Any) -> dict[str, Any]:
    where = {"hostname": "127.0.0.1", "port": port, "user": "app", "connect_timeout": "2s"}
    return {"vhosts": {"/": {"connection": {**where, "password": SECRET, **connection}}}}


@pytest.fixture
async def deaf_port() -> AsyncIterator[int]:
    """The address of a listener that is not a broker."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def told(port: int, **connection: Any) -> str:
    with pytest.raises(BrokerClientError) as caught:
        await Broker.create(a_config(port, **connection))
    return with_locals(caught.value)


async def test_nobody_listens() -> None:
    assert SECRET not in await told(1)


async def test_somebody_else_listens(deaf_port: int) -> None:
    assert SECRET not in await told(deaf_port)


async def test_somebody_resets_the_connection_and_the_causes_end() -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    server = await asyncio.start_server(reset, "127.0.0.1", 0)
    async with server:
        with pytest.raises(BrokerClientError) as caught:
            await Broker.create(a_config(server.sockets[0].getsockname()[1]))
    found: list[BaseException] = []
    each: BaseException | None = caught.value
    while each is not None:
        assert each not in found, "rich would follow it for ever"
        found.append(each)
        each = each.__cause__ or each.__context__
    assert ConnectionResetError in map(type, found)
    assert SECRET not in with_locals(caught.value)


async def test_password_that_is_refused(rabbitmq: RabbitMQ) -> None:
    shown = await told(rabbitmq.port)
    assert "AuthenticationRefusedError" in shown
    assert SECRET not in shown


async def test_tls_where_there_is_none(rabbitmq: RabbitMQ) -> None:
    assert SECRET not in await told(rabbitmq.port, scheme="amqps")


@pytest.mark.parametrize("wrong", ["raises", "returns"])
async def test_function_for_credentials_that_fails(wrong: str) -> None:
    def credentials() -> Any:
        password = SECRET
        if wrong == "raises":
            raise RuntimeError("vault is sealed")
        return password

    config = a_config(1, credentials=credentials)
    del config["vhosts"]["/"]["connection"]["password"]
    del config["vhosts"]["/"]["connection"]["user"]
    with pytest.raises(BrokerClientError) as caught:
        await Broker.create(config)
    assert SECRET not in with_locals(caught.value)


async def test_management_that_does_not_answer(deaf_port: int) -> None:
    config = a_config(1, management={"port": deaf_port})
    config["vhosts"]["/"]["assert"] = True
    with pytest.raises(BrokerClientError) as caught:
        await Broker.create(config)
    del config
    shown = with_locals(caught.value)
    assert "ManagementError" in shown
    assert SECRET not in shown
