"""Measures how long each request of the management API and the dashboard blocks the event loop.

    python -m bench.dashboard_holds                                # 1,000 queues, 100,000 messages
    python -m bench.dashboard_holds --queues 100 --messages 1000   # a quick look
    python -m bench.dashboard_holds --on file                      # a node with a file

A node with its AMQP port, its API and the dashboard run in one event loop, as in ``serve``, and a
thread asks. A row tells the longest callback of the loop while a request was answered, in
processor time of the loop's thread (so other load does not count), its time by the clock, how much
of it was Python's garbage collector, and the duration of the request. What is above 10 ms is
marked. Requests that change the most come last. With --why the longest callback is sampled.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench.holds import HEADINGS, Holds
from bench.machine import facts
from broker_client.cli.serve import collect_less
from broker_client.message import Outgoing, Properties
from broker_client.transport.rabbitmq.connector import NetworkConnector
from tests.support.served_node import served_node

FULL, DEAD, TARGET = "full", "dead", "target"
_BATCH = 1_000
_BODY = b'{"order": 1, "customer": "Ada Lovelace", "lines": [{"sku": "A-1", "count": 2}]}'
_GUEST = httpx.BasicAuth("guest", "guest")
_DIED = {"x-death": [{"queue": FULL, "reason": "rejected", "count": 1, "exchange": ""}]}


@dataclass(frozen=True, slots=True)
class Request:
    """A request: of the API where the path begins with ``/api``, else of the dashboard."""

    method: str
    path: str
    body: Any = None


def requests_of(queues: int) -> list[Request]:
    """All requests; those that change the least come first."""
    every = [f"work.{number:04}" for number in range(queues)]
    dead = {"vhost": "/", "queue": DEAD}
    more = [
        {"name": f"more.{name}", "vhost": "/", "durable": True, "arguments": {}} for name in every
    ]
    return [
        *(Request("GET", f"/api/{path}") for path in _READ),
        Request("POST", f"/api/queues/%2F/{FULL}/get", _get(200)),
        Request("POST", f"/api/queues/%2F/{FULL}/get", _get(1_000)),
        Request("POST", "/api/exchanges/%2F/amq.default/publish", _published()),
        *(Request("GET", f"/ui/{path}") for path in _SHOWN),
        Request("POST", f"/ui/queues/%2F/{FULL}/peek", {"count": 200}),
        Request("POST", "/ui/dead-letters/groups", {"queues": [["/", DEAD]], "count": 1_000}),
        Request(
            "POST", "/ui/routes", {"vhost": "/", "exchange": "amq.topic", "routing_key": "a.b"}
        ),
        Request("POST", "/ui/jobs", {"kind": "replay", **dead, "dry_run": True}),
        Request("POST", "/ui/jobs", {"kind": "replay", **dead, "limit": 5_000, "dry_run": False}),
        Request("POST", "/ui/jobs", {"kind": "delete", **dead, "limit": 5_000, "dry_run": False}),
        Request("POST", "/api/definitions", {"queues": more}),
        Request("PUT", f"/api/queues/%2F/{FULL}/pause", {}),
        Request("PUT", f"/api/queues/%2F/{FULL}/resume", {}),
        Request(
            "PUT", "/api/policies/%2F/all", {"pattern": ".*", "definition": {"max-length": 10**6}}
        ),
        Request("DELETE", "/api/policies/%2F/all"),
        Request("DELETE", f"/api/queues/%2F/{DEAD}"),
        Request("DELETE", f"/api/queues/%2F/{FULL}/contents"),
        Request("DELETE", "/api/vhosts/%2F"),
    ]


_READ = (
    "overview",
    "whoami",
    "nodes",
    "connections",
    "channels",
    "consumers",
    "exchanges",
    "queues",
    "queues?page=1&page_size=100&sort=messages&sort_reverse=true",
    f"queues/%2F/{FULL}",
    f"queues/%2F/{FULL}/in-flight",
    f"queues/%2F/{FULL}/deferred",
    "bindings",
    "vhosts",
    "users",
    "permissions",
    "definitions",
    "health/checks/alarms",
)
_SHOWN = (
    "session",
    "overview",
    "queues",
    "history?range=fine",
    "history?range=coarse",
    f"queues/%2F/{FULL}",
    "dead-letters",
    "topology?vhost=%2F",
    "audit",
    "jobs",
    "stream",
)


def _get(count: int) -> dict[str, Any]:
    return {"count": count, "ackmode": "ack_requeue_true", "encoding": "auto", "truncate": 65_536}


def _published() -> dict[str, Any]:
    payload = {"payload": _BODY.decode(), "payload_encoding": "string"}
    return {"properties": {}, "routing_key": FULL, **payload}


class Client:
    """An HTTP client for a separate thread: in the event loop it would be measured, too."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.headers = {"Content-Type": "application/json"}
        self.headers["Authorization"] = "Basic Z3Vlc3Q6Z3Vlc3Q="  # guest:guest

    def log_in(self) -> None:
        """Log in to the dashboard."""
        connection = self._connection()
        body = json.dumps({"user": "guest", "password": "guest"})
        connection.request("POST", "/ui/login", body, self.headers)
        response = connection.getresponse()
        self.headers["X-CSRF-Token"] = json.loads(response.read())["csrf"]
        self.headers["Cookie"] = str(response.headers["Set-Cookie"]).partition(";")[0]
        connection.close()

    def ask(self, asked: Request) -> tuple[int, bytes]:
        """Status and body; for the event stream, its first events."""
        connection = self._connection()
        body = None if asked.body is None else json.dumps(asked.body)
        if body is None and asked.method != "GET":
            body = "{}"
        connection.request(asked.method, asked.path, body, self.headers)
        response = connection.getresponse()
        if asked.path.endswith("/stream"):
            lines = iter(response.readline, b"event: heartbeat\n")
            read = b"".join(lines)
        else:
            read = response.read()
        connection.close()
        return response.status, read

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)


