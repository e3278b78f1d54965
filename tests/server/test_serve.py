"""The command ``broker-client serve``, in a separate process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import aio_pika
import pika
import pika.exceptions
import pytest
from pamqp import commands

from tests.server.peer import Peer
from tests.support.left_out import installed_program
from tests.support.own_server import free_port
from tests.support.served import Served


async def test_what_was_confirmed_is_there_after_a_kill(tmp_path: Path) -> None:
    server = Served(data=tmp_path / "broker.db")
    await asyncio.to_thread(server.start)
    try:
        connection = await aio_pika.connect(server.url())
        async with connection:
            channel = await connection.channel()
            queue = await channel.declare_queue("q", durable=True)
            for number in range(100):
                message = aio_pika.Message(b"%d" % number, delivery_mode=2)
                await channel.default_exchange.publish(message, "q")
            await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        async with await aio_pika.connect(server.url()) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue("q", durable=True)
            assert queue.declaration_result.message_count == 100
            received = await queue.get()
            assert received is not None
            assert received.body == b"0"
            await received.ack()
    finally:
        await asyncio.to_thread(server.close)


def test_without_data_it_says_that_nothing_is_kept() -> None:
    with Served() as server:
        assert "in memory" in server.line
        assert server.stop() == 0


def test_a_port_that_is_taken_is_one_line_that_names_the_setting() -> None:
    with Served() as server:
        refused = _serve("--listen", f"127.0.0.1:{server.port}")
        assert refused.returncode == 1
        [line] = refused.stderr.splitlines()
        assert str(server.port) in line
        assert "--listen" in line


def test_a_file_of_another_process_is_refused_with_its_id(tmp_path: Path) -> None:
    with Served(data=tmp_path / "broker.db") as server:
        refused = _serve("--data", str(tmp_path / "broker.db"), "--listen", "127.0.0.1:0")
        assert refused.returncode == 1
        [line] = refused.stderr.splitlines()
        assert f"process {server.pid}" in line


async def test_sigterm_cancels_consumers_flushes_confirms_and_closes_with_320() -> None:
    server = Served()
    await asyncio.to_thread(server.start)
    try:
        peer = await Peer.open(server.port, consumer_cancel_notify=True)
        await peer.channel()
        peer.send(1, commands.Confirm.Select())
        peer.send(1, commands.Queue.Declare(queue="q"))
        peer.send(1, commands.Basic.Consume(queue="q", consumer_tag="c"))
        for kind in (commands.Confirm.SelectOk, commands.Queue.DeclareOk, commands.Basic.ConsumeOk):
            await peer.expect(kind)
        server.send_signal(signal.SIGTERM)
        cancelled = await peer.expect(commands.Basic.Cancel)
        assert cancelled.consumer_tag == "c"
        closing = await peer.expect(commands.Connection.Close)
        assert closing.reply_code == 320
        assert "broker forced connection closure" in closing.reply_text
        peer.send(0, commands.Connection.CloseOk())
        assert await peer.ended() == b""
        await peer.close()
        assert await asyncio.to_thread(server.wait) == 0
    finally:
        await asyncio.to_thread(server.close)


async def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    config = tmp_path / "serve.yaml"
    await asyncio.to_thread(
        config.write_text, "server: {close_timeout: 60s, stop_timeout: 60s}\n", "utf-8"
    )
    server = Served("--config", str(config), data=tmp_path / "broker.db")
    await asyncio.to_thread(server.start)
    try:
        peer = await Peer.open(server.port)  # and never answers
        server.send_signal(signal.SIGINT)
        await peer.expect(commands.Connection.Close)
        server.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(server.wait, 30.0) == 0
        await peer.close()
    finally:
        await asyncio.to_thread(server.close)


def test_systemd_is_told_of_ready_and_stopping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with Served() as server:
            ready = systemd.recv(4096).decode()
            assert ready == f"READY=1\nSTATUS=Serving amqp://127.0.0.1:{server.port}"
            server.stop()
            assert systemd.recv(4096).startswith(b"STOPPING=1\n")


@contextmanager
def started_by_systemd(inherited: socket.socket) -> Iterator[str]:
    """``broker-client serve`` with a socket that systemd passes on; gives the line it prints."""
    program = (
        "import os, sys; os.dup2(int(sys.argv[1]), 3); os.environ['LISTEN_PID'] = "
        "str(os.getpid()); os.execv(sys.executable, [sys.executable, '-m', 'broker_client', "
        "'serve'])"
    )
    environment = {**os.environ, "LISTEN_FDS": "1", "LISTEN_FDNAMES": "amqp"}
    with subprocess.Popen(
        [sys.executable, "-c", program, str(inherited.fileno())],
        env=environment,
        pass_fds=[inherited.fileno(), 3] if inherited.fileno() != 3 else [3],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline()
        process.terminate()


def test_a_socket_of_systemd_is_served_without_an_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as inherited:
        port = inherited.getsockname()[1]
        with started_by_systemd(inherited) as line:
            assert f"serving amqp://127.0.0.1:{port} " in line


def test_systemd_starts_the_server_for_its_first_client() -> None:
    activate = installed_program("systemd-socket-activate")
    port = free_port()
    command = [activate, "-l", f"127.0.0.1:{port}", "-E", "PATH", "-E", "HOME"]
    command += [sys.executable, "-m", "broker_client", "serve"]
    parameters = pika.URLParameters(f"amqp://guest:guest@127.0.0.1:{port}/")
    parameters.connection_attempts, parameters.retry_delay = 100, 0.1
    parameters.socket_timeout = parameters.stack_timeout = 60
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            with closing(pika.BlockingConnection(parameters)) as connection:
                channel = connection.channel()
                channel.queue_declare("q")
                channel.basic_publish("", "q", b"first")
                assert channel.basic_get("q", auto_ack=True)[2] == b"first"
            assert process.stdout is not None
            assert f"serving amqp://127.0.0.1:{port} ".encode() in process.stdout.readline()
        finally:
            process.terminate()
        assert process.wait(60) == 0


def test_a_unix_socket_of_systemd_stays_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "broker.sock"
    with socket.socket(socket.AF_UNIX) as inherited:
        inherited.bind(str(path))
        inherited.listen()
        with started_by_systemd(inherited) as line:
            assert f"serving unix://{path} " in line
        with socket.socket(socket.AF_UNIX) as client:  # systemd still listens there
            client.connect(str(path))


def test_the_log_has_one_line_an_event_and_no_secret() -> None:
    with Served() as server:
        parameters = pika.URLParameters(server.url())
        parameters.client_properties = {"connection_name": "my\napp"}
        connection = pika.BlockingConnection(parameters)
        connection.channel().basic_publish("", "q", b"body of a message")
        connection.close()
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            pika.BlockingConnection(pika.URLParameters(server.url().replace(":guest", ":s3cret")))
        server.stop()
        lines = [line.partition("broker_client.server: ")[2] for line in server.log().splitlines()]
    events = [line.partition(" peer=")[0] for line in lines]
    assert events == ["connection opened", "connection closed", "login refused"]
    assert all(' name="my\\napp" ' in line for line in lines[:2])
    assert not any(word in line for line in lines for word in ("s3cret", "body of a message"))


async def test_publishers_are_blocked_while_the_disk_is_short(tmp_path: Path) -> None:
    config = tmp_path / "serve.yaml"
    limit = "server: {disk_free_limit: 1000000GiB}\n"
    await asyncio.to_thread(config.write_text, limit, "utf-8")
    server = Served("--config", str(config), data=tmp_path / "broker.db")
    await asyncio.to_thread(server.start)
    try:
        peer = await Peer.open(server.port, connection__blocked=True)
        await peer.channel()
        peer.send(1, commands.Basic.Publish(exchange="", routing_key="q"))
        peer.write(b"\x02\x00\x01\x00\x00\x00\x0e\x00\x3c" + bytes(12) + b"\xce")
        assert (await peer.expect(commands.Connection.Blocked)).reason == "low on disk"
        await peer.close()
        assert "disk alarm " in await asyncio.to_thread(server.log)
    finally:
        await asyncio.to_thread(server.close)


async def test_a_server_whose_file_is_gone_ends_with_one_line(tmp_path: Path) -> None:
    server = Served("--log-level", "error", data=tmp_path / "broker.db")
    await asyncio.to_thread(server.start)
    try:
        await asyncio.to_thread((tmp_path / "broker.db").unlink)
        async with await aio_pika.connect(server.url()) as connection:
            channel = await connection.channel()
            with pytest.raises(aio_pika.exceptions.AMQPError):
                await channel.declare_queue("q", durable=True)
        assert await asyncio.to_thread(server.wait) == 1
        assert (await asyncio.to_thread(server.log)).splitlines()[-1].startswith("store ")
    finally:
        await asyncio.to_thread(server.close)


def _serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "broker_client", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
