"""``broker-client serve`` with its management API, for tests that also run on a RabbitMQ."""

from __future__ import annotations

import base64
import json
import tempfile
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from tests.support.own_server import free_port
from tests.support.rabbitmq import RabbitMQ
from tests.support.served import Served

_WATERMARK_MIB = 64
_FILLER = "filler"
_FILLER_MIB = 4
_GUEST = base64.b64encode(b"guest:guest").decode()
_TIMEOUT = 60.0


class ManagedServer(Served):
    """A server with the methods of `tests.support.rabbitmq.RabbitMQ` for queries and faults.

    Args:
        data: file of the broker; everything is in memory when left out.
    """

    def __init__(self, data: Path | None = None) -> None:
        self.management_port = free_port()
        self._settings = tempfile.TemporaryDirectory(prefix="managed-")
        config = Path(self._settings.name) / "server.yaml"
        config.write_text(f"node: {{memory_high_watermark: {_WATERMARK_MIB}MiB}}\n")
        super().__init__(
            "--config",
            str(config),
            "--http",
            f"127.0.0.1:{self.management_port}",
            "--log-level",
            "error",
            data=data,
        )

    def close(self) -> None:
        super().close()
        self._settings.cleanup()

    def make_vhost(self) -> str:
        """Make a vhost nobody has used; returns its name."""
        name = f"v-{uuid4().hex[:12]}"
        self._make_vhost(name)
        return name

    def delete_vhost(self, name: str) -> None:
        """Delete a vhost; its connections are closed by the server."""
        self.api("DELETE", f"vhosts/{quote(name, safe='')}")

    def close_connections(self, reason: str = "closed by the test") -> int:
        """Close every client connection from the server's side (320); returns their number."""
        names = [each["name"] for each in self.api("GET", "connections")]
        for name in names:
            self.api("DELETE", f"connections/{quote(name, safe='')}", {"X-Reason": reason})
        return len(names)

    def block(self) -> None:
        """Fill its memory: publishers are blocked until `unblock`."""
        self._make_vhost(_FILLER)
        self.api("PUT", f"queues/{_FILLER}/{_FILLER}", body={})
        message = {
            "routing_key": _FILLER,
            "properties": {},
            "payload": "." * _FILLER_MIB * 1024 * 1024,
            "payload_encoding": "string",
        }
        for _ in range(_WATERMARK_MIB // _FILLER_MIB + 1):
            self.api("POST", f"exchanges/{_FILLER}/amq.default/publish", body=message)

    def unblock(self) -> None:
        """Empty its memory."""
        self.delete_vhost(_FILLER)

    def sync(self) -> None:
        """Does nothing: declarations are answered after their commit."""

    def api(
        self, method: str, path: str, headers: dict[str, str] | None = None, body: Any = None
    ) -> Any:
        """The answer of its management API to a request for `path`, below ``/api/``."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.management_port}/api/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Basic {_GUEST}",
                "Content-Type": "application/json",
                **(headers or {}),
            },
        )
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def _make_vhost(self, name: str) -> None:
        self.api("PUT", f"vhosts/{name}", body={})
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self.api("PUT", f"permissions/{name}/guest", body=everything)


FaultyServer = RabbitMQ | ManagedServer
"""A server that tests cause faults on."""
