"""The dashboard as the commands serve it, each in a separate process."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.dashboard.conftest import GUEST, Page
from tests.support.certificates import Authority
from tests.support.eventually import eventually
from tests.support.served import Served

ROOT = Path(__file__).parents[2]


def address_of_http(server: Served) -> str:
    return next(each for each in server.addresses if each.startswith("http"))


async def moved(url: str, of_page: str) -> tuple[int, int]:
    """Move three messages between two queues through the page; returns the counts of both."""
    async with httpx.AsyncClient(base_url=url, auth=GUEST, timeout=60) as api:
        for name in ("from", "to"):
            await api.put(f"/api/queues/%2F/{name}", json={})
        message: dict[str, Any] = {"properties": {}, "routing_key": "from", "payload": "x"}
        for _ in range(3):
            body = {**message, "payload_encoding": "string"}
            await api.post("/api/exchanges/%2F/amq.default/publish", json=body)
        page = Page(of_page)
        async with page.client:
            session = await page.log_in()
            assert session["can"]["messages"]
            order = {"kind": "move", "vhost": "/", "queue": "from", "to": "to", "dry_run": False}
            job = await page.post("jobs", order)

            async def ended() -> bool:
                nonlocal job
                job = await page.get(f"jobs/{job['id']}")
                return bool(job["state"] != "running")

            await eventually(ended)
            assert (job["state"], job["moved"]) == ("done", 3), job
        counts = [
            (await api.get(f"/api/queues/%2F/{name}")).json()["messages"] for name in ("from", "to")
        ]
        return counts[0], counts[1]


@pytest.mark.parametrize("how", ["unix", "TLS with client certificates"])
async def test_messages_are_moved_where_the_server_has_no_plain_port(
    how: str, tmp_path: Path
) -> None:
    options: tuple[str, ...] = ("--http", "127.0.0.1:0")
    listen = f"unix://{tmp_path}/broker.sock"
    if how != "unix":
        authority = Authority(tmp_path, "authority")
        files = authority.sign("localhost", "localhost")
        tls = {
            "certfile": str(files.certificate),
            "keyfile": str(files.key),
            "cafile": str(authority.file),
            "client_certificates": "required",
        }
        config = tmp_path / "server.yaml"
        text = "".join(f"    {key}: {value}\n" for key, value in tls.items())
        await asyncio.to_thread(config.write_text, f"server:\n  tls:\n{text}")
        options += ("--config", str(config))
        listen = "amqps://127.0.0.1:0"
    server = Served(*options, listen=(listen,))
    await asyncio.to_thread(server.start)
    try:
        url = address_of_http(server)
        assert await moved(url, url) == (0, 3)
    finally:
        await asyncio.to_thread(server.close)


@contextmanager
def dashboard_of(server: Served) -> Iterator[subprocess.Popen[str]]:
    """``broker-client dashboard`` for `server`."""
    command = [sys.executable, "-m", "broker_client", "dashboard", "--listen", "127.0.0.1:0"]
    command += ["--management", address_of_http(server).replace("//", "//guest:guest@")]
    command += ["--amqp", f"amqp://127.0.0.1:{server.port}"]
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def test_the_command_dashboard_serves_moves_and_ends_in_order() -> None:
    server = Served("--http", "127.0.0.1:0")
    await asyncio.to_thread(server.start)
    try:
        with dashboard_of(server) as process:
            assert process.stdout is not None
            line = await asyncio.to_thread(process.stdout.readline)
            word, url, _ = line.split(maxsplit=2)
            assert word == "dashboard", line
            async with httpx.AsyncClient(timeout=60) as browser:
                page = await browser.get(url)
            assert (page.status_code, "<html" in page.text) == (200, True)
            assert await moved(address_of_http(server), url.rstrip("/")) == (0, 3)
            children = psutil.Process(process.pid).children(recursive=True)
            process.terminate()
            _, errors = await asyncio.to_thread(process.communicate, timeout=60)
            assert (process.returncode, children) == (0, [])
            assert "Traceback" not in errors, errors
            port = int(url.rstrip("/").rpartition(":")[2])
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), 5)
    finally:
        await asyncio.to_thread(server.close)