async def fill(url: str, client: Client, queues: int, messages: int) -> None:
    """Declare queues; put half of the messages into one, a quarter into dead letters, the rest
    evenly into the others."""
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
    names = [f"work.{number:04}" for number in range(queues)]
    objects = [
        {"name": name, "vhost": "/", "durable": True, "arguments": {} if name == DEAD else dead}
        for name in (FULL, DEAD, *names)
    ]
    bindings = [
        {
            "source": "amq.topic",
            "vhost": "/",
            "destination": name,
            "destination_type": "queue",
            "routing_key": f"{name}.#",
            "arguments": {},
        }
        for name in names
    ]
    definitions = Request("POST", "/api/definitions", {"queues": objects, "bindings": bindings})
    status, told = await asyncio.to_thread(client.ask, definitions)
    assert status < 300, told
    link = await NetworkConnector(url, vhost="/").connect(timeout=10)
    channel = await link.open_channel(confirm=True)
    targets = [FULL, DEAD, FULL, *names]
    for first in range(0, messages, _BATCH):
        batch = []
        for number in range(first, min(first + _BATCH, messages)):
            to = targets[number % 4] if number % 4 < 3 else names[number // 4 % queues]
            headers = _DIED if to == DEAD else None
            properties = Properties(headers=headers, message_id=str(number), delivery_mode=2)
            batch.append(Outgoing("", to, _BODY, properties))
        await channel.publish(batch)
    await channel.close()
    await link.close()


async def measure(queues: int, messages: int, file: Path | None, *, why: bool, only: str) -> None:
    """Print a row for each request, with its longest hold, duration and size of the answer."""
    holds = Holds(samples=why)
    async with served_node(file=file) as served:
        url = f"amqp://guest:guest@127.0.0.1:{served.amqp_port}/"
        client = Client(httpx.URL(served.url).port or 0)
        await asyncio.to_thread(client.log_in)
        await fill(url, client, queues, messages)
        collect_less()
        with holds.watched():
            await asyncio.sleep(6)  # a sample of the dashboard
            _print(holds, Request("-", "(a sample of the dashboard)"), 0.0, 0)
            for asked in requests_of(queues):
                if only not in asked.path:
                    continue
                holds.forget()
                began = time.perf_counter()
                status, read = await asyncio.to_thread(client.ask, asked)
                took = time.perf_counter() - began
                assert status < 400, (asked, status, read[:300])
                if status == 202:
                    await _ended(client, json.loads(read)["id"])
                    took = time.perf_counter() - began
                _print(holds, asked, took, len(read))


def _print(holds: Holds, asked: Request, took: float, size: int) -> None:
    row = f"{holds.row()} {took * 1000:8.0f} {size:10,}  {asked.method} {asked.path}"
    print(f"{row}{holds.mark()}", flush=True)


async def _ended(client: Client, job: str) -> None:
    while True:
        _, read = await asyncio.to_thread(client.ask, Request("GET", f"/ui/jobs/{job}"))
        if json.loads(read)["state"] != "running":
            return
        await asyncio.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--queues", type=int, default=1_000)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--on", choices=("memory", "file"), default="memory")
    parser.add_argument("--only", default="", help="a part of the paths that are asked for")
    parser.add_argument("--why", action="store_true", help="what the longest callback did")
    options = parser.parse_args()
    print(facts())
    print(f"{options.queues:,} queues, {options.messages:,} messages, {options.on}\n")
    print(f"{HEADINGS} {'took ms':>8} {'bytes':>10}  request")
    with tempfile.TemporaryDirectory() as folder:
        file = None if options.on == "memory" else Path(folder) / "node.db"
        measured = measure(
            options.queues, options.messages, file, why=options.why, only=options.only
        )
        asyncio.run(measured)


if __name__ == "__main__":
    main()
