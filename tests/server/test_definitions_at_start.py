"""``broker-client serve --definitions``: the definitions are imported before the first client."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import aiormq
import pytest

from broker_client.core.access import hash_password
from tests.support.served import Served

DOCUMENT = {
    "vhosts": [{"name": "shop"}],
    "users": [{"name": "ann", "password_hash": hash_password("secret", b"salt"), "tags": []}],
    "permissions": [
        {"user": "ann", "vhost": "shop", "configure": ".*", "write": ".*", "read": ".*"}
    ],
    "queues": [{"name": "q", "vhost": "shop"}],
    "policies": [{"vhost": "shop", "name": "p", "pattern": "q", "definition": {"max-length": 1}}],
}


async def test_a_client_finds_what_the_file_defines_and_no_guest(tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(DOCUMENT))
    with Served("--definitions", str(file), data=tmp_path / "broker.db") as served:
        with pytest.raises(aiormq.exceptions.AMQPConnectionError):
            await aiormq.connect(served.url("shop"))
        url = f"amqp://ann:secret@127.0.0.1:{served.port}/shop"
        connection = await aiormq.connect(url)
        channel = await connection.channel()
        for body in (b"1", b"2"):
            await channel.basic_publish(body, routing_key="q")
        assert (await channel.queue_declare("q", passive=True)).message_count == 1
        await connection.close()
        assert "definitions: imported: 1 vhosts, 1 users, 1 permissions" in served.log()


def test_a_wrong_file_starts_no_server(tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps({**DOCUMENT, "queues": [{"name": "q", "vhost": "no"}]}))
    command = [sys.executable, "-m", "broker_client", "serve", "--listen", "127.0.0.1:0"]
    done = subprocess.run(
        [*command, "--definitions", str(file)], capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "queues[0].vhost: there is no vhost 'no'" in done.stderr
    assert "Traceback" not in done.stderr
