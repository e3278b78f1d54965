"""Listeners, and the client's address behind a proxy."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import aio_pika
import aiormq.exceptions
import pytest
from pamqp import commands

from broker_client.config.listen import parse_listen_address
from broker_client.config.server import ServerConfig, ServerTlsConfig
from broker_client.errors import ConfigError, ListenError
from broker_client.node.node import Node
from broker_client.server.server import Server
from tests.server.conftest import Listen
from tests.server.peer import HEADER, Peer
from tests.support.certificates import Authority
from tests.support.eventually import eventually


async def test_several_addresses_serve_one_node(listen: Listen, tmp_path: Path) -> None:
    path = tmp_path / "broker.sock"
    listening = await listen("127.0.0.1:0", "amqp://[::1]:0", f"unix://{path}")
    tcp, ip6, unix = listening.server.addresses
    async with await aio_pika.connect(listening.url) as first:
        await (await first.channel()).declare_queue("q")
        async with await aio_pika.connect(f"amqp://guest:guest@[::1]:{ip6.port}/") as second:
            await (await second.channel()).get_queue("q")
            peers = {info.peer.rpartition(":")[0] for info in listening.server.connections()}
            assert peers == {"127.0.0.1", "[::1]"}
    peer = Peer(*await asyncio.open_unix_connection(path))
    peer.write(HEADER)
    await peer.expect(commands.Connection.Start)
    await peer.close()
    assert (tcp.scheme, str(unix)) == ("amqp", f"unix://{path}")
    await listening.server.stop()
    assert not await asyncio.to_thread(path.exists)


async def test_the_socket_of_a_server_that_is_gone_is_replaced_and_one_in_use_is_not(
    listen: Listen, tmp_path: Path
) -> None:
    address = f"unix://{tmp_path}/broker.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(f"{tmp_path}/broker.sock")
    await listen(address)
    with pytest.raises(ListenError, match="another program listens there"):
        await listen(address)
    with pytest.raises(ListenError, match="a file that is not a socket has that path"):
        await listen(f"unix://{__file__}")


async def test_stop_when_a_client_has_sent_nothing_yet_then_does_not_wait_for_it(
    listen: Listen,
) -> None:
    listening = await listen(close_timeout=60.0, stop_timeout=60.0)
    peer = await Peer.connect(listening.port)
    await eventually(lambda: listening.server.socket_count == 1)
    async with asyncio.timeout(30.0):
        await listening.server.stop()
    assert await peer.ended() == b""
    await peer.close()


async def test_guest_logs_in_with_amqplain_too(listen: Listen) -> None:
    listening = await listen()
    peer = await Peer.connect(listening.port)
    peer.write(HEADER)
    start = await peer.expect(commands.Connection.Start)
    assert start.mechanisms == "PLAIN AMQPLAIN"
    response = b"\x05LOGINS\x00\x00\x00\x05guest\x08PASSWORDS\x00\x00\x00\x05guest"
    peer.send(0, commands.Connection.StartOk({}, "AMQPLAIN", response.decode(), "en_US"))
    await peer.expect(commands.Connection.Tune)
    await peer.close()


# --------------------------------------------------------------------- TLS


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


def tls_of(authority: Authority, name: str = "server", **more: Any) -> ServerTlsConfig:
    files = authority.sign(name, "127.0.0.1", "localhost")
    return ServerTlsConfig(certfile=str(files.certificate), keyfile=str(files.key), **more)


async def test_amqps_is_trusted_by_its_authority(listen: Listen, authority: Authority) -> None:
    listening = await listen("amqps://127.0.0.1:0", tls=tls_of(authority))
    url = f"amqps://guest:guest@127.0.0.1:{listening.port}/"
    context = ssl.create_default_context(cafile=str(authority.file))
    async with await aio_pika.connect(url, ssl_context=context) as connection:
        await (await connection.channel()).declare_queue("q")
        [info] = listening.server.connections()
        assert info.is_tls
    with pytest.raises(aiormq.exceptions.AMQPConnectionError):
        await aio_pika.connect(url)


async def test_a_client_certificate_is_a_login(listen: Listen, authority: Authority) -> None:
    tls = tls_of(authority, cafile=str(authority.file), client_certificates="optional")
    listening = await listen("amqps://127.0.0.1:0", tls=tls)
    listening.node.access.add_user("anna", None)
    listening.node.access.set_permissions("anna", "/", configure=".*", write=".*", read=".*")
    offered = "PLAIN AMQPLAIN EXTERNAL"
    for name, mechanisms, answer in (
        ("anna", offered, commands.Connection.Tune),
        ("nobody", "PLAIN AMQPLAIN", None),
    ):
        client = authority.sign(name)
        context = ssl.create_default_context(cafile=str(authority.file))
        context.load_cert_chain(client.certificate, client.key)
        peer = await Peer.connect(listening.port, ssl=context)
        peer.write(HEADER)
        start = await peer.expect(commands.Connection.Start)
        assert start.mechanisms == mechanisms
        peer.send(0, commands.Connection.StartOk({}, "EXTERNAL", "", "en_US"))
        if answer is None:
            assert await peer.ended() == b""
        else:
            await peer.expect(answer)
        await peer.close()


async def test_external_is_not_offered_where_the_certificate_is_no_login(
    listen: Listen, authority: Authority
) -> None:
    # py-amqp takes EXTERNAL wherever it is offered, although it has a password.
    tls = tls_of(authority, cafile=str(authority.file), client_certificates="required")
    listening = await listen("amqps://127.0.0.1:0", tls=tls)
    client = authority.sign("worker-7")
    context = ssl.create_default_context(cafile=str(authority.file))
    context.load_cert_chain(client.certificate, client.key)
    peer = await Peer.connect(listening.port, ssl=context)
    peer.write(HEADER)
    assert (await peer.expect(commands.Connection.Start)).mechanisms == "PLAIN AMQPLAIN"
    peer.send(0, commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"))
    await peer.expect(commands.Connection.Tune)
    await peer.close()


async def test_a_new_certificate_is_shown_without_a_restart(
    listen: Listen, authority: Authority
) -> None:
    listening = await listen("amqps://127.0.0.1:0", tls=tls_of(authority))
    context = ssl.create_default_context(cafile=str(authority.file))

    async def serial() -> Any:
        peer = await Peer.connect(listening.port, ssl=context)
        found = peer.writer.get_extra_info("peercert")["serialNumber"]
        await peer.close()
        return found

    url = f"amqps://guest:guest@127.0.0.1:{listening.port}/"
    async with await aio_pika.connect(url, ssl_context=context) as connection:
        before = await serial()
        authority.sign("server", "127.0.0.1", "localhost")  # the same files, replaced

        async def changed() -> bool:
            return bool(await serial() != before)

        await eventually(changed)
        await (await connection.channel()).declare_queue("q")  # earlier connections continue


async def test_certificates_that_cannot_be_used_leave_the_old_ones(
    listen: Listen, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    tls = tls_of(authority)
    listening = await listen("amqps://127.0.0.1:0", tls=tls)
    await asyncio.to_thread(Path(tls.certfile).write_text, "no certificate")
    await listening.server.reload()
    assert "certificates not reloaded" in caplog.text
    context = ssl.create_default_context(cafile=str(authority.file))
    await (await Peer.connect(listening.port, ssl=context)).close()


async def test_stop_while_certificates_are_reloaded_then_nothing_listens(
    listen: Listen, authority: Authority
) -> None:
    listening = await listen("amqps://127.0.0.1:0", tls=tls_of(authority))
    port = listening.port
    reloading = asyncio.create_task(listening.server.reload())
    await asyncio.sleep(0)  # it has begun
    assert not reloading.done()
    reloading.cancel()
    await listening.server.stop()
    await asyncio.wait([reloading])
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_amqps_without_certificates_names_the_setting(authority: Authority) -> None:
    node = Node()
    for config, said in (
        (ServerConfig(), "server.tls: an amqps:// address needs certificates"),
        (
            ServerConfig(tls=ServerTlsConfig(certfile=str(authority.file))),
            "server.tls.certfile",
        ),
    ):
        server = Server(node, [parse_listen_address("amqps://127.0.0.1:0")], config)
        with pytest.raises(ConfigError, match=said):
            await server.start()
    await node.close()
